"""A `libnvidia-ml.so.1` in C, which pynvml loads like the real one, and nodes' GPUs in a file."""

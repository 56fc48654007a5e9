"""NCCL's checkpoint shim and a communicator, in C, for ranks on CPU."""

"""A GPU and its driver for machines without: memory that is really elsewhere and really lost.

* `daemon` holds the memory of a node's devices, by UUID, in a process of its own.
* `device` is what a rank uses: a connection to the daemon and an open device file while it works,
  and the thread that gives the memory up, and takes it back, when the driver says so.
* `libcuda.c` is the driver: a `libcuda.so.1` with the calls that checkpoint a process. The
  real `cuda-bindings` load it. `cuda_checkpoint.c` is the program in front of it.
* `build` compiles both.

The driver reaches a rank as the real one does, from outside and by pid: through a page of its
memory (`layout.h`), which is saved and restored with the rank.
"""

"""A GPU and its driver for machines without: memory that is really elsewhere and really lost.

* `device` is what a rank uses: an open device file and memory outside of the process while it
  works, and the thread that gives both up, and takes them back, when the driver says so. Device
  memory is below a folder of the node's; it is gone when its rank is.
* `libcuda.c` is the driver: a `libcuda.so.1` with the calls that checkpoint a process. The
  real `cuda-bindings` load it. `cuda_checkpoint.c` is the program in front of it.
* `build` compiles both.

The driver reaches a rank as the real one does, from outside and by pid: through a page of its
memory (`layout.h`), which is saved and restored with the rank.
"""

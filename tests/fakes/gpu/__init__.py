"""A GPU and its driver for machines without: memory that is really elsewhere and really lost.

* `daemon` has the device memory of a node, and drops what a process had when it closes its device.
* `device` is what a rank uses: while it works, an open device file and a connection to the daemon,
  which CRIU refuses to dump; and the thread that gives both up, and takes them back, when the
  driver says so.
* `libcuda.c` is the driver: a `libcuda.so.1` with the calls that checkpoint a process. The
  real `cuda-bindings` load it. `cuda_checkpoint.c` is the program in front of it.
* `said.json` is what both say; `build` compiles them with it.

The driver reaches a rank as the real one does, from outside and by pid: through a page of its
memory (`layout.h`), which is saved and restored with the rank.
"""

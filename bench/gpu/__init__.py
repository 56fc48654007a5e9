"""`make bench-gpu`: what device memory costs a checkpoint; and the ranks that tests on a GPU use.

* `rank` uses a device by the driver API, `torch_rank` trains on one; both do as they are told, a
  line at a time, which `serving` reads. `train` is a job for torchrun. None knows of allstop.
* `ranks` starts such ranks below one root and takes them through the steps of a checkpoint.
* `measuring` times these steps, `comparing` a whole job's by allstop and by hand (`bare`).
* `machine` says what there is here; `python -m bench.gpu` measures all and writes it to a file.
"""

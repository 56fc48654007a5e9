"""The ranks of the stand-in for NCCL, each with a device as well.

    sums.py WORKER ROOT SHARED

The ranks are those of nccl/programs, a folder that SUMS_RANKS names; devices are as for `pair.py`.
"""

import os
import sys

sys.path[:0] = [os.environ["PAIR_FAKES"], os.environ["SUMS_RANKS"]]


def main() -> None:
    """Be the launcher, or one of its ranks."""
    import ranks
    from device import Gpu

    if "RANK" not in os.environ:
        sys.exit(ranks.launch(int(sys.argv[1])))
    gpu = Gpu(os.environ["PAIR_GPU"], os.environ["PAIR_UUIDS"].split(",")[local_rank()])
    gpu.write("weights", os.urandom(1 << 20))
    ranks.run(int(os.environ["RANK"]), *sys.argv[2:])


def local_rank() -> int:
    return int(os.environ["LOCAL_RANK"])


if __name__ == "__main__":
    main()

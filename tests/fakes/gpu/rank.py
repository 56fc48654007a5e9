"""A process that uses a device as it is told, a line at a time, and answers each with a line.

write NAME TEXT      read NAME      begin      end
fill NAME MIB        sum NAME       count NAME FILE     as `bench.gpu_rank`
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from contextlib import ExitStack

from tests.fakes.gpu.device import Gpu

LOST = b"lost"


def main(place: str, device: str) -> None:
    """Until the input ends."""
    gpu, works = Gpu(place, device), ExitStack()
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        told = "done"
        if verb == "write":
            gpu.write(words[0], words[1].encode())
        elif verb == "read":
            told = read(gpu, words[0]).decode()
        elif verb == "begin":
            works.enter_context(gpu.work())
        elif verb == "end":
            works.close()
        elif verb == "fill":
            gpu.write(words[0], random.Random(words[0]).randbytes(1 << 20) * int(words[1]))
        elif verb == "sum":
            told = hashlib.sha256(gpu.read(words[0])).hexdigest()
        elif verb == "count":
            count(gpu, words[0], words[1])
        print(told, flush=True)


def read(gpu: Gpu, name: str) -> bytes:
    """What device memory has under the name; `lost` where it is not there."""
    try:
        return gpu.read(name)
    except LookupError:
        return LOST


def count(gpu: Gpu, name: str, path: str) -> None:
    """Until the process is killed."""
    while True:
        there = read(gpu, name)
        told = hashlib.sha256(there).hexdigest() if there != LOST else there.decode()
        with open(path, "a") as file:
            file.write(told + "\n")
        time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A process that uses a device as it is told, a line at a time, and answers each with a line.

write NAME TEXT      read NAME      fill NAME MIB      begin      end
"""

from __future__ import annotations

import random
import sys
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
        print(told, flush=True)


def read(gpu: Gpu, name: str) -> bytes:
    """What device memory has under the name; `lost` where it is not there."""
    try:
        return gpu.read(name)
    except LookupError:
        return LOST


if __name__ == "__main__":
    main(*sys.argv[1:])

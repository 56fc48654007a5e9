"""A process that uses a device as it is told, a line at a time, and answers each with a line.

write NAME TEXT      read NAME      begin      end
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from tests.fakes.gpu.device import Gpu


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
            told = gpu.read(words[0]).decode()
        elif verb == "begin":
            works.enter_context(gpu.work())
        elif verb == "end":
            works.close()
        print(told, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

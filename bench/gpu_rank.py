"""A process that uses a real GPU by the driver API, as it is told, a line at a time.

fill NAME MIB     allocate device memory and fill it
sum NAME          blake3 of what is there now
count NAME FILE   from now on, add the sum to the file again and again
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from blake3 import blake3
from cuda.bindings import driver


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a call; raises RuntimeError with the driver's name of what went wrong."""
    code, *values = result
    if int(code):
        raise RuntimeError(str(code))
    return values[0] if values else None


def main() -> None:
    """Until the input ends."""
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    context = checked(driver.cuDevicePrimaryCtxRetain(device))
    checked(driver.cuCtxSetCurrent(context))
    memory: dict[str, tuple[Any, int]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        told = "done"
        if verb == "fill":
            data = random.Random(words[0]).randbytes(1 << 20) * int(words[1])
            address = checked(driver.cuMemAlloc(len(data)))
            checked(driver.cuMemcpyHtoD(address, data, len(data)))
            memory[words[0]] = (address, len(data))
        elif verb == "sum":
            told = sum_of(*memory[words[0]])
        elif verb == "count":
            count(words[1], *memory[words[0]])
        print(told, flush=True)


def sum_of(address: Any, size: int) -> str:
    """Of device memory, read back."""
    back = bytearray(size)
    checked(driver.cuMemcpyDtoH(back, address, size))
    return str(blake3(back).hexdigest())


def count(path: str, address: Any, size: int) -> None:
    """Until the process is killed."""
    while True:
        with open(path, "a") as file:
            file.write(sum_of(address, size) + "\n")
        time.sleep(0.02)


if __name__ == "__main__":
    main()

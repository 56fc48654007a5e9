"""Two ranks that hold the same, each with forked helpers, as loader workers are; some memory moves.

    replicas.py OUT

OUT gets a line whenever the first rank has changed a little of its memory.
"""

import os
import random
import sys
import time

SAME_BYTES = 24 << 20
OWN_BYTES = 2 << 20


def helper() -> None:
    while True:
        time.sleep(0.05)


def rank(number: int, out: str) -> None:
    same = random.Random(1).randbytes(SAME_BYTES)
    own = bytearray(random.Random(100 + number).randbytes(OWN_BYTES))
    zeros = bytearray(8 << 20)
    for _ in range(2):
        if not os.fork():
            helper()
    step = 0
    while True:
        at = step * 4096 % OWN_BYTES
        own[at : at + 4096] = random.Random(step).randbytes(4096)
        if number == 0:
            with open(out, "a") as file:
                file.write(f"{step} {len(same) + len(zeros)}\n")
        step += 1
        time.sleep(0.01)


if not os.fork():
    rank(1, sys.argv[1])
rank(0, sys.argv[1])

"""Puts out one line after another, each with a number; every third one to stderr."""

import itertools
import sys
import time

for number in itertools.count():
    out = sys.stderr if number % 3 == 2 else sys.stdout
    print(f"tick {number}", file=out, flush=True)
    time.sleep(0.05)

"""Write down when allstop's network locks come and go here: `unix_ns add|delete TABLE`.

Runs in a node of the lab and ends with it. Standard library only.
"""

import subprocess
import sys
import time

monitor = subprocess.Popen(
    ["nft", "monitor", "tables"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
)
assert monitor.stdout is not None
for line in monitor.stdout:
    words = line.split()
    if len(words) >= 4 and words[1] == "table" and words[3].startswith("allstop"):
        sys.stdout.write(f"{time.time_ns()} {words[0]} {words[3]}\n")
        sys.stdout.flush()

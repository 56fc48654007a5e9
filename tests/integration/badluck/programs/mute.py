"""Two ranks of which one takes steps and the other never loads the hook: `mute.py`."""

import os
import subprocess
import sys
import time

STEP_S = 0.02


def main() -> None:
    """Without RANK start both; as rank 0 step for ever; as rank 1 only live."""
    if "RANK" not in os.environ:
        for rank in ("0", "1"):
            env = {**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            subprocess.Popen([sys.executable, __file__], env=env)
        while True:
            time.sleep(60)
    if os.environ["RANK"] == "1":
        while True:
            time.sleep(60)
    from worker_shim.hook import step

    while True:
        time.sleep(STEP_S)
        step()


if __name__ == "__main__":
    main()

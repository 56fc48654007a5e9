"""Holds an io_uring and says its pid and descriptor: for a worker that may not make one."""

import sys
import time

from pair import make_io_uring, os

fd = make_io_uring()
sys.stdout.write(f"{os.getpid()}:{fd}\n" if fd >= 0 else f"error {-fd}\n")
sys.stdout.flush()
time.sleep(600)

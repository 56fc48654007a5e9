"""Bare CRIU, run inside a host of a lab: the floor that allstop's dump and restore stand on.

    python -m bench.bare dump ROOT_PID DIRECTORY
    python -m bench.bare restore STORE PLACE DIGEST DIRECTORY

Both get ready, print `ready`, wait for a line on stdin (so that all hosts start together), run criu
alone and print how many milliseconds its process took. `restore` makes everything that the images
need beforehand: files, control page, hook; nothing of that is in the time. It then does the same
with the end of what it has restored: `ready`, SIGKILL to all of it, `took` until the pids are free.
That is the floor of what a restore over a running job has to do first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from worker_shim.agent.build import HookFiles
from worker_shim.criu.binary import clean_environment, find_criu
from worker_shim.criu.images import read_facts
from worker_shim.files.driver import LinuxFileDriver
from worker_shim.images.opening import open_store
from worker_shim.images.staging import FILES, IMAGES

FETCH_S_MAX = 120.0
CRIU_S_MAX = 300.0
END_POLL_S = 0.001
OPTIONS = ("--tcp-established", "--file-locks", "--ext-unix-sk", "--manage-cgroups=ignore", "-v2")
LOCK = """table inet bench {
  chain input {
    type filter hook input priority -200
    iifname "eth0" meta l4proto tcp drop
  }
}
"""


def timed(*arguments: str, directory: Path) -> float:
    """Run criu when told to; returns milliseconds. Raises SystemExit with its words."""
    line = [str(find_criu()), *arguments, *OPTIONS, "--images-dir", str(directory)]
    line += ["--log-file", "bare.log", "--no-default-config"]
    warm_up()
    wait_for_the_others()
    began = time.perf_counter()
    done = subprocess.run(line, env=clean_environment(), cwd=directory, timeout=CRIU_S_MAX)
    took_ms = (time.perf_counter() - began) * 1000
    if done.returncode != 0:
        words = (directory / "bare.log").read_text(errors="replace")[-2000:]
        raise SystemExit(f"criu gave {done.returncode}: {words}")
    return took_ms


def warm_up() -> None:
    """Have CRIU's self-tests done, which it keeps in /run."""
    line = [str(find_criu()), "check", "--no-default-config"]
    subprocess.run(line, env=clean_environment(), capture_output=True, timeout=CRIU_S_MAX)


def wait_for_the_others() -> None:
    """Say that this host is ready, and wait until it is told to begin."""
    print("ready", flush=True)
    sys.stdin.readline()


def tell(took_ms: float) -> None:
    """The measured time."""
    print(f"took {took_ms:.1f}", flush=True)


def end(pids: Iterable[int]) -> float:
    """`end_now`, when told to; milliseconds."""
    wait_for_the_others()
    began = time.perf_counter()
    end_now(pids)
    return (time.perf_counter() - began) * 1000


def end_now(pids: Iterable[int]) -> None:
    """SIGKILL these processes, all at once, and wait until init has reaped them."""
    left = list(pids)
    began = time.perf_counter()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while left := [pid for pid in left if Path(f"/proc/{pid}").exists()]:
        if time.perf_counter() - began > CRIU_S_MAX:
            raise SystemExit(f"processes {left} do not end")
        time.sleep(END_POLL_S)


def dump(root_pid: str, directory: Path) -> float:
    """The same tree into an empty directory, by one criu, which lets it go on."""
    directory.mkdir(parents=True)
    return timed(
        *("dump", "--tree", root_pid, "--leave-running", "--network-lock", "nftables"),
        *("--link-remap", "--ghost-limit", "512M"),
        directory=directory,
    )


def restore(store: Path, place: str, digest: str, directory: Path) -> None:
    """The images of one worker, in a host where nothing of the job is left; then its end."""
    lay_out(store, place, digest, directory)
    tell(timed("restore", "--restore-detached", directory=directory / IMAGES))
    tell(end(read_facts(directory / IMAGES).pids))


def lay_out(store: Path, place: str, digest: str, directory: Path) -> None:
    """The images of one worker in a directory, and around it what they need to be restored."""
    directory.mkdir(parents=True)
    manifest = asyncio.run(
        open_store(str(store)).fetch(
            place, digest, directory, progress=lambda done, total: None, deadline_s=FETCH_S_MAX
        )
    )
    run_directory = Path(manifest.run_directory)
    run_directory.mkdir(parents=True, exist_ok=True)
    LinuxFileDriver().roll_back(manifest.open_files, directory / FILES, label="bench")
    HookFiles().renew(run_directory, manifest.page, manifest.slots)
    subprocess.run(["nft", "-f", "-"], input=LOCK, text=True, check=True, timeout=CRIU_S_MAX)


def main() -> None:
    """Do what the command line says."""
    verb, *rest = sys.argv[1:]
    if verb == "dump":
        tell(dump(rest[0], Path(rest[1])))
    else:
        restore(Path(rest[0]), rest[1], rest[2], Path(rest[3]))


if __name__ == "__main__":
    main()

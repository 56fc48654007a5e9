"""The process driver against real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from worker_shim.process import proc
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.port import LaunchSpec

pytestmark = pytest.mark.root

Start = Callable[..., "asyncio.Future[int]"]

TELL = """
import ctypes, json, os, signal, sys
fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
       if os.path.exists(f"/proc/self/fd/{fd}")}
libc = ctypes.CDLL(None, use_errno=True)
answers = []
for number in (424, 425, 426, 427):
    ctypes.set_errno(0)
    libc.syscall(number, 0, 0, 0, 0, 0, 0)
    answers.append(ctypes.get_errno())
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"fds": fds, "errno": answers, "sid": os.getsid(0), "pid": os.getpid(),
    "cwd": os.getcwd(), "env": dict(os.environ), "blocked": int(status["SigBlk"], 16)}))
sys.exit(7)
"""


@pytest.fixture
async def driver() -> AsyncIterator[LinuxProcessDriver]:
    driver = LinuxProcessDriver()
    yield driver
    for root in driver.known_roots():
        await driver.kill(root, deadline_s=10)


def spec(tmp_path: Path, *argv: str, **env: str) -> LaunchSpec:
    return LaunchSpec(
        argv=argv,
        env={"PATH": os.environ["PATH"], **env},
        cwd=tmp_path,
        log=tmp_path / "log",
    )


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true within 10 s")


async def shell(driver: LinuxProcessDriver, tmp_path: Path, script: str, processes: int) -> int:
    """Start a shell script and wait until its tree has so many processes."""
    root = await driver.launch(spec(tmp_path, "sh", "-c", script), deadline_s=10)
    await until(lambda: len(driver.look(root).processes) == processes)
    return root


async def test_a_worker_starts_clean(driver: LinuxProcessDriver, tmp_path: Path) -> None:
    held = os.open("/", os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        root = await driver.launch(spec(tmp_path, sys.executable, "-c", TELL, A="b"), deadline_s=10)
    finally:
        os.close(held)
    assert await driver.wait(root) == 7
    told = json.loads((tmp_path / "log").read_text())
    log = str(tmp_path / "log")
    assert told["fds"] == {"0": "/dev/null", "1": log, "2": log}
    assert told["errno"][1:] == [38, 38, 38], "io_uring_setup, enter, register answer ENOSYS"
    assert told["errno"][0] != 38, "the system call beside them is left alone"
    assert told["sid"] == told["pid"] == root
    assert told["cwd"] == str(tmp_path)
    assert told["env"]["A"] == "b"
    assert told["blocked"] == 0


async def test_the_shims_own_ignored_signals_are_not_inherited(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    root = await driver.launch(spec(tmp_path, "grep", "SigIgn", "/proc/self/status"), deadline_s=10)
    assert await driver.wait(root) == 0
    ignored = int((tmp_path / "log").read_text().split()[1], 16)
    assert ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"argv": ("no-such-torchrun", "x")}, "program no-such-torchrun: No such file"),
        ({"argv": ("/etc/passwd",)}, "program /etc/passwd: Permission denied"),
        ({"cwd": Path("/no/such/place")}, "working directory /no/such/place: No such file"),
        ({"log": Path("/no/such/log")}, "log /no/such/log: No such file"),
    ],
)
async def test_what_cannot_start_is_named(
    driver: LinuxProcessDriver, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    whole = {"argv": ("true",), "env": dict(os.environ), "cwd": tmp_path, "log": tmp_path / "log"}
    before = proc.children(os.getpid())
    with pytest.raises(DriverError, match=words) as caught:
        await driver.launch(LaunchSpec(**{**whole, **change}), deadline_s=10)  # type: ignore[arg-type]
    assert caught.value.definite
    assert caught.value.advice
    assert proc.children(os.getpid()) == before, "nothing is left running"


async def test_a_missing_interpreter_is_what_is_named(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    script = tmp_path / "train"
    script.write_text("#!/no/such/python -u\n")
    script.chmod(0o755)
    with pytest.raises(DriverError, match="program /no/such/python: No such file"):
        await driver.launch(spec(tmp_path, str(script)), deadline_s=10)


async def test_the_tree_is_seen_with_ranks_and_threads(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    program = (
        "import os, subprocess, sys, threading, time\n"
        "if len(sys.argv) > 1:\n"
        "    threading.Thread(target=time.sleep, args=(300,)).start()\n"
        "    time.sleep(300)\n"
        "for rank in '5', '6':\n"
        "    subprocess.Popen([sys.executable, __file__, 'rank'],\n"
        "                     env={'RANK': rank, 'LOCAL_RANK': str(int(rank) - 5)})\n"
        "time.sleep(300)\n"
    )
    (tmp_path / "tree.py").write_text(program)
    root = await driver.launch(
        spec(tmp_path, sys.executable, str(tmp_path / "tree.py")), deadline_s=10
    )
    await until(lambda: sum(len(p.threads) for p in driver.look(root).processes) == 5)
    tree = driver.look(root)
    assert tree.pids[0] == root
    assert [p.rank for p in tree.processes] == [-1, 5, 6]
    assert [p.local_rank for p in tree.processes] == [-1, 0, 1]
    assert all(p.rss_bytes > 1 << 20 for p in tree.processes)
    assert tree.processes[1].argv[-1] == "rank"
    assert tree.processes[1].parent == root


async def test_sigterm_goes_to_the_group_of_the_root(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    root = await shell(driver, tmp_path, "sleep 300 & wait", 2)
    child = driver.look(root).processes[1]
    driver.terminate(root)
    assert await driver.wait(root) == -signal.SIGTERM
    await until(lambda: proc.read_stat(child.pid) is None or not driver.look(child.pid).living)
    driver.terminate(root)  # gone: no error


async def test_stop_and_go_on(driver: LinuxProcessDriver, tmp_path: Path) -> None:
    root = await shell(driver, tmp_path, "sh -c 'sleep 300 & sleep 301; true' & wait", 4)
    tree = await driver.stop(root, deadline_s=10)
    assert {p.state for p in tree.processes} == {"T"}
    assert len(tree.processes) == 4
    await driver.go_on(root)
    await until(lambda: all(p.state == "S" for p in driver.look(root).processes))
    await driver.kill(root, deadline_s=10)
    assert driver.look(root).processes == ()


async def test_a_tree_that_keeps_forking_is_stopped_whole(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    root = await driver.launch(
        spec(tmp_path, "sh", "-c", "while :; do sleep 0.01 & sleep 0.002; done"), deadline_s=10
    )
    await until(lambda: len(driver.look(root).processes) > 2)
    for _ in range(20):
        tree = await driver.stop(root, deadline_s=10)
        assert driver.look(root).pids == tree.pids
        assert {p.state for p in driver.look(root).processes} <= {"T", "Z"}
        await driver.go_on(root)
    await driver.kill(root, deadline_s=10)


async def test_orphans_stay_in_the_tree_and_die_with_it(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    script = "(setsid sleep 300 & echo $! > it; mv it orphan); sleep 301; true"
    root = await shell(driver, tmp_path, script, 3)
    await until((tmp_path / "orphan").exists)
    orphan = int((tmp_path / "orphan").read_text())
    assert orphan in driver.look(root).pids
    waiting = asyncio.ensure_future(driver.wait(root))
    await asyncio.sleep(0)
    await driver.kill(root, deadline_s=10)
    assert proc.read_stat(orphan) is None
    assert await waiting == -signal.SIGKILL


async def test_what_a_dead_root_left_behind_is_killed(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    root = await shell(driver, tmp_path, "sleep 300 & sleep 301; true", 3)
    left = driver.look(root).pids[1:]
    os.kill(root, signal.SIGKILL)
    assert await driver.wait(root) == -signal.SIGKILL
    await driver.kill(root, deadline_s=10)
    assert [proc.read_stat(pid) for pid in left] == [None, None]


async def test_what_outlives_its_root_is_ended_and_reaped(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    """One that runs, and one that has ended as an orphan of ours, which nobody would collect."""
    root = await shell(driver, tmp_path, "sleep 300 & sleep 301; true", 3)
    left = driver.look(root).pids[1:]
    await driver.stop(root, deadline_s=10)
    os.kill(root, signal.SIGKILL)
    assert await driver.wait(root) == -signal.SIGKILL
    await driver.go_on(root)
    assert driver.left(root).pids == left
    assert not [pid for pid in left if proc.first_moving_task(pid) is None]
    os.kill(left[0], signal.SIGKILL)
    await driver.end_left(root, deadline_s=10)
    assert [proc.read_stat(pid) for pid in left] == [None, None]
    await driver.end_left(root, deadline_s=1)


async def test_exit_codes(driver: LinuxProcessDriver, tmp_path: Path) -> None:
    for script, code in (("exit 0", 0), ("exit 13", 13), ("kill -ABRT $$", -signal.SIGABRT)):
        root = await driver.launch(spec(tmp_path, "sh", "-c", script), deadline_s=10)
        first, second = await asyncio.gather(driver.wait(root), driver.wait(root))
        assert first == second == code
    for stranger in (os.getppid(), 999_999_999):
        with pytest.raises(DriverError, match="is not a child of this shim"):
            await asyncio.wait_for(driver.wait(stranger), 5)


async def test_killing_what_is_gone_is_no_error(driver: LinuxProcessDriver, tmp_path: Path) -> None:
    root = await driver.launch(spec(tmp_path, "true"), deadline_s=10)
    await driver.wait(root)
    await driver.kill(root, deadline_s=1)
    await driver.go_on(root)
    with pytest.raises(DriverError, match="is gone"):
        await driver.stop(root, deadline_s=1)


async def test_an_exit_during_kill_is_kept_for_a_later_wait(
    driver: LinuxProcessDriver, tmp_path: Path
) -> None:
    root = await shell(driver, tmp_path, "sleep 300; true", 2)
    await driver.kill(root, deadline_s=10)
    assert await driver.wait(root) == -signal.SIGKILL

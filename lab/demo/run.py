"""Set the stage for the demo, play it, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from coordinator.core.errors import AllstopError, BadRequest, SetupError
from lab.cluster import Lab
from lab.demo.options import JOB, DemoOptions
from lab.demo.report import DemoReport
from lab.demo.stage import LabStage
from lab.demo.story import Say, Story
from lab.errors import LabError, LabUnavailable
from lab.memory import free_memory_bytes, in_memory

T = TypeVar("T")

MEMORY_MIN_BYTES = 10 << 30  # the job, its images twice, and some


def run_demo(options: DemoOptions, say: Say, tell: Callable[[DemoReport], None]) -> None:
    """Play the demo and `tell` what was measured; blocks for a minute or two.

    Raises SetupError where this machine cannot play it, AllstopError when the story went wrong.
    Nothing is left behind, also on Ctrl-C and SIGTERM: every process, namespace, link and mount
    lives below the lab's control host, which ends with this process.
    """
    if not options.spare:
        raise BadRequest("the demo needs a node for the lost worker", advice="--spares 1")
    with interruptible() as interruption, directory() as root:
        try:
            names = [*options.busy, *options.spare]
            with Lab(root / "lab", names, private=own_directories(root)) as lab:
                stage = LabStage(options, lab, root)
                story = Story(options, stage, say)
                story.start()
                played = asyncio.run(interruption.obeyed_by(story.play()))
                say("the same command again, undisturbed and without allstop, to compare")
                tell(story.report(played, stage.undisturbed()))
                if options.keep:
                    keep(stage, say)
        except LabUnavailable as missing:
            raise SetupError(str(missing), advice="run as root on Linux: `make demo`") from missing
        except LabError as failed:
            raise AllstopError(str(failed)) from failed


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A private directory for everything the demo writes; removed at the end.

    ALLSTOP_DEMO_DIRECTORY says where it is made (default: /var/tmp).
    """
    parent = os.environ.get("ALLSTOP_DEMO_DIRECTORY") or "/var/tmp"
    root = Path(tempfile.mkdtemp(prefix="allstop-demo-", dir=parent))
    try:
        with fast_store(root / "store"):
            yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def fast_store(place: Path) -> Iterator[None]:
    """The demo's shared file system: in memory where there is plenty, else on the disk.

    A slow disk would only make the story longer: the job trains on while images are stored.
    """
    place.mkdir()
    if free_memory_bytes() < MEMORY_MIN_BYTES:
        yield
        return
    with in_memory(place, free_memory_bytes() // 2):
        yield


def own_directories(root: Path) -> tuple[str, ...]:
    """What each node has for itself beside /run and /dev/shm: /tmp, as on real machines.

    Unless the demo's directory, this very program or its Python lies there.
    """
    places = (root, Path(__file__), Path(sys.prefix), Path(sys.executable))
    needed = [place.resolve() for place in places]
    return () if any(path.is_relative_to("/tmp") for path in needed) else ("/tmp",)


class Interruption:
    """What a signal interrupts: the event loop's task while there is one, else the main thread."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self._come = False

    async def obeyed_by(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; an interruption cancels it, and raises KeyboardInterrupt when it has ended.

        Also where it ends otherwise than by that, as when something it was at is gone meanwhile.
        Nothing is raised into the callback that happens to run: a library's would swallow it.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            done = await work
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        except Exception as error:
            if self._come:
                raise KeyboardInterrupt from error
            raise
        finally:
            self._cancel = None
        if self._come:
            raise KeyboardInterrupt
        return done

    def interrupt(self) -> None:
        """Called by a signal's handler."""
        self._come = True
        if self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Treat SIGTERM and SIGHUP as Ctrl-C; the first is obeyed, and the clean-up not disturbed."""
    interruption = Interruption()

    def interrupt(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        interruption.interrupt()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, interrupt)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep(stage: LabStage, say: Say) -> None:
    """Leave the cluster up to explore until Ctrl-C."""
    program = Path(sys.executable).with_name("allstop")
    say("the cluster stays up; in another terminal:")
    say(f"  export ALLSTOP_COORDINATOR={stage.deployment.socket}")
    for verb in ("jobs", "nodes", f"snapshots {JOB}"):
        say(f"  {program} {verb}")
    for host in stage.lab.hosts.values():
        if host.alive:
            say(f"  nsenter -t {host.init_pid} -a    # a shell on {host.name}")
    say("Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()

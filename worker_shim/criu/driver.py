"""The image driver: CRIU as a program with its own process group, deadline and log.

Why each option is there: design/adr/0002-criu-images.md.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from coordinator.core.errors import AllstopError, DriverError
from coordinator.core.model import Endpoint
from worker_shim.criu import addresses, images, tasks
from worker_shim.criu.binary import clean_environment, criu_version, find_criu, keeps_self_tests
from worker_shim.criu.causes import details, error_lines, recognise
from worker_shim.criu.giving_up import REFUSABLE, run_or_give_up, time_for_criu
from worker_shim.criu.port import DumpStats, ImageFacts, NamedFile
from worker_shim.criu.remaps import make_remaps, save_remaps, saved_remaps
from worker_shim.criu.turns import Turns, has_links
from worker_shim.network.port import Sockets
from worker_shim.process.runner import Commands, Finished, signal_name

log = structlog.get_logger(__name__)

DUMP_LOG, RESTORE_LOG = "dump.log", "restore.log"
NO_PLUGINS = "no-plugins"
GHOST_LIMIT = "512M"  # CRIU's own default is 1 MiB; a DataLoader's shared memory is more
WARM_UP_S = 20.0
CLEAN_UP_S = 5.0
KILL_S = 30.0
STOPPED_S = 5.0

# Both ways. Cgroups are the node's business: the tree is restored into the shim's.
COMMON = ("--tcp-established", "--file-locks", "--ext-unix-sk", "--manage-cgroups=ignore", "-v2")
DUMPING = (
    *("--leave-running", "--network-lock", "skip"),
    *("--link-remap", "--ghost-limit", GHOST_LIMIT),
)
RESTORING = ("--restore-detached", "--restore-sibling")


class CriuDriver:
    """CRIU >= 4.2 behind `ImageDriver`. Holds its path, its version, and whose turn it is."""

    def __init__(
        self, commands: Commands, *, program: str | Path | None = None, at_once: int = 0
    ) -> None:
        """`program` is looked up at the first use: given, `ALLSTOP_CRIU`, or on the PATH.

        `at_once` trees may be dumped or restored in parallel; 0: one for each core.
        """
        self._commands = commands
        self._turns = Turns(at_once)
        self._wanted = program
        self._program: Path | None = None
        self._version = ""

    async def version(self) -> str:
        """The version, such as `4.2.1`; raises SetupError when there is no usable CRIU (>= 4.2)."""
        if self._program is not None and not os.access(self._program, os.X_OK):
            self._version = ""  # it was there when last asked for; perhaps another is there now
        if not self._version:
            program = find_criu(self._wanted)
            self._version = await criu_version(self._commands, program)
            self._program = program
            if not keeps_self_tests():
                log.warning(
                    "/run is no tmpfs, so CRIU repeats its self-tests at every start",
                    advice="mount a tmpfs on /run",
                )
        return self._version

    async def warm_up(self) -> None:
        """Have CRIU test the kernel now; it keeps the results in /run/criu.kdat.

        Never raises: what is wrong comes up again, with its cause, at the first dump.
        """
        try:
            await self.version()
            line = [str(self._program), "check", "--no-default-config"]
            environment = clean_environment()
            await self._commands.run(line, deadline_s=WARM_UP_S, env=environment, cwd="/")
        except AllstopError as error:
            log.warning("criu could not test the kernel", why=str(error))

    async def dump(self, root_pid: int, into: Path, *, deadline_s: float) -> DumpStats:
        """Write a stopped tree to the empty directory `into`; the tree stays stopped and alive.

        Raises DriverError with the recognised cause and CRIU's error lines in `details`; the tree
        is then as before (a killed CRIU's sockets are taken out of repair mode) and the directory
        may hold rubbish.
        """
        until = time.monotonic() + deadline_s
        _require_empty(into)
        pids = _tree(root_pid)
        where = f"process {root_pid}"
        links = await asyncio.to_thread(has_links, pids)
        async with self._turns.turn(links=links, until=until) as left_s:
            collecting_s = str(max(1, math.ceil(left_s)))
            line = ("dump", "--tree", str(root_pid), *DUMPING, "--timeout", collecting_s)
            try:
                # The runner would kill CRIU; it must not come to that while CRIU holds the tree.
                run = self._criu(line, into, DUMP_LOG, until + KILL_S, wrapper=REFUSABLE)
                finished = await run_or_give_up(
                    run, str(into), pids, deadline_s=time_for_criu(left_s)
                )
                if finished.exit_code != 0:
                    raise _failure("dump", where, finished, into / DUMP_LOG)
                _require_no_plugins(into)
                save_remaps(into, pids)
            except BaseException as error:
                _add_log(error, into / DUMP_LOG)
                raise
        frozen_us, pages = images.read_dump_stats(into)
        return DumpStats(finished.took_ms, frozen_us // 1000, pages, _bytes_in(into))

    async def restore(self, source: Path, *, deadline_s: float) -> int:
        """Bring the tree back as a child of this process, every task stopped; return its root pid.

        Raises DriverError as `dump` does; what CRIU had forked is then ended and reaped.
        """
        until = time.monotonic() + deadline_s
        facts = images.read_facts(source)
        before = tasks.start_ticks(facts.pids)
        where = f"images of process {facts.root_pid}"
        try:
            async with self._turns.turn(links=saved_remaps(source), until=until):
                make_remaps(source)
                finished = await self._criu(("restore", *RESTORING), source, RESTORE_LOG, until)
            if finished.exit_code != 0:
                raise _failure("restore", where, finished, source / RESTORE_LOG)
            await _require_stopped_children(facts)
        except BaseException as error:
            await tasks.end_new(facts.pids, before, deadline_s=CLEAN_UP_S)
            _add_log(error, source / RESTORE_LOG)
            raise
        return facts.root_pid

    def facts(self, source: Path) -> ImageFacts:
        """Read pids and thread ids from the images."""
        return images.read_facts(source)

    def files(self, source: Path) -> tuple[NamedFile, ...]:
        """The files that the restore opens by name, each once."""
        return images.named_files(source)

    def sockets(self, source: Path) -> Sockets:
        """The TCP sockets as the restore will make them: what to lock and to clear before it."""
        return addresses.read_sockets(source)

    def move_addresses(
        self, source: Path, moves: Mapping[str, str], *, close: Sequence[Endpoint] = ()
    ) -> int:
        """Rewrite every inet socket's addresses by `moves` (old to new), in place, atomically.

        Connections in `close` (addresses as dumped) come back closed. Every call starts from
        the sockets as they were dumped. Returns how many sockets changed.
        """
        return addresses.move_addresses(source, moves, close=close)

    async def _criu(
        self,
        arguments: Sequence[str],
        directory: Path,
        log_name: str,
        until: float,
        *,
        wrapper: Sequence[str] = (),
    ) -> Finished:
        """Run criu on a directory of images; the log goes there too."""
        await self.version()
        # An empty plugin directory keeps CRIU's CUDA plugin out, which would unlock GPUs by itself.
        plugins = directory / NO_PLUGINS
        plugins.mkdir(mode=0o700, exist_ok=True)
        line = [*wrapper, str(self._program), *arguments, *COMMON, "--no-default-config"]
        line += ["--images-dir", str(directory), "--libdir", str(plugins), "--log-file", log_name]
        try:
            return await self._commands.run(
                line,
                deadline_s=max(0.0, until - time.monotonic()),
                env=clean_environment(),
                cwd=directory,
            )
        finally:
            plugins.rmdir()


def _require_empty(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise DriverError(
            f"the directory for the images is not empty: {directory}",
            advice="remove what a former attempt left there",
        )


def _require_no_plugins(into: Path) -> None:
    """CRIU's own CUDA plugin locks one process after another and unlocks all at a restore."""
    if loaded := images.plugins(into):
        raise DriverError(
            f"CRIU was run with plugins: {', '.join(loaded)}",
            advice="something changes CRIU's options: no wrapper may give it a --libdir",
        )


def _tree(root_pid: int) -> tuple[int, ...]:
    """The processes of the tree, which is stopped, so that one scan is enough."""
    found = [root_pid]
    for pid in found:  # grows while it is walked
        for thread in sorted((tasks.PROC / str(pid) / "task").glob("[0-9]*")):
            try:
                found += [int(child) for child in (thread / "children").read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
    return tuple(found)


async def _require_stopped_children(facts: ImageFacts) -> None:
    """Prove what the port promises, by looking."""
    parent = tasks.parent_of(facts.root_pid)
    if parent != os.getpid():
        raise DriverError(
            f"the restored process {facts.root_pid} has parent {parent}, not this shim",
            advice="start criu as a direct child of the shim",
        )
    running = await tasks.wait_stopped(facts.pids, deadline_s=STOPPED_S)
    if running:
        raise DriverError(
            f"restored tasks are not stopped: {running}",
            advice="only trees that were stopped when dumped can be restored",
        )


def _failure(verb: str, where: str, finished: Finished, log_path: Path) -> DriverError:
    """CRIU ended by itself with an error: say why, in our words and in its own."""
    text = _read(log_path)
    found = recognise(text)
    lines = details(text, finished.stderr)
    errors = error_lines(text)
    if found is not None:
        what, advice = found.sentence, found.advice
    elif finished.exit_code < 0:
        what = f"it was killed by {signal_name(-finished.exit_code)}"
        advice = "the kernel kills for want of memory (dmesg tells), or somebody did; try again"
    else:
        what = errors[0] if errors else f"exit code {finished.exit_code}"
        advice = "CRIU's own words are in the details; its log goes with the images"
    return DriverError(f"criu cannot {verb} {where}: {what}", advice=advice, details=lines)


def _add_log(error: BaseException, log_path: Path) -> None:
    """Give an error that has no details yet (the deadline's) the end of CRIU's log."""
    if isinstance(error, AllstopError) and not error.details:
        error.details = details(_read(log_path))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _bytes_in(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())

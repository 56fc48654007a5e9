"""A single-member etcd of our own, for one machine: a child process that lives as long as we do.

It listens on unix sockets in its own directory, which only this user can enter: no port to find or
to guard. etcd takes `unix://NAME:NUMBER` as a URL and makes the socket `NAME:NUMBER` in its working
directory (seen with etcd 3.5.30).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import structlog

from coordinator.core.errors import SetupError, StoreError
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import Range

log = structlog.get_logger(__name__)

START_DEADLINE_S = 20.0
PROBE_PAUSE_S = 0.05
STOP_DEADLINE_S = 5.0
LOG_TAIL_BYTES = 2_000
CLIENT, PEER = "client:1", "peer:1"
PROGRAM_VARIABLE = "ALLSTOP_ETCD_PROGRAM"


def find_etcd(given: Path | None = None) -> Path:
    """The etcd to run: the one given, $ALLSTOP_ETCD_PROGRAM, `.tools/bin` of a checkout, or PATH.

    Raises SetupError saying how to get one.
    """
    named = given or (
        Path(os.environ[PROGRAM_VARIABLE]) if PROGRAM_VARIABLE in os.environ else None
    )
    checkout = Path(__file__).resolve().parents[2] / ".tools" / "bin" / "etcd"
    on_path = shutil.which("etcd")
    candidates = [named] if named else [checkout, *([Path(on_path)] if on_path else [])]
    for candidate in candidates:
        if candidate is not None and os.access(candidate, os.X_OK):
            return candidate
    raise SetupError(
        f"there is no etcd{f' at {named}' if named else ''}",
        advice="`make tools` fetches one, etcd-server has one, --etcd URL uses a running one",
    )


@dataclass
class EmbeddedEtcd:
    """A started etcd; `endpoint` is what the store dials."""

    process: asyncio.subprocess.Process
    directory: Path
    log_file: Path

    @property
    def endpoint(self) -> str:
        """A unix socket, as gRPC names it."""
        return f"unix:{self.directory / CLIENT}"

    async def died(self) -> StoreError:
        """Wait until etcd ends by itself, and say how."""
        code = await self.process.wait()
        return StoreError(
            f"the embedded etcd ended with {code}",
            advice=f"its log is {self.log_file}",
            details=_tail(self.log_file),
        )

    async def stop(self) -> None:
        """End it, gently first; nothing is left running. The data stays."""
        if self.process.returncode is not None:
            return
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal_number)
            try:
                async with asyncio.timeout(STOP_DEADLINE_S):
                    await self.process.wait()
                    return
            except TimeoutError:
                log.warning("etcd does not end", pid=self.process.pid, signal=signal_number)


async def start_etcd(
    directory: Path, *, program: Path | None = None, deadline_s: float = START_DEADLINE_S
) -> EmbeddedEtcd:
    """Start etcd on the data below `directory` and wait until it answers a read.

    Raises SetupError (no program, the directory in use) or StoreError (it ended or did not answer),
    with the end of etcd's log; nothing is left running then.
    """
    etcd = find_etcd(program)
    _prepare(directory)
    log_file = directory / "etcd.log"
    with log_file.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *_tied(etcd),
            *_arguments(directory),
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    started = EmbeddedEtcd(process, directory, log_file)
    try:
        await _until_healthy(started, deadline_s)
    except BaseException:
        await started.stop()
        raise
    log.info("embedded etcd runs", pid=process.pid, endpoint=started.endpoint)
    return started


def _arguments(directory: Path) -> list[str]:
    client, peer = f"unix://{CLIENT}", f"unix://{PEER}"
    return [
        "--name=embedded",
        f"--data-dir={directory / 'data'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=embedded={peer}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--log-level=warn",
    ]


def _tied(etcd: Path) -> list[str]:
    """etcd's command line, through setpriv where it exists: then it ends even if we are killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", str(etcd)] if setpriv else [str(etcd)]


def _prepare(directory: Path) -> None:
    """Make the directory; remove sockets that nobody listens on any more.

    Raises SetupError when another etcd serves this directory, or when its path is too long.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    if len(os.fsencode(directory / CLIENT)) > 107:
        raise SetupError(
            f"the path is too long for a unix socket: {directory / CLIENT}",
            advice="choose a shorter state directory",
        )
    for name in (CLIENT, PEER):
        path = directory / name
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
                continue
        raise SetupError(
            f"another etcd serves {directory} already",
            advice="another `allstop up` runs there: use it, or choose another state directory",
        )


async def _until_healthy(etcd: EmbeddedEtcd, deadline_s: float) -> None:
    kv = EtcdKeyValue(EtcdOptions((etcd.endpoint,), deadline_s=1.0, connect_s=1.0))
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                if etcd.process.returncode is not None:
                    raise await etcd.died()
                try:
                    await kv.read(Range("health"))
                    return
                except StoreError:
                    await asyncio.sleep(PROBE_PAUSE_S)
    except TimeoutError:
        raise StoreError(
            f"the embedded etcd did not answer within {deadline_s:g} s",
            advice=f"its log is {etcd.log_file}",
            details=_tail(etcd.log_file),
        ) from None
    finally:
        await kv.close()


def _tail(path: Path) -> tuple[str, ...]:
    try:
        data = path.read_bytes()[-LOG_TAIL_BYTES:]
    except OSError:
        return ()
    return tuple(data.decode(errors="replace").splitlines()[-5:])

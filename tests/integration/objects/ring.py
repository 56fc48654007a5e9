"""Rings of partners for tests: keepers as processes with certificates, and stores that use them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from coordinator.link.security import Tls, channel_credentials
from tests.support.certificates import Certificates
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.objects.partner.belonging import Belonging
from worker_shim.images.objects.partner.client import Limits, Partner
from worker_shim.images.objects.partner.keeping import Keeping
from worker_shim.images.objects.partner.ring import Member, Ring
from worker_shim.images.objects.partner.store import PartnerStore

PROGRAM = Path(__file__).with_name("programs") / "keeper.py"
ROOT = Path(__file__).resolve().parents[3]
HASTY = Limits(call_s=1.0, bytes_per_s=8 << 20, away_s=30.0)


class Keeper:
    """The keeping side of one shim, as a process that can be killed and frozen."""

    def __init__(
        self, node: str, folder: Path, tls: Tls, limit_bytes: int = 0, key: str = ""
    ) -> None:
        """`key` as hexadecimal: it opens an encrypted store, as a shim would."""
        self.node, self.folder = node, folder
        files = [str(file) for file in (tls.ca, tls.certificate, tls.key)]
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, node, folder, str(limit_bytes), *files],
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
                **({"STORE_KEY": key} if key else {}),
            },
        )
        assert self.process.stdout is not None
        self.member = Member(node, f"127.0.0.1:{int(self.process.stdout.readline())}")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kept(self) -> set[str]:
        """Names of what it has of others on its disk."""
        root = self.folder / "kept"
        found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return {str(each) for each in found if each.parts[0] not in ("partial", "store.id")}

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Nodes:
    """Keepers and stores of one test."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self.folder, self.certificates = folder, certificates
        self._ending = contextlib.ExitStack()

    def keeper(
        self, node: str, *, limit_bytes: int = 0, as_node: str = "", key: str = ""
    ) -> Keeper:
        tls = self.certificates.of("shim", as_node or node)
        keeper = Keeper(node, self.folder / node, tls, limit_bytes, key)
        self._ending.callback(keeper.end)
        return keeper

    def store(
        self,
        node: str,
        keepers: Sequence[Keeper],
        *,
        tls: Tls | None = None,
        ring: str = "allstop",
        limits: Limits = HASTY,
    ) -> PartnerStore:
        """As the shim of `node` opens it; asks the keepers in their order."""
        tls = tls or self.certificates.of("shim", node)
        members = tuple(keeper.member for keeper in keepers)
        whole = Ring((Member(node, "127.0.0.1:1"), *members), ring)
        own = DirectoryObjects(self.folder / node / "own", node)
        kept = Keeping(DirectoryObjects(self.folder / node / "kept", node), reserve_bytes=0)
        credentials = channel_credentials(tls)
        belonging = Belonging(whole.identity, own)
        partners = [Partner(each, belonging, credentials, limits) for each in whole.after(node)]
        store = PartnerStore(whole, own, kept, partners)
        self._ending.callback(store.close)
        return store

    def close(self) -> None:
        self._ending.close()


@contextlib.contextmanager
def nodes_in(folder: Path, certificates: Certificates) -> Iterator[Nodes]:
    """Whatever a test makes ends with it."""
    nodes = Nodes(folder, certificates)
    try:
        yield nodes
    finally:
        nodes.close()

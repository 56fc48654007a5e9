"""The network driver: nft for the lock, sock_diag for what a killed worker left behind."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable, Sequence

from coordinator.core.errors import DriverError, SetupError
from coordinator.core.model import Endpoint
from worker_shim.network.held import sockets_of
from worker_shim.network.port import Sockets
from worker_shim.network.ruleset import ANY, lock_script, table_of
from worker_shim.network.sock_diag import TIME_WAIT, FoundSocket, SockDiag, connection
from worker_shim.network.tables import remove_table
from worker_shim.process.port import Tree
from worker_shim.process.runner import Commands, Finished

SBIN = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
LOOK_DEADLINE_S = 10.0
NFT_ADVICE = "the shim needs nft, CAP_NET_ADMIN and a kernel with nf_tables"


class NftNetworkDriver:
    """`NetworkDriver` for Linux; acts on the network namespace that the shim is in."""

    def __init__(self, commands: Commands, *, nft: str = "") -> None:
        """`nft` is looked up on the PATH unless given."""
        self._commands = commands
        self._given = nft

    def sockets(self, tree: Tree) -> Sockets:
        """The tree's TCP sockets, by its descriptors."""
        return sockets_of(tree.pids)

    async def lock(self, name: str, sockets: Sockets, *, deadline_s: float) -> None:
        """Drop what arrives for these connections and ports; replaces a lock of the same name.

        One nft transaction: a crash leaves the old lock or the new one. Raises DriverError.
        """
        until = time.monotonic() + deadline_s
        first = lock_script(name, sockets, replace=False)
        finished = await self._run(["-f", "-"], first, deadline_s)
        if finished.exit_code != 0:  # most likely there is a lock, whatever else it is comes again
            script = lock_script(name, sockets, replace=True)
            what = f"cannot lock the network of {name}"
            await self._nft(["-f", "-"], script, what, until - time.monotonic())

    async def unlock(self, name: str, *, deadline_s: float) -> None:
        """Remove the lock; no error when there is none."""
        kernel = remove_table(table_of(name), timeout_s=deadline_s)
        # Closing waits for a grace period of the kernel: the job does not.
        asyncio.get_running_loop().run_in_executor(None, kernel.close)

    async def locked(self, name: str) -> bool:
        """Look whether the lock is there; raises DriverError when nft cannot say."""
        what = f"cannot look at the network lock of {name}"
        listed = await self._nft(["list", "tables", "inet"], None, what, LOOK_DEADLINE_S)
        return f"table inet {table_of(name)}" in listed.splitlines()

    async def clear(
        self,
        connections: Sequence[Endpoint],
        *,
        deadline_s: float,
        ports: Sequence[tuple[str, int]] = (),
    ) -> int:
        """Destroy what the kernel still keeps of exactly these connections; return how many.

        Of the listening `ports` that are about to be used again, also what no process holds goes
        (TIME-WAIT, being closed): it would keep a listener without SO_REUSEADDR from its port.
        The other end is sent a reset, so it should be locked. Raises DriverError naming the one
        that could not be destroyed.
        """
        until = time.monotonic() + deadline_s
        cleared = 0
        with SockDiag() as kernel:
            for endpoint in connections:
                found = kernel.find(endpoint)
                if found is not None:
                    cleared += _destroy(kernel, found)
                _check_time(until, endpoint, cleared, len(connections))
            for found in _left_at(kernel.everything(), ports) if ports else ():
                cleared += _destroy(kernel, found)
        return cleared

    async def _nft(
        self, arguments: Sequence[str], script: str | None, what: str, deadline_s: float
    ) -> str:
        finished = await self._run(arguments, script, deadline_s)
        return finished.require(what, advice=NFT_ADVICE).stdout

    async def _run(
        self, arguments: Sequence[str], script: str | None, deadline_s: float
    ) -> Finished:
        program = self._given or shutil.which("nft") or shutil.which("nft", path=SBIN)
        if program is None:
            raise SetupError("there is no program nft", advice="run `make tools`")
        return await self._commands.run([program, *arguments], deadline_s=deadline_s, stdin=script)


def _destroy(kernel: SockDiag, found: FoundSocket) -> bool:
    """Destroy and look again: only TIME-WAIT may be left, which some kernels do not give up."""
    destroyed = kernel.destroy(found)
    left = kernel.find(found.endpoint)
    if left is not None and left.state != TIME_WAIT and left.identity == found.identity:
        raise DriverError(
            f"the connection {connection(found.endpoint)} is still there after it was destroyed",
            advice="end the process that holds it: ss -tnp",
            definite=False,
        )
    return destroyed


def _left_at(found: Iterable[FoundSocket], ports: Sequence[tuple[str, int]]) -> list[FoundSocket]:
    """Of all sockets those that nobody holds and that are bound to one of these ports."""
    wildcard = {port for address, port in ports if address in ANY}
    specific = set(ports)
    return [
        one
        for one in found
        if one.inode == 0
        and one.endpoint.remote_port != 0
        and (
            one.endpoint.local_port in wildcard
            or (one.endpoint.local_address, one.endpoint.local_port) in specific
        )
    ]


def _check_time(until: float, endpoint: Endpoint, cleared: int, wanted: int) -> None:
    if time.monotonic() > until:
        raise DriverError(
            f"clearing connections ran out of time at {connection(endpoint)} "
            f"({cleared} of {wanted} cleared)",
            advice="try again, with more time",
            definite=False,
        )

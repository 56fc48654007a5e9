"""TLS everywhere: replicas among each other, fronts, shims, the command line; nobody without it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import LinkError
from tests.integration.replicas.kit import (
    WAIT_S,
    Watchful,
    allstop,
    attach,
    cli,
    environment,
    eventually,
    replicas,
)
from tests.support.certificates import Certificates

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


async def test_replicas_fronts_shims_and_operators_over_mutual_tls(
    etcd_server: object, tmp_path: Path, files: Certificates
) -> None:
    place: tuple[str, str, Path] = (etcd_server.endpoint, "/tls", tmp_path)  # type: ignore[attr-defined]
    async with replicas(*place, "one", options=files.flags("coordinator", "c")) as them:
        one, two = them.running["one"], await them.start("two", "--fronts", "2")
        shims = [
            Watchful(
                each.address,
                f"n{worker}",
                tls=files.of("shim", f"n{worker}"),
                job="llm",
                worker=worker,
                workers=2,
            )
            for worker, each in enumerate((one, two))
        ]
        await asyncio.gather(*(attach(shim) for shim in shims))
        client = files.flags("operator", "ada")
        # through a front of a replica that does not lead: four encrypted hops
        code, said, told = await cli("checkpoint", "llm", f"--coordinator={two.address}", *client)
        assert code == 0, told
        mark = them.marks()
        one.kill(signal.SIGKILL)
        assert await them.leader(since=mark) is two
        code, found, told = await cli("snapshots", "llm", f"--coordinator={two.address}", *client)
        assert code == 0, told
        assert found["latest"] == said["action"]
        assert shims[1].ended is None
        assert len(shims[1].epochs) == 1
        code, said, told = await cli("jobs", f"--coordinator={two.address}")
        assert (code, "--tls-ca" in told) == (LinkError.exit_code, True)
        async with OperatorClient([two.addresses[-1]]) as local:  # the unix socket is plain
            assert len(await eventually(local.jobs)) == 1
        for shim in shims:
            await shim.leave(goodbye=shim.ended is None)


async def test_bad_files_are_named_before_anything_starts(
    files: Certificates, tmp_path: Path
) -> None:
    one, other = files.of("coordinator", "c"), files.of("operator", "ada")
    mixed = (f"--tls-cert={one.certificate}", f"--tls-key={other.key}")
    for line in (
        ("coordinator", "--etcd", "127.0.0.1:1", "--state-dir", str(tmp_path)),
        ("jobs", "--coordinator=127.0.0.1:1"),
    ):
        process = await asyncio.create_subprocess_exec(
            *allstop(*line, *mixed), stderr=asyncio.subprocess.PIPE, env=environment()
        )
        async with asyncio.timeout(WAIT_S):
            _, told = await process.communicate()
        assert process.returncode == 14
        assert b"operator-ada.key is not the one of the certificate" in told


@pytest.mark.root
@pytest.mark.criu
async def test_a_real_shim_finds_the_coordinator_that_lives(
    etcd_server: object, tmp_path: Path, files: Certificates
) -> None:
    """Over TLS, from a list: the first is dead, the second is killed, the third takes it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    place: tuple[str, str, Path] = (etcd_server.endpoint, "/shim", tmp_path)  # type: ignore[attr-defined]
    async with replicas(*place, "one", "two", options=files.flags("coordinator", "c")) as them:
        one, two = them.running["one"], them.running["two"]
        (tmp_path / "store").mkdir()
        places = ("--staging", "--run-dir", "--node-state")
        process = await asyncio.create_subprocess_exec(
            *allstop("shim", "--node", "spare", "--store", str(tmp_path / "store")),
            *(part for name in places for part in (name, str(tmp_path / name.strip("-")))),
            *("--coordinator", "127.0.0.1:1", "--coordinator", one.address),
            *("--coordinator", two.address, *files.flags("shim", "spare")),
            stdin=asyncio.subprocess.DEVNULL,
            env=environment(),
        )
        try:
            await one.said('"node": "spare".*shim attached')
            one.kill(signal.SIGKILL)
            await two.said('"node": "spare".*shim attached')
            eyes = files.of("viewer", "eve")
            async with OperatorClient([two.address], tls=eyes, patience_s=WAIT_S) as client:
                (node,) = await client.nodes()
            assert (node.facts.node, node.state) == ("spare", "attached")
        finally:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WAIT_S):
                assert await process.wait() == 0

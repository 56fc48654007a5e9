"""Each thing that a certificate of the wrong role must not do is tried, on a real coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from allstop.v1 import carrier_pb2, operator_pb2, operator_pb2_grpc

from coordinator.core.errors import Forbidden, LinkError
from coordinator.link.mapping import error_of_call
from coordinator.link.security import Dialler, Tls
from coordinator.security.roles import METHODS
from tests.integration.replicas.kit import Replica, Watchful, attach, cli, replicas
from tests.support.certificates import Certificates

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(180)]

CARRY = "/allstop.v1.CarrierLink/Carry"


@dataclass
class Guarded:
    """A coordinator that asks everybody for a certificate."""

    replica: Replica
    files: Certificates

    def stub(self, tls: Tls) -> Any:
        channel = Dialler(tls)(self.replica.address)
        return channel, operator_pb2_grpc.OperatorStub(channel)  # type: ignore[no-untyped-call]

    async def call(self, tls: Tls, name: str) -> Exception | None:
        """What a call without a sensible request is answered with; None: it was let in."""
        channel, stub = self.stub(tls)
        try:
            request = getattr(operator_pb2, REQUESTS[name])()
            answer = getattr(stub, name)(request, timeout=20)
            if name in STREAMS:
                async for _ in answer:
                    break
            else:
                await answer
        except grpc.aio.AioRpcError as error:
            return error_of_call(error, self.replica.address)
        finally:
            await channel.close()
        return None


REQUESTS = {
    "Checkpoint": "CheckpointRequest",
    "Restore": "RestoreRequest",
    "Watch": "WatchRequest",
    "Abort": "AbortRequest",
    "PlanRestore": "PlanRequest",
    "ListJobs": "ListJobsRequest",
    "ListNodes": "ListNodesRequest",
    "ListSnapshots": "ListSnapshotsRequest",
    "Show": "ShowRequest",
    "ReadLogs": "ReadLogsRequest",
    "Drain": "DrainRequest",
    "Undrain": "UndrainRequest",
    "SetPolicy": "SetPolicyRequest",
    "GetPolicy": "GetPolicyRequest",
    "GetStory": "GetStoryRequest",
    "Delete": "DeleteRequest",
    "Collect": "CollectRequest",
    "Pin": "PinRequest",
    "SetRetention": "SetRetentionRequest",
    "Verify": "VerifyRequest",
}
STREAMS = ("Checkpoint", "Restore", "Watch", "Delete", "Collect", "Verify")
LOOKS = (
    *("Watch", "PlanRestore", "ListJobs", "ListNodes", "ListSnapshots", "Show"),
    *("GetPolicy", "GetStory"),
)
ACTS = tuple(name for name in REQUESTS if name not in LOOKS)


@pytest_asyncio.fixture(scope="module")
async def guarded(
    etcd_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    files = Certificates(folder / "certs")
    place = (etcd_server.endpoint, "/guarded", folder)
    async with replicas(*place, "one", options=files.flags("coordinator", "one")) as them:
        one = them.running["one"]
        await one.said("leading, epoch")
        yield Guarded(one, files)


def test_every_method_of_the_operator_is_tried() -> None:
    named = {name.rpartition("/")[2] for name in METHODS if "/allstop.v1.Operator/" in name}
    assert named == REQUESTS.keys()


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_viewer_looks_and_does_nothing_else(guarded: Guarded, name: str) -> None:
    found = await guarded.call(guarded.files.of("viewer", "eve"), name)
    assert isinstance(found, Forbidden) is (name in ACTS), found
    if name in ACTS:
        assert "viewer eve" in str(found)


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_shim_asks_for_nothing(guarded: Guarded, name: str) -> None:
    found = await guarded.call(guarded.files.of("shim", "n0"), name)
    assert isinstance(found, Forbidden), found


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_operator_may_ask_for_everything(guarded: Guarded, name: str) -> None:
    found = await guarded.call(guarded.files.of("operator", "ada"), name)
    assert not isinstance(found, Forbidden), found


async def refusal(shim: Watchful) -> str:
    """Why a shim was not taken."""
    with pytest.raises(AssertionError) as caught:
        await shim.attach()
    await shim.leave(goodbye=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("role", "name"),
    [("shim", "n1"), ("operator", "ada"), ("viewer", "eve"), ("coordinator", "one")],
)
async def test_nobody_speaks_for_a_node_but_its_shim(
    guarded: Guarded, role: str, name: str
) -> None:
    tls = guarded.files.of(role, name)
    told = await refusal(Watchful(guarded.replica.address, "n0", tls=tls))
    assert "PERMISSION_DENIED" in told or "Forbidden" in told or "certificate" in told, told


async def test_its_shim_does(guarded: Guarded) -> None:
    shim = Watchful(guarded.replica.address, "n0", tls=guarded.files.of("shim", "n0"))
    await attach(shim)
    code, found, told = await cli(
        "nodes", f"--coordinator={guarded.replica.address}", *guarded.files.flags("viewer", "eve")
    )
    assert code == 0, told
    assert [(each["facts"]["node"], each["state"]) for each in found] == [("n0", "attached")]
    await shim.leave()


@pytest.mark.parametrize("role", ["shim", "operator", "viewer"])
async def test_nobody_carries_shims_but_a_coordinator(guarded: Guarded, role: str) -> None:
    channel = Dialler(guarded.files.of(role, "n0"))(guarded.replica.address)
    call: Any = channel.stream_stream(
        CARRY,
        request_serializer=carrier_pb2.CarrierMessage.SerializeToString,
        response_deserializer=carrier_pb2.LeaderMessage.FromString,
    )()
    try:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.read()
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await channel.close()


async def test_without_a_certificate_of_this_authority_there_is_no_connection(
    guarded: Guarded, tmp_path: Path
) -> None:
    strangers = Certificates(tmp_path / "strangers")
    theirs = strangers.of("operator", "mallory")
    mixed = Tls(guarded.files.ca, theirs.certificate, theirs.key)
    for tls in (mixed, Tls(guarded.files.ca)):
        found = await guarded.call(tls, "ListJobs")
        assert isinstance(found, LinkError), found


async def test_a_certificate_without_a_role_is_told_so(guarded: Guarded) -> None:
    """Of the right authority, but it says nothing of allstop."""
    tls = roleless(guarded.files)
    found = await guarded.call(tls, "ListJobs")
    assert isinstance(found, Forbidden)
    assert "names no role" in found.what


def roleless(files: Certificates) -> Tls:
    """As an authority that does not know of allstop makes them."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
    ca_key = serialization.load_pem_private_key((files.folder / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    kind = serialization.PrivateFormat.PKCS8
    (files.folder / "x.pem").write_bytes(made.public_bytes(pem))
    (files.folder / "x.key").write_bytes(key.private_bytes(pem, kind, serialization.NoEncryption()))
    return Tls(files.ca, files.folder / "x.pem", files.folder / "x.key")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("up", "--listen", "0.0.0.0:0"), "listening on 0.0.0.0:0 without TLS"),
        (("up", "--listen", "10.1.2.3:7411"), "listening on 10.1.2.3:7411 without TLS"),
        (("up", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"), "the page at 0.0.0.0:0"),
        (
            ("coordinator", "--listen", "127.0.0.1:0", "--etcd", "http://10.1.2.3:2379"),
            "talking to etcd at http://10.1.2.3:2379",
        ),
        (("jobs", "--coordinator", "10.1.2.3:7411"), "dialling 10.1.2.3:7411"),
        (("shim", "--coordinator", "10.1.2.3:7411"), "dialling 10.1.2.3:7411"),
    ],
)
async def test_nothing_leaves_this_machine_in_plain_text_unasked(
    tmp_path: Path, line: tuple[str, ...], words: str
) -> None:
    state = ("--state-dir", str(tmp_path)) if line[0] in ("up", "coordinator") else ()
    more = ("--store", str(tmp_path)) if line[0] == "shim" else ()
    code, _, told = await _run(*line, *state, *more)
    assert code == 2, told
    assert words in told
    assert "--insecure" in told


async def _run(*line: str) -> tuple[int, Any, str]:
    from tests.integration.replicas.kit import allstop, environment

    process = await asyncio.create_subprocess_exec(
        *allstop(*line),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    async with asyncio.timeout(60):
        _, told = await process.communicate()
    return process.returncode or 0, None, told.decode()

"""TLS files: what cannot be used is named before anything is dialled or served."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from allstop.v1 import operator_pb2, operator_pb2_grpc

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError, BadRequest, LinkError, SetupError
from coordinator.link.security import NO_TLS, Dialler, Tls, channel_credentials, server_credentials
from tests.contract.etcd_process import Certificates


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("tls"))
    openssl(made, "ec -in server.key -aes128 -passout pass:x -out locked.key")
    (made.folder / "empty").touch()
    return made


def tls(files: Certificates, name: str = "", ca: str = "ca", **more: str) -> Tls:
    return Tls(
        files[f"{ca}.crt"] if ca else None,
        files[f"{name}.crt"] if name else None,
        files[f"{name}.key"] if name else None,
        **more,
    )


@pytest.mark.parametrize(
    ("ca", "certificate", "key", "words"),
    [
        ("nothing", "server.crt", "server.key", "cannot read .*nothing: No such file"),
        ("server.key", "server.crt", "server.key", r"server\.key holds no certificate"),
        ("empty", "server.crt", "server.key", "empty holds no certificate"),
        ("ca.crt", "nothing", "server.key", "cannot read .*nothing"),
        ("ca.crt", "server.crt", "nothing", "cannot read .*nothing"),
        ("ca.crt", "server.crt", "client.key", r"client\.key is not the one of .*server\.crt"),
        ("ca.crt", "server.crt", "server.crt", r"server\.crt holds no private key"),
        ("ca.crt", "server.crt", "empty", "empty holds no private key"),
        ("ca.crt", "server.crt", "locked.key", r"locked\.key is encrypted"),
        ("ca.crt", "server.key", "server.key", r"server\.key holds no certificate"),
        ("ca.crt", "server.crt", None, "certificate needs its key"),
        ("ca.crt", None, "server.key", "a key its certificate|certificate of its own"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    files: Certificates, ca: str, certificate: str | None, key: str | None, words: str
) -> None:
    wrong = Tls(files[ca], certificate and files[certificate], key and files[key])  # type: ignore[arg-type]
    for make in (server_credentials, channel_credentials, Dialler):
        with pytest.raises(AllstopError, match=words) as caught:
            make(wrong)
        assert isinstance(caught.value, SetupError | BadRequest)


def test_without_files_all_is_plain(files: Certificates) -> None:
    assert server_credentials(NO_TLS) is None
    assert channel_credentials(NO_TLS) is None
    with pytest.raises(BadRequest, match="certificate of its own"):
        server_credentials(tls(files))


class Answers(operator_pb2_grpc.OperatorServicer):
    async def ListJobs(self, request: object, context: object) -> operator_pb2.ListJobsReply:  # noqa: N802
        return operator_pb2.ListJobsReply()


@asynccontextmanager
async def served(own: Tls) -> AsyncIterator[str]:
    server = grpc.aio.server()
    operator_pb2_grpc.add_OperatorServicer_to_server(Answers(), server)  # type: ignore[no-untyped-call]
    credentials = server_credentials(own)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


PLAIN, SERVER_ALONE, MUTUAL = "plain", "server alone", "mutual"


@pytest.mark.parametrize(
    ("server", "client", "ca", "name", "words"),
    [
        (PLAIN, None, "", "", ""),
        (SERVER_ALONE, "", "ca", "", ""),
        (SERVER_ALONE, "client", "ca", "", ""),
        (MUTUAL, "client", "ca", "", ""),
        (MUTUAL, "client", "ca", "etcd.test", ""),
        (PLAIN, "", "ca", "", "does not speak TLS"),
        (SERVER_ALONE, None, "", "", "ended the connection before it stood"),
        (SERVER_ALONE, "", "stranger", "", "not from an authority that is trusted"),
        (MUTUAL, "client", "ca", "other.test", "for another name"),
        (MUTUAL, "client", "stranger", "", "not from an authority that is trusted"),
    ],
)
async def test_who_may_talk_to_whom_and_why_not(
    files: Certificates, server: str, client: str | None, ca: str, name: str, words: str
) -> None:
    own = {PLAIN: NO_TLS, SERVER_ALONE: tls(files, "server", ""), MUTUAL: tls(files, "server")}
    ours = NO_TLS if client is None else tls(files, client, ca, server_name=name)
    async with served(own[server]) as address, OperatorClient([address], tls=ours) as asking:
        if not words:
            assert await asking.jobs() == ()
            return
        with pytest.raises(LinkError, match=words) as caught:
            await asking.jobs()
        assert caught.value.definite
        assert "--tls-" in caught.value.advice


async def test_a_server_with_an_authority_takes_nobody_without_a_certificate(
    files: Certificates,
) -> None:
    """With TLS 1.3 the client's side stands for a moment before the server refuses it."""
    openssl(
        files,
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=x"
        " -keyout foreign.key -out foreign.csr",
        "x509 -req -in foreign.csr -CA stranger.crt -CAkey stranger.key -CAcreateserial -days 2"
        " -out foreign.crt",
    )
    async with served(tls(files, "server")) as address:
        for ours in (tls(files), tls(files, "foreign")):
            async with OperatorClient([address], tls=ours) as asking:
                with pytest.raises(LinkError):
                    async with asyncio.timeout(20):
                        await asking.jobs()


def openssl(files: Certificates, *lines: str) -> None:
    for line in lines:
        subprocess.run(
            ["openssl", *line.split()],
            cwd=files.folder,
            check=True,
            capture_output=True,
            timeout=20,
        )


async def test_a_unix_socket_needs_none(files: Certificates, tmp_path: Path) -> None:
    server = grpc.aio.server()
    operator_pb2_grpc.add_OperatorServicer_to_server(Answers(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{tmp_path}/sock")
    await server.start()
    async with OperatorClient([f"{tmp_path}/sock"], tls=tls(files, "client")) as asking:
        assert await asking.jobs() == ()
    await server.stop(0)

"""An etcd that a test may pause, kill and start again on the same ports, with TLS if asked."""

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0


@dataclass
class Certificates:
    """A small authority: certificates for a server named etcd.test and for a client."""

    folder: Path

    def __post_init__(self) -> None:
        self._authority("ca")
        self._authority("stranger")
        self._signed("server", "DNS:etcd.test,IP:127.0.0.1", "serverAuth,clientAuth")
        self._signed("client", "DNS:coordinator", "clientAuth")

    def __getitem__(self, name: str) -> Path:
        return self.folder / name

    def _authority(self, name: str) -> None:
        self._openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
            f"-subj /CN={name} -keyout {name}.key -out {name}.crt"
        )

    def _signed(self, name: str, alternatives: str, usage: str) -> None:
        (self.folder / "ext").write_text(
            f"subjectAltName={alternatives}\nextendedKeyUsage={usage}\n"
        )
        self._openssl(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
            f"-subj /CN={name} -keyout {name}.key -out {name}.csr"
        )
        self._openssl(
            f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
            f"-extfile ext -out {name}.crt"
        )

    def _openssl(self, arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments.split()],
            cwd=self.folder,
            check=True,
            capture_output=True,
            timeout=20,
        )


def etcd_path() -> str:
    """The etcd that this project has fetched, else the one on the path."""
    path = ROOT / ".tools" / "bin" / "etcd"
    return str(path) if path.exists() else "etcd"


@dataclass
class EtcdProcess:
    """One etcd; what it acknowledged is on its disk."""

    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, kw_only=True)

    def launch(self, arguments: list[str]) -> None:
        """Start it, or start it again on its data; `wait_healthy` waits for it."""
        setpriv = shutil.which("setpriv")  # so that it ends even if pytest is killed
        tied = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*tied, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """End it at once, also when it is paused."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def pause(self) -> None:
        """Let it answer nothing while its connections stay open."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # until its last thread stands still

    def go_on(self) -> None:
        """End the pause."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def wait_healthy(self, port: int, within_s: float) -> None:
        """Ask /health over plain HTTP until the member is healthy."""
        assert self.process is not None
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
                    connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                    answer = b"".join(iter(lambda: connection.recv(4096), b""))
            except OSError:
                answer = b""
            if b'"true"' in answer:
                return
            time.sleep(0.05)
        log = (self.folder / "log").read_text(errors="replace")
        raise AssertionError(f"the etcd of {self.folder} did not become healthy: {log[-2000:]}")


@dataclass
class OwnEtcd(EtcdProcess):
    """One single-member etcd."""

    certificates: Certificates | None = None
    ports: list[int] = field(default_factory=lambda: free_ports(3))

    @property
    def endpoint(self) -> str:
        """Where clients reach it, scheme included."""
        return f"{'https' if self.certificates else 'http'}://127.0.0.1:{self.ports[0]}"

    def start(self) -> None:
        """Start it, or start it again, and wait until it serves."""
        _, peer, metrics = self.ports
        peer_url = f"http://127.0.0.1:{peer}"
        arguments = [
            etcd_path(),
            f"--data-dir={self.folder / 'data'}",
            "--name=own",
            "--unsafe-no-fsync",  # the machine does not crash here, only the process
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=own={peer_url}",
            f"--listen-metrics-urls=http://127.0.0.1:{metrics}",
        ]
        if self.certificates:
            names = {
                "cert-file": "server.crt",
                "key-file": "server.key",
                "trusted-ca-file": "ca.crt",
            }
            arguments += [f"--{flag}={self.certificates[name]}" for flag, name in names.items()]
            arguments.append("--client-cert-auth")
        self.launch(arguments)
        self.wait_healthy(metrics, START_S)

"""What every test may use: real tools where they are, a clear skip where not, one seed for chance.

With ALLSTOP_MUST_RUN=1 (CI) what needs one of MUST_RUN_MARKERS fails where it would skip.
"""

import contextlib
import ctypes
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.gpu import machine as gpu
from lab import Lab
from tests.support.lanes import lay_out
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
MUST_RUN = os.environ.get("ALLSTOP_MUST_RUN", "") not in ("", "0")
MUST_RUN_MARKERS = (
    *("root", "criu", "etcd", "torch", "promtool", "browser", "slurm", "cc", "redis"),
    "checkpointctl",
)
FETCHED = {"promtool": "promtool", "redis": "redis-cli", "checkpointctl": "checkpointctl"}
BROWSER = ("chromium", "chromedriver")
ETCD_START_TIMEOUT_S = 20.0
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
ETCD_START_TRIES = 3


def tool(name: str) -> str | None:
    """A program's path: what `make tools` made, else the system's."""
    own = ROOT / ".tools" / "bin" / name
    return str(own) if own.exists() else shutil.which(name)


def lacking(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None if they can."""
    if marker in ("root", "criu") and os.geteuid() != 0:
        return "needs root"
    if marker == "root" and tool("ip") is None:
        return "needs iproute2: make tools"
    if marker in ("criu", "etcd") and tool(marker) is None:
        return f"needs {marker}: make tools"
    if marker in FETCHED and tool(FETCHED[marker]) is None:
        return f"needs {FETCHED[marker]}: make test-tools"
    if marker == "browser" and not all(shutil.which(name) for name in BROWSER):
        return "needs chromium and chromedriver: make test-tools"
    if marker == "cc" and shutil.which("cc") is None:
        return "needs a C compiler: make test-tools"
    if marker == "slurm" and not (ROOT / ".tools" / "slurm").exists():
        return "needs SLURM: make test-tools (on Debian)"
    if marker == "torch" and importlib.util.find_spec("torch") is None:
        return "needs PyTorch: pip install -e .[demo]"
    tried = "TRY_GPU_TESTS_IN" in os.environ  # over a fake device, see tests/gpu/kit.py
    if marker == "gpu" and not tried and (why := gpu.lacking()):
        return f"needs an NVIDIA GPU: {why}"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="repeat a run's random choices")


def obey_signals() -> None:
    """Undo what nohup and a shell's `&` hand down: what tests start must obey SIGINT and SIGHUP."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    obey_signals()
    if hasattr(config, "workerinput"):
        config.option.seed = config.workerinput["seed"]
    elif config.getoption("--seed") is None:
        config.option.seed = random.SystemRandom().randrange(1 << 32)
    lay_out(config)


@pytest.fixture(autouse=True)
def no_subreaper() -> Iterator[None]:
    """A process driver makes its process a subreaper; this one would then keep labs' orphans.

    Unreaped they stay in the lab's PID namespace, whose PID 1 cannot end before they are gone.
    """
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')} (repeat with --seed)"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers():
        if reason := lacking(mark.name):
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    must = MUST_RUN and any(item.get_closest_marker(name) for name in MUST_RUN_MARKERS)
    if must and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but ALLSTOP_MUST_RUN is set: {report.longrepr}"
    return report


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, printed in the header."""
    return int(request.config.getoption("--seed"))


@pytest.fixture(scope="session")
def criu_path() -> str:
    """A CRIU that can be run by root (mark the test `criu`)."""
    path = tool("criu")
    if path is None:
        pytest.skip("needs criu: make tools")
    return path


@pytest.fixture(scope="session")
def promtool() -> Callable[..., str]:
    """`promtool("check", "rules", …)` gives what it said; it must be content (mark: `promtool`)."""
    path = tool("promtool")
    if path is None:
        pytest.skip("needs promtool: make test-tools")

    def run(*arguments: object, stdin: str = "") -> str:
        line = [path, *map(str, arguments)]
        done = subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """`make_lab(["n0", "n1"], **options)` gives a started lab that is closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(hosts: Sequence[str] = ("n0", "n1"), **options: object) -> Lab:
            root = tmp_path / f"lab{len(list(tmp_path.glob('lab*')))}"
            return stack.enter_context(Lab(root, hosts, **options))  # type: ignore[arg-type]

        yield make


@dataclass(frozen=True)
class EtcdServer:
    """A real single-member etcd. `process` may be stopped and continued, never ended."""

    endpoint: str  # host:port, for gRPC
    process: subprocess.Popen[bytes]
    data: Path
    etcdctl: str


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for the whole session (mark the test `etcd`); tests use prefixes of their own."""
    path, ctl = tool("etcd"), tool("etcdctl")
    if path is None or ctl is None:
        pytest.skip("needs etcd: make tools")
    for _ in range(ETCD_START_TRIES):  # a free port may be taken before etcd gets to it
        server = start_etcd(path, ctl, tmp_path_factory.mktemp("etcd"))
        if server is not None:
            break
    else:
        pytest.fail(f"{path} did not become healthy, {ETCD_START_TRIES} times")
    yield server
    server.process.kill()
    server.process.wait(10)


def start_etcd(path: str, ctl: str, data: Path) -> EtcdServer | None:
    """Start an etcd and wait until it is healthy; None if it ended or took too long."""
    client, peer = free_ports(2)
    urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
    arguments = [f"--data-dir={data / 'data'}", "--name=test", "--unsafe-no-fsync"]
    arguments += [f"--listen-{kind}-urls={url}" for kind, url in urls.items()]
    arguments += [f"--advertise-client-urls={urls['client']}"]
    arguments += [f"--initial-advertise-peer-urls={urls['peer']}"]
    arguments += [f"--initial-cluster=test={urls['peer']}"]
    setpriv = shutil.which("setpriv")  # so that it ends even if pytest is killed
    tied = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(
            [*tied, path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + ETCD_START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{urls['client']}/health", timeout=2) as answer,
        ):
            if b'"true"' in answer.read():
                return EtcdServer(f"127.0.0.1:{client}", process, data, ctl)
        time.sleep(0.05)
    process.kill()
    process.wait(10)
    return None

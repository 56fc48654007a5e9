"""`up`, `coordinator`, `shim`: what their command lines hand on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coordinator.server.run
import worker_shim.agent.run
from coordinator.cli.main import main
from coordinator.core.errors import SetupError
from coordinator.link.security import Tls
from coordinator.server.run import CoordinatorOptions
from tests.support.certificates import Certificates
from worker_shim.agent.options import STAGING_DIRECTORY, ShimOptions, WorkerSpec
from worker_shim.files.keeping import Keep, Keeping, Rule
from worker_shim.process import namespace

from .conftest import Cli

Given = list[Any]


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., CoordinatorOptions]:
    """Run `allstop …` with a coordinator that only remembers its options; returns them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    given: Given = []

    async def remember(options: CoordinatorOptions) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr(coordinator.server.run, "run_coordinator", remember)

    def run(*arguments: str) -> CoordinatorOptions:
        assert main(arguments) == 0
        options = given.pop()
        assert isinstance(options, CoordinatorOptions)
        return options

    return run


def test_up_has_its_own_etcd(plane: Callable[..., CoordinatorOptions], tmp_path: Path) -> None:
    options = plane("up", "--listen", "10.0.0.9:1", "--policy", "dump_s=2m", "--policy", "park_s=3")
    assert options.listen == ("10.0.0.9:1",)
    assert options.data == tmp_path / "allstop" / "etcd"
    assert options.unix_socket == tmp_path / "allstop" / "allstop.sock"
    assert options.policy == {"dump_s": 120.0, "park_s": 3.0}
    assert (tmp_path / "allstop").stat().st_mode & 0o077 == 0


def test_an_etcd_elsewhere(plane: Callable[..., CoordinatorOptions], tmp_path: Path) -> None:
    state = str(tmp_path / "other")
    for verb in ("up", "coordinator"):
        options = plane(
            verb, "--etcd", "https://a:1,https://b:2", "--etcd", "c:3", "--state-dir", state,
            "--lease", "7s",
        )  # fmt: skip
        assert options.etcd == ("https://a:1", "https://b:2", "c:3")
        assert options.data is None
        assert options.lease_s == 7.0
        assert options.unix_socket == tmp_path / "other" / "allstop.sock"


def test_fronts_and_how_others_reach_it(plane: Callable[..., CoordinatorOptions]) -> None:
    options = plane(
        "coordinator", "--etcd", "a:1", "--listen", "0.0.0.0:7411", "--advertise", "10.0.0.9",
        "--fronts", "4", "--peer", "0.0.0.0:7412",
    )  # fmt: skip
    assert (options.fronts, options.peer) == (4, "0.0.0.0:7412")
    assert options.advertise == "10.0.0.9"
    assert not options.tls.wanted


def test_tls_before_and_after_the_verb_and_from_the_environment(
    plane: Callable[..., CoordinatorOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path(__file__)
    monkeypatch.setenv("ALLSTOP_TLS_CA", str(here))
    options = plane(
        "--tls-server-name", "other", "--tls-cert", str(here.parent / "conftest.py"),
        "coordinator", "--etcd", "a:1", "--tls-cert", str(here), "--tls-key", str(here),
    )  # fmt: skip
    assert options.tls == Tls(here, here, here, "other")


@pytest.mark.parametrize(
    "line",
    [
        ("coordinator",),
        ("coordinator", "--etcd", "a:1", "--fronts", "65"),
        ("up", "--tls-ca", "/no/such/file"),
        ("jobs", "--tls-ca", "/no/such/file"),
        ("up", "--policy", "dump_s"),
        ("up", "--policy", "dump_s=soon"),
        ("up", "--policy", "journal_limit=1.5"),
        ("up", "--node-lease", "4s"),
        ("up", "--etcd-ca", "/no/such/file"),
        ("up", "--etcd-cert", __file__),
    ],
)
def test_command_lines_that_make_no_sense(line: tuple[str, ...]) -> None:
    assert main(line) == 2


def test_the_error_of_a_coordinator_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(_: CoordinatorOptions) -> int:
        raise SetupError("there is no etcd", advice="make tools")

    monkeypatch.setattr(coordinator.server.run, "run_coordinator", fail)
    assert main(["up", "--state-dir", str(tmp_path)]) == 14
    assert "there is no etcd" in capsys.readouterr().err


Several = Callable[..., tuple[ShimOptions, tuple[WorkerSpec, ...]]]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Several:
    """Run `allstop shim …` with a shim that only remembers its options; returns them."""
    given: Given = []

    async def remember(options: ShimOptions, specs: tuple[WorkerSpec, ...]) -> int:
        given.append((options, specs))
        return 0

    monkeypatch.setattr(worker_shim.agent.run, "run_shim", remember)
    monkeypatch.setattr(namespace, "in_initial_pid_namespace", lambda: False)

    def run(*arguments: str) -> tuple[ShimOptions, tuple[WorkerSpec, ...]]:
        assert main(arguments) == 0
        options, specs = given.pop()
        assert not given
        return options, specs

    return run


@pytest.fixture
def shim(workers: Several) -> Callable[..., tuple[ShimOptions, WorkerSpec | None]]:
    """The same for a shim of one worker, or of none."""

    def run(*arguments: str) -> tuple[ShimOptions, WorkerSpec | None]:
        options, specs = workers(*arguments)
        assert len(specs) <= 1
        return options, specs[0] if specs else None

    return run


Shim = Callable[..., tuple[ShimOptions, WorkerSpec | None]]


def test_a_spare(shim: Shim) -> None:
    options, worker = shim(
        "shim", "--node", "n3", "--insecure", "--coordinator", "h:1", "--coordinator", "i:2"
    )
    assert worker is None
    assert (options.node, options.coordinators) == ("n3", ("h:1", "i:2"))
    assert options.staging_dir == STAGING_DIRECTORY
    assert not options.until_worker_ends
    assert shim("shim", "--until-worker-ends")[0].until_worker_ends


def test_torchruns_own_restarts_are_switched_off(
    shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    words = ["shim", "run", "--job", "j", "--workers", "1", "--worker", "0"]
    for given, restarts in (([], "3"), (["--no-torchrun-restarts"], "0")):
        _, worker = shim(*words, *given, "--", "torchrun", "train.py")
        assert worker is not None
        assert worker.env["PET_MAX_RESTARTS"] == restarts


def test_what_tells_a_shim_that_its_node_goes(shim: Shim) -> None:
    options, _ = shim("shim", "--on-term", "stop", "--term-grace", "90s")
    assert (options.on_term, options.term_grace_s) == ("stop", 90.0)
    assert (options.preemption, shim("shim")[0].on_term) == ("", "end")
    assert (options.term_code, options.save_grace_s) == (0, 0.0)
    options, _ = shim("shim", "--term-code", "143", "--save-grace", "5m")
    assert (options.term_code, options.save_grace_s) == (143, 300.0)
    url = "http://10.0.0.9:8080/latest"
    options, _ = shim("shim", "--preemption", "aws", "--preemption-url", url)
    assert (options.preemption, options.preemption_url) == ("aws", url)


def test_a_worker(shim: Shim, tmp_path: Path) -> None:
    options, worker = shim(
        "shim", "--node", "n1", "--store", "/shared", "--linger", "2s", "run", "--job", "llm",
        "--workers", "2", "--worker", "1", "--cwd", str(tmp_path), "--store", "/nearer", "--",
        "torchrun", "--nnodes", "2", "-o", "x", "--", "y",
    )  # fmt: skip
    assert worker is not None
    assert worker.argv == ("torchrun", "--nnodes", "2", "-o", "x", "--", "y")
    assert (worker.job, worker.worker, worker.workers) == ("llm", 1, 2)
    assert worker.cwd == tmp_path
    assert worker.env["PATH"]
    assert options.node == "n1"
    assert options.store.where == "/nearer"  # after `run` wins
    assert options.linger_s == 2.0


def test_what_is_kept_of_files(shim: Shim, capsys: pytest.CaptureFixture[str]) -> None:
    run = ("shim", "run", "--job", "llm", "--workers", "1", "--worker", "0")
    files = ("--keep-files", "copy:/data/log/*", "--keep-files", "none")
    sizes = ("--copy-limit", "1.5GiB", "--keep-tail-bytes", "64 KiB")
    _, worker = shim(*run, *files, *sizes, "true")
    assert worker is not None
    rules = (Rule(Keep.COPY, "/data/log/*"), Rule(Keep.NONE))
    assert worker.keeping == Keeping(rules, 3 << 29, 64 << 10)
    _, worker = shim(*run, "true")
    assert worker is not None
    assert worker.keeping == Keeping()
    for wrong in (("--keep-files", "some"), ("--copy-limit", "8GX"), ("--copy-limit", "2048TiB9")):
        assert main([*run, *wrong, "true"]) == 2
        assert "write" in capsys.readouterr().err


RING = "partner://n1@10.0.0.1:7420,n2@10.0.0.2:7420"


def test_a_store_in_the_cloud_whose_key_the_worker_does_not_get(
    shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "5a" * 32)
    store = ("--store", "s3://bucket/llm", "--store-key", "env:SECRET")
    place = ("--job", "llm", "--workers", "1", "--worker", "0", "--", "true")
    for words in (("shim", *store, "run", *place), ("shim", "run", *store, *place)):
        options, worker = shim(*words)
        assert (options.store.where, options.store.key) == ("s3://bucket/llm", "env:SECRET")
        assert worker is not None
        assert worker.env["PATH"]
        assert "SECRET" not in worker.env


def test_partners(shim: Shim, tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    words = ("shim", "--insecure", "--node", "n1", "--store", RING, "--partner-dir", folder)
    options, _ = shim(*words, "--partner-limit", "5G", "--partner-listen", "0.0.0.0:7420")
    assert options.store.keep_dir == Path(folder)
    assert options.store.limit_bytes == 5_000_000_000
    assert options.store.listen == "0.0.0.0:7420"
    certificates = Certificates(tmp_path / "certificates")
    options, _ = shim("shim", *certificates.flags("shim", "n1"), "--node", "n1", "--store", RING)
    assert options.store.client is not None
    assert options.store.server is not None


@pytest.mark.parametrize(
    "words",
    [
        ("--store", "ftp://host/x"),
        ("--store", "s3://"),
        ("--store", "partner://n1"),
        ("--store-key", "5a" * 32),
        ("--node", "n1", "--store", RING),  # in plain text, over the network
        ("--partner-limit", "much"),
    ],
)
def test_stores_that_cannot_be(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace, "in_initial_pid_namespace", lambda: False)
    assert main(["shim", *words]) == 2
    assert "5a" * 32 not in capsys.readouterr().err


def test_the_command_line_wins_over_the_environment(
    shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLSTOP_NODE", "from-env")
    monkeypatch.setenv("ALLSTOP_JOB", "llm")
    run = ("run", "--workers", "1", "--worker", "0", "true")
    assert shim("shim", *run)[0].node == "from-env"
    assert shim("shim", "--node", "typed", *run)[0].node == "typed"


def test_a_worker_for_each_rank(workers: Several) -> None:
    options, specs = workers(
        "shim", "run", "--job", "llm", "--ranks", "3", "--nnodes", "2", "--node-rank", "1",
        "--master-addr", "10.0.0.1", "--master-port", "7600", "--criu-at-once", "2", "--",
        "python", "train.py", "--cache", "/tmp/${local_rank}",
    )  # fmt: skip
    assert options.criu_at_once == 2
    assert [(one.worker, one.workers) for one in specs] == [(3, 6), (4, 6), (5, 6)]
    assert specs[2].argv == ("python", "train.py", "--cache", "/tmp/2")
    assert (specs[2].env["MASTER_ADDR"], specs[2].env["MASTER_PORT"]) == ("10.0.0.1", "7600")


def test_the_ranks_of_one_node_meet_on_loopback(workers: Several) -> None:
    options, specs = workers("shim", "run", "--job", "llm", "--ranks", "1", "true")
    assert options.criu_at_once == 0  # one for each core
    assert (specs[0].worker, specs[0].workers) == (0, 1)
    assert specs[0].env["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize(
    "place",
    [
        ("--workers", "2", "--worker", "2"),
        ("--workers", "0", "--worker", "0"),
        ("--workers", "2"),
        (),
        ("--ranks", "0"),
        ("--ranks", "2", "--workers", "2"),
        ("--ranks", "2", "--nnodes", "2", "--node-rank", "2", "--master-addr", "10.0.0.1"),
        ("--ranks", "2", "--nnodes", "2", "--node-rank", "1"),
    ],
)
def test_a_worker_that_cannot_be(place: tuple[str, ...]) -> None:
    assert main(["shim", "run", "--job", "llm", *place, "--", "true"]) == 2


def test_a_shim_ends_with_its_workers_code(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ended(*_: object) -> int:
        return 9

    monkeypatch.setattr(worker_shim.agent.run, "run_shim", ended)
    monkeypatch.setattr(namespace, "in_initial_pid_namespace", lambda: False)
    run = ["run", "--job", "a", "--workers", "1", "--worker", "0", "false"]
    assert main(["shim", *run]) == 9


def test_on_a_bare_machine_the_shim_begins_again_in_a_namespace_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[list[str]] = []

    def enter(argv: list[str]) -> None:
        begun.append(argv)
        raise SetupError("not here")

    monkeypatch.setattr(namespace, "in_initial_pid_namespace", lambda: True)
    monkeypatch.setattr(namespace, "enter_own_pid_namespace", enter)
    assert main(["shim", "--node", "n 1"]) == 14
    assert [argv[-3:] for argv in begun] == [["shim", "--node", "n 1"]]


def test_grpc_is_not_loaded_before_the_namespace(cli: Cli) -> None:
    look = (
        "import sys; from worker_shim.process import namespace\n"
        "namespace.in_initial_pid_namespace = lambda: True\n"
        "namespace.enter_own_pid_namespace = lambda argv: sys.exit(40 + ('grpc' in sys.modules))\n"
        "from coordinator.cli.main import main; main(['shim'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], env=cli.environment(), timeout=30, check=False
    )
    assert done.returncode == 40

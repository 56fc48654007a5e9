"""`--config FILE`: what wins over what, and where an option may stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import coordinator as coordinator_verb
from coordinator.cli import shim as shim_verb
from coordinator.cli import up as up_verb
from coordinator.cli.main import main
from coordinator.cli.output import Output

FILE = """
listen = ["127.0.0.1:1", "127.0.0.1:2"]
lease = "7s"
name = "from the file"

[policy]
dump_s = "90s"
hold_s = 12
"""
NODE_FILE = """
node = "n7"
coordinator = ["a:1", "b:2"]
job = "llm"
workers = 2
worker = 1
follow = false
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been started."""
    seen: list[dict[str, Any]] = []

    def serve(output: Output, *, etcd: tuple[str, ...], replica: dict[str, Any]) -> int:
        seen.append({**replica, "etcd": etcd})
        return 0

    def start(
        output: Output,
        node: dict[str, Any],
        worker: dict[str, Any] | None,
        ranks: dict[str, Any] | None = None,
    ) -> int:
        assert ranks is None
        seen.append({**node, **(worker or {}), "addresses": output.addresses})
        return 0

    for verb in (up_verb, coordinator_verb):
        monkeypatch.setattr(verb, "serve", serve)
    monkeypatch.setattr(shim_verb, "start", start)
    return seen


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Options of a coordinator."""
    path = tmp_path / "coordinator.toml"
    path.write_text(FILE)
    return str(path)


@pytest.fixture
def node_file(tmp_path: Path) -> str:
    """Options of a shim and its worker."""
    path = tmp_path / "node.toml"
    path.write_text(NODE_FILE)
    return str(path)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    started: list[dict[str, Any]], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLSTOP_NAME", "from the environment")
    monkeypatch.setenv("ALLSTOP_LEASE", "8s")
    assert main(["up", "--lease", "9s", "--config", file]) == 0
    (replica,) = started
    assert replica["lease_s"] == 9.0
    assert replica["name"] == "from the environment"
    assert replica["listen"] == ("127.0.0.1:1", "127.0.0.1:2")
    assert replica["policy"] == {"dump_s": 90.0, "hold_s": 12.0}


def test_the_file_is_named_by_the_environment_too(
    started: list[dict[str, Any]], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLSTOP_CONFIG", file)
    assert main(["coordinator", "--etcd", "host:1"]) == 0
    assert (started[0]["lease_s"], started[0]["etcd"]) == (7.0, ("host:1",))


@pytest.mark.parametrize("before", [True, False])
def test_a_shims_file_may_stand_before_and_after_run(
    started: list[dict[str, Any]], node_file: str, before: bool
) -> None:
    words = ["shim", "run", "--", "train"]
    words[1 if before else 2 : 1 if before else 2] = ["--config", node_file]
    assert main(words) == 0
    (given,) = started
    assert (given["node"], given["job"], given["worker"], given["workers"]) == ("n7", "llm", 1, 2)
    assert given["follow"] is False
    assert given["addresses"] == ("a:1", "b:2")


@pytest.mark.parametrize(
    "words",
    [
        ["shim", "--node", "flag", "--coordinator", "c:3", "run", "--config", "FILE"],
        ["shim", "--config", "FILE", "run", "--node", "flag", "--coordinator", "c:3"],
        ["--coordinator", "c:3", "shim", "--config", "FILE", "--node", "flag", "run"],
    ],
)
def test_a_flag_wins_wherever_it_stands(
    started: list[dict[str, Any]], node_file: str, words: list[str]
) -> None:
    assert main([node_file if word == "FILE" else word for word in words] + ["--", "train"]) == 0
    assert (started[0]["node"], started[0]["addresses"]) == ("flag", ("c:3",))


def test_a_flag_before_the_verb_wins_over_the_environment(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLSTOP_COORDINATOR", "environment:1")
    assert main(["--coordinator", "flag:2", "shim"]) == 0
    assert started[0]["addresses"] == ("flag:2",)


def test_a_wrong_file_starts_nothing(
    started: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("leese = 3")
    assert main(["up", "--config", str(path)]) == 2
    assert not started
    told = "".join(capsys.readouterr().err.split())
    assert "leese:thereisnosuchoption" in told
    assert "didyoumeanlease?" in told

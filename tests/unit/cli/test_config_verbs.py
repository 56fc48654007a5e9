"""`allstop config check` and `allstop config show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.durations import parse_duration
from coordinator.cli.main import main
from coordinator.link.service import NODE_LEASE_S
from coordinator.store.election import TTL_S
from tests.support.certificates import Certificates
from worker_shim.agent.options import ShimOptions, WorkerSpec
from worker_shim.images.objects.opening import StoreOptions

ADDRESSES = "listen = ['127.0.0.1:7411']\n"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of whoever runs the tests."""
    monkeypatch.delenv("ALLSTOP_CONFIG", raising=False)


class Checked:
    """How a check of one file ended."""

    def __init__(self, code: int, out: str) -> None:
        assert out.count("\n") == 1, out
        self.code, self.told = code, json.loads(out)
        (self.file,) = self.told["files"]
        self.problems = [
            (each["key"], each["what"], each["advice"]) for each in self.file["problems"]
        ]

    def about(self, key: str) -> str:
        """What was said of a key."""
        (found,) = [f"{what} | {advice}" for of, what, advice in self.problems if of == key]
        return found


def check(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, role: str = "coordinator"
) -> Checked:
    path = tmp_path / f"{role}.toml"
    path.write_text(text)
    return Checked(main(["config", "check", str(path), "-o", "json"]), capsys.readouterr().out)


def test_nothing_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = ADDRESSES + 'etcd = "https://a:2379,https://b:2379"\n[policy]\ndump_s = "90s"\n'
    checked = check(capsys, tmp_path, text)
    assert (checked.code, checked.problems, checked.file["role"]) == (0, [], "coordinator")
    assert main(["config", "check", checked.file["file"]]) == 0
    assert "nothing is wrong with it, for coordinator" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("role", "line", "key", "said"),
    [
        ("coordinator", "leese = '3s'", "leese", "there is no such option | did you mean lease?"),
        ("coordinator", "lease = 'soon'", "lease", "'soon' is no duration"),
        ("coordinator", "lease = true", "lease", "expected a text or a number, not True"),
        ("coordinator", "fronts = 65", "fronts", "65 is not in the range 0<=x<=64"),
        ("coordinator", "any-role = 'yes'", "any-role", "expected true or false"),
        ("coordinator", "listen = ['7411']", "listen", "'7411' is not HOST:PORT | such as"),
        ("coordinator", "listen = ['10.0.0.1:7411']", "listen", "without TLS | give certificates"),
        ("coordinator", "http = '10.0.0.1:1'", "http", "the page at 10.0.0.1:1 without TLS"),
        ("coordinator", "etcd = 'http://e:2379'", "etcd", "talking to etcd at http://e:2379"),
        ("coordinator", "etcd = 'https://e'", "etcd", "'e' is not HOST:PORT"),
        ("coordinator", "tls-ca = '/no/ca.pem'", "tls-ca", "'/no/ca.pem' does not exist"),
        ("coordinator", "etcd-cert = '/etc/hostname'", "etcd-cert", "there is no etcd-key"),
        ("coordinator", "name = 'a b'", "name", "'a b' cannot be the name of a coordinator"),
        ("coordinator", "policy = { dump = 3 }", "policy", "policy: there is no dump"),
        ("coordinator", "policy = { dump_s = 'x' }", "policy", "'x' is no duration"),
        ("up", "etcd-program = '/no/etcd'", "etcd-program", "/no/etcd does not exist | `make"),
        ("shim", "coordinator = 'c0'", "coordinator", "'c0' is not HOST:PORT"),
        ("shim", "coordinator = 'a:1,b:2'", "coordinator", "dialling a:1 without TLS | give cert"),
        ("shim", "criu = '/proc/version'", "criu", "/proc/version cannot be run | `make tools`"),
        ("shim", "metrics = '7413'", "metrics", "'7413' is not HOST:PORT"),
        ("shim", "node = 'a/b'", "node", "'a/b' cannot be the name of a node"),
        ("shim", "job = '.x'", "job", "'.x' cannot be the name of a job"),
        ("shim", "workers = 2\nworker = 2", "worker", "worker 2 of 2 | they count from 0"),
        ("shim", "cwd = '/no/where'", "cwd", "does not exist"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, role: str, line: str, key: str, said: str
) -> None:
    checked = check(capsys, tmp_path, line, role)
    assert checked.code == 2
    assert said in checked.about(key)
    assert [of for of, *_ in checked.problems] == [key], "and nothing else"
    assert checked.told["error"]["kind"] == "BadRequest"


def test_everything_wrong_is_told_at_once_to_people(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "up.toml"
    path.write_text("leese = 3\nlisten = ['nowhere']\n")
    assert main(["config", "check", str(path), str(tmp_path / "missing.toml")]) == 2
    told = capsys.readouterr().err
    assert "3 things to correct" in told
    assert f"{path}: leese: there is no such option (did you mean lease?)" in told
    assert f"{path}: listen: 'nowhere' is not HOST:PORT" in told
    assert "missing.toml: No such file or directory" in told


def test_not_toml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checked = check(capsys, tmp_path, "listen = [")
    assert checked.code == 2
    assert "is not TOML" in checked.about("")


def test_certificates_that_do_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = Certificates(tmp_path / "certs")
    one, other = files.of("coordinator", "one"), files.of("coordinator", "other")
    text = ADDRESSES + f"tls-ca = '{one.ca}'\ntls-cert = '{one.certificate}'\ntls-key = '{{}}'\n"
    assert check(capsys, tmp_path, text.format(one.key)).problems == []
    wrong = check(capsys, tmp_path, text.format(other.key))
    assert "is not the one of the certificate" in wrong.about("tls-cert")
    no_key = check(capsys, tmp_path, f"tls-cert = '{one.certificate}'\n")
    assert "there is no tls-key, and they belong together" in no_key.about("tls-cert")
    # with them the network may be any, without an authority everybody would be let in
    wide = text.format(one.key).replace("127.0.0.1", "10.0.0.1")
    assert check(capsys, tmp_path, wide).problems == []
    nobody = "\n".join(line for line in wide.splitlines() if "tls-ca" not in line)
    assert "without TLS" in check(capsys, tmp_path, nobody).about("listen")


def test_plain_on_purpose(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "insecure = true\nlisten = ['10.0.0.1:7411']\netcd = 'e:2379'\n"
    assert check(capsys, tmp_path, text).problems == []


@pytest.mark.parametrize(
    ("name", "text", "role"),
    [
        ("shim.toml", "", "shim"),
        ("node-7-shim.toml", "listen = ['127.0.0.1:1']", "shim"),
        ("mine.toml", "store = '/x'\nnode = 'n0'", "shim"),
        ("mine.toml", "etcd-program = '/bin/true'", "up"),
        ("mine.toml", "fronts = 2\netcd = 'https://e:1'", "up"),
    ],
)
def test_whose_file_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, role: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    main(["config", "check", str(path), "-o", "json"])
    assert json.loads(capsys.readouterr().out)["files"][0]["role"] == role
    main(["config", "check", str(path), "--role", "coordinator", "-o", "json"])
    assert json.loads(capsys.readouterr().out)["files"][0]["role"] == "coordinator"


def test_without_a_name_the_usual_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.cli.config.USUAL_FILES", str(tmp_path / "*.toml"))
    assert main(["config", "check"]) == 2
    assert "no file was named" in capsys.readouterr().err
    for role in ("shim", "coordinator"):
        (tmp_path / f"{role}.toml").write_text("")
    assert main(["config", "check", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["role"] for each in told["files"]] == ["coordinator", "shim"]
    monkeypatch.setenv("ALLSTOP_CONFIG", str(tmp_path / "shim.toml"))
    assert main(["config", "check", "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 1


# -- show ------------------------------------------------------------------------------------------


def show(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[Any, str, str]]:
    assert main(["config", "show", "-o", "json", *words]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    return {each["option"]: (each["value"], each["source"], each["place"]) for each in options}


def test_where_each_option_comes_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text("name = 'file'\nlease = '7s'\nlisten = ['a:1', 'b:2']\nany-role = true\n")
    monkeypatch.setenv("ALLSTOP_LEASE", "8s")
    monkeypatch.setenv("ALLSTOP_FRONTS", "2")
    found = show(capsys, "coordinator", "--config", str(path), "--fronts", "3", "--etcd", "e:1")
    assert found["name"] == ("file", "file", str(path))
    assert found["listen"] == (["a:1", "b:2"], "file", str(path))
    assert found["any-role"] == (True, "file", str(path))
    assert found["lease"] == ("8s", "environment", "ALLSTOP_LEASE")
    assert found["fronts"] == ("3", "flag", "")
    assert found["etcd"] == (["e:1"], "flag", "")
    assert found["prefix"] == ("/allstop", "default", "")
    assert found["advertise"][1:] == ("default", "")


def test_the_same_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "shim", "--node", "n7"]) == 0
    told = capsys.readouterr().out
    assert [line.split()[1:] for line in told.splitlines() if "--node " in line] == [["n7", "flag"]]


def test_a_worker_s_shim(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shim.toml"
    path.write_text("job = 'llm'\nworkers = 2\nfollow = false\ncoordinator = 'a:1'\n")
    monkeypatch.setenv("ALLSTOP_CONFIG", str(path))
    found = show(capsys, "shim", "run", "--worker", "1", "--", "torchrun", "--nnodes", "2")
    assert found["worker"] == ("1", "flag", "")
    assert found["workers"] == ("2", "file", str(path))
    assert found["follow"] == (False, "file", str(path))
    assert found["coordinator"] == (["a:1"], "file", str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--lease", "soon"], "'soon' is no duration"),
        (["up", "--leese", "3s"], "No such option"),
        (["up", "words"], "'words' is no option"),
        (["up", "--config", "/no/file"], "cannot read /no/file"),
    ],
)
def test_what_the_verb_would_not_take(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["config", "show", *words]) == 2
    assert said in capsys.readouterr().err


def test_defaults_that_are_told_are_those_that_count(capsys: pytest.CaptureFixture[str]) -> None:
    coordinator = show(capsys, "coordinator")
    assert parse_duration(coordinator["lease"][0]) == TTL_S
    assert parse_duration(coordinator["node-lease"][0]) == NODE_LEASE_S
    shim = show(capsys, "shim", "run")
    options = ShimOptions("n", (), StoreOptions("/s"))
    assert parse_duration(shim["linger"][0]) == options.linger_s
    assert int(shim["slots"][0]) == WorkerSpec("j", 0, 1, ()).slots
    for name, value in (
        ("staging", options.staging_dir),
        ("run-dir", options.run_dir),
        ("node-state", options.state_dir),
    ):
        assert shim[name][0] == str(value)

"""Any file as `--config`: it is taken whole, or refused by name before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.cli import config_file as config
from coordinator.cli.coordinator import coordinator
from coordinator.cli.output import Output
from coordinator.cli.shim import shim
from coordinator.cli.up import up
from coordinator.core.errors import BadRequest

VERBS = {"coordinator": coordinator, "up": up, "shim": shim, "shim run": shim.commands["run"]}
KEYS = sorted({key for verb in VERBS.values() for key in config._by_key(verb)})
VALUES = (
    st.text(max_size=12)
    | st.sampled_from(["10s", "1h", "-1s", "0", "host:1", "unix:/x", "/tmp", "dump_s=3s", "true"])
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.booleans()
)
ANY = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dump_s", "x", "a b"]), inner, max_size=2)
    ),
    max_leaves=5,
)


def toml(value: Any) -> str:
    """A value as TOML writes it; tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = "".join(c if c.isalnum() or c in " :/=._-" else f"\\U{ord(c):08x}" for c in value)
        return f'"{escaped}"'
    if isinstance(value, list):
        return f"[{', '.join(toml(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml(key)} = {toml(each)}' for key, each in value.items())}}}"
    return repr(value)


def read(verb: str, path: Path) -> dict[str, Any]:
    """What the verb makes of the file."""
    ctx = click.Context(VERBS[verb], obj=Output([]))
    return config.options_of(path, ctx)


@pytest.mark.parametrize("verb", list(VERBS))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(table=st.dictionaries(st.sampled_from([*KEYS, "listne", "x"]), ANY, max_size=4))
def test_any_table(tmp_path: Path, verb: str, table: dict[str, Any]) -> None:
    path = tmp_path / "some.toml"
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in table.items()))
    found, refused = dict[str, Any](), ""
    try:
        found = read(verb, path)
    except BadRequest as error:
        refused = error.what
    if refused:
        assert str(path) in refused
        assert any(f" {key}" in refused for key in table), refused
        return
    own = {option.name for option in config._by_key(VERBS[verb]).values()}
    assert set(found) <= own | {"run"}
    ctx = click.Context(VERBS[verb], obj=Output([]), default_map=found)
    for option in config._by_key(VERBS[verb]).values():
        if option.name in found:  # what was taken is taken again when the verb is run
            option.type_cast_value(ctx, found[option.name])


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=80))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "some.toml"
    path.write_bytes(data)
    refused = ""
    try:
        assert read("up", path) == {}  # nothing but comments and empty lines
    except BadRequest as error:
        refused = error.what
    assert not refused or str(path) in refused


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('lsten = ["a:1"]', "did you mean listen"),
        ("lease = true", "lease: expected a text or a number, not True"),
        ('lease = "soon"', "lease: 'soon' is no duration"),
        ("listen = [[1]]", "listen: expected a text or a number"),
        ("[policy]\ndump_s = [1]", "policy.dump_s: expected a text or a number"),
        ('[policy]\ndump_s = "long"', "policy: "),
        ('etcd-ca = "/nowhere/ca.pem"', "etcd-ca: "),
        ("[lease]\na = 1", "lease: expected a text or a number"),
        ("lease = 1\nlease = 2", "is not TOML"),
        ('config = "other.toml"', "config: there is no such option"),
        ("x" * 2_000_000, "more than"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(BadRequest) as caught:
        read("up", path)
    assert told in f"{caught.value.what} {caught.value.advice}"
    assert str(path) in caught.value.what


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/null/x"), Path("a\0b")):
        with pytest.raises(BadRequest, match="cannot read"):
            read("up", path)

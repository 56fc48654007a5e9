"""What deploy/kubernetes/nvsentinel says is what the bridge asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml  # type: ignore[import-untyped]

from coordinator.bridges import nvsentinel
from coordinator.cli.hook import nvsentinel as verb
from tests.support.words import parse

FOLDER = Path(__file__).parents[3] / "deploy/kubernetes/nvsentinel"


def documents() -> dict[str, Any]:
    """By kind."""
    found = list(yaml.safe_load_all((FOLDER / "drainer.yaml").read_text()))
    return {document["kind"]: document for document in found}


def test_the_bridge_may_do_what_it_does_and_nothing_else() -> None:
    rules = documents()["ClusterRole"]["rules"]
    may = {(rule["apiGroups"][0], rule["resources"][0], *rule["verbs"]) for rule in rules}
    assert may == {
        ("nvsentinel.nvidia.com", "drainrequests", "get", "list"),
        ("nvsentinel.nvidia.com", "drainrequests/status", "patch"),
        ("", "pods", "list"),
        ("", "pods/eviction", "create"),
    }


def test_its_objects_are_those_that_it_looks_at() -> None:
    crd = documents()["CustomResourceDefinition"]["spec"]
    (version,) = crd["versions"]
    assert f"/apis/{crd['group']}/{version['name']}" == nvsentinel.GROUP
    assert crd["names"]["plural"] == "drainrequests"
    assert version["subresources"] == {"status": {}}
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())["node-drainer"]["customDrain"]
    assert values["statusConditionType"] == nvsentinel.COMPLETE
    assert (values["apiGroup"], values["version"]) == (crd["group"], version["name"])


def test_its_command_line_is_one() -> None:
    spec = documents()["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    line = [*container["command"], *container["args"]]
    assert isinstance(verb, click.Command)
    parse(line)
    assert spec["serviceAccountName"] == documents()["ServiceAccount"]["metadata"]["name"]

"""The manifests below deploy/kubernetes, read as the API server and the kubelet would read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")

Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    """Every object, without what is kustomize's own, and Helm's values."""
    paths = sorted(ROOT.glob("*/*.yaml"))
    documents = [each for path in paths for each in yaml.safe_load_all(path.read_text())]
    return [each for each in documents if each.get("kind", "Kustomization") != "Kustomization"]


def manifest(kind: str, name: str) -> Manifest:
    """The object of that kind and name."""
    (found,) = (m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name))
    return found


def pod_templates(thing: Any) -> Iterator[Manifest]:
    """Whatever in it has containers below `spec`, at any depth."""
    if isinstance(thing, list):
        for each in thing:
            yield from pod_templates(each)
    elif isinstance(thing, dict):
        if "containers" in (thing.get("spec") or {}):
            yield thing
        for each in thing.values():
            yield from pod_templates(each)


def node_of(kind: str, name: str) -> Manifest:
    """The only container of an object's only pod template."""
    (template,) = pod_templates(manifest(kind, name))
    (container,) = template["spec"]["containers"]
    return dict(container)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """As the kubelet replaces $(NAME): what it does not know stays, and $$ is one $."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group())

    return REFERENCE.sub(replace, text)


def environment(container: Manifest, fields: Mapping[str, str], **more: str) -> dict[str, str]:
    """Its variables, each with those before it; `fields` gives the downward API's values.

    `more` are what a controller adds at the end.
    """
    variables: dict[str, str] = {}
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            value = expanded(entry["value"], variables)
        variables[entry["name"]] = value
    return variables | more


def argv(container: Manifest, variables: Mapping[str, str]) -> list[str]:
    """Its command and arguments."""
    words = [*container.get("command", []), *container.get("args", [])]
    return [expanded(word, variables) for word in words]

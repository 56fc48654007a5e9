"""Makes the schemas that the Kubernetes manifests are held against: tests/unit/deploy/schemas.

    python3 -m venv D && D/bin/pip install kubeflow-trainer-api==2.3.0 kubernetes-validate==1.37.0
    D/bin/python tools/kubernetes_schemas.py

Both packages carry what their projects publish. Descriptions, and what no manifest of ours can
reach, are left out; fields that are not named are made errors.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

OUT = Path(__file__).resolve().parents[1] / "tests" / "unit" / "deploy" / "schemas"
TRAINER_KINDS = {
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "JobSet": "JobsetV1alpha2JobSet",
}
KUBERNETES = "v1.37.0"
KUBERNETES_KINDS = {
    "Namespace": "io.k8s.api.core.v1.Namespace",
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "Service": "io.k8s.api.core.v1.Service",
    "StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}
DROPPED = ("description", "title", "default")


def main() -> None:
    """Write both files."""
    OUT.mkdir(parents=True, exist_ok=True)
    trainer, kubernetes = _trainer(), _kubernetes()
    for package, found in (("kubeflow-trainer-api", trainer), ("kubernetes-validate", kubernetes)):
        version = importlib.metadata.version(package)
        about = f"{package} {version}, Apache-2.0, by tools/kubernetes_schemas.py"
        path = OUT / f"{package}.json"
        path.write_text(json.dumps({"$comment": about, **found}, separators=(",", ":")) + "\n")


def _trainer() -> Schema:
    """From the models of the package; these name every field, so others are not allowed."""
    models = importlib.import_module("kubeflow_trainer_api.models")
    definitions: Schema = {}
    kinds: Schema = {}
    for kind, model in TRAINER_KINDS.items():
        schema = getattr(models, model).model_json_schema(by_alias=True)
        definitions |= schema.pop("$defs")
        definitions[model] = schema
        kinds[kind] = {"$ref": f"#/$defs/{model}"}
    for each in definitions.values():
        if "actual_instance" in each.get("properties", ()):  # a quantity, or an int or string
            each.clear()
            each["type"] = ["string", "number"]
        elif "properties" in each:
            each["additionalProperties"] = False
    return {"kinds": kinds, "$defs": _stripped(definitions)}


def _kubernetes() -> Schema:
    """From the strict schemas of the package, which end at what the kinds need."""
    name = f"kubernetes_validate/kubernetes-json-schema/{KUBERNETES}-local-strict/_definitions.json"
    found = importlib.metadata.distribution("kubernetes-validate").locate_file(name)
    text = Path(str(found)).read_text().replace("/api/_definitions.json#", "#")
    everything = json.loads(text)["$defs"]
    needed: Schema = {}
    left = list(KUBERNETES_KINDS.values())
    while left:
        name = left.pop()
        if name not in needed:
            needed[name] = everything[name]
            left.extend(ref.removeprefix("#/$defs/") for ref in _references(everything[name]))
    kinds = {kind: {"$ref": f"#/$defs/{name}"} for kind, name in KUBERNETES_KINDS.items()}
    return {"kinds": kinds, "$defs": _stripped(needed)}


def _references(thing: Any) -> Iterator[str]:
    if isinstance(thing, dict):
        if isinstance(thing.get("$ref"), str):
            yield thing["$ref"]
        thing = list(thing.values())
    if isinstance(thing, list):
        for each in thing:
            yield from _references(each)


def _stripped(thing: Any) -> Any:
    """Without texts, and without the models' nulls for what is left out; a property may
    itself be called `description`, which is no text.
    """
    if isinstance(thing, list):
        return [_stripped(each) for each in thing]
    if not isinstance(thing, dict):
        return thing
    match thing.get("anyOf"):
        case [only, {"type": "null"}]:
            return _stripped(only)
    return {
        key: {name: _stripped(each) for name, each in value.items()}
        if key == "properties"
        else _stripped(value)
        for key, value in thing.items()
        if key not in DROPPED or isinstance(value, dict)
    }


if __name__ == "__main__":
    main()

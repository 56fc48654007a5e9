"""deploy/kubernetes against the published schemas, the command line, and deploy/compose."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from coordinator.cli.coordinator import coordinator
from coordinator.cli.durations import parse_duration
from coordinator.cli.shim import shim
from tests.support.manifests import (
    ROOT,
    Manifest,
    argv,
    environment,
    manifest,
    manifests,
    node_of,
    pod_templates,
)
from worker_shim.examination import CAPABILITIES

SCHEMAS = Path(__file__).with_name("schemas")
COMPOSE = ROOT.parent / "compose"
NODES = [("JobSet", "llm"), ("ClusterTrainingRuntime", "allstop-torch")]
SETS = [("StatefulSet", "allstop-coordinator"), ("StatefulSet", "allstop-etcd")]
FIELDS = {
    "metadata.name": "allstop-coordinator-0",
    "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "llm",
    "metadata.labels['batch.kubernetes.io/job-completion-index']": "1",
}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1"}  # Trainer's own
SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))


def named(entry: Any) -> str:
    return entry["metadata"]["name"] if isinstance(entry, dict) else "-".join(entry)


# -- schemas ---------------------------------------------------------------------------------------


def trouble(thing: Manifest) -> list[str]:
    """What the published schema of its kind has against it."""
    for path in SCHEMAS.glob("*.json"):
        schema = json.loads(path.read_text())
        if thing["kind"] in schema["kinds"]:
            whole = {**schema["kinds"][thing["kind"]], "$defs": schema["$defs"]}
            found = jsonschema.Draft202012Validator(whole).iter_errors(thing)
            return [f"{error.json_path}: {error.message}" for error in found]
    return [f"no schema of {thing['kind']}"]


@pytest.mark.parametrize("thing", manifests(), ids=named)
def test_every_manifest_is_what_its_schema_says(thing: Manifest) -> None:
    assert trouble(thing) == []


def test_a_field_that_is_not_known_or_of_another_type_is_found() -> None:
    for kind, name in [*NODES, ("TrainJob", "digits")]:
        wrong = copy.deepcopy(manifest(kind, name))
        wrong["spec"]["replicatedJob"] = []
        assert trouble(wrong), "unknown"
    wrong = copy.deepcopy(manifest(*NODES[0]))
    (template,) = pod_templates(wrong)
    template["spec"]["terminationGracePeriodSeconds"] = "150s"
    assert trouble(wrong), "of another type, far below"


def test_every_file_is_part_of_its_kustomization() -> None:
    for directory in (path for path in ROOT.iterdir() if path.is_dir()):
        told = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
        there = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}
        by_hand = {"trainjob.yaml", "values.yaml"}  # of whoever trains; of NVSentinel's own chart
        assert set(told) == there - by_hand


# -- what fits together ----------------------------------------------------------------------------


def containers() -> Iterator[tuple[Manifest, Manifest]]:
    """Each pod's spec with each of its containers."""
    for thing in manifests():
        for template in pod_templates(thing):
            for container in template["spec"]["containers"]:
                yield template["spec"], container


def test_images_are_those_that_the_dockerfile_makes() -> None:
    told = dict(
        line.split("=", 1)
        for line in (COMPOSE / ".env").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    images = {container["image"] for _, container in containers()}
    images.add(manifest("TrainJob", "digits")["spec"]["trainer"]["image"])
    for image in images:
        name, _, version = image.partition(":")
        assert version == told["ALLSTOP_VERSION"]
        assert f" AS {name.removeprefix('allstop/')}\n" in dockerfile


@pytest.mark.parametrize("which", NODES, ids=named)
def test_nodes_have_the_capabilities_of_compose_and_of_doctor(which: tuple[str, str]) -> None:
    compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["x-node"]
    context = node_of(*which)["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": compose["cap_add"]}
    assert set(context["capabilities"]["add"]) >= set(CAPABILITIES)
    assert "privileged" not in context


def test_what_is_mounted_is_there_and_grace_is_longer_than_the_shims() -> None:
    for spec, container in containers():
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {"data"} if container["name"] == "etcd" else set()
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    for which in NODES:
        (template,) = pod_templates(manifest(*which))
        told = environment(node_of(*which), FIELDS)
        grace_s = template["spec"]["terminationGracePeriodSeconds"]
        assert grace_s >= parse_duration(told["ALLSTOP_TERM_GRACE"]) + 15
        assert told["ALLSTOP_TERM_CODE"] == "143", "a pod that was told to go is not completed"
        assert template["metadata"]["labels"] == {"allstop/node": "true"}


def test_a_job_is_complete_when_its_workers_are_whatever_pods_they_are_in() -> None:
    (job,) = manifest("JobSet", "llm")["spec"]["replicatedJobs"]
    spec, workers = job["template"]["spec"], int(node_of("JobSet", "llm")["command"][5])
    told = environment(node_of("JobSet", "llm"), FIELDS)
    assert spec["successPolicy"] == {"rules": [{"succeededCount": workers}]}
    assert spec["parallelism"] == spec["completions"] > workers
    assert told["PET_NNODES"] == str(workers)
    assert told["ALLSTOP_NODE"] == "llm-node-0-1", "the pod's host name"
    assert told["PET_MASTER_ADDR"] == "llm-node-0-0.llm"


def test_addresses_are_those_of_pods_that_there_are() -> None:
    known = {
        f"{name}-{index}.{spec['serviceName']}:{port['containerPort']}"
        for _, name in SETS
        for spec in [manifest("StatefulSet", name)["spec"]]
        for index in range(spec["replicas"])
        for port in node_of("StatefulSet", name)["ports"]
    }
    asked = [environment(node_of(*which), FIELDS)["ALLSTOP_COORDINATOR"] for which in NODES]
    told = environment(node_of("StatefulSet", "allstop-coordinator"), FIELDS)
    asked.append(told["ALLSTOP_ETCD"].replace("https://", ""))
    assert {address for each in asked for address in each.split(",")} <= known
    for _, name in SETS:
        spec = manifest("StatefulSet", name)["spec"]
        service = manifest("Service", spec["serviceName"])["spec"]
        ports = [port["containerPort"] for port in node_of("StatefulSet", name)["ports"]]
        assert [port["port"] for port in service["ports"]] == ports
        assert service["selector"] == spec["template"]["metadata"]["labels"]


# -- the command line ------------------------------------------------------------------------------


def understood(command: click.Command, words: list[str], told: dict[str, str]) -> dict[str, Any]:
    """What allstop's own parser makes of it, every ALLSTOP_ variable known to it."""
    known = {
        name
        for parameter in command.params
        for name in ([parameter.envvar] if isinstance(parameter.envvar, str) else [])
    }
    known |= {f"ALLSTOP_{(p.name or '').upper()}" for p in command.params}
    assert {name for name in told if name.startswith("ALLSTOP_")} <= known
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            # whether certificates are there is tried below
            patch.setenv(name, __file__ if value.startswith("/tls/") else value)
        return command.make_context(command.name, words, auto_envvar_prefix="ALLSTOP").params


def test_the_coordinators_options_are_understood() -> None:
    container = node_of("StatefulSet", "allstop-coordinator")
    told = environment(container, FIELDS)
    words = argv(container, told)
    assert words[:2] == ["allstop", "coordinator"]
    params = understood(coordinator, words[2:], told)
    assert params["advertise"] == "allstop-coordinator-0.allstop-coordinator"
    assert len(",".join(params["etcd"]).split(",")) == 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What certificates.sh makes for the nodes of the examples."""
    place = tmp_path_factory.mktemp("certificates")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    nodes = [f"llm-node-0-{index}" for index in range(3)]
    done = subprocess.run(
        [str(ROOT / "certificates.sh"), *nodes],
        cwd=place,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kubectl -n allstop create secret generic allstop-") == 5
    return place / "certificates"


def test_certificates_are_where_the_manifests_look(made: Path) -> None:
    for spec, container in containers():
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        secrets = {
            places[volume["name"]]: volume["secret"]["secretName"].removeprefix("allstop-")
            for volume in spec["volumes"]
            if "secret" in volume
        }
        values = environment(container, FIELDS).values()
        files = [value for value in values if value.startswith("/tls/")]
        assert len(files) >= 3
        for file in files:
            (place,) = (place for place in secrets if file.startswith(f"{place}/"))
            assert (made / secrets[place] / file.removeprefix(f"{place}/")).is_file(), file


# -- the script that a pod runs --------------------------------------------------------------------

FAKE = """#!/bin/sh
case $1 in
snapshots) [ "$ALLSTOP_TLS_CERT" = /tls/viewer-nodes.pem ] && cat "$SAID"; exit "$CODE" ;;
*) for word; do printf '%s\\n' "$word"; done ;;
esac
"""


def test_both_runtimes_run_the_same_script_and_shellcheck_likes_it(tmp_path: Path) -> None:
    scripts = {node_of(*which)["command"][2] for which in NODES}
    assert len(scripts) == 1
    (tmp_path / "script").write_text("#!/bin/sh\nset -eu\n" + scripts.pop())
    for path in (tmp_path / "script", ROOT / "certificates.sh"):
        done = subprocess.run([SHELLCHECK, str(path)], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stdout


def ran(place: Path, which: tuple[str, str], index: str, code: int, said: str) -> tuple[int, str]:
    """What the pod of that index would start, when `allstop snapshots` answers so."""
    for name, text in (("allstop", FAKE), ("mount", "#!/bin/sh\n")):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    (place / "said").write_text(said)
    fields = {**FIELDS, "metadata.labels['batch.kubernetes.io/job-completion-index']": index}
    container = node_of(*which)
    told = environment(container, fields, **{**PET, "PET_NODE_RANK": index})
    container.setdefault("args", ["torchrun", "train.py"])
    done = subprocess.run(
        argv(container, told),
        env={**told, "PATH": f"{place}:{os.environ['PATH']}", "SAID": str(place / "said")}
        | {"CODE": str(code)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout


SNAPSHOTS = '{"job": "llm", "latest": "llm-1", "snapshots": []}'
NONE = '{"job": "llm", "latest": "", "snapshots": []}'


@pytest.mark.parametrize("which", NODES, ids=named)
@pytest.mark.parametrize(
    ("index", "code", "said", "spare"),
    [
        ("1", 4, "", False),
        ("1", 0, NONE, False),
        ("1", 0, SNAPSHOTS, True),
        ("2", 4, "", True),
    ],
)
def test_a_pod_is_a_worker_at_first_and_a_spare_later(
    tmp_path: Path, which: tuple[str, str], index: str, code: int, said: str, spare: bool
) -> None:
    ended, words = ran(tmp_path, which, index, code, said)
    assert ended == 0
    first, *rest = words.splitlines()
    assert first == "shim"
    if spare:
        assert rest == ["--until-worker-ends"]
        return
    told = environment(node_of(*which), FIELDS)
    assert rest[0] == "run"
    params = understood(shim.commands["run"], rest[1:], told)
    assert (params["job"], params["workers"], params["worker"]) == ("llm", 2, 1)
    assert params["command"][0] == "torchrun"


@pytest.mark.parametrize("which", NODES, ids=named)
def test_a_pod_starts_nothing_where_nobody_answers(tmp_path: Path, which: tuple[str, str]) -> None:
    assert ran(tmp_path, which, "0", 11, "") == (11, "")

"""Ray Train with all of its Ray nodes is one job: saved at one step, moved, equal to the last bit.

Each worker's tree is a whole Ray node (raylet, object store, agents, train workers); that of the
first is the head and the driver, too. Set up as docs/integrations.md says.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.recovery.contender import JOBS, python
from bench.recovery.environments import make
from bench.recovery.ray_train import ENV, OBJECT_STORE_BYTES, PORT, VERSION, WAIT
from coordinator.core.errors import NotReady
from lab import Lab
from tests.peers.kit import NODES, Peer, undisturbed
from tests.support.jobs import until

EPOCHS = 50
STEPS_AN_EPOCH = 46
READY_S = 60
SETTINGS = {**ENV, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # it would drain for 30 s

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> None:
    make("ray", [f"ray[train]=={VERSION}"], "import ray.train.torch")


@pytest.fixture
def make_place() -> Iterator[Callable[[], Path]]:
    """Directories for Ray with short names: its sockets are deep below, and 107 bytes are all."""
    made: list[Path] = []

    def make_one() -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp")))
        return made[-1]

    yield make_one
    for place in made:
        shutil.rmtree(place)


def nodes(lab: Lab, root: Path, place: Path) -> list[list[str]]:
    """The head with the driver on n0, a Ray node on n1; both end when the driver has."""
    ray, program = python("ray").with_name("ray"), python("ray")
    first, second = (lab.hosts[node].address for node in NODES)
    (place / "wait.py").write_text(WAIT)
    options = "--num-cpus=1 --disable-usage-stats --block"
    options += f" --object-store-memory={OBJECT_STORE_BYTES}"
    job = f"{JOBS / 'ray_ddp.py'} --epochs {EPOCHS} --workers {len(NODES)} --save-every 100000"
    job += f" --storage {root / 'ray'} --result {root / 'result.json'}"
    head = (
        f"{ray} start --head --port={PORT} --node-ip-address={first} --temp-dir={place}/0"
        f" --include-dashboard=false {options} &"
        f" {program} {place}/wait.py {len(NODES)} {READY_S} && {program} {job}; code=$?;"
        f" touch {place}/done; kill $!; wait; exit $code"
    )
    other = (
        f"until {ray} health-check --address {first}:{PORT}; do sleep 1; done;"
        f" {ray} start --address={first}:{PORT} --node-ip-address={second} --temp-dir={place}/1"
        f" {options} &"
        f" while [ ! -e {place}/done ]; do kill -0 $! || exit 1; sleep 1; done;"
        f" kill $!; wait; exit 0"
    )
    return [["sh", "-c", head], ["sh", "-c", other]]


@pytest.mark.timeout(360)
async def test_a_whole_ray_cluster_moves(
    make_lab: Callable[..., Lab],
    criu_path: str,
    tmp_path: Path,
    make_place: Callable[[], Path],
    results: dict[str, Any],
) -> None:
    places = [make_place(), make_place()]
    expected = undisturbed(
        make_lab,
        tmp_path / "undisturbed",
        lambda lab, root: nodes(lab, root, places[0]),
        [SETTINGS, SETTINGS],
    )
    assert expected["steps"] == EPOCHS * STEPS_AN_EPOCH
    peer = Peer(make_lab(["n0", "n1", "n2", "n3", "n4"]), tmp_path / "shared", criu_path)
    peer.start(nodes(peer.lab, peer.shared, places[1]), [SETTINGS, SETTINGS])
    await peer.moves_twice()
    assert await peer.ended() == expected
    results[f"ray[train]=={VERSION}"] = {
        "undisturbed": expected,
        "story": peer.story,
        "bit_exact": True,
    }


@pytest.mark.timeout(180)
async def test_a_driver_without_its_ray_node_is_refused_and_why_is_said(
    make_lab: Callable[..., Lab],
    criu_path: str,
    tmp_path: Path,
    make_place: Callable[[], Path],
) -> None:
    """The train workers belong to a Ray node: a tree without it has neither them nor a meaning."""
    peer, place = Peer(make_lab(NODES), tmp_path / "shared", criu_path), make_place()
    host = peer.lab.hosts["n0"]
    node = [str(python("ray").with_name("ray")), "start", "--head", "--num-cpus=2", "--block"]
    node += [f"--port={PORT}", f"--node-ip-address={host.address}", f"--temp-dir={place}"]
    node += ["--include-dashboard=false", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    with (tmp_path / "node.log").open("wb") as log:
        host.popen(node, env={**os.environ, **SETTINGS}, stdout=log, stderr=log)
    driver = (
        "import ray, time\n"
        "for _ in range(60):\n"
        "    try: ray.init(address='auto'); break\n"
        "    except ConnectionError: time.sleep(0.5)\n"
        "print('connected', flush=True)\n"
        "time.sleep(600)\n"
    )
    peer.start([[str(python("ray")), "-c", driver]], [SETTINGS], workers=1)
    await peer.printed("n0", "connected")

    async def found() -> list[str]:
        return await peer.unfit()

    assert any(words.startswith("unix_socket: ") for words in await until("findings", found))
    with pytest.raises(NotReady) as refused:
        await peer.snapshot()
    assert "unix socket to a process outside the tree" in str(refused.value)

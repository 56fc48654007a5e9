"""Every kind of file comes back as it was on a machine that has nothing of it, by real dumps."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.errors import DriverError
from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until
from worker_shim.files.keeping import Keeping, parse_rule

pytestmark = [pytest.mark.root, pytest.mark.criu]

IMAGES, OUT, PLACE = DISK / "images", DISK / "out", DISK / "deep" / "place"
LOG = PLACE / "log"
SECONDS = {"deadline_s": 30.0}
KIB = 1 << 10
LOG_BYTES = 200 * KIB


@pytest.fixture
def nodes(make_lab: Callable[..., Lab], criu_path: str) -> Iterator[tuple[Node, Node]]:
    lab = make_lab(["n0", "s0"])
    with (
        closing(Node(lab.hosts["n0"], criu_path)) as node,
        closing(Node(lab.hosts["s0"], criu_path)) as spare,
    ):
        yield node, spare


def states(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in lines(path) if line.startswith("STATE ")]


def launch(node: Node) -> int:
    node.here(PLACE.parent).mkdir(mode=0o705)
    argv = [sys.executable, str(PROGRAMS / "holder.py"), str(PLACE), str(OUT)]
    root = int(node.call("launch", argv, str(DISK / "log")))
    until(lambda: len(states(node.here(OUT))) >= 2, "it tells of its files")
    return root


def save(
    node: Node, root: int, keeping: Keeping, between: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Stop it, cut and dump; the newest state then. What happens `between`, others do."""
    tree = node.call("stop", root)
    files = node.call("files.cut", tree, IMAGES / "files", keeping=keeping)
    between()
    node.call("criu.dump", root, IMAGES / "criu", **SECONDS)
    named = node.call("criu.files", IMAGES / "criu")
    sizes = {file.path: file.size_bytes for file in named if file.size_bytes >= 0}
    node.files = node.call("files.settle", files, IMAGES / "files", sizes)
    told = states(node.here(OUT))
    assert told[-2] == told[-1], "the program's own state is to be constant"
    return told[-1]


def restore(node: Node, source: Node, root: int) -> tuple[Any, ...]:
    """On a node that has nothing of it; what was told of the files."""
    if not node.here(IMAGES).exists():
        shutil.copytree(source.here(IMAGES), node.here(IMAGES))
    assert node.call("lacking", IMAGES / "criu", source.files) == []
    node.call("files.check", source.files, IMAGES / "files")
    told = node.call("files.roll_back", source.files, IMAGES / "files", label="s1", by="-0")
    at_cut = len(states(node.here(OUT)))
    node.call("criu.restore", IMAGES / "criu", **SECONDS)
    node.call("go_on", root)
    until(lambda: len(states(node.here(OUT))) > at_cut, "the restored one tells of its files")
    return tuple(told)


def test_one_of_everything_on_a_machine_that_has_none_of_it(nodes: tuple[Node, Node]) -> None:
    node, spare = nodes
    root = launch(node)
    tail = Keeping((parse_rule(f"tail:{LOG}"),), tail_bytes=4 * KIB)
    before = save(node, root, tail)
    assert before["deleted"][4] == 0, "it has no name"
    assert not spare.here(PLACE.parent).exists()
    (put,) = restore(spare, node, root)
    after = states(spare.here(OUT))[-1]
    log_before, log_after = before.pop("log"), after.pop("log")
    assert after == before
    assert (put.path, put.what, put.size_bytes) == (str(LOG), "hole", LOG_BYTES - 4 * KIB)
    assert log_after[:6] == log_before[:6], "size, owner and offset"
    content = node.here(LOG).read_bytes()
    assert spare.here(LOG).read_bytes() == bytes(LOG_BYTES - 4 * KIB) + content[-4 * KIB :]
    assert spare.here(PLACE.parent).stat().st_mode & 0o777 == 0o705
    left = spare.host.run(["ls", "-A", "/dev/shm", str(PLACE)]).stdout
    assert "link_remap" not in left
    assert "allstop-new" not in left
    spare.host.run(["mv", str(IMAGES), str(DISK / "first")])
    before = save(spare, root, Keeping())  # a restored tree is as good as a new one
    spare.call("kill", root)
    restore(spare, spare, root)
    assert states(spare.here(OUT))[-1] == before


def test_of_none_a_node_without_the_file_is_told_before(nodes: tuple[Node, Node]) -> None:
    node, spare = nodes
    root = launch(node)
    before = save(node, root, Keeping((parse_rule(f"none:{LOG}"),)))
    with pytest.raises(DriverError, match=f"{LOG} is missing on this node") as raised:
        restore(spare, node, root)
    assert f"of its {LOG_BYTES} bytes none were kept" in raised.value.what
    assert not spare.here(OUT).exists(), "nothing was done"
    spare.here(PLACE).mkdir(mode=0o711, parents=True)
    shutil.copy(node.here(LOG), spare.here(LOG))
    with spare.here(LOG).open("ab") as log:
        log.write(b"more than at the cut")
    (put,) = restore(spare, node, root)
    assert (put.path, put.what, put.size_bytes) == (str(LOG), "cut", 20)
    assert states(spare.here(OUT))[-1] == before


def test_a_file_that_somebody_else_appends_to_while_the_job_stands_still(
    nodes: tuple[Node, Node],
) -> None:
    """CRIU insists on the size that it saw, which is not that of the cut."""
    node, spare = nodes
    root = launch(node)

    def append() -> None:
        with node.here(LOG).open("ab") as log:
            log.write(b"by another process")
            os.fsync(log.fileno())

    save(node, root, Keeping(), between=append)
    assert restore(spare, node, root) == ()
    content = spare.here(LOG).read_bytes()
    assert (len(content), content[LOG_BYTES:]) == (LOG_BYTES + 18, b"by another process")
    assert counted(spare.here(OUT)) > 0


def test_a_file_that_the_job_only_reads_is_looked_for_too(nodes: tuple[Node, Node]) -> None:
    node, spare = nodes
    data = DISK / "data"
    node.here(data).write_bytes(bytes(KIB))
    argv = [sys.executable, str(PROGRAMS / "odd.py"), "reader", str(data), str(OUT)]
    root = int(node.call("launch", argv, str(DISK / "log")))
    until(lambda: counted(node.here(OUT)) >= 5, "it counts")
    tree = node.call("stop", root)
    files = node.call("files.cut", tree, IMAGES / "files", keeping=Keeping())
    node.call("criu.dump", root, IMAGES / "criu", **SECONDS)
    shutil.copytree(node.here(IMAGES), spare.here(IMAGES))
    assert node.call("lacking", IMAGES / "criu", files) == []
    (trouble,) = spare.call("lacking", IMAGES / "criu", files)
    assert trouble.startswith(f"{data} is missing on this node")
    spare.here(data).write_bytes(bytes(KIB - 1))
    (trouble,) = spare.call("lacking", IMAGES / "criu", files)
    assert "1023 bytes long on this node and was 1024" in trouble

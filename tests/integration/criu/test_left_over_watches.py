"""What epoll watches though it was closed: refused by CRIU, and ended before it is asked."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from coordinator.core.errors import DriverError
from coordinator.core.model import Severity
from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until

pytestmark = [pytest.mark.root, pytest.mark.criu]

OUT = DISK / "out"
SECONDS = {"deadline_s": 30.0}


@dataclass
class Forgetting:
    """The program, and the numbers it told."""

    node: Node
    root: int
    numbers: dict[str, int]

    @property
    def count(self) -> int:
        return counted(self.node.here(OUT))

    def goes_on(self) -> None:
        before = self.count
        until(lambda: self.count > before, "what comes over the pair")

    def watched(self) -> list[int]:
        """The numbers that its epoll watches."""
        info = f"/proc/{self.root}/fdinfo/{self.numbers['epoll']}"
        text = self.node.host.run(["cat", info]).stdout
        found = re.findall(r"^tfd:\s*(\d+)", text, re.MULTILINE)
        return sorted(int(number) for number in found)


def start(node: Node, *arguments: str) -> Forgetting:
    argv = [sys.executable, str(PROGRAMS / "forgetting.py"), str(OUT), *arguments]
    root = node.call("launch", argv, str(DISK / "log"))
    until(lambda: counted(node.here(OUT)) > 0, "the first count")
    words = [line.split() for line in lines(node.here(OUT))]
    return Forgetting(node, root, {one: int(other) for one, other in words if other.isdigit()})


@pytest.fixture
def node(make_lab: Callable[..., Lab], criu_path: str) -> Iterator[Node]:
    with closing(Node(make_lab(["n0"]).hosts["n0"], criu_path)) as node:
        yield node


@pytest.mark.parametrize("argument", ["", "shared"])
def test_criu_refuses_it_by_itself(node: Node, argument: str) -> None:
    """If this fails, the mending, or the refusal, is no longer needed."""
    program = start(node, argument)
    node.call("stop", program.root)
    with pytest.raises(DriverError, match="watches by epoll a file"):
        node.call("criu.dump", program.root, DISK / "images", **SECONDS)


def test_what_the_child_may_use_is_refused(node: Node) -> None:
    program = start(node, "shared")
    found = node.call("watches", program.root)
    assert {(one.severity, one.code) for one in found} == {(Severity.REFUSE, "epoll")}
    assert "which has that epoll, too" in found[0].text
    assert node.call("settle", node.call("stop", program.root)) == 0


def test_it_is_ended_and_nothing_else(node: Node) -> None:
    program = start(node)
    numbers = program.numbers
    again, stays = numbers["again"], sorted([numbers["living"], numbers["moved"]])
    ends = [numbers["free"], numbers["pipe"], again, again]
    assert sorted(program.watched()) == sorted([*ends, *stays])
    found = node.call("watches", program.root)
    assert [(one.severity, one.code) for one in found] == [(Severity.WARN, "epoll")] * 4
    told = " ".join(one.text for one in found)
    assert all(f"descriptor {number} " in told for number in ends)

    tree = node.call("stop", program.root)
    assert node.call("settle", tree) == 4
    assert program.watched() == stays
    assert node.call("settle", tree) == 0
    assert node.call("watches", program.root) == ()
    node.call("criu.dump", program.root, DISK / "images", **SECONDS)
    node.call("go_on", program.root)
    program.goes_on()

    node.call("kill", program.root)
    node.call("criu.restore", DISK / "images", **SECONDS)
    node.call("go_on", program.root)
    program.goes_on()
    assert program.watched() == sorted([numbers["living"], numbers["elsewhere"]])

"""The quick start and the commands of the other pages, run as they stand on three machines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab
from tests.docs.pages import PAGES, ROOT, blocks_of
from tests.docs.stage import SUBNET, Stage

pytestmark = [
    pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.torch, pytest.mark.slow,
]  # fmt: skip

QUICK_START = ROOT / "docs" / "quickstart.md"
OTHERS = "other pages"  # the comment where their turn is
STEP = re.compile(r"step (\d+) loss")
METRIC = re.compile(r"\ballstop_[a-z_]+[a-z]\b")


@pytest.mark.timeout(500)
def test_the_pages_do_what_they_say(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> None:
    stage = Stage(make_lab(["b", "c"], subnet=SUBNET), tmp_path / "pages")
    seen: list[str] = []
    for block in blocks_of(QUICK_START):
        if block.todo == OTHERS:
            for other in (
                each for page in PAGES if page != QUICK_START for each in blocks_of(page)
            ):
                if other.verb == "run":
                    stage.do(other)
        else:
            stage.do(block)
        seen.append(block.todo)
    assert OTHERS in seen

    told = {place: text for place, text in stage.told.items() if "quickstart" in place}
    one_machine = [text for text in told.values() if "first" in text]
    assert any("COMMITTED" in text for text in one_machine)
    assert any("RUNNING" in text for text in one_machine)
    saved = stage.ask(lambda client: client.snapshots("first")).snapshots[-1]
    after = [int(step) for text in one_machine if "RUNNING" in text for step in STEP.findall(text)]
    assert after, "it prints steps again"
    assert min(after) <= saved.step + 20, "from where it was saved, not from where it was ended"

    view = stage.wait_running("llm")
    names = {name: host.name for name, host in stage.machines.items()}
    assert view.nodes == (names["B"], names["A"]), "A has taken the worker of C"
    named = set(METRIC.findall((ROOT / "docs" / "metrics.md").read_text()))
    there = set(METRIC.findall(stage.metrics()))
    assert named - there == set(), "metrics of the page that nobody has"

"""`allstop diff` of two dumps of one tree, which took a step between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.core.model import Snapshot
from tests.integration.reading.kit import Dumped
from tests.integration.reading.stored import later, left_in, put, root_of, shown
from tests.unit.cli.conftest import Cli, FakeOperator
from worker_shim.images.opening import open_store
from worker_shim.reading.comparing import compare
from worker_shim.reading.page_count import count_pages
from worker_shim.reading.worker import WorkerView, read_worker

pytestmark = [pytest.mark.root, pytest.mark.criu]

PAGE = 4096


@pytest.fixture(scope="module")
def views(steps: tuple[Dumped, Dumped]) -> tuple[WorkerView, WorkerView]:
    return read_worker(steps[0].images), read_worker(steps[1].images)


@pytest.fixture
def snapshots(
    steps: tuple[Dumped, Dumped], cli: Cli, operator: FakeOperator, tmp_path: Path
) -> tuple[Snapshot, Snapshot]:
    """Both in a store; the service knows them by their names."""
    store = open_store(str(tmp_path / "store"))
    first, second = put(store, steps[0], "llm-1"), put(store, steps[1], "llm-2", step=12)
    known = {"llm-1": shown(first), "llm-2": shown(later(second))}
    answer = operator._answer

    def by_name(method: str, request: Any, context: Any) -> Any:
        operator.replies["Show"] = known[request.id]
        return answer(method, request, context)

    operator._answer = by_name  # type: ignore[method-assign]
    (tmp_path / "scratch").mkdir()
    cli.env |= {"ALLSTOP_STORE": str(root_of(store)), "TMPDIR": str(tmp_path / "scratch")}
    return first, second


def test_what_the_step_did_is_what_differs(
    views: tuple[WorkerView, WorkerView], steps: tuple[Dumped, Dumped]
) -> None:
    diff = compare(*views)
    [process] = diff.processes
    assert process.name == f"process {steps[0].root}"
    assert "(4 threads" in process.before
    assert "(5 threads" in process.after
    files = {change.name: (change.before, change.after) for change in diff.files}
    opened = f"file {steps[0].directory / 'of the step'}"
    assert files[opened] == ("", "w at 0 of 0 bytes")
    assert set(files) == {opened}
    [mapped] = [each for each in diff.memory if each.kind == "anonymous"]
    assert mapped.after_bytes - mapped.before_bytes >= 3 << 20
    new = [each for each in diff.areas if not each.before]
    assert any(each.after == f"{3 << 20} bytes" for each in new) or mapped.after_bytes > 3 << 20
    # the other end of the connection is the child's too, which closed nothing
    assert diff.sockets == ()
    assert diff.facts == diff.versions == ()


def test_pages_that_differ_are_counted(
    views: tuple[WorkerView, WorkerView], steps: tuple[Dumped, Dumped]
) -> None:
    counted = count_pages(views[0], steps[0].images, views[1], steps[1].images)
    assert counted.before * PAGE == views[0].dumped_bytes
    assert counted.after * PAGE == views[1].dumped_bytes
    assert counted.same + counted.changed + counted.new == counted.after
    assert counted.same + counted.changed + counted.gone == counted.before
    assert 8 <= counted.changed < 400, "eight pages were written, and what Python needed for it"
    assert counted.same > 3000
    assert 1 <= counted.known <= counted.changed + counted.new, "a page was copied"


def test_a_dump_differs_in_nothing_from_itself(
    views: tuple[WorkerView, WorkerView], steps: tuple[Dumped, Dumped]
) -> None:
    same = views[0], steps[0].images
    counted = count_pages(*same, *same)
    assert (counted.same, counted.changed + counted.new + counted.gone) == (counted.before, 0)
    diff = compare(views[0], views[0], counted)
    parts = (diff.processes, diff.memory, diff.areas, diff.sockets, diff.files)
    assert parts == ((),) * 5


def test_the_verb(
    cli: Cli,
    snapshots: tuple[Snapshot, Snapshot],
    steps: tuple[Dumped, Dumped],
    tmp_path: Path,
) -> None:
    ran = cli("diff", "llm-1", "llm-2")
    assert ran.code == 0, ran.err
    for text in (
        "worker 0", "6.99.0", "rank 0   step 7, pid", "step 12, pid", "torch", "2.14.0",
        "17 bytes cdcdcdcdcdcd", "of the step", "(5 threads", "PAGES", "CHANGED",
    ):  # fmt: skip
        assert text in ran.out, text
    [diff] = cli("diff", "llm-1", "llm-2", "-o", "json").json
    assert diff["versions"] == [{"name": "torch", "before": "2.13.0", "after": "2.14.0"}]
    assert diff["pages"]["changed"] >= 8
    assert left_in(tmp_path / "scratch") == []
    [quick] = cli("diff", "llm-1", "llm-2", "--no-pages", "-o", "json").json
    assert (quick["pages"], quick["files"]) == (None, diff["files"])
    folders = [str(each.images.parent) for each in steps]
    [alone] = cli("diff", *folders, "-o", "json").json
    assert (alone["files"], alone["versions"]) == (diff["files"], [])


def test_records_alone_need_no_store(
    cli: Cli, snapshots: tuple[Snapshot, Snapshot], tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "nowhere")
    [diff] = cli("diff", "llm-1", "llm-2", "--records", "--store", nowhere, "-o", "json").json
    assert {change["name"] for change in diff["facts"]} == {"kernel", "image_bytes"}
    assert len(diff["ranks"]) == 2
    assert diff["processes"] == []
    assert cli("diff", "llm-1", "llm-1", "--records").out.split("\n")[:2] == [
        "worker 0", "nothing differs",
    ]  # fmt: skip
    other = cli("diff", "llm-1", "llm-2", "--worker", "4", "--records")
    assert (other.code, "worker 4 is not in both" in other.err) == (2, True)

"""`delete`, `gc`, `pin`, `retention`, `verify`: what is asked, what is told, exit codes."""

from __future__ import annotations

import pytest
from allstop.v1 import operator_pb2 as pb
from allstop.v1 import records_pb2 as records

from coordinator.cli.sizes import parse_size
from coordinator.core.errors import BadRequest, Refused, Where

from .conftest import Cli, FakeOperator

NAME = "llm-20261129-214424-579caf"


def event(state: str, last: bool = False, **cleaned: object) -> pb.ActionEvent:
    made = pb.ActionEvent(action="llm-c", state=state, reason=f"it is {state}", last=last)
    made.cleaned.CopyFrom(records.Cleaned(**cleaned))
    return made


def test_a_deletion_is_followed_to_its_end(cli: Cli, operator: FakeOperator) -> None:
    done = event("DONE", True, objects=3, freed_bytes=5_000_000, snapshots=[NAME])
    operator.replies["Delete"] = [event("MARKING"), done]
    ran = cli("delete", "llm", NAME, "--force")
    assert ran.code == 0, ran.err
    request = cli.request("Delete")
    assert (request.job, list(request.snapshots), request.force) == ("llm", [NAME], True)
    assert "3 objects are gone, 5 MB" in ran.out
    assert f"deleted: {NAME}" in ran.out


def test_a_deletion_that_waits_for_its_store_is_left_to_itself(
    cli: Cli, operator: FakeOperator
) -> None:
    operator.replies["Delete"] = [event("MARKING"), event("WAITING"), event("DONE", True)]
    ran = cli("-o", "json", "delete", "llm", NAME)
    assert (ran.code, ran.json["state"]) == (0, "WAITING")


def test_a_refused_deletion_says_why(cli: Cli, operator: FakeOperator) -> None:
    why = "snapshot a3 is the newest, which a restore takes; older ones are a1, a2"
    operator.replies["Delete"] = Refused(why, where=Where(job="llm"))
    ran = cli("delete", "llm", "a3")
    assert ran.code == 3
    assert why in ran.err


def test_gc_asks_for_every_job(cli: Cli, operator: FakeOperator) -> None:
    jobs = [pb.JobView(job=records.JobRecord(job=name)) for name in ("gpt", "llm")]
    operator.replies["ListJobs"] = pb.ListJobsReply(jobs=jobs)
    found = event("DONE", True, objects=2, freed_bytes=1000, unknown=["x"], dry_run=True)
    operator.replies["Collect"] = [found]
    ran = cli("-o", "json", "gc", "--dry-run")
    assert ran.code == 0, ran.err
    assert {name: told["objects"] for name, told in ran.json.items()} == {"gpt": 2, "llm": 2}
    ran = cli("gc", "llm", "--dry-run")
    assert "2 objects would go, 1 kB" in ran.out
    assert "left alone without --unknown: x" in ran.out


def test_pins(cli: Cli, operator: FakeOperator) -> None:
    made = records.Snapshot(snapshot=NAME, job="llm", cut=records.CUT_STEP, pinned="the paper")
    operator.replies["Pin"] = pb.PinReply(snapshot=made)
    assert "is pinned: the paper" in cli("pin", NAME, "--why", "the paper").out
    assert cli.request("Pin").why == "the paper"
    operator.requests.clear()
    assert "is not pinned" in cli("unpin", NAME).out
    assert cli.request("Pin").unpin


def test_rules_are_set_shown_and_switched_off(cli: Cli, operator: FakeOperator) -> None:
    rules = records.Retention(keep_last=5, keep_for_s=7 * 86400, keep_bytes=1 << 40)
    goes = pb.Going(snapshot=NAME, why="5 newer ones are there")
    operator.replies["SetRetention"] = pb.SetRetentionReply(retention=rules, going=[goes])
    options = ("--keep-last", "5", "--keep-for", "7d", "--keep-bytes", "1TiB")
    ran = cli("retention", "llm", *options)
    assert "the last 5 and those of the last 7d stay" in ran.out
    assert f"goes: {NAME}: 5 newer ones are there" in ran.out
    request = cli.request("SetRetention")
    assert (request.change, request.retention) == (True, rules)
    operator.requests.clear()
    cli("retention", "llm")
    assert not cli.request("SetRetention").change
    operator.requests.clear()
    operator.replies["SetRetention"] = pb.SetRetentionReply()
    assert "every snapshot stays" in cli("retention", "llm", "--off").out
    request = cli.request("SetRetention")
    assert (request.change, request.HasField("retention")) == (True, False)
    assert cli("retention", "llm", "--off", "--keep-last", "1").code == 2


def test_verify_names_what_is_broken_and_has_a_code_of_its_own(
    cli: Cli, operator: FakeOperator
) -> None:
    broken = pb.Broken(
        worker=1, node="node-1", name="chunk 7", what="missing", file="pages-1.img",
        sharers=["llm-2"],
    )  # fmt: skip
    end = pb.VerifyEvent(snapshot=NAME, workers=2, verified=2, last=True, broken=[broken])
    operator.replies["Verify"] = [pb.VerifyEvent(snapshot=NAME, workers=2, verified=1), end]
    ran = cli("verify", NAME)
    assert ran.code == 17
    assert "worker 1: chunk 7 of pages-1.img: missing; also needed by llm-2" in ran.out
    assert "1 of 2 workers read" in ran.err
    end = pb.VerifyEvent(snapshot=NAME, workers=2, verified=1, last=True, unread=["worker 1: away"])
    operator.replies["Verify"] = [end]
    assert cli("verify", NAME).code == 11
    operator.replies["Verify"] = [pb.VerifyEvent(snapshot=NAME, workers=2, verified=2, last=True)]
    ran = cli("verify", NAME)
    assert (ran.code, "is whole" in ran.out) == (0, True)
    assert cli("verify").code == cli("verify", NAME, "--all", "llm").code == 2


def test_snapshots_tell_how_they_are_kept(cli: Cli, operator: FakeOperator) -> None:
    made = records.Snapshot(
        snapshot=NAME,
        job="llm",
        cut=records.CUT_STEP,
        pinned="why",
        damaged="a chunk",
        suspect="node-1: GPU 0: Xid 48",
        deleting="x",
    )
    problem = f"{NAME} being deleted: no node in reach sees the image store"
    reply = pb.ListSnapshotsReply(snapshots=[made], latest=NAME, problems=[problem])
    operator.replies["ListSnapshots"] = reply
    ran = cli("snapshots", "llm")
    assert "(latest) (pinned) (damaged) (suspect) (deleting)" in ran.out
    assert problem in ran.err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1TiB", 1 << 40), ("500GB", 500 * 10**9), ("2g", 2 * 10**9), ("7", 7), ("1.5 kib", 1536)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1X", "1TiBB", "much", "9999PiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_size(text)

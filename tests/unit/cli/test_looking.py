"""`jobs`, `nodes`, `snapshots`, `show`, `plan`, `abort`: tables, JSON, exit codes."""

from __future__ import annotations

import json
import re
import time
from collections import deque

from allstop.v1 import operator_pb2 as pb
from allstop.v1 import records_pb2 as records

from coordinator.codec import to_proto
from coordinator.core.errors import NoLeader, NoPlan, NotFound
from coordinator.core.failures import failure_of

from .conftest import Cli, FakeOperator

SNAPSHOT = records.Snapshot(
    snapshot="llm-1",
    job="llm",
    epoch=7,
    world_size=4,
    step=152,
    cut=records.CUT_STEP,
    image_bytes=1_200_000_000,
    committed_unix_s=time.time() - 125,
    workers=[
        records.WorkerRecord(
            job="llm",
            worker=number,
            node=f"node-{number}",
            address=f"10.0.0.{number}",
            ranks=[records.RankState(rank=2 * number + i, boundary=152) for i in range(2)],
            dump_ms=812,
        )
        for number in range(2)
    ],
)


def test_jobs(cli: Cli, operator: FakeOperator) -> None:
    job = records.JobRecord(job="llm", workers=2, world_size=4, latest="llm-1")
    worker = records.WorkerState(job="llm", worker=0, workers=2, state="running")
    operator.replies["ListJobs"] = pb.ListJobsReply(
        jobs=[
            pb.JobView(
                job=job, workers=[worker], nodes=["node-0"], state="incomplete", step=2**40,
                latest_unix_s=time.time() - 7200,
            )
        ]
    )  # fmt: skip
    table = cli("jobs")
    assert table.code == 0, table.err
    assert table.err == ""
    header, row = table.out.splitlines()
    assert header.split() == [
        "JOB",
        "STATE",
        "WORKERS",
        "RANKS",
        "STEP",
        "LATEST",
        "SNAPSHOT",
        "AGE",
    ]
    assert row.split() == ["llm", "incomplete", "1/2", "4", str(2**40), "llm-1", "2", "h", "0", "m"]

    [view] = cli("-o", "json", "jobs").json
    assert view["job"] == {
        "job": "llm", "workers": 2, "world_size": 4, "incarnation": 0, "latest": "llm-1",
        "retention": None,
    }  # fmt: skip
    assert view["step"] == 2**40
    assert view["workers"][0]["state"] == "running"


def test_what_waits_and_what_is_damaged_stands_below_the_jobs(
    cli: Cli, operator: FakeOperator
) -> None:
    operator.replies["ListJobs"] = pb.ListJobsReply(
        jobs=[
            pb.JobView(
                job=records.JobRecord(job="gpt"), state="damaged", problems=["its value is garbage"]
            ),
            pb.JobView(
                job=records.JobRecord(job="llm"),
                state="starting",
                waiting="attempt a1 has the job",
                recovery="waits for nodes",
            ),
        ]
    )
    lines = cli("jobs").out.splitlines()
    assert [line.split()[1] for line in lines[1:3]] == ["damaged", "starting"]
    assert lines[3:] == [
        "gpt: its value is garbage",
        "llm: a started worker waits: attempt a1 has the job",
        "llm: waits for nodes",
    ]
    gpt, llm = cli("jobs", "-o", "json").json
    assert gpt["problems"] == ["its value is garbage"]
    assert llm["waiting"] == "attempt a1 has the job"


def test_that_nobody_leads_is_said_once_and_waited_for(cli: Cli, operator: FakeOperator) -> None:
    none = NoLeader("no leader yet: c is a candidate")
    operator.replies["ListJobs"] = deque([none, none, none, pb.ListJobsReply()])
    ran = cli("jobs", "-o", "json")
    assert (ran.code, ran.json) == (0, [])
    assert ran.err == "no leader yet: c is a candidate; waiting\n"
    assert len(operator.requests) == 4


def test_no_jobs_is_said(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["ListJobs"] = pb.ListJobsReply()
    assert "no job" in cli("jobs").out
    assert cli("jobs", "-o", "json").json == []


def test_nodes(cli: Cli, operator: FakeOperator) -> None:
    facts = records.NodeFacts(node="node-1", address="10.0.0.1", criu_version="4.2")
    facts.memory_free_bytes = 5_400_000_000
    lost = records.NodeFacts(node="node-2", address="10.0.0.2")
    operator.replies["ListNodes"] = pb.ListNodesReply(
        nodes=[
            pb.NodeView(facts=facts, state="attached", health=["GPU 0: Xid 63, it [ignore]"]),
            pb.NodeView(facts=lost, state="lost", reason="its stream ended"),
        ]
    )
    table = cli("nodes").out
    assert "node-1   10.0.0.1   attached" in table
    assert "spare" in table
    assert "5.4 GB" in table
    assert "lost: its stream ended" in table
    assert table.splitlines()[-1] == "node-1: GPU 0: Xid 63, it [ignore]"
    views = cli("nodes", "-o", "json").json
    assert [view["facts"]["node"] for view in views] == ["node-1", "node-2"]


def test_snapshots_newest_first(cli: Cli, operator: FakeOperator) -> None:
    older = records.Snapshot(snapshot="llm-0", job="llm", cut=records.CUT_FREEZE, step=0)
    older.committed_unix_s = SNAPSHOT.committed_unix_s - 100
    newer = records.Snapshot()
    newer.CopyFrom(SNAPSHOT)
    newer.committed_unix_s = time.time() - 125
    operator.replies["ListSnapshots"] = pb.ListSnapshotsReply(
        snapshots=[older, newer], latest="llm-1"
    )
    _, first, second = cli("snapshots", "llm").out.splitlines()
    assert first.startswith("llm-1 (latest)")
    assert "152" in first
    assert "1.2 GB" in first
    assert "2 m" in first
    assert second.split()[:2] == ["llm-0", "-"]  # frozen anywhere: no step
    answer = cli("snapshots", "llm", "-o", "json").json
    assert answer["latest"] == "llm-1"
    assert [one["snapshot"] for one in answer["snapshots"]] == ["llm-1", "llm-0"]
    assert operator.requests[0][1].job == "llm"


def test_show_has_every_rank_and_phase(cli: Cli, operator: FakeOperator) -> None:
    attempt = records.AttemptRecord(
        attempt="llm-1",
        job="llm",
        state=records.ATTEMPT_STATE_COMMITTED,
        cut=records.CUT_STEP,
        target=152,
        reason="all stored",
        pause_ms=941,
        timings=[
            records.PhaseTiming(
                phase=records.PHASE_DUMP, started_ms=40, took_ms=900, slowest="worker 1 on node-1"
            )
        ],
    )
    operator.replies["Show"] = pb.ShowReply(snapshot=SNAPSHOT, attempt=attempt)
    table = cli("show", "llm-1").out
    for text in ("2:152 3:152", "812 ms", "941 ms", "DUMP", "900 ms", "worker 1 on node-1"):
        assert text in table
    shown = cli("show", "llm-1", "-o", "json").json
    assert shown["snapshot"]["cut"] == "step"
    assert shown["attempt"]["state"] == "COMMITTED"
    assert shown["restore"] is None


def test_an_unknown_id(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Show"] = NotFound("nothing has the id [x]", advice="`allstop snapshots JOB`")
    ran = cli("show", "x", "-o", "json")
    assert ran.code == 4
    assert "error: nothing has the id [x]" in ran.err
    assert "next   `allstop snapshots JOB`" in ran.err
    assert ran.json["error"]["kind"] == "NotFound"
    assert ran.json["error"]["exit_code"] == 4


def test_plan(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["PlanRestore"] = pb.PlanReply(
        plan=records.Plan(
            job="llm",
            snapshot="llm-1",
            placements=[
                records.Placement(
                    worker=1, from_node="n1", from_address="10.0.0.1", to_node="n2",
                    to_address="10.0.0.2", why="n1 is lost",
                )
            ],
            addresses=[records.AddressMove(old="10.0.0.1", new="10.0.0.2")],
        ),
        refused=[pb.PlanReply().refused.add(node="n1", worker=1, reasons=["it is lost"])],
    )  # fmt: skip
    table = cli("plan", "llm", "--snapshot", "llm-1").out
    assert "n2 (10.0.0.2)" in table
    assert "10.0.0.1 -> 10.0.0.2" in table
    assert "n1, worker 1: it is lost" in table
    assert cli.request("PlanRestore").snapshot == "llm-1"
    assert cli("plan", "llm", "-o", "json").json["plan"]["placements"][0]["to_node"] == "n2"


def test_plan_explained(cli: Cli, operator: FakeOperator) -> None:
    place = records.Placement(worker=1, from_node="n1", to_node="n2", why="it fits")
    place.devices.add(old="GPU-a", new="GPU-b")
    reply = pb.PlanReply(plan=records.Plan(job="llm", snapshot="llm-1", placements=[place]))
    reply.fits.add(node="n2", worker=1, chosen=True, why="it fits")
    reply.fits.add(node="n3", worker=1, why="it fits, and costs more than n2")
    operator.replies["PlanRestore"] = reply
    table = cli("plan", "llm", "--explain").out
    assert "GPUs of n1 on n2: GPU-a -> GPU-b" in table
    assert "n2, worker 1: chosen: it fits\n" in table
    assert "n3, worker 1: it fits, and costs more than n2\n" in table
    assert cli.request("PlanRestore").explain
    told = cli("plan", "llm", "--explain", "-o", "json").json["fits"]
    assert [(each["node"], each["chosen"]) for each in told] == [("n2", True), ("n3", False)]
    assert "fits" not in cli("plan", "llm", "-o", "json").json


def test_a_plan_to_start_from_scratch(cli: Cli, operator: FakeOperator) -> None:
    plan = records.Plan(job="llm", snapshot="llm-1", cold=True)
    plan.addresses.add(old="10.0.0.1", new="10.0.0.2")
    operator.replies["PlanRestore"] = pb.PlanReply(plan=plan)
    wish = ("--on-mismatch", "cold-start", "--old-addresses", "move")
    table = cli("plan", "llm", *wish).out
    assert "start job llm from scratch, not from llm-1" in table
    assert "rewritten in arguments and environments: 10.0.0.1 -> 10.0.0.2" in table
    asked = cli.request("PlanRestore")
    assert (asked.cold_start, asked.old_addresses) == (True, records.OLD_ADDRESSES_MOVE)
    assert cli("plan", "llm", "--on-mismatch", "perhaps").code == 2


def test_a_start_says_why_nothing_was_restored(cli: Cli, operator: FakeOperator) -> None:
    reply = pb.PlanReply(plan=records.Plan(job="llm", snapshot="llm-1", cold=True))
    reply.restore_refused.add(node="n1", worker=0, reasons=["no usable CRIU"])
    operator.replies["PlanRestore"] = reply
    wish = ("--on-mismatch", "cold-start")
    assert "not restored: n1, worker 0: no usable CRIU\n" in cli("plan", "llm", *wish).out
    told = cli("plan", "llm", *wish, "-o", "json").json["restore_refused"]
    assert told == [{"node": "n1", "worker": 0, "reasons": ["no usable CRIU"]}]
    reply.ClearField("plan")
    reply.failure.CopyFrom(records.Failure(kind="NoPlan", what="no node to run worker 0"))
    reply.refused.add(node="n1", worker=0, reasons=["it was lost"])
    ran = cli("plan", "llm", *wish)
    assert ran.code == 6
    assert "n1, worker 0: it was lost\n" in ran.err
    assert "not restored: n1, worker 0: no usable CRIU\n" in ran.err
    told = cli("plan", "llm", *wish, "-o", "json").json
    assert told["restore_refused"][0]["reasons"] == ["no usable CRIU"]


def test_a_plan_starts_nothing_by_itself(cli: Cli, operator: FakeOperator) -> None:
    plan = records.Plan(job="llm", snapshot="llm-1")
    operator.replies["PlanRestore"] = pb.PlanReply(plan=plan)
    cli("plan", "llm")
    asked = cli.request("PlanRestore")
    assert (asked.cold_start, asked.old_addresses) == (False, records.OLD_ADDRESSES_REFUSE)


def test_gpus_of_nodes_and_of_snapshots(cli: Cli, operator: FakeOperator) -> None:
    bare, full = records.NodeFacts(node="n1"), records.NodeFacts(node="n2", gpu_driver="580.1")
    for index in range(2):
        full.gpus.add(index=index, model="NVIDIA H200", sick="Xid 79" if index else "")
    full.gpu_trouble, full.gpus_unseen = "NVML hangs", "the kernel's driver has 3"
    nodes = [pb.NodeView(facts=each, state="attached") for each in (bare, full)]
    operator.replies["ListNodes"] = pb.ListNodesReply(nodes=nodes)
    table = cli("nodes").out
    for words in ("GPUS", "2 NVIDIA H200, driver 580.1", "GPU 1 is sick: Xid 79", "NVML hangs"):
        assert words in table
    assert "the kernel's driver has 3" in table
    operator.replies["ListNodes"] = pb.ListNodesReply(nodes=nodes[:1])
    assert "GPUS" not in cli("nodes").out
    snapshot = records.Snapshot(snapshot="llm-1", job="llm", cut=records.CUT_STEP)
    for number in range(2):
        snapshot.workers.add(
            worker=number, gpus=full.gpus, gpu_pids=[7], gpu_bytes=4 << 30, gpu_driver="580.1",
            cuda_version="13.0", nccl="rebuild", versions=["torch 2.13.0", "nccl 2.30.7"],
            gpu_engine="library", gpus_unseen="of 3",
        )  # fmt: skip
    operator.replies["Show"] = pb.ShowReply(snapshot=snapshot)
    table = cli("show", "llm-1").out
    for words in ("0, 1", "2 NVIDIA H200", "580.1 (13.0)", "rebuild", "torch 2.13.0", "library"):
        assert words in table
    assert "all: of 3)" in " ".join(table.split())


def test_no_plan_gives_every_reason(cli: Cli, operator: FakeOperator) -> None:
    failure = to_proto(failure_of(NoPlan("no set of nodes fits llm-1", advice="add a node")))
    reply = pb.PlanReply(failure=failure)
    reply.refused.add(node="n1", worker=1, reasons=["memory: 2 GB of 4 GB", "no CRIU"])
    operator.replies["PlanRestore"] = reply
    ran = cli("plan", "llm", "-o", "json")
    assert ran.code == 6
    assert "| n1, worker 1: memory: 2 GB of 4 GB; no CRIU" in ran.err
    assert ran.json["refused"][0]["reasons"] == ["memory: 2 GB of 4 GB", "no CRIU"]


def test_abort(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Abort"] = pb.AbortReply(note="llm-2 is given up")
    assert cli("abort", "llm-2", "--reason", "wrong job").out == "llm-2 is given up\n"
    assert cli.request("Abort").reason == "wrong job"


def test_show_says_in_one_sentence_why_it_was_given_up_and_who_still_owes(
    cli: Cli, operator: FakeOperator
) -> None:
    reason = "given up in DUMP: criu said no (worker 1, node-2); the workers in reach run on"
    attempt = records.AttemptRecord(
        attempt="llm-1",
        job="llm",
        state=records.ATTEMPT_STATE_ABORTED,
        cut=records.CUT_STEP,
        reason=reason,
        nodes=["node-1", "node-2"],
        owed=[1],
    )
    operator.replies["Show"] = pb.ShowReply(attempt=attempt)
    table = " ".join(cli("show", "llm-1").out.split())
    assert reason in table
    assert "still owed by worker 1 on node-2" in table
    attempt.owed.pop()
    operator.replies["Show"] = pb.ShowReply(attempt=attempt)
    assert "still owed" not in cli("show", "llm-1").out


def test_what_a_snapshot_does_not_have_whole(cli: Cli, operator: FakeOperator) -> None:
    snapshot = records.Snapshot()
    snapshot.CopyFrom(SNAPSHOT)
    snapshot.workers[1].partial_files.add(
        path="/data/big",
        size_bytes=8 * 10**9,
        kept_bytes=10**6,
        why="more than --copy-limit allows",
    )
    snapshot.workers[1].partial_files.add(path="/data/state", size_bytes=5)
    operator.replies["Show"] = pb.ShowReply(snapshot=snapshot)
    told = cli("show", "llm-1")
    assert re.search(r"1 +/data/big +8 GB +its last 1 MB +more than --copy-limit allows", told.out)
    assert re.search(r"1 +/data/state +5 B +its size", told.out)
    operator.replies["Show"] = pb.ShowReply(snapshot=SNAPSHOT)
    assert "NOT WHOLE" not in cli("show", "llm-1").out


def test_where_a_restore_kept_what_came_after(cli: Cli, operator: FakeOperator) -> None:
    aside = "/data/log.after-llm-1"
    restore = records.RestoreRecord(
        restore="r1",
        job="llm",
        snapshot="llm-1",
        state=records.RESTORE_STATE_RUNNING,
        reason="snapshot llm-1 runs again",
        files=[
            records.FileBack(
                worker=1, node="n1", path="/data/log", what="cut", aside=aside, size_bytes=1234
            ),
            records.FileBack(worker=0, node="n0", path="/data/x", what="hole", size_bytes=99),
        ],
        files_unnamed=3,
    )
    operator.replies["Show"] = pb.ShowReply(restore=restore)
    told = cli("show", "r1").out
    assert re.search(rf"1 +n1 +/data/log +written after the cut +1.23 kB +{aside}", told)
    assert re.search(r"0 +n0 +/data/x +not kept: the file begins with a hole +99 B +-", told)
    assert "and 3 more files" in told
    (first, _) = json.loads(cli("show", "r1", "-o", "json").out)["restore"]["files"]
    assert first["aside"] == aside

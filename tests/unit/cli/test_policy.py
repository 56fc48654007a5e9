"""`allstop policy`: what its options ask for, what makes no sense, and what people are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from allstop.v1 import operator_pb2 as pb
from allstop.v1 import records_pb2 as records

from .conftest import Cli, FakeOperator


def reply() -> pb.PolicyReply:
    made = pb.PolicyReply(
        interval_s=925.0, mtbf_s=11_160.0, young_s=945.0, daly_s=925.0, lost_s_per_day=7_200.0,
        checkpoint_s=40.0, latency_s=61.0, restart_s=90.0, attempt_s=75.0, due_in_s=300.0,
        waits="its time",
    )  # fmt: skip
    made.policy.CopyFrom(
        records.JobPolicy(
            job="llm",
            when=records.WHEN_AUTO,
            cut=records.CUT_STEP,
            mtbf_s=43_200,
            budget=0.02,
            on_failure=records.ON_FAILURE_RESTORE,
            last_resort=records.LAST_RESORT_STOP,
            tries=3,
            wait_s=600,
        )
    )
    made.history.CopyFrom(records.JobHistory(job="llm", watched_s=86_400, failures=1))
    made.history.nodes.add(node="node-7", watched_s=3_600, failures=4)
    return made


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--every 10m", {"when": records.WHEN_SECONDS, "interval_s": 600.0}),
        ("--every-steps 500", {"when": records.WHEN_STEPS, "interval_steps": 500}),
        ("--auto --mtbf 12h --budget 2%", {"mtbf_s": 43_200.0, "budget": 0.02}),
        ("--auto --mtbf 1h --least 2m --most 1h", {"least_s": 120.0, "most_s": 3_600.0}),
        ("--every 1m --cut freeze", {"cut": records.CUT_FREEZE}),
        ("--off", {"when": records.WHEN_NEVER}),
        (
            "--off --on-failure restore --hung 20 --wait 1h --tries 5 --last-resort cold-start",
            {
                "on_failure": records.ON_FAILURE_RESTORE,
                "hung": 20.0,
                "wait_s": 3_600.0,
                "grace_s": 5.0,
                "tries": 5,
                "last_resort": records.LAST_RESORT_COLD_START,
            },
        ),
    ],
)
def test_what_options_ask_for(
    cli: Cli, operator: FakeOperator, words: str, wanted: dict[str, object]
) -> None:
    operator.replies["SetPolicy"] = reply()
    assert cli("policy", "llm", *words.split()).code == 0
    asked = cli.request("SetPolicy").policy
    assert asked.job == "llm"
    assert {name: getattr(asked, name) for name in wanted} == wanted


def test_options_may_come_from_a_file(cli: Cli, operator: FakeOperator, tmp_path: Path) -> None:
    operator.replies["SetPolicy"] = reply()
    path = tmp_path / "policy.toml"
    path.write_text('auto = true\nmtbf = "12h"\nbudget = "2%"\n')
    ran = cli("policy", "llm", "--config", str(path))
    assert ran.code == 0, ran.err
    assert cli.request("SetPolicy").policy.mtbf_s == 43_200.0
    assert cli.request("SetPolicy").policy.budget == 0.02


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--every 1m --auto --mtbf 1h", "once when"),
        ("--mtbf 1h", "once when"),
        ("--off --budget 2%", "--budget means nothing without --every"),
        ("--auto", "expected to fail"),
        ("--auto --mtbf 1h --least 2h --most 1h", "cannot be kept"),
        ("--auto --mtbf 1h --budget 100%", "below 100"),
        ("--every 0s", "above zero"),
        ("--every-steps 0", "--every-steps"),
        ("--every 1m --hung 20 --tries 2", "--tries, --hung means nothing without --on-failure"),
        ("--every 1m --on-failure restore --hung 1", "--hung"),
        ("--on-failure restore", "once when"),
    ],
)
def test_what_makes_no_sense(cli: Cli, words: str, told: str) -> None:
    ran = cli("policy", "llm", *words.split())
    assert ran.code == 2
    assert told in ran.err


def test_the_numbers_behind_it(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["GetPolicy"] = reply()
    shown = cli("policy", "llm").out
    assert "llm: auto, at most 0.02 of its time" in shown
    assert "next: in 5 m 0 s" in shown
    assert "Daly" not in shown
    assert "on failure: its last good snapshot is restored; an older one after 3 tries" in shown
    explained = cli("policy", "llm", "--explain").out
    for words in ("15 m 25 s", "Young", "3 h 6 m", "2 h 0 m", "node-7", "expected 12 h 0 m before"):
        assert words in explained
    told = cli("policy", "llm", "-o", "json").json
    assert told["policy"]["when"] == "auto"
    assert told["history"]["nodes"][0] == {"node": "node-7", "watched_s": 3600.0, "failures": 4}


def test_the_story_of_a_job(cli: Cli, operator: FakeOperator) -> None:
    told = pb.StoryReply()
    told.recovery.CopyFrom(
        records.JobRecovery(job="llm", state=records.RECOVERY_STATE_WAITING, why="node-2 is lost")
    )
    told.lines.add(unix_s=1_796_030_000.0, text="the run has ended at step 40: node-2 is lost")
    told.lines.add(unix_s=1_796_030_009.0, text="waits for nodes")
    operator.replies["GetStory"] = told
    shown = cli("story", "llm").out
    assert "the run has ended at step 40: node-2 is lost" in shown
    assert "recovery is WAITING" in shown
    lines = cli("story", "llm", "-o", "json").json["lines"]
    assert [line["unix_s"] for line in lines] == [1_796_030_000.0, 1_796_030_009.0]

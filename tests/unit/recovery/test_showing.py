"""Table and picture say what the results say, losses and absences included."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

from bench.recovery import picture, table
from bench.recovery.contender import REPOSITORY

RESULTS = REPOSITORY / "bench" / "results" / "recovery.json"


def run(name: str, seed: int, digest: str, *, finished: bool = True, **more: Any) -> dict[str, Any]:
    kill = {"repeated": 40 * seed, "resumed_s": 10.0, "new_s": 12.0}
    base = {"contender": name, "seed": seed, "finished": finished, "digest": digest, "why": ""}
    base |= {"wall_s": 60.0 + seed, "stopped_s": 2.0, "checkpoints": [1, 2], "recoveries": [kill]}
    return {**base, **more}


def told(name: str, left_out: str = "") -> dict[str, Any]:
    about = {"title": f"the {name}", "state": f"{name}'s state", "left_out": left_out}
    return {"name": name, "statements": 7, **about}


FOUND: dict[str, Any] = {
    "settings": {"kills": 1, "epochs": 3, "shared": "disk"},
    "contenders": [told("plain"), told("exact"), told("other"), told("absent", "pip: no such <x>")],
    "runs": [
        run("plain", 1, "a", recoveries=[], wall_s=30.0),
        run("plain", 2, "a", recoveries=[], wall_s=31.0),
        run("exact", 1, "a"),
        run("exact", 2, "a"),
        run("other", 1, "c"),
        run("other", 2, "", finished=False, why="no new step"),
    ],
    "undisturbed": [run("exact", 1, "a", recoveries=[], wall_s=33.0)],
}


def cells(name: str) -> list[str]:
    line = next(x for x in table.markdown(FOUND).splitlines() if x.startswith(f"| the {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_medians_ranges_and_bits() -> None:
    exact = ["the exact", "2 of 2", "60 (40 to 80)", "12.0", "61.5 (61.0 to 62.0)"]
    assert cells("exact") == [*exact, "2.02 (2.00 to 2.03)", "2.0", "7", "yes", "exact's state"]
    assert cells("plain")[2:4] == ["-", "-"]


def test_a_run_that_did_not_finish_is_told_and_not_counted() -> None:
    assert cells("other")[1:3] == ["1 of 2", "40"]
    assert cells("other")[8] == "no"


def test_a_run_that_did_not_finish_and_one_that_was_spared_are_named() -> None:
    page = table.markdown(FOUND)
    assert "the other, round 2: no new step" in page
    spared = {**FOUND, "runs": [*FOUND["runs"], run("exact", 3, "a", recoveries=[])]}
    assert "the exact, round 3: 0 of 1 nodes were lost" in table.markdown(spared)


def test_a_kill_without_a_new_step_after_it_is_in_no_median() -> None:
    never = {"repeated": 0, "resumed_s": -1.0, "new_s": -1.0}
    runs = [run("exact", 1, "a"), run("exact", 2, "a", recoveries=[never])]
    assert table.row(told("exact"), runs, {}, {"a"})[2:4] == ["40", "12.0"]


def test_bits_are_those_of_any_run_without_kills() -> None:
    twice = [run("other", 1, "c", recoveries=[]), run("other", 2, "d", recoveries=[])]
    found = {**FOUND, "undisturbed": twice}
    digests = table.undisturbed_digests(found, "other")
    assert table.row(told("other"), FOUND["runs"][4:5], {}, digests)[8] == "yes"
    assert "2 different ends in 2 runs" in table.undisturbed(found)


def test_who_could_not_run_says_why() -> None:
    assert "the absent did not run: pip: no such <x>" in table.markdown(FOUND)


def test_the_cost_without_failures() -> None:
    line = "the exact: 33.0 s, 2.0 s stopped in 2 checkpoints, the plain script's bits"
    assert table.undisturbed(FOUND) == line


def test_parts_are_the_whole() -> None:
    assert picture.parts_of(FOUND["runs"][2]) == (47.0, 2.0, 10.0, 2.0)


def test_a_bar_is_as_long_as_the_median_run_of_the_table() -> None:
    assert sum(picture.median_parts(FOUND["runs"], "exact")) == 61.0
    assert picture.median_parts(FOUND["runs"], "absent") == ()


def test_the_picture_is_well_formed_and_has_a_bar_for_each_that_ran() -> None:
    drawn = ElementTree.fromstring(picture.svg(FOUND))
    words = [node.text for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"the plain", "the exact", "the other"} <= set(words)
    assert "the absent" not in words


def test_the_readme_shows_the_results_that_are_there() -> None:
    found = json.loads(RESULTS.read_text())
    page = (REPOSITORY / "README.md").read_text()
    assert table.put_into(page, found) == page, "`make bench-recovery ARGS=--show` writes it"
    assert RESULTS.with_suffix(".svg").read_text() == picture.svg(found)


def test_a_page_without_marks_stays_as_it_is() -> None:
    found = {
        **FOUND,
        "date": "2026-01-01",
    }
    found["machine"] = {"cores": 2, "memory_gib": 24, "kernel": "6.1-x", "architecture": "x86_64"}
    assert table.put_into("nothing", found) == "nothing"
    marked = f"a\n{table.BEGIN}\nbefore\n{table.END}\nb"
    put = table.put_into(marked, found)
    assert "before" not in put
    assert "Linux 6.1, x86_64" in put
    assert table.put_into(put, found) == put

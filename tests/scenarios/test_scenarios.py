"""Every scenario is played and compared with what it says, line by line."""

from pathlib import Path

import pytest

from tests.scenarios.run import HERE, play

SCENARIOS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    assert "> " in text
    assert play(text).splitlines() == text.splitlines()


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 8

"""Rules and dashboard, as promtool and Prometheus's own parser see them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import promql

pytestmark = pytest.mark.promtool

Promtool = Callable[..., str]


def test_rules_and_scraping_are_sound(promtool: Promtool) -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", promql.ALERTS)
    assert f"{len(promql.of_the_rules())} rules found" in said
    promtool("check", "config", "--lint=all", "--lint-fatal", promql.SCRAPING)


def test_every_alert_fires_when_it_should_and_keeps_silent_when_all_is_well(
    promtool: Promtool,
) -> None:
    promtool("test", "rules", promql.ALERTS_TEST)
    text = promql.ALERTS_TEST.read_text()
    well, troubles = text.split("- name: ", 2)[1], text.split("- name: ", 2)[2]
    alerts = {each.where for each in promql.of_the_rules()}
    assert set(re.findall(r"alertname: (\w+)\n +exp_alerts: \[\]\n", well)) == alerts
    assert set(re.findall(r"alertname: (\w+)\n +exp_alerts:(?: &\w+)?\n +- ", troubles)) == alerts


def test_every_expression_of_the_dashboard_parses(promtool: Promtool, tmp_path: Path) -> None:
    asked = promql.of_the_dashboard()
    assert len(asked) > 16
    rules = [{"record": f"panel:{n}", "expr": each.expression} for n, each in enumerate(asked)]
    path = tmp_path / "dashboard.yml"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", path)


def test_the_dashboards_panels_do_not_overlap() -> None:
    board = json.loads(promql.DASHBOARD.read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for place in (
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ):
            assert place not in taken, f"{panel['title']} lies on {taken[place]}"
            taken[place] = panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])

"""What rules and dashboard ask Prometheus for: every expression, and the names in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
ALERTS_TEST = ROOT / "deploy" / "prometheus" / "alerts_test.yml"
SCRAPING = ROOT / "deploy" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "allstop.json"
VARIABLES = {"$__rate_interval": "5m", "$job": ".*"}  # what Grafana fills in
ADDED_BY_PROMETHEUS = {"instance", "le"}

_METRIC = re.compile(r"\ballstop_\w+")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Asked:
    """One expression, where it stands, and the labels that its text shows beside it."""

    where: str
    expression: str
    shown: frozenset[str] = frozenset()

    @property
    def metrics(self) -> set[str]:
        """Names of metrics in it."""
        return set(_METRIC.findall(self.expression))

    @property
    def labels(self) -> set[str]:
        """Names of labels in it, in its matchers and groupings, and shown beside it."""
        found = {
            name for part in _MATCHERS.findall(self.expression) for name in _MATCHER.findall(part)
        }
        for part in _GROUPING.findall(self.expression):
            found |= {name.strip() for name in part.split(",") if name.strip()}
        return found | self.shown


def of_the_dashboard() -> list[Asked]:
    """Every query of the dashboard, with Grafana's variables filled in."""
    board = json.loads(DASHBOARD.read_text())
    return [
        Asked(
            panel["title"],
            filled(target["expr"]),
            frozenset(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])),
        )
        for panel in board["panels"]
        for target in panel["targets"]
    ] + [
        Asked(f"variable {each['name']}", *_label_values(each["query"]["query"]))
        for each in board["templating"]["list"]
        if each["type"] == "query"
    ]


def filled(expression: str) -> str:
    """An expression as Grafana sends it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def _label_values(query: str) -> tuple[str, frozenset[str]]:
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert found is not None, query
    return found[1], frozenset({found[2]})


def of_the_rules() -> list[Asked]:
    """Every alert: its expression, and the labels that its texts show."""
    parts = re.split(r"^ +- alert: (\w+)\n", ALERTS.read_text(), flags=re.M)[1:]
    return [
        Asked(name, _expression(body), frozenset(re.findall(r"\$labels\.(\w+)", body)))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def _expression(body: str) -> str:
    """The value of `expr`, which ends where the next key of the rule begins."""
    found = re.search(r"^ {8}expr:(.*?)^ {8}\w", body, flags=re.M | re.S)
    assert found is not None, body
    return found[1].replace(">-", "", 1).strip()


def exported(*texts: str) -> dict[str, set[str]]:
    """Each metric in what exporters answered, with every label that a sample of it had."""
    found: dict[str, set[str]] = {}
    for sample in samples(*texts):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def samples(*texts: str) -> Iterator[Any]:
    """Every sample of these."""
    for text in texts:
        for family in text_string_to_metric_families(text):
            yield from family.samples


def unknown(asked: Asked, there: Mapping[str, set[str]]) -> list[str]:
    """Metrics and labels in an expression that nobody exports."""
    labels = ADDED_BY_PROMETHEUS.union(*(there.get(name, set()) for name in asked.metrics))
    return sorted(asked.metrics - there.keys()) + sorted(asked.labels - labels)

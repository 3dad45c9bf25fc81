"""config/observe: the dashboard and the alert rules ask for figures that there are, and say what they promise."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from canopy_mqtt.core.causes import ALL
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.observe.alarms.observer import KINDS
from canopy_mqtt.observe.figures.catalogue import FIGURES
from canopy_mqtt.observe.figures.figure import Kind
from tests.support.runs import for_each

FOLDER = Path(__file__).resolve().parents[2] / "config/observe"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text("utf-8"))


class Rule(NamedTuple):
    """One alert of alerts.yml."""

    alert: str
    expr: str
    severity: str
    annotations: set[str]


def rules() -> Iterator[Rule]:
    """As they are laid out there; promtool reads the file as YAML."""
    for block in (FOLDER / "alerts.yml").read_text("utf-8").split("      - alert: ")[1:]:
        expression = re.search(r"^        expr: (?:>\n)?(.*?)^        \w+:", block, re.DOTALL | re.MULTILINE)
        severity = re.search(r"{severity: (\w+)}", block)
        assert expression is not None
        assert severity is not None
        yield Rule(
            block.split("\n")[0],
            " ".join(expression[1].split()),
            severity[1],
            set(re.findall(r"^          (\w+): \"", block, re.MULTILINE)),
        )


RULES = list(rules())

SUFFIXES = {
    Kind.COUNTER: ("_total",),
    Kind.GAUGE: ("",),
    Kind.HISTOGRAM: ("_bucket", "_sum", "_count"),
}
LABELS = {
    figure.metric + suffix: {*figure.labels, "job", "instance", *(["le"] if figure.kind is Kind.HISTOGRAM else [])}
    for figure in FIGURES
    if figure.exported
    for suffix in SUFFIXES[figure.kind]
}
"""Each metric that there is, and the labels that it has when Prometheus has read it."""

VALUES = {
    "canopy_messages_dropped_total": ("cause", set(DROP_CAUSES)),
    "canopy_connections_closed_total": ("cause", set(ALL)),
    "canopy_alarms": ("alarm", set(KINDS)),
}
"""Labels whose values are known."""

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is absent")


def expressions() -> Iterator[str]:
    """All of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for each in DASHBOARD["annotations"]["list"]:
        if "expr" in each:
            yield each["expr"]


def check(expression: str) -> None:
    """The metrics, labels and known values in an expression are ours."""
    found = re.findall(r"\b((?:canopy|process)_\w+)(?:{([^}]*)})?", expression)
    assert found, expression
    for metric, matchers in found:
        assert metric in LABELS, metric
        for label, value in re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', matchers):
            assert label in LABELS[metric], (metric, label)
            known_label, known = VALUES.get(metric, ("", set()))
            if label == known_label:
                assert set(value.split("|")) <= known, value


@for_each("expression", sorted(set(expressions())))
def test_a_query_of_the_dashboard(expression: str) -> None:
    check(expression)
    metric = re.search(r"\bby \(([^)]+)\)", expression)
    if metric is not None:
        used = re.findall(r"\b((?:canopy|process)_\w+)", expression)[0]
        assert {label.strip() for label in metric[1].split(",")} <= LABELS[used]


@for_each("rule", RULES)
def test_an_alert(rule: Rule) -> None:
    if rule.expr != 'up{job="canopy"} == 0':
        check(rule.expr)
    assert rule.severity in ("warning", "critical")
    assert rule.annotations == {"summary", "description"}


def test_the_dashboard_is_one_of_grafanas() -> None:
    """What its schema asks for: kinds of panels, places on 24 columns that do not overlap, one data source."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["id"] is None
    assert {panel["type"] for panel in DASHBOARD["panels"]} == {"row", "stat", "timeseries", "heatmap"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", " ".join(expressions()))) - {"__rate_interval"}
    assert used | {"datasource"} == variables


@needs_promtool
def test_prometheus_understands_the_queries(tmp_path: Path) -> None:
    texts = [text.replace("$__rate_interval", "5m") for text in expressions()]
    queries = [{"record": f"test:{number}", "expr": text} for number, text in enumerate(texts)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": queries}]}), "utf-8")
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "prometheus.yml")],
    ids=" ".join,
)
def test_the_alerts_do_what_they_say(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tried() -> None:
    text = (FOLDER / "alerts_test.yml").read_text("utf-8")
    assert [rule.alert for rule in RULES if rule.alert not in text] == []

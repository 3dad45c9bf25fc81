"""What other programs read: JUnit XML, Prometheus' text format."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from canopy_load.report import exports
from canopy_load.report.report_files import ReportError
from canopy_load.report.result import Result, ThresholdResult
from tests.loadtest.results import ATTACK, empty_result, full_result


def metrics(text: str) -> dict[tuple[str, str], float]:
    """Metric, and the value of its label that tells its samples apart, to its value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            told = [value for name, value in sample.labels.items() if name not in ("scenario", "run", "broker")]
            found[sample.name.removeprefix("canopy_load_"), "".join(told)] = sample.value
    return found


def judged() -> Result:
    result = full_result()
    result.thresholds = [
        ThresholdResult("p99 < 50ms", "p99", 63_000.0, False),
        ThresholdResult("rate > 1", "rate", 9.0, True),
    ]
    return result


def test_junit_has_a_case_for_each_threshold_and_one_for_the_messages() -> None:
    suite = ElementTree.fromstring(exports.junit(judged()))
    cases = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}

    assert list(cases) == ["p99 < 50ms", "rate > 1", "nothing lost, doubled, reordered or altered"]
    missed, held, messages = cases.values()
    assert missed is not None
    assert missed.get("message") == "p99 < 50ms: it was 63 ms"
    assert held is None
    assert messages is not None
    assert "Lost: 20 of 120,000" in (messages.get("message") or "")
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")


def test_junit_bears_what_xml_cannot_write() -> None:
    result = judged()
    result.scenario = ATTACK + "\x00\ud800"
    assert ElementTree.fromstring(exports.junit(result)).get("name", "").endswith("\\x1b[31m\\x00\\ud800")


def test_prometheus_reads_the_result_and_what_is_unknown_is_absent() -> None:
    found = metrics(exports.prometheus(judged()))

    assert found["deliveries", "lost"] == 20
    assert found["expected_deliveries", ""] == 120_000
    assert found["threshold_met", "p99 < 50ms"] == 0
    assert found["threshold_met", "rate > 1"] == 1
    assert found["latency_seconds", "0.99"] == pytest.approx((judged().latency.p99 or 0) / 1e6)
    assert ("broker_memory_bytes", "") not in metrics(exports.prometheus(empty_result()))


def test_prometheus_escapes_what_comes_from_outside() -> None:
    result = empty_result()
    result.broker = 'a"b\\c\nd'
    (info,) = [
        family for family in text_string_to_metric_families(exports.prometheus(result))
        if family.name == "canopy_load_run_info"
    ]  # fmt: skip
    assert info.samples[0].labels["broker"] == result.broker


def test_each_second_of_a_run_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "load.prom"
    audience = exports.Metrics("scripted", path)
    rates = []
    for second in full_result().seconds[-3:]:
        audience.second(second)
        rates.append(metrics(path.read_text())["received_rate", ""])

    assert rates == [each.received for each in full_result().seconds[-3:]]
    assert os.listdir(tmp_path) == ["load.prom"]


def test_a_file_that_cannot_be_written_is_a_line_for_people_and_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "load.prom"

    exports.Metrics("scripted", path).second(full_result().seconds[0])
    with pytest.raises(ReportError, match="cannot be written"):
        exports.write(path, "")

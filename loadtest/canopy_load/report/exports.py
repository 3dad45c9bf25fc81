"""A result for other programs: JUnit XML, and Prometheus' text format.

Owns: these two texts, and how one file comes to its place.

Promises: made from a ``Result`` and nothing else. A file is written under another name and then moved: a reader (the
node exporter's textfile collector, say) never sees half of it. A figure that could not be had is absent, not 0.
"""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from canopy_load.engine.job import Audience
from canopy_load.report.junit import JUnitCase, suite
from canopy_load.report.report_files import ReportError, write_all
from canopy_load.report.result import Result, Second, ThresholdResult
from canopy_load.report.wording import findings, threshold_value

QUANTILES: Final = {"0.5": "p50", "0.9": "p90", "0.99": "p99", "0.999": "p999"}
LATENCY: Final = "From the intended time of sending to the delivery"
FAULTS: Final = (
    "lost", "duplicates", "redelivered", "reordered", "altered", "unconfirmed", "unjudged", "retained",
)  # fmt: skip


def junit(result: Result) -> str:
    """Return a test suite: a case for each threshold, one for the messages, and one for the generator not being the
    limit."""
    cases = [(each.text, "" if each.met else _missed(each)) for each in result.thresholds]
    bad = [each.text for each in findings(result) if each.tone == "bad" and not each.text.startswith("Threshold")]
    bad += ["The run was interrupted."] if result.interrupted else []
    bad += ["Too much could not be judged."] if result.too_little_judged else []
    cases.append(("nothing lost, doubled, reordered or altered", " ".join(bad)))
    about = {"target": result.target, "broker": result.broker, "run": result.run}
    return suite(
        f"canopy load {result.scenario}",
        f"canopy.load.{result.scenario}",
        result.measured_seconds,
        about,
        [JUnitCase(name, "failure" if failure else "", failure, "failure") for name, failure in cases],
        timestamp=result.begun[:19],
        hostname=platform.node() or "localhost",
    )


def _missed(of: ThresholdResult) -> str:
    return f"{of.text}: it was {threshold_value(of)}"


def prometheus(result: Result) -> str:
    """The result as metrics, for the node exporter's textfile collector or a push gateway."""
    made = _Gauges(result.scenario)
    made.add("run_info", "What was run", 1, run=result.run, broker=result.broker)
    made.add("sent_messages", "Messages sent in the measured stages", result.sent)
    made.add("received_messages", "Messages received in the measured stages", result.received)
    made.add("sent_rate", "Messages sent a second", result.send_rate)
    made.add("received_rate", "Messages received a second", result.receive_rate)
    made.add("expected_deliveries", "Deliveries that were due", result.deliveries.expected)
    for kind in FAULTS:
        about = "Deliveries of the whole run that were not as they should be, by kind"
        made.add("deliveries", about, getattr(result.deliveries, kind), kind=kind)
    for name, about, latency in (
        ("latency_seconds", LATENCY, result.latency),
        ("connect_seconds", "From the intended time of connecting to the CONNACK", result.connect),
    ):
        for at, key in QUANTILES.items():
            made.add(name, about, _seconds(getattr(latency, key)), quantile=at)
    for group in result.groups:
        made.add("connections_lost", "Connections that broke", group.connections_lost, group=group.name)
        made.add("unsent_messages", "Messages that were due and could not be sent", group.unsent, group=group.name)
    for each in result.thresholds:
        made.add("threshold_met", "1 where the threshold holds", int(each.met), threshold=each.text)
    made.add("broker_cpu_cores", "CPU of the broker", result.broker_cpu)
    made.add("broker_memory_bytes", "Resident memory of the broker", result.broker_memory)
    made.add("generator_cpu_cores", "CPU of the generator", result.generator_cpu)
    limited = "1 where the generator was the limit, and not the broker"
    made.add("generator_limited", limited, int(result.limit == "generator"))
    disturbed = "How much of the latency may be the generator's own, from 0 to 1"
    made.add("generator_disturbed_ratio", disturbed, result.disturbed)
    return made.text()


def prometheus_second(scenario: str, second: Second) -> str:
    """Return one second of a present run as metrics."""
    made = _Gauges(scenario)
    length = second.seconds or 1.0
    made.add("clients", "Clients that are connected and subscribed", second.clients_up)
    made.add("sent_rate", "Messages sent a second", second.sent / length)
    made.add("received_rate", "Messages received a second", second.received / length)
    for at, key in QUANTILES.items():
        if key != "p999":
            made.add("latency_seconds", LATENCY, _seconds(getattr(second, key)), quantile=at)
    made.add("broker_cpu_cores", "CPU of the broker", second.broker_cpu)
    made.add("broker_memory_bytes", "Resident memory of the broker", second.broker_memory)
    made.add("generator_cpu_cores", "CPU of the generator", second.generator_cpu)
    return made.text()


class _Gauges:
    """Metrics of one scenario; a value that is None is left out."""

    def __init__(self, scenario: str) -> None:
        self._scenario = scenario
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}

    def add(self, name: str, about: str, value: float | None, **labels: str) -> None:
        if value is None:
            return
        gauge = self._gauges.get(name)
        if gauge is None:
            names = ["scenario", *labels]
            gauge = self._gauges[name] = Gauge(f"canopy_load_{name}", about, names, registry=self._registry)
        gauge.labels(self._scenario, *labels.values()).set(value)

    def text(self) -> str:
        return generate_latest(self._registry).decode()


def _seconds(micros: float | None) -> float | None:
    return None if micros is None else micros / 1e6


class Metrics(Audience):
    """Writes every second into a file. A file that cannot be written ends nothing: the end of the run says so."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path

    def second(self, second: Second) -> None:
        with contextlib.suppress(ReportError):
            write(self._path, prometheus_second(self._name, second))


def write(path: Path, text: str) -> None:
    """Write a whole file in place of the one before.

    Raises:
        ReportError: it cannot be written.
    """
    write_all(path.parent, {path.name: text}, f"{path}:")

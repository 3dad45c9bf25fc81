"""A result for other programs: JUnit XML, and Prometheus' text format.

Owns: these two texts, and how one file comes to its place.

Promises: made from a ``Result`` and nothing else. A file is written under another name and then moved: a reader (the
node exporter's textfile collector, say) never sees half of it. A figure that could not be had is absent, not 0.
"""

from __future__ import annotations

import contextlib
import platform
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from loadtest.load.engine.job import Audience
from loadtest.load.report.files import ReportError
from loadtest.load.report.result import Latency, Met, Result, Second
from loadtest.load.report.wording import findings, threshold_value
from loadtest.load.scenario.schema import Scenario

QUANTILES: Final = {"0.5": "p50", "0.9": "p90", "0.99": "p99", "0.999": "p999"}
FAULTS: Final = (
    "lost", "duplicates", "redelivered", "reordered", "altered", "unconfirmed", "unjudged", "retained",
)  # fmt: skip

_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: Result) -> str:
    """A test suite: a case for each threshold, one for what was seen of the messages, one for whether it was the broker
    that was measured."""
    cases = [(each.text, "" if each.met else _missed(each)) for each in result.thresholds]
    bad = [each.text for each in findings(result) if each.tone == "bad" and not each.text.startswith("Threshold")]
    bad += ["The run was interrupted."] if result.interrupted else []
    bad += ["Too much could not be judged."] if result.too_little_judged else []
    cases.append(("nothing lost, doubled, reordered or altered", " ".join(bad)))
    suite = ElementTree.Element(
        "testsuite",
        name=_xml(f"canopy load {result.scenario}"),
        tests=str(len(cases)),
        failures=str(sum(bool(failure) for _, failure in cases)),
        errors="0",
        skipped="0",
        time=f"{result.measured_seconds:.3f}",
        timestamp=result.begun[:19],
        hostname=_xml(platform.node() or "localhost"),
    )
    about = ElementTree.SubElement(suite, "properties")
    for key, value in (("target", result.target), ("broker", result.broker), ("run", result.run)):
        ElementTree.SubElement(about, "property", name=key, value=_xml(value))
    for name, failure in cases:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_xml(f"canopy.load.{result.scenario}"), name=_xml(name), time="0"
        )
        if failure:
            ElementTree.SubElement(case, "failure", message=_xml(failure), type="failure")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _missed(of: Met) -> str:
    return f"{of.text}: it was {threshold_value(of)}"


def _xml(text: str) -> str:
    """XML has no way to write some characters, escaped or not."""
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)


def prometheus(result: Result) -> str:
    """The result as metrics, for the node exporter's textfile collector or a push gateway."""
    labels = {"scenario": result.scenario}
    lines = [
        *_metric("run_info", "gauge", "What was run", [({**labels, "run": result.run, "broker": result.broker}, 1)]),
        *_metric("sent_messages", "gauge", "Messages sent in the measured stages", [(labels, result.sent)]),
        *_metric("received_messages", "gauge", "Messages received in the measured stages", [(labels, result.received)]),
        *_metric("sent_rate", "gauge", "Messages sent a second", [(labels, result.send_rate)]),
        *_metric("received_rate", "gauge", "Messages received a second", [(labels, result.receive_rate)]),
        *_metric("expected_deliveries", "gauge", "Deliveries that were due", [(labels, result.deliveries.expected)]),
        *_metric(
            "deliveries",
            "gauge",
            "Deliveries of the whole run that were not as they should be, by kind",
            [({**labels, "kind": kind}, getattr(result.deliveries, kind)) for kind in FAULTS],
        ),
        *_latency("latency_seconds", "From the intended time of sending to the delivery", labels, result.latency),
        *_latency("connect_seconds", "From the intended time of connecting to the CONNACK", labels, result.connect),
        *_metric(
            "connections_lost", "gauge", "Connections that broke", [({**labels, "group": each.name},
            each.connections_lost) for each in result.groups],
        ),
        *_metric(
            "unsent_messages", "gauge", "Messages that were due and could not be sent",
            [({**labels, "group": each.name}, each.unsent) for each in result.groups],
        ),
        *_metric(
            "threshold_met", "gauge", "1 where the threshold holds",
            [({**labels, "threshold": each.text}, int(each.met)) for each in result.thresholds],
        ),
        *_metric("broker_cpu_cores", "gauge", "CPU of the broker", [(labels, result.broker_cpu)]),
        *_metric("broker_memory_bytes", "gauge", "Resident memory of the broker", [(labels, result.broker_memory)]),
        *_metric("generator_cpu_cores", "gauge", "CPU of the generator", [(labels, result.generator_cpu)]),
        *_metric(
            "generator_limited", "gauge", "1 where the generator was the limit, and not the broker",
            [(labels, int(result.limit == "generator"))],
        ),
        *_metric(
            "generator_disturbed_ratio", "gauge", "How much of the latency may be the generator's own, from 0 to 1",
            [(labels, result.disturbed)],
        ),
    ]  # fmt: skip
    return "".join(lines)


def prometheus_second(scenario: str, second: Second) -> str:
    """One second of a run that goes on."""
    labels = {"scenario": scenario}
    length = second.seconds or 1.0
    times = [({**labels, "quantile": at}, getattr(second, name)) for at, name in QUANTILES.items() if name != "p999"]
    return "".join(
        [
            *_metric("clients", "gauge", "Clients that are connected and subscribed", [(labels, second.clients_up)]),
            *_metric("sent_rate", "gauge", "Messages sent a second", [(labels, second.sent / length)]),
            *_metric("received_rate", "gauge", "Messages received a second", [(labels, second.received / length)]),
            *_metric(
                "latency_seconds", "gauge", "From the intended time of sending to the delivery",
                [(named, None if value is None else value / 1e6) for named, value in times],
            ),
            *_metric("broker_cpu_cores", "gauge", "CPU of the broker", [(labels, second.broker_cpu)]),
            *_metric("broker_memory_bytes", "gauge", "Resident memory of the broker", [(labels, second.broker_memory)]),
            *_metric("generator_cpu_cores", "gauge", "CPU of the generator", [(labels, second.generator_cpu)]),
        ]
    )  # fmt: skip


def _latency(name: str, about: str, labels: dict[str, str], of: Latency) -> Iterator[str]:
    found = [({**labels, "quantile": at}, getattr(of, key)) for at, key in QUANTILES.items()]
    return _metric(name, "gauge", about, [(each, None if us is None else us / 1e6) for each, us in found])


def _metric(name: str, kind: str, about: str, values: list[tuple[dict[str, str], float | None]]) -> Iterator[str]:
    known = [(labels, value) for labels, value in values if value is not None]
    if not known:
        return
    yield f"# HELP canopy_load_{name} {about}.\n# TYPE canopy_load_{name} {kind}\n"
    for labels, value in known:
        inside = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        yield f"canopy_load_{name}{{{inside}}} {value!r}\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """An audience that writes every second into a file, and tells another one.

    A file that cannot be written ends nothing: the end of the run says so.
    """

    def __init__(self, audience: Audience, scenario: Scenario, path: Path) -> None:
        self._audience = audience
        self._name = scenario.name
        self._path = path

    def phase(self, text: str) -> None:
        """Tell it."""
        self._audience.phase(text)

    def clients(self, up: int, wanted: int) -> None:
        """Tell it."""
        self._audience.clients(up, wanted)

    def second(self, second: Second) -> None:
        """Write it and tell it."""
        with contextlib.suppress(ReportError):
            write(self._path, prometheus_second(self._name, second))
        self._audience.second(second)

    def finished(self, result: Result) -> None:
        """Tell it."""
        self._audience.finished(result)


def write(path: Path, text: str) -> None:
    """Write a file whole, in place of what was there.

    Raises:
        ReportError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".canopy-load-", dir=path.parent) as hidden:
            draft = Path(hidden) / path.name
            draft.write_bytes(text.encode("utf-8", "backslashreplace"))
            draft.replace(path)
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror or error})") from error

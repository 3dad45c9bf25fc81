"""Figures and judgements in words: the same ones in the terminal and on the page.

Owns: how numbers are written, which figures come first, and what a reader must be told before any of them
(``findings``).

Promises: a figure that could not be had is a dash, never 0. Text from outside (client identifiers, topics, errors)
comes out of ``plain`` with everything invisible written as an escape, so that it can neither move a terminal's cursor
nor turn a line around.

Nothing is computed: everything here stands in the result already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from canopy_load.report.result import PARTLY, Deliveries, GroupResult, Result, ThresholdResult
from canopy_load.scenario.thresholds import SHARES, TIMES
from canopy_mqtt.pages import plain
from canopy_mqtt.words import counted

DASH: Final = "–"

Tone = Literal["good", "plain", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """A finding for the reader, and its severity."""

    tone: Tone
    text: str


@dataclass(frozen=True)
class Figure:
    """One of the key figures; the note adds its base or a figure beside it."""

    name: str
    value: str
    note: str = ""
    tone: Tone = "plain"


def number(value: float | None) -> str:
    """Format a whole number from 100 on, else three significant digits; separate thousands."""
    if value is None:
        return DASH
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def micros(value: float | None) -> str:
    """A time given in microseconds, in the unit that suits it."""
    if value is None:
        return DASH
    if abs(value) < 999.5:
        return f"{value:.0f} µs"
    if abs(value) < 999_500:
        return f"{value / 1e3:.3g} ms"
    return f"{value / 1e6:,.3g} s" if abs(value) < 999.5e6 else f"{value / 1e6:,.0f} s"


def memory(size: int | None) -> str:
    return DASH if size is None else f"{number(round(size / 1e6, 1))} MB"


def cores(value: float | None) -> str:
    """Cores' worth of CPU."""
    return DASH if value is None else f"{value:.2f} cores"


def percent(part: float, whole: float) -> str:
    """A share; so small that it would read as 0, it says so."""
    if not whole:
        return DASH
    share = 100 * part / whole
    if 0 < share < 0.0001:
        return "below 0.0001 %"
    return f"{share:.0f} %" if share == int(share) else f"{share:.2g} %" if share < 1 else f"{share:.1f} %"


def findings(result: Result) -> list[Finding]:
    """Return the findings that a reader needs before any figure, the worst first; at least one."""
    found = [
        *_faults(result.deliveries),
        *_unanswered(result),
        *_ledger(result),
        *_troubles(result.groups),
    ]
    if not any(each.tone == "bad" for each in found):
        found[:0] = _all_is_well(result)
    elif result.too_little_judged:
        found.insert(0, Finding("warn", _unjudged(result)))
    # Whose figures these are says nothing of what was delivered, so it does not hide that all came.
    found[:0] = _whose(result)
    found += [
        Finding("bad", f"Threshold missed: {each.text}; it was {threshold_value(each)}.") for each in result.missed
    ]
    disturbed = result.disturbed >= PARTLY
    if result.verdict and result.limit != "generator" and (disturbed or _publishes(result)):
        found.append(Finding("warn" if disturbed else "plain", result.verdict))
    if not found:
        found.append(Finding("plain", "There was nothing to judge: no delivery was due."))
    order: tuple[Tone, ...] = ("bad", "warn", "good", "plain")
    return sorted(found, key=lambda each: order.index(each.tone))


THRESHOLD_HEADINGS: Final = ("threshold", "was", "holds")


def threshold_rows(result: Result) -> list[list[str]]:
    """Every threshold under `THRESHOLD_HEADINGS`, those that were missed first."""
    ordered = sorted(result.thresholds, key=lambda each: each.met)
    return [[each.text, threshold_value(each), "yes" if each.met else "no"] for each in ordered]


def threshold_value(of: ThresholdResult) -> str:
    """Return the measured value of a threshold in the unit that suits it."""
    if of.value is None:
        return "not measured"
    if of.figure in TIMES:
        return micros(of.value)
    return percent(of.value, 1) if of.figure in SHARES else number(of.value)


def _all_is_well(result: Result) -> list[Finding]:
    """That no fault was seen, and of how much that can be said."""
    of = result.deliveries
    checked = counted(of.expected, "delivery", "deliveries")
    if result.too_little_judged:
        rest = f" Nothing else was lost, doubled, reordered or altered: {checked} checked."
        return [Finding("warn", _unjudged(result) + (rest if of.expected else ""))]
    if not of.expected:
        return _met(result)
    text = f"Nothing was lost, doubled, reordered or altered: {checked} checked."
    if of.unjudged:
        share = percent(of.unjudged, of.expected + of.unjudged)
        text += f" Another {of.unjudged:,} ({share}) could not be judged: their subscribers came or went."
    if result.broken or result.unsent:
        return [Finding("warn", f"{text} But {_broken(result)}.")]
    return [Finding("good", text)]


def _publishes(result: Result) -> bool:
    return not result.groups or any(group.publishes for group in result.groups)


def _subscribes(result: Result) -> bool:
    return not result.groups or any(group.subscribes for group in result.groups)


def _met(result: Result) -> list[Finding]:
    """Return the findings of a run whose clients exchange no messages: the connections, and the messages sent or
    received."""
    publishes, subscribes = _publishes(result), _subscribes(result)
    if (publishes and subscribes) or result.broken or result.unsent or not result.connect.count:
        return []
    text = f"{counted(result.connect.count, 'client')} connected"
    if publishes:
        text += f" and sent {counted(sum(group.sent for group in result.groups), 'message')}"
    if subscribes:
        text += f" and received {counted(sum(each.foreign for each in result.seconds), 'message')} of others"
    return [Finding("good", f"{text}; no connection broke.")]


def _broken(result: Result) -> str:
    """Name the broken connections and the unsent messages, if there are any."""
    parts = []
    if result.broken:
        parts.append(f"connections broke or failed {counted(result.broken, 'time')}")
    if result.unsent:
        parts.append(f"{counted(result.unsent, 'message')} that were due could not be sent")
    return ", and ".join(parts)


def _unjudged(result: Result) -> str:
    of = result.deliveries
    share = percent(of.unjudged, of.expected + of.unjudged)
    return (
        f"{share} of the deliveries could not be judged ({of.unjudged:,}): {_broken(result)}, "
        "and nobody can say what was due meanwhile."
    )


def _whose(result: Result) -> list[Finding]:
    found: list[Finding] = []
    if result.limit == "generator":
        because = f" {result.verdict}" if result.verdict else ""
        found.append(Finding("bad", f"The load generator was the limit: these are not the broker's figures.{because}"))
    if result.interrupted:
        found.append(Finding("warn", "The run was interrupted: the figures are of what was played until then."))
    if result.closed_loop:
        found.append(
            Finding(
                "plain",
                "Closed loop: publishers waited for deliveries, so the latency is that of a full window, "
                "and the rate is what the broker kept up with.",
            )
        )
    return found


def _faults(of: Deliveries) -> list[Finding]:
    told = f", of which the broker told the subscribers {of.told_lost:,}" if of.told_lost else ""
    unconfirmed = f"Unconfirmed: {of.unconfirmed:,} did not come, and the broker never said that it took them."
    known: tuple[tuple[int, Tone, str], ...] = (
        (of.lost, "bad", f"Lost: {of.lost:,} of {of.expected:,} ({percent(of.lost, of.expected)}){told}."),
        (of.duplicates, "bad", f"Doubled: {counted(of.duplicates, 'copy', 'copies')} too many."),
        (of.reordered, "bad", f"Reordered: {counted(of.reordered, 'message')} after a later one of its stream."),
        (of.altered, "bad", f"Altered: {counted(of.altered, 'message')} with another topic or payload."),
        (of.unconfirmed, "warn", unconfirmed),
    )
    return [Finding(tone, text) for count, tone, text in known if count]


def _ledger(result: Result) -> list[Finding]:
    if result.reconciled is None or result.reconciled.agrees is not False:
        return []
    text = f"The broker's own ledger says something else than what was seen. {result.reconciled.why}"
    return [Finding("bad", text.strip())]


def _unanswered(result: Result) -> list[Finding]:
    missing, of = result.unanswered, counted(result.requests, "request")
    text = f"Unanswered: {missing:,} of {of} ({percent(missing, result.requests)})."
    return [Finding("bad", text)] if missing else []


def _troubles(groups: list[GroupResult]) -> list[Finding]:
    texts = {
        "unsent": ("message", "{} due by the scenario's rate could not be sent."),
        "refused": ("message", "The broker refused {} with a reason code."),
        "connects_failed": ("connection attempt", "{} failed."),
        "connections_lost": ("connection", "{} broke, or the broker ended them."),
        "subscribes_refused": ("subscription", "The broker refused {}."),
    }
    counts = {name: sum(getattr(group, name) for group in groups) for name in texts}
    return [
        Finding("warn", text.format(counted(counts[name], one))) for name, (one, text) in texts.items() if counts[name]
    ]


def figures(result: Result) -> list[Figure]:
    of, latency = result.deliveries, result.latency

    def fault(name: str, value: int, note: str = "") -> Figure:
        return Figure(name, number(value), note, "bad" if value else "good" if of.expected else "plain")

    publishes, subscribes = _publishes(result), _subscribes(result)
    found: list[Figure] = []
    if publishes:
        found.append(Figure("sent", number(result.sent), f"{number(result.send_rate)} /s"))
    if publishes and subscribes:
        found.append(Figure("received", number(result.received), f"{number(result.receive_rate)} /s"))
    if subscribes and (result.foreign or not publishes):
        found.append(Figure("received of others", number(result.foreign), f"{number(result.foreign_rate)} /s"))
    if not (publishes and subscribes):
        return [*found, *_connected(result), *_usage(result)]
    found += [
        Figure("latency p50", micros(latency.p50), f"mean {micros(latency.mean)}"),
        Figure("latency p99", micros(latency.p99), f"p90 {micros(latency.p90)}"),
        Figure("latency p99.9", micros(latency.p999)),
        Figure("latency max", micros(latency.max)),
        *_asked(result),
        fault("lost", of.lost, f"of {of.expected:,} due"),
        fault("duplicates", of.duplicates),
        fault("reordered", of.reordered),
        fault("altered", of.altered),
    ]
    aside = {
        "unconfirmed": "not acknowledged, did not come",
        "redelivered": "as QoS 1 allows: no duplicates",
        "overlapping": "several filters matched",
        "unjudged": "subscriber came or went",
        "retained": "came with a subscription",
    }
    found += [Figure(name, number(count), note) for name, note in aside.items() if (count := getattr(of, name))]
    return found + _usage(result)


def _connected(result: Result) -> list[Figure]:
    """Return the figures of clients that exchange no messages with each other."""
    connect, subscribe = result.connect, result.subscribe
    found = [
        Figure("connected", number(connect.count), f"{number(result.broken)} failed or broke"),
        Figure("until CONNACK p50", micros(connect.p50), f"mean {micros(connect.mean)}"),
        Figure("until CONNACK p99", micros(connect.p99), f"max {micros(connect.max)}"),
    ]
    if subscribe.count:
        found.append(Figure("until SUBACK p99", micros(subscribe.p99), f"max {micros(subscribe.max)}"))
    return found


def _usage(result: Result) -> list[Figure]:
    """Return the CPU time and memory that broker and generator used."""
    generator = f"{cores(result.generator_cpu)}, busiest process {100 * result.generator_busiest:.0f} %"
    tone: Tone = "bad" if result.limit == "generator" else "plain"
    if _publishes(result) and _subscribes(result):
        found = [
            Figure("broker CPU a delivery", micros_exact(result.broker_us), cores(result.broker_cpu)),
            Figure("generator CPU a delivery", micros_exact(result.generator_us), generator, tone),
        ]
    else:
        found = [Figure("broker CPU", cores(result.broker_cpu)), Figure("generator CPU", generator, "", tone)]
    return [*found, Figure("broker memory", memory(result.broker_memory), "resident, at the most")]


def _asked(result: Result) -> list[Figure]:
    if not result.requests:
        return []
    trip = result.round_trip
    return [
        Figure("requests", number(result.requests), f"{number(result.unanswered)} not answered"),
        Figure("round trip p50", micros(trip.p50), f"mean {micros(trip.mean)}"),
        Figure("round trip p99", micros(trip.p99), f"max {micros(trip.max)}"),
    ]


def micros_exact(value: float | None) -> str:
    """Format microseconds with three significant digits."""
    return DASH if value is None else f"{number(value)} µs"


GROUP_HEADINGS: Final = (
    "group", "clients", "role", "sent", "due", "received", "lost", "doubled", "reordered", "altered", "p50", "p99",
    "max", "notes",
)  # fmt: skip


def group_cells(group: GroupResult) -> list[str]:
    """One group under `GROUP_HEADINGS`; columns that cannot have a value hold a dash."""
    of, latency = group.deliveries, group.latency
    role = {(True, True): "both", (True, False): "publishes", (False, True): "subscribes"}.get(
        (group.publishes, group.subscribes), "idle"
    )
    due = [number(value) for value in (of.expected, of.received, of.lost, of.duplicates, of.reordered, of.altered)]
    return [
        plain(group.name),
        number(group.clients),
        role,
        number(group.sent) if group.publishes or group.sent else DASH,
        *(due if group.subscribes else [DASH] * len(due)),
        micros(latency.p50),
        micros(latency.p99),
        micros(latency.max),
        "; ".join(group_notes(group)),
    ]


def group_notes(group: GroupResult) -> list[str]:
    of = group.deliveries
    amounts = (
        (group.unsent, "not sent"),
        (group.refused, "refused"),
        (group.connects_failed, "connection attempts failed"),
        (group.connections_lost, "connections lost"),
        (group.subscribes_refused, "subscriptions refused"),
        (of.unconfirmed, "unconfirmed"),
        (of.redelivered, "redelivered"),
        (of.overlapping, "overlapping"),
        (of.unjudged, "unjudged"),
        (of.retained, "retained"),
        (of.told_lost, "losses told"),
        (group.requests - group.answered, "requests not answered"),
        (group.answered_again, "answered once more"),
    )
    notes = ["slow or frozen, not in the totals"] if group.frozen else []
    return notes + [f"{amount:,} {what}" for amount, what in amounts if amount]


LATENCY_HEADINGS: Final = ("latency of", "count", "min", "mean", "p50", "p90", "p99", "p99.9", "max")


def latency_rows(result: Result) -> list[list[str]]:
    """All distributions that were measured, under `LATENCY_HEADINGS`."""
    named = (
        ("deliveries, from the intended time", result.latency),
        ("requests, until their answer", result.round_trip),
        ("the generator's own lateness", result.late),
        ("connecting, until CONNACK", result.connect),
        ("subscribing, until SUBACK", result.subscribe),
    )
    return [
        [name, number(of.count), *map(micros, (of.min, of.mean, of.p50, of.p90, of.p99, of.p999, of.max))]
        for name, of in named
        if of.count
    ]

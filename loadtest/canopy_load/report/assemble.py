"""Make a result of the messages of the processes.

Owns: merging their intervals and outcomes, the figures of the measured stages, and the verdict whose figures they are.

Promises: a figure of the whole run covers the whole run, a rate or a latency of the summary only measured stages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from canopy_load.brokers.stats import counted_percentile, merged
from canopy_load.checks import broker_usage
from canopy_load.checks.broker_statistics import reconcile
from canopy_load.checks.expected import Sent, Settled, Subscriptions, add, settle
from canopy_load.checks.judged import judge
from canopy_load.checks.verdict import verdict
from canopy_load.engine.job import Job
from canopy_load.engine.process_messages import Interval, ProcessOutcome
from canopy_load.report.result import GroupResult, Latency, Result, Second
from canopy_load.scenario import thresholds
from canopy_load.scenario.library import without_passwords
from canopy_load.scenario.plan import SECOND, Plan
from canopy_load.scenario.scenario_schema import RESERVED_STAGES

CUT_SHORT: Final = 0.01
"""Seconds by which a stage is shorter that was cut short."""

Trace = Sequence[tuple[int, float | None, int | None]]


@dataclass
class RunMessages:
    """All messages of the processes of a run."""

    run: str
    begun: datetime
    interrupted: bool
    start_at: int
    intervals: list[list[Interval]]
    outcomes: list[ProcessOutcome]
    unsent: list[list[int]]
    trace: Trace
    before: tuple[int, dict[str, int]] | None
    after: tuple[int, dict[str, int]] | None
    version: str


def everybody(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield group and number of every client."""
    for group, count in enumerate(plan.counts):
        for number in range(count):
            yield group, number


def second(plan: Plan, parts: Sequence[Interval], start_at: int, trace: Trace) -> Second:
    """Return one second, from all processes. Before the stages have begun, `start_at` is 0 and it starts at -1."""
    first = parts[0]
    groups = [group for part in parts for group in part.groups]
    latencies = merged(counts["latencies"] for counts in _read_freely(plan, parts))
    late = merged(group["late"] for group in groups)
    length = max((first.end - first.begin) / SECOND, 1e-6)
    stages = {stage.name: stage.measured for stage in plan.scenario.stages}
    cpu, memory = _used(trace, first.begin, first.end)

    def total(name: str) -> int:
        return sum(group[name] for group in groups)

    def free(name: str) -> int:
        return sum(counts[name] for counts in _read_freely(plan, parts))

    return Second(
        start=(first.begin - start_at) / SECOND if start_at else -1.0,
        seconds=length,
        stage=first.stage,
        measured=stages.get(first.stage, False),
        clients_up=sum(part.up for part in parts),
        offered=total("sent") + sum(part.overdue for part in parts),
        sent=total("sent"),
        received=total("received"),
        foreign=total("foreign"),
        bytes_sent=total("bytes_sent"),
        bytes_received=total("bytes_received"),
        gaps=free("gaps"),
        slow_gaps=total("gaps") - free("gaps"),
        copies=free("copies"),
        connects=total("connects"),
        connections_lost=total("connections_lost"),
        subscribes=total("subscribes"),
        p50=counted_percentile(latencies, 50),
        p90=counted_percentile(latencies, 90),
        p99=counted_percentile(latencies, 99),
        max=float(max(latencies)) if latencies else None,
        latencies=latencies,
        late_p99=counted_percentile(late, 99),
        generator_cpu=sum(part.cpu for part in parts) / length,
        generator_busiest=max(part.cpu for part in parts) / length,
        generator_waited=max(part.waited for part in parts) / length,
        broker_cpu=None if cpu is None else cpu / length,
        broker_memory=memory,
    )


def _read_freely(plan: Plan, parts: Sequence[Interval]) -> Iterator[dict[str, Any]]:
    """Yield the counters of the groups that read as fast as they can; those of the others only show how slow they
    are."""
    for part in parts:
        for group, counts in zip(plan.groups, part.groups, strict=True):
            if group.reading is None:
                yield counts


def _used(trace: Trace, begin: int, end: int) -> tuple[float | None, int | None]:
    """Return the seconds of the broker's CPU between two times, and its memory at the second time."""
    before, after = _at(trace, begin), _at(trace, end)
    if before is None or after is None:
        return None, None
    memory = next((each[2] for each in reversed(trace) if each[0] <= end and each[2] is not None), None)
    return max(0.0, after - before), memory


def _at(trace: Trace, time: int) -> float | None:
    """Return the broker's CPU time at a moment, interpolated between two measurements."""
    if not trace:
        return None
    at = bisect_left(trace, time, key=lambda each: each[0])
    if at == 0:
        return trace[0][1]
    if at == len(trace):
        return trace[-1][1]
    (first, low, _), (last, high, _) = trace[at - 1], trace[at]
    if low is None or high is None:
        return None
    return low + (high - low) * (time - first) / max(1, last - first)


def assemble(job: Job, plan: Plan, heard: RunMessages) -> Result:
    scenario = job.scenario
    count = min((len(each) for each in heard.intervals), default=0)
    rows = [[each[index] for each in heard.intervals] for index in range(count)]
    seconds = [second(plan, row, heard.start_at, heard.trace) for row in rows]
    last_overdue = 0
    for each, row in zip(seconds, rows, strict=True):
        # What was due in this second: what was sent, and by how much the backlog grew.
        overdue = sum(part.overdue for part in row)
        each.offered = max(0, each.sent + overdue + sum(part.given_up for part in row) - last_overdue)
        last_overdue = overdue
    measured = [each for each in seconds if each.measured]
    length = sum(each.seconds for each in measured)
    sent = all_sent(heard.outcomes)
    accounts = [each for one in heard.outcomes for each in one.accounts]
    refused = {each.subscriber: each.refused for each in accounts if each.refused}
    settled = settle(plan, Subscriptions(plan, everybody(plan), refused), accounts, sent)
    measured_rows = [row for row, each in zip(rows, seconds, strict=True) if each.measured]
    result = Result(
        run=heard.run,
        scenario=scenario.name,
        description=scenario.description,
        scenario_text=without_passwords(job.scenario_text),
        target=", ".join(str(target) for target in job.targets),
        broker=heard.version or "unknown",
        begun=heard.begun.isoformat(timespec="milliseconds"),
        interrupted=heard.interrupted,
        environment={**broker_usage.environment(), **job.notes},
        processes=job.processes,
        stages=_stages(plan, seconds),
        measured_seconds=length,
        sent=sum(each.sent for each in measured),
        received=sum(each.received for each in measured),
        foreign=sum(each.foreign for each in measured),
        latency=Latency.of(_measured(plan, rows)),
        late=Latency.of(merged(group["late"] for row in measured_rows for part in row for group in part.groups)),
        connect=Latency.of(_times(rows, "connect_times")),
        subscribe=Latency.of(_times(rows, "subscribe_times")),
        round_trip=Latency.of(_round_trips(plan, rows)),
        closed_loop=_closed(plan),
        errors=_errors(heard.outcomes, settled),
        groups=_groups(plan, heard, settled, rows, sent),
        pairs=settled.pairs,
        seconds=seconds,
    )
    for group in result.groups:
        if not group.frozen:
            add(result.deliveries, group.deliveries)
    _rates(result, measured)
    result.reconciled = reconcile(settled.groups, heard.before, heard.after, job.broker_pid is not None)
    result.limit, result.verdict = verdict(result)
    result.thresholds = judge(
        result, thresholds.of(scenario.thresholds, job.thresholds, [group.name for group in plan.groups])
    )
    return result


def _measured(plan: Plan, rows: Sequence[Sequence[Interval]], group: int | None = None) -> dict[int, int]:
    """Return the latencies of messages meant to be sent in measured stages, of one group or of all that read as fast as
    they can."""
    found: Counter[int] = Counter()
    stages = plan.scenario.stages
    for part in (part for row in rows for part in row):
        now = any(stage.measured for stage in stages if stage.name == part.stage)
        readers = [each for each, it in zip(part.groups, plan.groups, strict=True) if it.reading is None]
        for each in readers if group is None else [part.groups[group]]:
            if now:
                found.update(each["latencies"])
            for number, latencies in each["carried"].items():
                if now:
                    found.subtract(latencies)
                if stages[number].measured:
                    found.update(latencies)
    return {value: count for value, count in found.items() if count}


def all_sent(outcomes: Sequence[ProcessOutcome]) -> Sent:
    total = Sent()
    for outcome in outcomes:
        total.streams.update(outcome.sent.streams)
        total.uncertain.update(outcome.sent.uncertain)
        total.resent.update(outcome.sent.resent)
    return total


def _stages(plan: Plan, seconds: Sequence[Second]) -> list[dict[str, object]]:
    """Return the stages; one that was cut short has the seconds that it lasted."""
    made: list[dict[str, object]] = []
    begin = 0.0
    for stage in plan.scenario.stages:
        lasted = max((each.start + each.seconds for each in seconds if each.stage == stage.name), default=begin) - begin
        length = lasted if lasted < stage.seconds - CUT_SHORT else stage.seconds
        made.append({"name": stage.name, "start": begin, "seconds": length, "measured": stage.measured})
        begin += length
    return made


def _times(rows: Sequence[Sequence[Interval]], name: str) -> dict[int, int]:
    return merged(group[name] for row in rows for part in row for group in part.groups)


def _round_trips(plan: Plan, rows: Sequence[Sequence[Interval]]) -> dict[int, int]:
    """Return the round trips of answers that came in measured stages, or in the drain behind them."""
    measured = {stage.name for stage in plan.scenario.stages if stage.measured}
    if plan.scenario.stages[-1].measured:
        measured.add(RESERVED_STAGES[-1])
    parts = (part for row in rows for part in row if part.stage in measured)
    return merged(group["round_trips"] for part in parts for group in part.groups)


def _requests(plan: Plan, group: int, sent: Sent) -> int:
    asking = [each for each in plan.published[group] if each.publish is not None and each.publish.reply_to is not None]
    return sum(count for entry in asking for stream, count in sent.streams.items() if entry.base <= stream < entry.end)


def _closed(plan: Plan) -> bool:
    loops = [publish.in_flight is not None for group in plan.groups for publish in group.publish]
    return bool(loops) and all(loops)


def _groups(
    plan: Plan, heard: RunMessages, settled: Settled, rows: Sequence[Sequence[Interval]], sent: Sent
) -> list[GroupResult]:
    made = []
    for number, group in enumerate(plan.groups):
        outcomes = heard.outcomes
        made.append(
            GroupResult(
                name=group.name,
                clients=plan.counts[number],
                publishes=bool(plan.published[number]),
                subscribes=bool(group.subscribe),
                frozen=group.reading is not None,
                sent=sum(each.group_sent[number][0] for each in outcomes),
                unsent=sum(each[number] for each in heard.unsent),
                refused=sum(each.group_sent[number][1] for each in outcomes),
                requests=_requests(plan, number, sent),
                answered=sum(part.groups[number]["answered"] for row in rows for part in row),
                answered_again=sum(part.groups[number]["answered_again"] for row in rows for part in row),
                connects=sum(part.groups[number]["connects"] for process in heard.intervals for part in process),
                connects_failed=sum(each.failed_connects[number] for each in outcomes),
                connections_lost=sum(each.lost_connections[number] for each in outcomes),
                subscribes_refused=sum(each.refused_subscribes[number] for each in outcomes),
                deliveries=settled.groups[number],
                latency=Latency.of(_measured(plan, rows, number)),
            )
        )  # fmt: skip
    return made


def _errors(outcomes: Sequence[ProcessOutcome], settled: Settled) -> dict[str, int]:
    errors: Counter[str] = Counter()
    for outcome in outcomes:
        errors.update(outcome.errors)
    foreign = sum(outcome.foreign for outcome in outcomes)
    if foreign:
        errors["messages that are not of this run"] = foreign
    if settled.strays:
        errors["deliveries that no filter of the subscriber matches"] = settled.strays
    return dict(errors.most_common())


def _rates(result: Result, measured: Sequence[Second]) -> None:
    length = result.measured_seconds
    if not length:
        return
    result.send_rate = result.sent / length
    result.receive_rate = result.received / length
    result.foreign_rate = result.foreign / length
    generator = sum(each.generator_cpu * each.seconds for each in measured)
    result.generator_cpu = generator / length
    result.generator_busiest = sum(each.generator_busiest * each.seconds for each in measured) / length
    result.generator_waited = sum(each.generator_waited * each.seconds for each in measured) / length
    if result.received:
        result.generator_us = generator / result.received * 1e6
    known = [each for each in measured if each.broker_cpu is not None]
    if known and len(known) == len(measured):
        broker = sum((each.broker_cpu or 0.0) * each.seconds for each in known)
        result.broker_cpu = broker / length
        if result.received:
            result.broker_us = broker / result.received * 1e6
    memory = [each.broker_memory for each in result.seconds if each.broker_memory is not None]
    result.broker_memory = max(memory) if memory else None

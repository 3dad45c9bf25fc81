"""Whose figures a result has: the broker's, or the load generator's own.

Owns: the thresholds, and the sentence for people.

Promises: a rate that the generator limited is never called the broker's. For what other programs kept the generator
from using of its core, the broker is not blamed either.
"""

from __future__ import annotations

from typing import Final

from loadtest.load.report.result import UNSENT, Limit, Result

BUSY: Final = 0.9
"""Share of a core above which a process is at its limit."""
CLOSED: Final = 0.6
"""The same for the generator in a closed loop in which the broker used less than half of it: such a loop has no idle
time but in the kernel, and whoever uses more is the limit."""
WAITED: Final = 0.05
"""Share of the time without a core above which it is mentioned."""
LATE: Final = 0.5
"""Share of the latency's 99th percentile above which the generator's own lateness spoils it."""
LATE_FLOOR: Final = 2_000
"""Microseconds of lateness that nobody is blamed for."""


def verdict(result: Result) -> tuple[Limit, str]:
    """Who was the limit, and why, in a sentence or two."""
    if not result.received and not result.sent:
        return "unknown", "Nothing was sent in the measured stages."
    own, broker = result.generator_busiest, result.broker_cpu
    # What it was kept from using counts as used: it could not have done more.
    used = own + result.generator_waited
    unsent = sum(group.unsent for group in result.groups)
    behind = unsent > result.sent * UNSENT
    late, high = result.late.p99 or 0.0, result.latency.p99 or 0.0
    is_late = late > LATE_FLOOR and late > high * LATE
    shares = f"The generator's busiest process used {own:.0%} of a core"
    shares += f", the broker {broker:.0%}." if broker is not None else "; the broker's CPU is not known."
    if result.generator_waited >= WAITED:
        shares += f" Others kept it from its core for {result.generator_waited:.0%} of the time."
    if _held_itself_up(result, used, behind or is_late):
        return "generator", f"{shares} It was the limit itself: these rates are its own and not the broker's."
    if is_late and used >= BUSY / 2:
        return "generator", (
            f"{shares} It was late by {late / 1000:.1f} ms (99th percentile) itself: "
            "the latencies are its own and not the broker's."
        )
    if broker is not None and broker >= BUSY:
        return "broker", f"{shares} The broker was the limit."
    if behind:
        return "broker" if broker is not None else "unknown", (
            f"{shares} {unsent:,} messages that were due could not be sent: the broker did not take them in time."
        )
    return ("unknown", shares) if broker is None else ("neither", f"{shares} Neither was at its limit.")


def _held_itself_up(result: Result, used: float, fell_behind: bool) -> bool:
    """Whether the generator could not do more, and the broker could have."""
    own, broker = result.generator_busiest, result.broker_cpu
    if broker is not None and broker >= used:
        return False
    if result.closed_loop:
        return used >= BUSY or (own >= CLOSED and (broker is None or broker < own / 2))
    # Who was in time with everything was not held up by anything, however busy.
    return used >= BUSY and fell_behind

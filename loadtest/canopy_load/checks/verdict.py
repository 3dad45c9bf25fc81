"""The owner of a result's figures: the broker, or the load generator itself.

Owns: what makes a process's limit, and the sentences for people. `Result.disturbed` is the measure of disturbance.

Promises: a rate that the generator limited is never called the broker's. For what other programs kept the generator
from using of its core, the broker is not blamed either. Every verdict says how late the generator was, and how much it
was disturbed; the grade follows from that measure alone, so that a run that was disturbed more never looks cleaner.
"""

from __future__ import annotations

from typing import Final

from canopy_load.report.result import PARTLY, SPOILED, UNSENT, Limit, Result

BUSY: Final = 0.9
"""Share of a core above which a process is at its limit."""
CLOSED: Final = 0.6
"""The same for the generator in a closed loop in which the broker used less than half of it: such a loop has no idle
time but in the kernel, and the one that uses more is the limit."""


def verdict(result: Result) -> tuple[Limit, str]:
    """Return which of the two was the limit, and the reasons in a few sentences."""
    if not result.received and not result.sent:
        return "unknown", "Nothing was sent in the measured stages."
    broker = result.broker_cpu
    behind = result.unsent > result.sent * UNSENT
    said = f"{_shares(result)} {_lateness(result)}"
    if _held_itself_up(result, behind):
        return "generator", f"{said} The generator was the limit itself: these rates are its own and not the broker's."
    if result.disturbed >= SPOILED:
        return "generator", f"{said} The latencies are the generator's own and not the broker's."
    if result.disturbed >= PARTLY:
        said += " The latencies are partly the generator's own."
    if broker is not None and broker >= BUSY:
        return "broker", f"{said} The broker was the limit."
    if behind:
        return "broker" if broker is not None else "unknown", (
            f"{said} {result.unsent:,} messages that were due could not be sent: the broker did not take them in time."
        )
    return ("unknown", said) if broker is None else ("neither", f"{said} Neither was at its limit.")


def _shares(result: Result) -> str:
    said = f"The generator's busiest process used {result.generator_busiest:.0%} of a core"
    return said + (
        "; the broker's CPU is not known." if result.broker_cpu is None else f", the broker {result.broker_cpu:.0%}."
    )


def _lateness(result: Result) -> str:
    """Describe the generator's lateness, its wait for a core, and the measure made of them."""
    late, latency = result.late.p99, result.latency.p99
    if late is None:
        said = "The generator's lateness was not measured"
        said += " (closed loop: no message has a time)" if result.closed_loop else ""
    else:
        said = f"The generator itself was late by {late / 1000:.3g} ms (99th percentile"
        said += f"; the latency's is {latency / 1000:.3g} ms)" if latency is not None else ")"
    return (
        f"{said}. Others kept it from its core for {result.generator_waited:.0%} of the time. "
        f"Disturbance: {result.disturbed:.0%}."
    )


def _held_itself_up(result: Result, behind: bool) -> bool:
    """Return True if the generator could not do more while the broker could have."""
    own, broker = result.generator_busiest, result.broker_cpu
    # What it was kept from using counts as used: it could not have done more.
    used = own + result.generator_waited
    if broker is not None and broker >= used:
        return False
    if result.closed_loop:
        return used >= BUSY or (own >= CLOSED and (broker is None or broker < own / 2))
    # Who was in time with everything was not held up by anything, however busy.
    return used >= BUSY and behind

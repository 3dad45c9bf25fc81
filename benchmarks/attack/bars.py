"""What an attack may do, and whether it did more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.attack.pairs import p99
from benchmarks.attack.runner import Result


@dataclass(frozen=True)
class Bars:
    """The bars beside an attack's own bounds on growth and on the wait of a PING.

    `logged`: bytes that the broker may log. `ratio`: of the pairs' 99th percentile to that without an attack. It
    passes whatever the ratio up to `floor` seconds, since one call of 10 ms is allowed, and where the broker has
    done no more for others meanwhile: then it was the machine that had no time.
    """

    ratio: float = 3.0
    floor: float = 0.01
    logged: int = 2_000_000

    def missed(self, result: Result, calm: float) -> list[str]:
        """What was missed, in words; `calm` is the 99th percentile of the pairs without an attack."""
        found: list[str] = []
        if result.broken:
            return [f"the broker or its clients did not stand it: {result.broken}"]
        if result.told.error:
            found.append(f"the attack failed: {result.told.error}")
        if result.growth > result.attack.growth:
            found.append(f"grew by {result.growth >> 20} MiB, {result.attack.growth >> 20} are allowed")
        if result.under.wait_cpu > result.attack.wait:
            found.append(f"a PING waited for {result.under.wait_cpu * 1e3:.0f} ms of other work")
        under = p99(result.under.latencies)
        if under > max(self.ratio * calm, self.floor) and p99(result.under.works) > self.floor:
            found.append(f"p99 {under * 1e3:.1f} ms, {under / calm:.1f} times" if calm else f"p99 {under * 1e3:.1f} ms")
        if result.logged > self.logged:
            found.append(f"logged {result.logged / 1e6:.1f} MB, {self.logged / 1e6:.1f} are allowed")
        if result.attack.steady and result.held:
            found.append(f"a publisher was held back {result.held} times")
        if result.under.lost or result.under.cut:
            found.append(f"well-behaved clients lost {result.under.lost} messages, {result.under.cut} connections")
        return found


def calm_p99(results: Sequence[Result]) -> float:
    """The 99th percentile without an attack, over the calm parts of a whole sitting."""
    return p99([latency for result in results for latency in result.calm.latencies])

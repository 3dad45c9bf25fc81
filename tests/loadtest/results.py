"""Hand-made results for the tests of reports.

Everything in them is known, so that a test can say what must stand in a report. Text that comes from outside tries to
be more than text.
"""

from __future__ import annotations

import math
import random
from typing import Final

from canopy_load.report.result import (
    Deliveries,
    GroupResult,
    Latency,
    Pair,
    Reconciled,
    Result,
    Second,
)

ATTACK: Final = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>&amp;\u202e\x1b[31m"
"""A client identifier that would take over a page, a plot or a terminal that trusted it."""

SCENARIO: Final = """name = "mixed-fleet"
# </pre><script>document.title='owned'</script>

[[stages]]
name = "warm-up"
seconds = 4
measured = false
"""


def empty_result() -> Result:
    """A run of which nothing is known but that it was: a remote broker, interrupted before its first second."""
    return Result(
        run="00000000",
        scenario="idle",
        description="",
        scenario_text="",
        target="mqtt://192.0.2.1:1883",
        broker="",
        begun="2026-05-04T10:20:30Z",
        interrupted=True,
        environment={},
        processes=1,
        stages=[],
        measured_seconds=0.0,
    )


def full_result(seconds: int = 24) -> Result:
    """A run in which everything happened; half of it is measured. `ATTACK` stands wherever text comes from outside."""
    chance = random.Random(5)
    whole: dict[int, int] = {}
    late: dict[int, int] = {}
    warm = max(1, seconds // 6)
    spread = [_second(at, seconds, warm, chance, whole, late) for at in range(-2, seconds)]
    faulty = Deliveries(
        expected=6_000, received=5_980, lost=20, duplicates=3, redelivered=2, reordered=1, altered=1, told_lost=20
    )
    total = Deliveries(
        expected=120_000, received=119_979, lost=20, duplicates=3, redelivered=2, reordered=1, altered=1,
        unconfirmed=1, unjudged=40, retained=12, told_lost=20,
    )  # fmt: skip
    sent = sum(second.sent for second in spread if second.measured)
    received = sum(second.received for second in spread if second.measured)
    measured = float(sum(second.seconds for second in spread if second.measured))
    return Result(
        run="1a2b3c4d",
        scenario="mixed-fleet",
        description="Telemetry, commands, presence and wills of a plausible fleet <b>&</b> its operators.",
        scenario_text=SCENARIO,
        target="mqtt://127.0.0.1:1883",
        broker="Canopy 0.9 " + ATTACK,
        begun="2026-05-04T10:20:30.250000+00:00",
        interrupted=False,
        environment={"cpu": "Example CPU, 2 cores", "python": "CPython 3.11", "note": ATTACK},
        processes=2,
        stages=[
            {"name": "warm-up", "start": 0.0, "seconds": float(warm), "measured": False},
            {"name": ATTACK, "start": float(warm), "seconds": float(seconds - warm), "measured": True},
        ],
        measured_seconds=measured,
        sent=sent,
        received=received,
        send_rate=sent / measured,
        receive_rate=received / measured,
        deliveries=total,
        latency=Latency.of(whole),
        late=Latency.of(late),
        connect=Latency(count=500, min=300, mean=900, p50=700, p90=1500, p99=4000, p999=9000, max=12_000),
        generator_cpu=0.71,
        generator_busiest=0.42,
        generator_us=3.1,
        broker_cpu=0.93,
        broker_us=4.25,
        broker_memory=61_500_000,
        limit="broker",
        verdict="The broker was the limit: it used 0.93 of a core, the generator's busiest process 0.42.",
        errors={"connection reset by peer": 3, ATTACK: 1},
        reconciled=Reconciled(
            seen=20,
            reported=20,
            by_cause={"queue full": 19, ATTACK: 1},
            told=20,
            agrees=True,
            why="All 20 missing deliveries are in the broker's ledger.",
        ),
        groups=[
            GroupResult("sensors", 400, publishes=True, subscribes=False, sent=100_000, unsent=12, connects=403),
            GroupResult(
                "operators",
                20,
                publishes=False,
                subscribes=True,
                connects=20,
                deliveries=total,
                latency=Latency.of(whole),
                connections_lost=3,
            ),
            GroupResult(
                "sleepers",
                5,
                publishes=False,
                subscribes=True,
                frozen=True,
                connects=5,
                deliveries=Deliveries(expected=500, received=100, lost=400),
            ),
        ],
        pairs=[
            Pair("sensor-0", "operator-0", "operators", Deliveries(expected=6_000, received=6_000)),
            Pair(ATTACK, "operator-1", "operators", faulty),
        ],
        seconds=spread,
    )


def _second(
    at: int, seconds: int, warm: int, chance: random.Random, whole: dict[int, int], late: dict[int, int]
) -> Second:
    """A second before the stages, of the warm-up, or of the measured stage, which has a stall in its middle."""
    if at < 0:
        return Second(float(at), 1.0, "connecting", False, clients_up=200 * (at + 3), connects=200, broker_cpu=0.2,
                      broker_memory=40_000_000)  # fmt: skip
    stall = at == (warm + seconds) // 2
    centre = math.log(40_000 if stall else 450)
    taken = sorted(round(float(f"{chance.lognormvariate(centre, 0.45):.3g}")) for _ in range(300))
    latencies: dict[int, int] = {}
    for us in taken:
        latencies[us] = latencies.get(us, 0) + 17
        whole[us] = whole.get(us, 0) + 17
    behind = 30 + chance.randrange(200)
    late[behind] = late.get(behind, 0) + 5_100
    load = 0.5 if at < warm else 1.0
    return Second(
        float(at), 1.0, "warm-up" if at < warm else ATTACK, at >= warm, clients_up=425, offered=round(5_100 * load),
        sent=round(5_050 * load) + chance.randrange(50), received=round(5_040 * load) + chance.randrange(60),
        bytes_sent=400_000, bytes_received=410_000, gaps=20 if stall else 0, copies=5 if stall else 0,
        connects=3 if stall else 0, connections_lost=3 if stall else 0, p50=float(taken[150]), p90=float(taken[270]),
        p99=float(taken[297]), max=float(taken[299]), latencies=latencies, late_p99=180.0,
        generator_cpu=0.6 + chance.random() / 5, generator_busiest=0.4 + chance.random() / 20,
        broker_cpu=0.9 + chance.random() / 20, broker_memory=50_000_000 + 300_000 * at,
    )  # fmt: skip

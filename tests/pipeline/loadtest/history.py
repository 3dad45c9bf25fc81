"""A load run made up without a network: judges to whom anything may happen, recorded, and settled by the load tester.

Owns: `Histories`: subscribers that come and go, lose sessions, get messages late, twice, or never, as a seed decides.
What ``expect.settle`` says of them is the truth that the job has to find in the rows.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

from loadtest.load.checks.expected import Sent, Settled, Subscriptions, account, settle
from loadtest.load.checks.record_tables import Tables, place, prepare
from loadtest.load.checks.records import Recorder
from loadtest.load.ledger.counters import Tally
from loadtest.load.ledger.deliveries import Judge, Streams
from loadtest.load.ledger.mark import filler, pack
from loadtest.load.scenario.plan import Plan
from loadtest.load.scenario.schema import Scenario

RUN: Final = "0badcafe"
EVENTS: Final = 60
"""What happens to each subscriber."""


def _group(name: str, clients: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "clients": clients, "client_id": f"{name}-%c", **more}


SCENARIO: Final = Scenario.model_validate(
    {
        "name": "histories",
        "stages": [{"name": "warm", "seconds": 1, "measured": False}, {"name": "go", "seconds": 1}],
        "groups": [
            *(_group(f"pub{qos}", 1, publish=[{"topic": f"t/{qos}/%n", "topics": 2, "qos": qos, "rate": 1}])
              for qos in (0, 1, 2)),
            _group("plain", 40, subscribe=[{"filter": "t/#", "qos": 2}]),
            _group("twice", 10, subscribe=[{"filter": "t/#", "qos": 2}, {"filter": "t/+/+", "qos": 1}]),
            _group("low", 10, subscribe=[{"filter": "t/#", "qos": 0}]),
            _group("slow", 3, subscribe=[{"filter": "t/#", "qos": 1}], reading={"rate": 5}),
            _group("share", 2, subscribe=[{"filter": "$share/s/t/#", "qos": 1}]),
            _group(
                "churn", 3, subscribe=[{"filter": "t/1/#", "qos": 1}],
                churn={"filter": "t/1/%n", "filters": 2, "rate": 1, "qos": 1},
            ),
        ],
    }
)  # fmt: skip


class Histories:
    """Everything that was recorded, in `folder`, and what the load tester says of it, in `settled`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._plan = plan = Plan(SCENARIO, RUN)
        prepare(folder)
        where = place(str(folder))
        assert where is not None
        tables = Tables(where, plan)

        def stream(number: int) -> tuple[str, str, str]:
            group, client = plan.who(plan.publisher(number))
            return plan.groups[group].name, plan.client_id(group, client), plan.topic(number)

        recorder = Recorder(where, RUN, 0, stream, plan.subscriber_name)
        self._streams = Streams(plan.mark_run, lambda number: plan.topic(number).encode())
        self._streams.record = recorder.received
        self._tallies = [Tally() for _ in plan.groups]
        self._highest = dict.fromkeys(range(plan.streams), 0)
        for tally in self._tallies:
            tally.enter(1_000)
        recorder.enter(1, 1_000)
        judges: dict[int, Judge] = {}
        for group, number in ((g, n) for g, count in enumerate(plan.counts) for n in range(count)):
            if plan.groups[group].subscribe:
                subscriber = plan.subscriber(group, number)
                judges.setdefault(subscriber, Judge(subscriber, self._streams, self._tallies[group]))
                judges[subscriber].shared = plan.shared[group]
        for judge in judges.values():
            self._happen(judge)
        sent = self._sent(recorder)
        recorder.close()
        accounts = [account(judge) for judge in judges.values()]
        everybody = [(group, number) for group, count in enumerate(plan.counts) for number in range(count)]
        self.settled: Settled = settle(plan, Subscriptions(plan, everybody), accounts, sent, tables.expected)
        tables.write(sent, accounts)
        self.received = sum(tally.take()["received"] for tally in self._tallies)  # type: ignore[misc]

    def _happen(self, judge: Judge) -> None:
        chance = self._random
        judge.open = chance.random() < 0.8
        judge.whole = judge.open
        # Streams that a subscriber never hears are judged too.
        heard = chance.sample(range(self._plan.streams), chance.randint(1, self._plan.streams))
        reach = dict.fromkeys(heard, 0)
        eventful = chance.random() < 0.6
        for _ in range(EVENTS):
            fate = chance.random()
            if eventful and fate < 0.06 and judge.open:
                judge.open = False
                judge.left(session_kept=chance.random() < 0.5)
            elif fate < 0.12 and not judge.open:
                judge.open = True
                if chance.random() < 0.2 and judge.absence:
                    judge.forgotten()
            elif judge.open:
                self._deliver(judge, chance.choice(heard), reach)

    def _deliver(self, judge: Judge, stream: int, reach: dict[int, int]) -> None:
        chance = self._random
        kind = chance.random()
        number = reach[stream]
        if kind < 0.15:
            number += chance.randint(1, 5)
        elif kind < 0.4 and number:
            number = chance.randrange(max(0, number - 8), number)
        reach[stream] = max(reach[stream], number + 1)
        self._highest[stream] = max(self._highest[stream], number + 1)
        intended = chance.choice([10, 999, 1_000, 5_000]) + number
        payload = pack(self._plan.mark_run, intended, stream, number) + filler(32)
        if chance.random() < 0.05:
            payload = payload[:-1] + b"?"
        topic = self._plan.topic(stream).encode()
        qos = min(self._plan.quality(stream), 2)
        retain, dup = chance.random() < 0.04, qos == 1 and chance.random() < 0.3
        judge.receive(topic, payload, qos, retain, dup, 6_000 + chance.randint(0, 10_000_000))

    def _sent(self, recorder: Recorder) -> Sent:
        chance = self._random
        sent = Sent()
        for stream, highest in self._highest.items():
            count = highest + chance.choice([0, 0, 3])
            sent.streams[stream] = count
            for number in range(count):
                row = recorder.noted(stream, number, 10 + number, 20 + number, 32, self._plan.quality(stream))
                recorder.settled(row, -1)
            if chance.random() < 0.6:
                spots = [chance.randrange(count) for _ in range(4)]
                sent.uncertain[stream] = [(at, min(count, at + chance.randint(1, 6))) for at in spots]
            if chance.random() < 0.4:
                sent.resent[stream] = chance.randint(1, 4)
        return sent

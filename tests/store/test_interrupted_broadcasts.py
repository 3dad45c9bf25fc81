"""A message for very many that is interrupted between any two steps: the next broker gives it to the others, and what
is published after that to all.
"""

from __future__ import annotations

import itertools

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.store import MemoryStore
from tests.store.observed import at_once
from tests.store.places import rebooted
from tests.support.restored import restore
from tests.support.runs import for_each

SESSIONS = 20
"""More than a plan remembers of each filter by itself (`plans.FEW`): beyond, it is told of changes alone."""

TOPIC = b"fleet/all"
NOW = 100.0


def message(payload: bytes, qos: int = 1) -> Message:
    return Message(TOPIC, payload, qos, False, b"", 0.0, "publisher")


def started(store: MemoryStore, at_once_most: int = 4_096) -> Router:
    """The next broker on what the store has."""
    router = Router(Limits())
    router.journal = store.journal
    router.fanout.at_once = at_once_most
    restore(router, at_once(store.load()), NOW)
    return router


def filled(store: MemoryStore, filters: tuple[str, ...]) -> None:
    """Sessions of clients that are away, each with all of these filters; and two members of a share group."""
    router = started(store)
    for number in range(SESSIONS + 2):
        session = Session(f"c{number}", 1_000, 1_000_000, router.counters)
        session.expiry_interval = 1_000
        router.session_table.add(session)
        session.keep(store.journal)
        for name in filters if number < SESSIONS else ():
            router.subscribe(session, "", name, Request(name, 2), 0)
        if number >= SESSIONS:
            router.subscribe(session, "g", "#", Request("$share/g/#", 2), 0)


def waiting(router: Router, number: int) -> list[bytes]:
    return [each.message.payload() for each in router.sessions[f"c{number}"].queue.pending or ()]


def finish(router: Router) -> None:
    while router.fanout.broadcasting:
        router.tick(NOW)


def check(router: Router, *payloads: bytes) -> None:
    """Each session has had each of them once and in their order, and so has the group."""
    for number in range(SESSIONS):
        assert waiting(router, number) == list(payloads), number
    queue = router.sessions["$share/g/#"].queue.pending or ()
    assert [each.message.payload() for each in queue] == list(payloads)


FILTERS = [("#",), ("fleet/#", "fleet/all")]


@for_each("filters", FILTERS, ids=len)
@for_each("next_at_once", [1, 4_096])
@for_each("meanwhile", [(), (b"meanwhile",)], ids=len)
def test_after_a_kill_at_any_step_all_get_what_is_published_then(
    filters: tuple[str, ...], next_at_once: int, meanwhile: tuple[bytes, ...]
) -> None:
    """The message that was interrupted, what comes while it goes on, and what comes when it is over."""
    for steps in itertools.count():
        qos = 1 + steps % 2
        store = MemoryStore(rebooted(lambda: NOW))
        filled(store, filters)
        router = started(store, 1)
        router.publish(message(b"first", qos), None)
        for _ in range(steps):
            router.budget.begin(1)
            router.fanout.broadcasts.step(router.budget)
        over = not router.fanout.broadcasting
        router = started(store, next_at_once)
        assert router.fanout.broadcasting is not over
        for payload in meanwhile:
            router.publish(message(payload, qos), None)
        finish(router)
        for payload in (b"after", b"last"):
            router.publish(message(payload, qos), None)
            finish(router)
        check(router, b"first", *meanwhile, b"after", b"last")
        if over:
            assert steps > SESSIONS
            return


@for_each("filters", FILTERS, ids=len)
def test_after_two_kills(filters: tuple[str, ...]) -> None:
    """The second one while the first message goes on: it is over neither for those before nor for those after."""
    for first, second in itertools.product(range(0, SESSIONS + 1, 5), repeat=2):
        store = MemoryStore(rebooted(lambda: NOW))
        filled(store, filters)
        router = started(store, 1)
        router.publish(message(b"first"), None)
        for _ in range(first):
            router.budget.begin(1)
            router.fanout.broadcasts.step(router.budget)
        router = started(store)
        for _ in range(second):
            router.budget.begin(1)
            router.fanout.broadcasts.step(router.budget)
        router = started(store)
        finish(router)
        router.publish(message(b"after"), None)
        router.publish(message(b"last"), None)
        check(router, b"first", b"after", b"last")


@for_each("filters", FILTERS, ids=len)
@for_each("kill", [False, True])
def test_while_others_come_and_go(filters: tuple[str, ...], kill: bool) -> None:
    """Who subscribes, leaves, or changes an option between two steps is left out of nothing that is published then."""
    for step in range(0, SESSIONS + 1, 5):
        store = MemoryStore(rebooted(lambda: NOW))
        filled(store, filters)
        router = started(store, 1)
        router.publish(message(b"first"), None)
        for _ in range(step):
            router.budget.begin(1)
            router.fanout.broadcasts.step(router.budget)
        late = Session("late", 1_000, 1_000_000, router.counters)
        late.expiry_interval = 1_000
        router.session_table.add(late)
        late.keep(store.journal)
        router.subscribe(late, "", "+/+", Request("+/+", 2), 0)
        changed = router.sessions["c3"]
        router.subscribe(changed, "", filters[0], Request(filters[0], 1), 7)
        left = router.sessions["c5"]
        router.unsubscribe(left, filters[0])
        if kill:
            router = started(store)
        router.fanout.at_once = 4_096
        finish(router)
        router.publish(message(b"after"), None)
        router.publish(message(b"last"), None)
        for number in (*range(5), *range(6, SESSIONS)):
            assert waiting(router, number) == [b"first", b"after", b"last"], (step, number)
        others = [b"after", b"last"]
        assert [each.message.payload() for each in router.sessions["late"].queue.pending or ()] == others
        had = waiting(router, 5)
        assert [each for each in had if each != b"first"] == (others if len(filters) > 1 else [])
        assert had.count(b"first") <= 1

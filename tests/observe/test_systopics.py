"""The broker's own topics: the totals, who is slow, and what single clients have lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.jobs import STEP_WORK
from canopy_mqtt.core.ledger import AGE, FULL_MESSAGES, GLOBAL, Ledger
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.observe.systopics import CLIENTS, LOOKED_AT, MAX_TOPIC_BYTES, SysTopics
from canopy_mqtt.settings import Alarms, Federation, Limits, Log, Queue, Shutdown, Sys, Upstream
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.net.transports import Client, lose_all, rounds
from tests.support.waiting import until

PREFIX = "$SYS/broker/"

SELDOM = 86_400.0
"""An interval in seconds that never passes: tests update by hand."""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker that logs nothing, raises no alarm and calls nobody slow, however late the event loop is."""
    settings = Settings(
        listen=("mqtt://127.0.0.1:0",),
        limits=Limits(max_client_id_length=0),
        queue=Queue(report_interval=0.0, slow_after=0.0),
        sys=Sys(interval=SELDOM),
        alarms=Alarms(interval=0.0),
        shutdown=Shutdown(flush_timeout=0.0),
        log=Log(),
    )
    async with Broker(settings) as running:
        yield running


def topics(broker: Broker) -> SysTopics:
    return broker._sys


def told(broker: Broker, topic: str) -> str | None:
    """The retained value of a topic, or None."""
    found = broker.router.retained.get(PREFIX + topic)
    return found.payload().decode() if isinstance(found, Message) else None


async def join(broker: Broker, client_id: str, *, clean: bool = True, expiry: int = 0) -> Peer:
    props = ((wire.SESSION_EXPIRY, expiry),) if expiry else ()
    return await Peer.join(broker.ports[0], client_id, clean=clean, props=props)


def session_of(broker: Broker, client_id: str) -> Session:
    return broker.router.sessions[client_id]


async def test_what_very_many_have_subscribed_to_comes_in_turns(broker: Broker) -> None:
    """Each turn publishes some values, and waits until their subscribers were written to; everybody gets all."""
    crowd = [Client(broker, f"c{number}") for number in range(300)]
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("$SYS/#", 0)]))
    await until(lambda: not broker.rounds.waiting)
    await rounds(20)
    for client in crowd:
        client.take()
    router = broker.router
    told = topics(broker)
    told._last.clear()
    before = router.budget.used
    told.update()
    seen = []
    while told._values or broker.rounds.waiting:
        seen.append(router.budget.used - before)
        before = router.budget.used
        await rounds(1)
    # Of a value that has come meanwhile, too.
    count = len(told._last)
    # A value more than there was room for.
    assert max(seen) <= STEP_WORK + 2 * len(crowd)
    assert len([work for work in seen if work]) >= count * len(crowd) // STEP_WORK
    await rounds(5)
    assert {client.take().count(b"$SYS/broker/") for client in crowd} == {count}
    lose_all(broker)


async def test_only_what_changed_is_published(broker: Broker) -> None:
    """A subscriber hears of a client when that has lost more, and of a topic when its value has changed."""
    event_listener, peer = await join(broker, "watcher"), await join(broker, "c")
    await event_listener.subscribe(PREFIX + "clients/+/dropped/#")
    ledger = session_of(broker, "c").ledger
    ledger.lost(AGE, 1)
    topics(broker).update()
    topics(broker).update()
    ledger.lost(FULL_MESSAGES, 1)
    topics(broker).update()
    found = {(packet.topic.removeprefix(PREFIX), packet.payload) for packet in await event_listener.fence()}
    assert found == {
        ("clients/c/dropped", b"1"),
        ("clients/c/dropped/age", b"1"),
        ("clients/c/dropped", b"2"),
        ("clients/c/dropped/full-messages", b"1"),
    }
    event_listener.abort()
    peer.abort()


async def test_the_end_of_a_session(broker: Broker) -> None:
    """Its topics are cleared, which those who watch are told with an empty payload; nothing is remembered."""
    event_listener, peer = await join(broker, "watcher"), await join(broker, "c", expiry=100)
    before = len(topics(broker)._last)
    ledger = session_of(broker, "c").ledger
    ledger.lost(AGE, 1)
    topics(broker).update()
    await peer.disconnect()
    topics(broker).update()
    # It is away, and has lost what it has lost.
    assert told(broker, "clients/c/dropped") == "1"
    await event_listener.subscribe(PREFIX + "clients/c/#")
    await event_listener.fence()
    peer = await join(broker, "c")
    # A loss that its last session had, and one that the new session has.
    ledger.lost(AGE, 5)
    session_of(broker, "c").ledger.lost(GLOBAL, 1)
    topics(broker).update()
    assert told(broker, "clients/c/dropped") == "1"
    assert told(broker, "clients/c/dropped/age") is None
    assert told(broker, "clients/c/dropped/global") == "1"
    assert ("clients/c/dropped/age", b"") in {
        (packet.topic.removeprefix(PREFIX), packet.payload) for packet in await event_listener.fence()
    }
    await peer.disconnect()
    topics(broker).update()
    assert told(broker, "clients/c/dropped") is None
    assert len(topics(broker)._last) == before
    assert topics(broker)._clients == {}
    event_listener.abort()


async def test_very_many_clients_are_looked_at_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are still there is asked of some in each turn, and of all before the next interval."""
    system = topics(broker)
    count = 3 * LOOKED_AT // 2
    system._clients.update((str(number), Ledger(str(number), broker.router.counters)) for number in range(count))
    asked: list[Ledger] = []
    there = broker.monitor.lives

    def lives(ledger: Ledger) -> bool:
        asked.append(ledger)
        return there(ledger)

    monkeypatch.setattr(broker.monitor, "lives", lives)
    system.update()
    assert len(asked) == LOOKED_AT + CLIENTS
    while system._changed or system._unseen:
        before = len(asked)
        system._publish_clients()
        assert len(asked) - before <= LOOKED_AT + CLIENTS
    assert system._clients == {}


async def test_a_name_that_is_too_long(broker: Broker) -> None:
    """What would not fit a topic name is left out, and the rest is told."""
    long = "#" * (MAX_TOPIC_BYTES // 3)
    peers = [await join(broker, name) for name in (long, "short")]
    for name in (long, "short"):
        session_of(broker, name).ledger.lost(AGE, 2)
    topics(broker).update()
    assert told(broker, "clients/short/dropped") == "2"
    assert told(broker, "clients/" + "%23" * len(long) + "/dropped") is None
    for peer in peers:
        peer.abort()


async def test_no_topics_nothing_kept() -> None:
    """With an interval of 0 nobody asks for changes, and none are kept."""
    settings = Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=0.0), shutdown=Shutdown(flush_timeout=0.0))
    async with Broker(settings) as broker:
        assert broker.monitor.changed is None
        assert len(broker.router.retained) == 0
    settings = Settings(listen=("mqtt://127.0.0.1:0",), shutdown=Shutdown(flush_timeout=0.0))
    async with Broker(settings) as broker:
        assert broker.monitor.changed == set()
    assert broker.monitor.changed is None


async def test_the_state_of_a_link_is_told_when_it_changes(broker: Broker) -> None:
    """Not at the next interval: what says "stopped" while messages flow is worse than nothing."""
    cloud = Upstream(name="cloud", url=f"mqtt://127.0.0.1:{broker.ports[0]}", retry_min=0.01, retry_max=0.02)
    terms: dict[str, Any] = {
        "listen": ("mqtt://127.0.0.1:0",),
        "federation": Federation(broker_id="edge"),
        "sys": Sys(interval=SELDOM),
    }
    async with Broker(Settings(**terms, upstream=(cloud,))) as edge:
        peer = await join(edge, "operator")
        await peer.subscribe("$SYS/broker/upstream/+/state")
        states = [(await peer.message()).payload.decode()]
        while states[-1] != "connected":
            states.append((await peer.message()).payload.decode())
        assert told(edge, "upstream/cloud/connects") == "1"
        assert told(edge, "upstream/cloud/version") == "5.0"
        await broker.stop()
        while states[-1] != "waiting":
            states.append((await peer.message()).payload.decode())
        assert told(edge, "upstream/cloud/trouble")
        assert told(edge, "upstream/cloud/version") is None
        await edge.reload(Settings(**terms, upstream=(cloud.model_copy(update={"name": "other"}),)))
        while (message := await peer.message()).topic != "$SYS/broker/upstream/other/state":
            pass
        topics(edge).update()
        assert told(edge, "upstream/cloud/state") is None
        assert told(edge, "upstream/cloud/trouble") is None
        await peer.disconnect()
    assert message.payload

"""Links of a broker with a store: a broker is stopped, another begins, and the upstream is played by hand."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Connack, Publish, Suback, Subscribe
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.settings import Session
from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, WILL_DELAY, Peer, connect
from tests.links.test_link import Call, Played, client, link_of, played, settings
from tests.store.places import KINDS, OUTLIVES, rebooted
from tests.support.waiting import until

DAY = 86_400
WAITS = "messages wait for an upstream that is not in the settings"


class Edge:
    """One broker after another, all with one store and a link `up` to the same upstream."""

    def __init__(self, kind: str, folder: Path, upstream: Played) -> None:
        self.kind = kind
        self.folder = folder
        self.upstream = upstream
        self.skipped = 0.0
        self.store = KINDS[kind](folder, rebooted(lambda: time.time() + self.skipped))
        self.broker: Broker

    def settings(self, **link: Any) -> Settings:
        terms: dict[str, Any] = {"publish": ["up/#"], "clean_start": False, "subscribe": ["down"], **link}
        return settings(self.upstream.port, **terms)

    async def start(self, given: Settings | None = None, **link: Any) -> None:
        self.broker = Broker(self.settings(**link) if given is None else given, store=self.store)
        await self.broker.start()

    async def again(self, given: Settings | None = None, after: float = 0.0, **link: Any) -> None:
        """Stop the broker, and start another on what the store kept, so many seconds later."""
        await self.broker.stop()
        self.skipped += after
        if self.kind in OUTLIVES:
            self.store = KINDS[self.kind](self.folder, rebooted(lambda: time.time() + self.skipped))
        await self.start(given, **link)

    async def call(self, present: bool = True) -> Call:
        """The link connects, is told whether its session is there, and subscribes."""
        while True:
            call = await self.upstream.call()
            if await call.next() is None:
                # From an earlier broker, which went while it was being made.
                continue
            call.say(Connack(present))
            asked = await call.next()
            if asked is not None:
                assert isinstance(asked, Subscribe)
                call.say(Suback(asked.packet_id, [2]))
                return call

    async def publish(self, *payloads: bytes, topic: str = "up/a", qos: int = 1) -> None:
        """A client here publishes, and has every acknowledgement."""
        async with client(self.broker, "publisher") as peer:
            for payload in payloads:
                await peer.publish(topic, payload, qos=qos)

    async def came(self, call: Call, count: int) -> list[Publish]:
        """The next messages that go up."""
        return [await call.get(Publish) for _ in range(count)]


@pytest.fixture(params=sorted(KINDS))
async def edge(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Edge]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(played())
        made = Edge(request.param, tmp_path / "store", upstream)
        await made.start()
        yield made
        await made.broker.stop()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_waits_goes_up_from_the_next_broker(edge: Edge, qos: int) -> None:
    """In order, each once, without DUP: it was never sent [MQTT-4.6.0-6] [MQTT-3.3.1-2]."""
    await edge.publish(b"1", b"2", b"3", qos=qos)
    await edge.again()
    call = await edge.call()
    came = await edge.came(call, 3)
    assert [(one.payload, one.qos, one.dup) for one in came] == [(each, qos, False) for each in (b"1", b"2", b"3")]
    call.say(*(Ack(PUBACK if qos == 1 else PUBREC, one.packet_id) for one in came))
    if qos == 2:
        call.say(*[Ack(PUBCOMP, (await call.get(Ack)).packet_id) for _ in came])
    await until(lambda: not link_of(edge.broker).session.inflight)
    # Acknowledged is acknowledged.
    await edge.again()
    call = await edge.call()
    await edge.publish(b"4")
    assert (await call.get(Publish)).payload == b"4"


async def test_an_upstream_that_has_lost_the_session(edge: Edge) -> None:
    """It is sent what it has not received, and nothing that it has: PUBREC made that its own [MQTT-4.4.0-1]."""
    call = await edge.call()
    await edge.publish(b"received", b"sent", qos=2)
    first = await call.get(Publish)
    call.say(Ack(PUBREC, first.packet_id))
    assert (await call.get(Ack)).kind == PUBREL
    call.say(Publish(b"down", b"x", 2, packet_id=7))
    await call.get(Ack)
    await edge.again()
    assert link_of(edge.broker).session.received_qos2 == {7}
    call = await edge.call(present=False)
    assert (await call.get(Publish)).payload == b"sent"
    await until(lambda: link_of(edge.broker).session.inflight.count == 1)
    # Neither the message nor the packet identifier of the other session comes back.
    await edge.again()
    session = link_of(edge.broker).session
    assert not session.received_qos2
    assert [each.message.payload() for each in session.inflight.values()] == [b"sent"]


async def test_a_will_that_falls_due_at_the_start_goes_up(edge: Edge) -> None:
    """The links are there before anything is published [MQTT-3.1.3-9]."""
    peer = await Peer.open("127.0.0.1", edge.broker.ports[0])
    will = wire.Will("up/w", b"gone", 1, properties=((WILL_DELAY, 1800),))
    await peer.send(connect("gone", clean=False, will=will, props=((SESSION_EXPIRY, DAY),)))
    await peer.expect(wire.CONNACK)
    peer.abort()
    await until(lambda: edge.broker.router.sessions["gone"].will_due > 0.0)
    await edge.again(after=1801)
    assert (await (await edge.call()).get(Publish)).payload == b"gone"


async def test_the_present_bounds_hold(edge: Edge) -> None:
    """Messages that no longer fit are dropped, and counted; they do not come back."""
    await edge.publish(b"1", b"2", b"3")
    await edge.again(queue_messages=2)
    session = link_of(edge.broker).session
    assert (session.queue.messages, session.ledger.in_all()) == (2, 1)
    await edge.again()
    assert link_of(edge.broker).session.queue.messages == 2


async def test_what_waits_has_the_name_that_it_got_when_it_was_published(edge: Edge) -> None:
    await edge.again(remote_prefix="old/")
    await edge.publish(b"1")
    await edge.again(remote_prefix="new/")
    await edge.publish(b"2")
    came = await edge.came(await edge.call(), 2)
    assert [(one.topic, one.payload) for one in came] == [(b"old/up/a", b"1"), (b"new/up/a", b"2")]


async def test_only_what_is_published_now_is_subscribed_to(edge: Edge) -> None:
    """`publish` is another one: what waited goes up all the same."""
    await edge.publish(b"1")
    await edge.again(publish=["other/#"])
    await edge.publish(b"2")
    await edge.publish(b"3", topic="other/a")
    await edge.again(publish=["other/#"])
    assert list(link_of(edge.broker).session.subscriptions) == ["other/#"]
    assert [one.payload for one in await edge.came(await edge.call(), 2)] == [b"1", b"3"]


class TestRemoved:
    """A link that the settings do not have any more."""

    def without(self, edge: Edge, expiry: int = DAY) -> Settings:
        return edge.settings().model_copy(update={"upstream": (), "session": Session(max_expiry=expiry)})

    async def test_it_is_told_and_kept_for_a_while(self, edge: Edge) -> None:
        await edge.publish(b"1", b"2")
        with capture_logs() as told:
            await edge.again(self.without(edge))
        lines = [each for each in told if each["event"] == WAITS]
        assert [(each["upstream"], each["messages"], each["dropped_in"]) for each in lines] == [("up", 2, DAY)]
        # It gets nothing new, and is no client.
        assert edge.broker.router.table.count == 0
        await edge.publish(b"3")
        session = edge.broker.router.sessions[UPLINKS + "up"]
        assert session.queue.messages == 2
        await edge.again(self.without(edge), after=DAY / 2)
        await edge.again()
        assert [one.payload for one in await edge.came(await edge.call(), 2)] == [b"1", b"2"]

    async def test_its_time_counts_from_the_start_without_it(self, edge: Edge) -> None:
        await edge.publish(b"1")
        await edge.again(after=3 * DAY)
        await edge.again(self.without(edge), after=3 * DAY)
        assert UPLINKS + "up" in edge.broker.router.sessions
        with capture_logs() as told:
            await edge.again(self.without(edge), after=DAY + 1)
        assert [(each["messages"], each["dropped_in"]) for each in told if each["event"] == WAITS] == [(1, 0)]
        assert not edge.broker.router.sessions
        await edge.again()
        assert link_of(edge.broker).session.queue.messages == 0

    async def test_it_is_dropped_when_its_time_is_over(self, edge: Edge) -> None:
        await edge.publish(b"1")
        await edge.again(self.without(edge))
        router = edge.broker.router
        while router.tick(edge.broker.loop.time() + DAY + 1):
            pass
        assert not router.sessions
        await edge.again()
        assert link_of(edge.broker).session.queue.messages == 0

    async def test_with_0_it_is_kept_without_a_limit(self, edge: Edge) -> None:
        """As sessions of clients are with `session.max_expiry = 0`."""
        await edge.publish(b"1")
        await edge.again(self.without(edge, 0))
        await edge.again(self.without(edge, 0), after=365 * DAY)
        assert UPLINKS + "up" in edge.broker.router.sessions

    async def test_with_nothing_that_waits_it_goes_without_a_word(self, edge: Edge) -> None:
        with capture_logs() as told:
            await edge.again(self.without(edge))
        assert WAITS not in [each["event"] for each in told]
        assert not edge.broker.router.sessions

    async def test_it_comes_back_while_the_broker_runs(self, edge: Edge) -> None:
        """With what waited, and for as long as it is there nothing of that ends by time."""
        await edge.publish(b"1")
        await edge.again(self.without(edge))
        assert edge.broker.links is not None
        assert edge.broker.links.session_count == 1
        await edge.broker.reload(edge.settings())
        assert edge.broker.links.session_count == 1
        router = edge.broker.router
        while router.tick(edge.broker.loop.time() + 30 * DAY):
            pass
        await edge.publish(b"2")
        assert [one.payload for one in await edge.came(await edge.call(), 2)] == [b"1", b"2"]

    async def test_one_that_a_reload_removes_is_kept_as_well(self, edge: Edge) -> None:
        await edge.publish(b"1")
        await edge.broker.reload(edge.settings().model_copy(update={"upstream": ()}))
        await edge.again()
        assert (await (await edge.call()).get(Publish)).payload == b"1"

    async def test_one_that_comes_and_goes_counts_once(self, edge: Edge) -> None:
        await edge.publish(b"1")
        for _ in range(2):
            await edge.broker.reload(edge.settings().model_copy(update={"upstream": ()}))
            assert edge.broker.links is not None
            assert edge.broker.links.session_count == 1
            await edge.broker.reload(edge.settings())
            assert edge.broker.links.session_count == 1

    async def test_a_pubrel_that_it_owes_is_kept(self, edge: Edge) -> None:
        """An upstream that publishes with PUBREL alone would lose the message, and take the next one for it."""
        call = await edge.call(False)
        await edge.publish(b"1", qos=2)
        sent = await call.get(Publish)
        call.say(Ack(PUBREC, sent.packet_id))
        assert (await call.get(Ack)).kind == PUBREL
        await edge.again(self.without(edge))
        assert edge.broker.links is not None
        assert edge.broker.links.session_count == 1
        await edge.again()
        call = await edge.call()
        assert (await call.get(Ack)).packet_id == sent.packet_id
        call.say(Ack(PUBCOMP, sent.packet_id))

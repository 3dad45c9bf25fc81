"""Nobody loses anything in silence: the subscriber is told in band, the publisher by a reason code, the operator by
log and $SYS.

mosquitto#3687: PUBACK says success, then a drop, and only a global counter moves. vernemq#1624: a metric of drops
climbs and no log names the subscriber. NanoNNG#1567: a warning for every drop cut delivery to a seventh.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import (
    KEPT,
    Far,
    Notes,
    Scene,
    Watch,
    lost,
    number_of,
    stamped,
    told,
)
from tests.e2e.wire import Peer

ROOM: Final = 20
"""Messages that a queue holds in these tests."""
QUOTA_EXCEEDED: Final = 0x97
EXPIRES: Final = [(wire.SESSION_EXPIRY, KEPT)]


async def frozen(stage: Scene, publisher: Peer, client_id: str = "frozen", qos: int = 0, **options: Any) -> Far:
    """A client that takes no more, with nothing in its queues."""
    far = await stage.join_far(client_id, ("load", qos), (f"plug/{client_id}", 0), **options)
    await stage.plug(far, client_id, f"plug/{client_id}", publisher)
    return far


async def publish(publisher: Peer, first: int, count: int, qos: int = 0) -> None:
    """Numbered messages."""
    for number in range(first, first + count):
        assert await publisher.publish("load", stamped(number, 50), qos=qos) == 0


class TestInBand:
    """`canopy-lost` on the next message of a 5.0 subscriber, `count;cause`."""

    @pytest.mark.parametrize("qos", [1, 2])
    async def test_with_quality(self, scene: SetScene, qos: int) -> None:
        stage = await scene(queue={"session_messages": ROOM}, mqtt={"max_inflight": 5})
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, qos=qos)
        await publish(publisher, 0, 50, qos)
        far.thaw()
        found = [await far.peer.message() for _ in range(1 + 5 + ROOM)]
        assert told(found) == lost(stage.session("frozen")) == {"no-quota": 50 - 5 - ROOM}
        assert [number_of(packet.payload) for packet in found[1:]] == list(range(5 + ROOM))
        assert await far.peer.fence() == []

    async def test_switched_off(self, scene: SetScene) -> None:
        stage = await scene(queue={"live_messages": ROOM, "tell_loss": False})
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher)
        await publish(publisher, 0, ROOM + 5)
        far.thaw()
        found = await far.peer.fence()
        await publish(publisher, 100, 1)
        found += await far.peer.fence()
        assert sum(lost(stage.session("frozen")).values()) == 5
        assert all(packet.properties == [] for packet in found)

    async def test_3_1_1_gets_the_message_as_it_is(self, scene: SetScene) -> None:
        """It has no properties [MQTT3-3.3.2-1]; `$SYS` tells it."""
        stage = await scene(queue={"live_messages": ROOM}, sys={"interval": 0.1})
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, version=4)
        await publish(publisher, 0, ROOM + 5)
        far.thaw()
        found = await far.peer.fence()
        await publish(publisher, ROOM, 1)
        found += await far.peer.fence()
        assert [number_of(packet.payload) for packet in found[1:]] == list(range(ROOM + 1))
        watch = await Watch.open(stage.port, "$SYS/broker/clients/frozen/#", version=4)
        await watch.until("it is told", lambda values: values.get("clients/frozen/dropped") == "5")
        assert watch.values["clients/frozen/dropped/full-messages"] == "5"


class TestSys:
    """`$SYS/broker/clients/<id>/dropped`, retained, for those who lost something."""

    async def test_who_and_why_and_how_many(self, scene: SetScene) -> None:
        """The names are percent-encoded where a topic level would not hold them."""
        odd = "a/b+c#d%e ä"
        stage = await scene(queue={"live_messages": ROOM}, sys={"interval": 0.1})
        publisher = await stage.join("publisher")
        await frozen(stage, publisher, "frozen")
        far = await stage.join_far(odd, "load", "plug/odd")
        await stage.plug(far, odd, "plug/odd", publisher)
        await publish(publisher, 0, ROOM + 5)
        watch = await Watch.open(stage.port, "$SYS/broker/clients/#")
        names = ("frozen", "a%2Fb%2Bc%23d%25e ä")
        await watch.until("both are told", lambda values: all(f"clients/{name}/dropped" in values for name in names))
        for name in names:
            assert watch.values[f"clients/{name}/dropped"] == "5"
            assert watch.values[f"clients/{name}/dropped/full-messages"] == "5"
        assert not [topic for topic in watch.values if topic.startswith(("clients/publisher", "clients/watch"))]
        # Retained: who comes later reads it at once. And it grows.
        await publish(publisher, 0, 3)
        await watch.until("it grows", lambda values: values["clients/frozen/dropped"] == "8")
        late = await Watch.open(stage.port, "$SYS/broker/clients/frozen/dropped", version=4)
        packets = await late.peer.fence()
        assert [(packet.payload, packet.retain) for packet in packets] == [(b"8", True)]

    async def test_the_sums(self, scene: SetScene) -> None:
        stage = await scene(queue={"live_messages": ROOM}, sys={"interval": 0.1})
        publisher = await stage.join("publisher")
        for client_id in ("one", "two"):
            await frozen(stage, publisher, client_id)
        await publish(publisher, 0, ROOM + 5)
        # Not all of `$SYS`: what waits for this client itself counts.
        watch = await Watch.open(stage.port, "$SYS/broker/messages/dropped/#")
        await watch.until("the sum is told", lambda values: values.get("messages/dropped") == "10")
        assert watch.number("messages/dropped/full-messages") == 10
        watch = await Watch.open(stage.port, "$SYS/broker/+/queued", client_id="watch2")
        # Now and then a message for a watcher waits too.
        await watch.until("both are told", lambda values: values.get("messages/queued") == str(2 * ROOM))
        assert watch.number("bytes/queued") > 2 * ROOM * 50
        watch = await Watch.open(stage.port, "$SYS/broker/load/lag", client_id="watch3")
        await watch.until("it is told", bool)
        assert float(watch.values["load/lag"]) < 10.0
        assert len(watch.values["load/lag"].partition(".")[2]) == 3

    async def test_the_slow_ones_slowest_first(self, scene: SetScene) -> None:
        stage = await scene(queue={"slow_after": 0.2}, sys={"interval": 0.1})
        publisher = await stage.join("publisher")
        crowd = {}
        for client_id in ("first", "second", "third"):
            crowd[client_id] = await frozen(stage, publisher, client_id)
            await publish(publisher, 0, 3)
            await asyncio.sleep(0.2)  # so that their delays differ
        await stage.join("reader", "load")
        watch = await Watch.open(stage.port, "$SYS/broker/slow/#")
        await watch.until("all three are slow", lambda values: values.get("slow/count") == "3")
        listed = [json.loads(watch.values[f"slow/{place}"]) for place in (1, 2, 3)]
        assert [entry["client_id"] for entry in listed] == ["first", "second", "third"]
        assert listed[0].keys() == {"client_id", "delay", "waiting", "bytes", "high_water", "dropped"}
        assert listed[0]["delay"] >= listed[1]["delay"] >= 0.2
        assert listed[0]["waiting"] == 9
        assert listed[0]["high_water"] >= 9
        assert listed[0]["bytes"] > 9 * 50
        assert listed[0]["dropped"] == 0
        for far in crowd.values():
            far.thaw()
            await far.peer.fence()
        await watch.until("nobody is slow", lambda values: values["slow/count"] == "0")
        assert {watch.values[f"slow/{place}"] for place in (1, 2, 3)} == {""}


async def test_no_lines_are_wished_for(scene: SetScene) -> None:
    """Nothing is logged of losses without `report_interval`."""
    notes = Notes()
    stage = await scene(log=notes, queue={"live_messages": ROOM, "report_interval": 0.0, "slow_after": 0.0})
    publisher = await stage.join("publisher")
    await frozen(stage, publisher, "lossy")
    await publish(publisher, 0, ROOM + 50)
    await asyncio.sleep(0.5)  # in which a line would have come
    assert not [entry for entry in notes.about("lossy") if "full_messages" in entry]


class TestThePublisher:
    """`on_full = "tell-publisher"`: 0x97 in PUBACK or PUBREC when every matching queue refused."""

    TELL: Final = {"session_messages": ROOM, "on_full": "tell-publisher"}

    async def full(self, stage: Scene, client_id: str = "full", topic: str = "load") -> Peer:
        """A subscriber that does not acknowledge, with its window shut and its queue full."""
        subscriber = await stage.join(client_id, (topic, 2), props=[(wire.RECEIVE_MAXIMUM, 1)])
        filler = await stage.join(f"filler of {client_id}")
        for number in range(1 + ROOM):
            assert await filler.publish(topic, stamped(number), qos=1) == 0
        assert lost(stage.session(client_id)) == {}
        return subscriber

    @pytest.mark.parametrize("qos", [1, 2])
    async def test_nobody_took_it(self, scene: SetScene, qos: int) -> None:
        """mosquitto#3687: PUBACK says success, then a drop."""
        stage = await scene(queue=self.TELL)
        await self.full(stage)
        publisher = await stage.join("publisher")
        for _ in range(3):
            assert await publisher.publish("load", stamped(100), qos=qos) == QUOTA_EXCEEDED
        assert lost(stage.session("full")) == {"no-quota": 3}

    async def test_after_a_pubrec_with_an_error_the_identifier_is_free(self, scene: SetScene) -> None:
        """No PUBREL comes, and the same identifier begins another message [MQTT-4.3.3-4]."""
        stage = await scene(queue=self.TELL)
        await self.full(stage)
        reader = await stage.join("reader", ("other", 0))
        publisher = await stage.join("publisher")
        await publisher.send(wire.publish("load", b"", qos=2, packet_id=7))
        refused = await publisher.expect(wire.PUBREC)
        assert (refused.packet_id, refused.code) == (7, QUOTA_EXCEEDED)
        await publisher.send(wire.publish("other", stamped(1), qos=2, packet_id=7))
        taken = await publisher.expect(wire.PUBREC)
        assert (taken.packet_id, taken.code) == (7, 0)
        await publisher.send(wire.ack(wire.PUBREL, 7))
        done = await publisher.expect(wire.PUBCOMP)
        assert (done.packet_id, done.code) == (7, 0)
        assert number_of((await reader.message()).payload) == 1

    @pytest.mark.parametrize("qos", [1, 2])
    async def test_one_took_it(self, scene: SetScene, qos: int) -> None:
        stage = await scene(queue=self.TELL)
        await self.full(stage)
        reader = await stage.join("reader", ("load", 1))
        publisher = await stage.join("publisher")
        assert await publisher.publish("load", stamped(100), qos=qos) == 0
        assert number_of((await reader.message()).payload) == 100
        assert lost(stage.session("full")) == {"no-quota": 1}

    async def test_two_full_ones(self, scene: SetScene) -> None:
        stage = await scene(queue=self.TELL)
        await self.full(stage, "one")
        away = await stage.join("away", ("load", 1), clean=False, props=EXPIRES)
        await away.disconnect()
        publisher = await stage.join("publisher")
        # The one that is away has room at first.
        codes = [await publisher.publish("load", stamped(number), qos=1) for number in range(ROOM + 5)]
        assert codes == [0] * ROOM + [QUOTA_EXCEEDED] * 5
        assert lost(stage.session("away")) == {"full-messages": 5}
        assert lost(stage.session("one")) == {"no-quota": ROOM + 5}

    async def test_room_again(self, scene: SetScene) -> None:
        stage = await scene(queue=self.TELL)
        subscriber = await self.full(stage)
        publisher = await stage.join("publisher")
        assert await publisher.publish("load", stamped(100), qos=1) == QUOTA_EXCEEDED
        for number in range(1 + ROOM):
            assert number_of((await subscriber.message()).payload) == number
        assert await publisher.publish("load", stamped(101), qos=1) == 0
        last = await subscriber.message()
        assert number_of(last.payload) == 101

    @pytest.mark.parametrize("policy", ["drop-oldest", "latest"])
    async def test_a_queue_that_makes_room_refuses_nothing(self, scene: SetScene, policy: str) -> None:
        stage = await scene(queue={**self.TELL, "policy": policy})
        await stage.join("full", ("load", 1), props=[(wire.RECEIVE_MAXIMUM, 1)])
        publisher = await stage.join("publisher")
        await publish(publisher, 0, 3 * ROOM, 1)
        assert sum(lost(stage.session("full")).values()) > ROOM

    async def test_a_message_for_qos_0_subscribers_counts_too(self, scene: SetScene) -> None:
        """The publisher's QoS is what is acknowledged; the queue that refuses is the subscriber's live one."""
        stage = await scene(queue={**self.TELL, "live_messages": ROOM})
        publisher = await stage.join("publisher")
        await frozen(stage, publisher)
        await publish(publisher, 0, ROOM, 1)
        assert await publisher.publish("load", stamped(0), qos=1) == QUOTA_EXCEEDED

    async def test_a_retained_message_is_retained_though_it_is_refused(self, scene: SetScene) -> None:
        """[MQTT-3.3.1-5] asks for no receiver."""
        stage = await scene(queue=self.TELL)
        await self.full(stage)
        publisher = await stage.join("publisher")
        assert await publisher.publish("load", stamped(100), qos=1, retain=True) == QUOTA_EXCEEDED
        late = await stage.join("late", "load")
        found = await late.message()
        assert found.retain
        assert number_of(found.payload) == 100

    @pytest.mark.parametrize("qos", [1, 2])
    async def test_3_1_1_is_acknowledged_as_usual(self, scene: SetScene, qos: int) -> None:
        """There is no reason code in its PUBACK."""
        stage = await scene(queue=self.TELL)
        await self.full(stage)
        publisher = await stage.join("publisher", version=4)
        assert await publisher.publish("load", stamped(100), qos=qos) == 0
        assert await publisher.fence() == []

    async def test_switched_off(self, scene: SetScene) -> None:
        """The subscriber's queue is full; the publisher has done its part."""
        stage = await scene(queue={"session_messages": ROOM})
        await self.full(stage)
        publisher = await stage.join("publisher")
        assert await publisher.publish("load", stamped(100), qos=1) == 0
        assert await publisher.publish("load", stamped(100), qos=2) == 0
        assert lost(stage.session("full")) == {"no-quota": 2}

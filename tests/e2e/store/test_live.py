"""The daemon with a store, killed by SIGKILL and started again: what was acknowledged is there, and comes once.

A test never waits for the disk by itself: what it has heard from the broker is what must be kept.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from canopy_load.ledger.checker import check
from canopy_load.ledger.history import Connect, Delivery, History, Publish, Subscribe
from tests.e2e import wire
from tests.e2e.stores import InFile, Kept, kept
from tests.e2e.wire import (
    MESSAGE_EXPIRY,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY,
    Closed,
    Peer,
    Will,
    WireError,
    ack,
    connect,
    publish,
)
from tests.support.daemon import Daemon, canopy
from tests.support.runs import CRASH, seeds, times

HOUR = 3600
MEMORY_BYTES = "CANOPY_STORE__MEMORY_BYTES"
GONE = (Closed, WireError, ConnectionError)
"""The errors of reading or writing when the broker is killed, even within a packet."""

LONG = pytest.mark.long
KINDS = ["sqlite", pytest.param("postgresql", marks=LONG)]
QUEUED = 1_200
"""Messages that are read back while the broker is killed: more than all its lives before the last one are asked for."""


def each(house: str, *quick: int) -> pytest.MarkDecorator:
    """Parametrize the fixture `house` and `qos`: with a file these QoS, and QoS 2 with PostgreSQL in a long run.

    All of them in `make crash`: who writes what, and in which order, is the same for both stores.
    """
    cases = [*(("sqlite", qos) for qos in quick), pytest.param("postgresql", 2, marks=LONG)]
    every = [(kind, qos) for kind in ("sqlite", "postgresql") for qos in (1, 2)]
    return pytest.mark.parametrize((house, "qos"), every if CRASH else cases, indirect=[house])


class House:
    """One daemon after another, all with the same store."""

    def __init__(self, folder: Path, stack: AsyncExitStack, kept: Kept | None = None) -> None:
        """`kept`: where the store is, if it is not in the folder."""
        self.folder = folder
        self.kept = InFile(folder) if kept is None else kept
        self.environ: dict[str, str] = {}
        self._stack = stack
        self._peers: list[Peer] = []
        self.daemon: Daemon

    async def start(self, *arguments: str) -> None:
        flags = (*self.kept.flags, *arguments)
        self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, environ=self.environ))
        self._stack.callback(self.daemon.close)

    def kill(self) -> None:
        self.daemon.process.send_signal(signal.SIGKILL)

    async def again(self, *, after: float = 0.0) -> None:
        """Kill it, unless that is done; let so many seconds pass; start another one."""
        self.kill()
        await asyncio.to_thread(self.daemon.close)
        for peer in self._peers:
            peer.abort()
        self._peers.clear()
        if after:
            await asyncio.to_thread(self.kept.pass_, after)
        await self.start()

    async def peer(
        self, client_id: str, *, version: int = 5, clean: bool = False, present: bool | None = False, **more: Any
    ) -> Peer:
        """A connected client whose session stays; it was present or not [MQTT-3.2.2-3]."""
        peer = await Peer.open("127.0.0.1", self.daemon.port, version)
        self._stack.callback(peer.abort)
        self._peers.append(peer)
        props = ((SESSION_EXPIRY, more.pop("expiry", HOUR)), *more.pop("props", ()))
        await peer.send(connect(client_id, version=version, clean=clean, props=props, **more))
        peer.connack = await peer.expect(wire.CONNACK)
        assert peer.connack.code == 0
        assert present is None or peer.connack.session_present is present
        return peer

    async def away(self, client_id: str, *filters: tuple[str, int], version: int = 5) -> None:
        """A client that subscribes and goes."""
        peer = await self.peer(client_id, version=version)
        await peer.subscribe(*filters)
        await peer.disconnect()


@pytest.fixture(params=KINDS)
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        made = House(tmp_path / "store", stack, kept(request.param, tmp_path / "store"))
        await made.start()
        yield made


@pytest.fixture
async def file_house(tmp_path: Path) -> AsyncIterator[House]:
    """One whose store is a file."""
    async with AsyncExitStack() as stack:
        made = House(tmp_path / "store", stack)
        await made.start()
        yield made


@pytest.fixture(params=KINDS)
async def small(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    """Of what waits for a session some three messages are in memory; the rest is on disk alone."""
    async with AsyncExitStack() as stack:
        made = House(tmp_path / "store", stack, kept(request.param, tmp_path / "store"))
        made.environ[MEMORY_BYTES] = "1300"
        await made.start()
        yield made


@pytest.mark.parametrize(("version", "qos"), [(4, 1), (5, 2)])
async def test_what_waits_for_a_client_that_is_away(house: House, version: int, qos: int) -> None:
    """PUBACK or PUBCOMP was there: it comes, in order, once [MQTT-3.1.2-4] [MQTT-4.6.0-6]."""
    await house.away("s", ("t/#", qos), version=version)
    publisher = await house.peer("p", clean=True)
    for number in range(20):
        await publisher.publish("t/a", b"%d" % number, qos=qos)
    await house.again()
    subscriber = await house.peer("s", version=version, present=True)
    received = [await subscriber.message() for _ in range(20)]
    assert [(one.payload, one.dup) for one in received] == [(b"%d" % number, False) for number in range(20)]
    assert await subscriber.fence() == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_waits_for_a_share_group_is_for_whoever_connects_first(house: House, qos: int) -> None:
    """Killed before, and again when it has taken some: all of it comes, in order, and nothing of it to the other."""
    for name in ("a", "b"):
        await house.away(name, ("$share/g/t", qos))
    publisher = await house.peer("p", clean=True)
    for number in range(20):
        await publisher.publish("t", b"%d" % number, qos=qos)
    await house.again()
    first = await house.peer("b", present=True, props=((RECEIVE_MAXIMUM, 3),))
    received = [await first.message() for _ in range(5)]
    # What was acknowledged is so in the store, too.
    await first.subscribe(("x", 1))
    await house.again()
    first = await house.peer("b", present=True)
    # Of QoS 2 some was sent and not acknowledged; of QoS 1 that has gone back to the queue of the group.
    received += [await first.message() for _ in range(20 - len(received))]
    assert [one.payload for one in received] == [b"%d" % number for number in range(20)]
    assert await first.fence() == []
    second = await house.peer("a", present=True)
    assert await second.fence() == []


async def test_suback_and_unsuback(house: House) -> None:
    peer = await house.peer("s")
    await peer.subscribe(("a", 1), ("b", 1), ("$share/g/c", 1))
    await house.again()
    peer = await house.peer("s", present=True)
    await peer.unsubscribe("b")
    await house.again()
    peer = await house.peer("s", present=True)
    publisher = await house.peer("p", clean=True)
    for topic in ("a", "b", "c"):
        await publisher.publish(topic, topic.encode(), qos=1)
    assert {(await peer.message()).payload for _ in range(2)} == {b"a", b"c"}
    assert await peer.fence() == []


async def test_what_is_in_flight_is_sent_again(house: House) -> None:
    """With its packet identifier and DUP [MQTT-4.4.0-1] [MQTT-3.3.1-1]."""
    subscriber = await house.peer("s")
    await subscriber.subscribe(("t", 2))
    publisher = await house.peer("p", clean=True)
    for payload in (b"1", b"2", b"3"):
        await publisher.publish("t", payload, qos=2)
    first = [await subscriber.expect(wire.PUBLISH) for _ in range(3)]
    await house.again()
    subscriber = await house.peer("s", present=True)
    found = [await subscriber.message() for _ in range(3)]
    assert [one.payload for one in found] == [b"1", b"2", b"3"]
    # It left only when its identifier was on disk, and so both sides know what it stands for.
    assert [one.packet_id for one in found] == [one.packet_id for one in first]
    assert all(one.dup for one in found)
    assert await subscriber.fence() == []


async def test_after_our_pubrel_the_message_does_not_come_again(house: House) -> None:
    """[MQTT-4.3.3-6]: PUBREL left only when PUBREC's coming was on disk."""
    subscriber = await house.peer("s")
    await subscriber.subscribe(("t", 2))
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t", b"1", qos=2)
    message = await subscriber.expect(wire.PUBLISH)
    assert message.packet_id
    await subscriber.send(ack(wire.PUBREC, message.packet_id))
    assert (await subscriber.expect(wire.PUBREL)).packet_id == message.packet_id
    await house.again()
    subscriber = await house.peer("s", present=True)
    assert (await subscriber.expect(wire.PUBREL)).packet_id == message.packet_id
    await subscriber.send(ack(wire.PUBCOMP, message.packet_id))
    assert await subscriber.fence() == []


async def test_a_publish_that_has_its_pubrec_is_not_routed_again(house: House) -> None:
    """[MQTT-4.3.3-10]; after its PUBCOMP the identifier is free."""
    await house.away("s", ("t", 2))
    publisher = await house.peer("p")
    await publisher.send(publish("t", b"1", qos=2, packet_id=7))
    await publisher.expect(wire.PUBREC)
    await house.again()
    publisher = await house.peer("p", present=True)
    await publisher.send(publish("t", b"1", qos=2, packet_id=7, dup=True))
    assert (await publisher.expect(wire.PUBREC)).packet_id == 7
    await publisher.send(ack(wire.PUBREL, 7))
    assert (await publisher.expect(wire.PUBCOMP)).code == 0
    await house.again()
    publisher = await house.peer("p", present=True)
    await publisher.send(publish("t", b"2", qos=2, packet_id=7))
    await publisher.expect(wire.PUBREC)
    subscriber = await house.peer("s", present=True)
    assert [(await subscriber.message()).payload for _ in range(2)] == [b"1", b"2"]
    assert await subscriber.fence() == []


async def test_the_will_of_who_was_connected(house: House) -> None:
    """The connection ended without DISCONNECT, if by the broker's death [MQTT-3.1.2-8]."""
    await house.away("s", ("w", 1))
    gone = await house.peer("gone", will=Will("w", b"gone", 1))
    # Behind the CONNECT, so that the will is on disk.
    await gone.publish("x", qos=1)
    await gone.subscribe(("x", 1))
    house.environ = {"CANOPY_STORE__WILL_GRACE": "0"}
    await house.again()
    subscriber = await house.peer("s", present=True)
    assert (await subscriber.message()).payload == b"gone"


async def test_messages_expire_while_no_broker_runs(house: House) -> None:
    """[MQTT-3.3.2-5]"""
    await house.away("s", ("t", 1))
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t", b"short", qos=1, props=((MESSAGE_EXPIRY, 60),))
    await publisher.publish("t", b"long", qos=1, props=((MESSAGE_EXPIRY, 600),))
    await house.again(after=100)
    subscriber = await house.peer("s", present=True)
    found = await subscriber.message()
    assert found.payload == b"long"
    left = found.get(MESSAGE_EXPIRY)
    assert isinstance(left, int)
    assert left <= 500
    assert await subscriber.fence() == []


async def test_an_orderly_stop_keeps_all(house: House) -> None:
    await house.away("s", ("t", 1))
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t", b"1", qos=1)
    publisher.abort()
    assert (await asyncio.to_thread(house.daemon.end))[0] == 0
    if isinstance(house.kept, InFile):
        assert not (house.folder / "canopy.db-wal").exists()
    await house.start()
    subscriber = await house.peer("s", present=True)
    assert (await subscriber.message()).payload == b"1"


async def test_a_backup_of_a_running_broker_is_restored(file_house: House, tmp_path: Path) -> None:
    """As docs/durability.md has it."""
    house, folder = file_house, tmp_path / "store"
    await house.away("s", ("t", 1))
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t", b"before", qos=1)
    with closing(sqlite3.connect(folder / "canopy.db")) as db:
        db.execute("VACUUM INTO ?", (str(tmp_path / "backup.db"),))
    await publisher.publish("t", b"after", qos=1)
    house.kill()
    await asyncio.to_thread(house.daemon.close)
    for left in ("canopy.db-wal", "canopy.db-shm"):
        (folder / left).unlink(missing_ok=True)
    (tmp_path / "backup.db").replace(folder / "canopy.db")
    await house.start()
    subscriber = await house.peer("s", present=True)
    assert (await subscriber.message()).payload == b"before"
    assert await subscriber.fence() == []


async def test_a_second_broker_is_kept_away(house: House) -> None:
    """The first one has said where its store is."""
    assert house.daemon.started["store"] == house.kept.place
    done = await asyncio.to_thread(canopy, "serve", "--listen", "mqtt://127.0.0.1:0", *house.kept.flags)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(told) == 1
    assert house.kept.place in told[0]
    assert "in use" in told[0]
    await house.peer("c")


class Publisher:
    """Publishes numbers, and knows which were acknowledged; over connections, as the specification has it."""

    WINDOW = 40
    topic = "t"

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.count = 0
        self.history = History()
        self._messages: list[Publish] = []
        self.acknowledged: set[int] = set()
        # In the order in which they were published: packet identifier → number, and whether PUBREC came.
        self._open: dict[int, tuple[int, bool]] = {}

    async def run(self, peer: Peer, acknowledgements: int, most: int) -> None:
        """Go on where the last connection ended, until so many were acknowledged or the broker is gone."""
        until = len(self.acknowledged) + acknowledgements
        try:
            for packet_id, (_, released) in list(self._open.items()):
                await peer.send(ack(wire.PUBREL, packet_id) if released else self._publish(packet_id, dup=True))
            while len(self.acknowledged) < until:
                while len(self._open) < self.WINDOW and self.count < most:
                    packet_id = next(number for number in range(1, 1000) if number not in self._open)
                    self._open[packet_id] = (self.count, False)
                    said = Publish(
                        client="p", began=time.monotonic(), topic=self.topic, qos=self.qos, sequence=self.count
                    )
                    self._messages.append(self.history.add(said))
                    self.count += 1
                    await peer.send(self._publish(packet_id))
                if not self._open:
                    return
                await self._take(peer)
        except GONE:
            return

    def _publish(self, packet_id: int, dup: bool = False) -> bytes:
        number, _ = self._open[packet_id]
        return publish(self.topic, b"%d" % number, qos=self.qos, packet_id=packet_id, dup=dup, retain=True)

    async def hold_against_retained(self, watcher: Peer) -> None:
        """The retained message is the last that was acknowledged, or one behind it."""
        if self.acknowledged:
            await watcher.subscribe("t")
            assert int((await watcher.message()).payload) >= max(self.acknowledged)

    async def drain(self, peer: Peer) -> None:
        """Count the messages that the broker had sent before it was killed."""
        with suppress(*GONE):
            while True:
                await self._take(peer)

    async def _take(self, peer: Peer) -> None:
        packet = await peer.recv()
        assert packet.packet_id is not None
        # Packet Identifier not found: completed, and the broker died before it could say so. "This is not an error
        # during recovery" (section 3.7.2.1).
        assert packet.code == 0 or (packet.kind, packet.code) == (wire.PUBCOMP, 0x92)
        number, _ = self._open[packet.packet_id]
        if packet.kind == wire.PUBREC:
            # Behind those that have no PUBREC yet.
            self._open[packet.packet_id] = (number, True)
            await peer.send(ack(wire.PUBREL, packet.packet_id))
        else:
            self.acknowledged.add(number)
            self._messages[number].ok(time.monotonic())
            del self._open[packet.packet_id]


class Receiver:
    """Takes numbers, as the receiver of QoS 1 and 2 does (section 4.3)."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.came: list[tuple[float, int, int]] = []
        """When, which number, with which QoS."""
        self._known: set[int] = set()
        # Called once when so many have come.
        self.at: tuple[int, Callable[[], None]] | None = None

    async def run(self, peer: Peer, count: int | None = None) -> None:
        """Until the broker is gone, or the highest of so many numbers has come, and nothing behind it."""
        with suppress(*GONE):
            while count is None or not self.received or max(self.received) < count - 1:
                await self._take(peer, await peer.recv())
            for packet in await peer.fence():
                await self._take(peer, packet)

    async def _take(self, peer: Peer, packet: wire.Packet) -> None:
        assert packet.packet_id is not None
        if self.at is not None and len(self.received) >= self.at[0]:
            self.at[1]()
            self.at = None
        if packet.kind == wire.PUBREL:
            self._known.discard(packet.packet_id)
            await peer.send(ack(wire.PUBCOMP, packet.packet_id))
        elif packet.qos == 1:
            self._note(packet)
            await peer.send(ack(wire.PUBACK, packet.packet_id))
        else:
            if packet.packet_id not in self._known:
                self._known.add(packet.packet_id)
                self._note(packet)
            await peer.send(ack(wire.PUBREC, packet.packet_id))

    def _note(self, packet: wire.Packet) -> None:
        number = int(packet.payload)
        self.received.append(number)
        self.came.append((time.monotonic(), number, packet.qos))


def hold(publisher: Publisher, receivers: Sequence[Receiver], group: Sequence[Receiver] = ()) -> None:
    """All was acknowledged. So it came to each receiver, whose session was there all the time, and to the members of a
    group together; QoS 2 once; to each receiver in order [MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.6.0-6].
    """
    assert publisher.acknowledged == set(range(publisher.count))
    history = publisher.history
    filters = [publisher.topic] * len(receivers) + [f"$share/g/{publisher.topic}"] * len(group)
    for number, (receiver, topic_filter) in enumerate(zip((*receivers, *group), filters, strict=True)):
        client = f"{topic_filter} {number}"
        history.add(Connect(client=client, began=0.0)).ok(0.0)
        history.add(Subscribe(client=client, began=0.0, topic_filter=topic_filter, qos=publisher.qos)).ok(0.0)
        for at, sequence, qos in receiver.came:
            stream = "p", publisher.topic, publisher.qos
            history.add(Delivery(client=client, at=at, stream=stream, sequence=sequence, qos=qos))
    verdict = check(history)
    # With QoS 1, what a member did not acknowledge goes to another one when it leaves, which is not noted here.
    found = [each for each in verdict.findings if publisher.qos == 2 or each.promise != "to two members"]
    assert (found, verdict.unjudged) == ([], {})
    assert verdict.checked["lost"] == publisher.count * len(receivers)
    assert verdict.checked["lost to a group"] == publisher.count * bool(group)


async def killed_again_and_again(house: House, qos: int, kills: int, seed: int) -> None:
    """A publisher in full flight, a subscriber that is there and one that is away; the broker is killed anywhere.

    What the publisher has acknowledged is what is held against: the queues, and the retained message.
    """
    chance = random.Random(seed)
    publisher, here = Publisher(qos), Receiver()
    await house.away("away", ("t", qos))
    first = await house.peer("here")
    await first.subscribe(("t", qos))
    first.abort()
    for round_ in range(kills):
        sender = await house.peer("p", present=round_ > 0)
        taking = asyncio.ensure_future(here.run(await house.peer("here", present=True)))
        await publisher.run(sender, chance.randrange(1, 300), 1 << 30)
        house.kill()
        await publisher.drain(sender)
        await taking
        await house.again()
        await publisher.hold_against_retained(await house.peer("watcher", clean=True))
    await seen_through(house, publisher, here)


async def seen_through(house: House, publisher: Publisher, here: Receiver) -> None:
    """All that is open; then both subscribers have all that was published."""
    sender = await house.peer("p", present=True)
    await publisher.run(sender, 1 << 30, publisher.count)
    if MEMORY_BYTES in house.environ:
        assert await asyncio.to_thread(house.kept.on_disk_alone) > 0
    gone = Receiver()
    await here.run(await house.peer("here", present=True), publisher.count)
    await gone.run(await house.peer("away", present=True), publisher.count)
    hold(publisher, (here, gone))


@pytest.mark.parametrize("seed", seeds(10))
@each("house", 1, 2)
async def test_killed_again_and_again(house: House, qos: int, seed: int) -> None:
    """Nothing acknowledged is lost, QoS 2 comes exactly once, no order is broken [MQTT-4.3.3-1]."""
    await killed_again_and_again(house, qos, kills=times(10), seed=qos + 2 * seed)


@pytest.mark.parametrize("seed", seeds(5))
@each("small", 1)
async def test_killed_again_and_again_with_queues_larger_than_memory(small: House, qos: int, seed: int) -> None:
    """The same where most of what waits is on disk alone, and is read back."""
    await killed_again_and_again(small, qos, kills=times(10), seed=100 + qos + 2 * seed)


@each("small", 2)
async def test_killed_while_a_queue_is_read_back(small: House, qos: int) -> None:
    """Whoever was away takes some of it each time: nothing is lost, nor does QoS 2 come twice [MQTT-4.3.3-10]."""
    chance = random.Random(qos)
    publisher, back = Publisher(qos), Receiver()
    await small.away("away", ("t", qos))
    await publisher.run(await small.peer("p"), 1 << 30, QUEUED)
    assert await asyncio.to_thread(small.kept.on_disk_alone) >= QUEUED - 10
    window = ((RECEIVE_MAXIMUM, 20),)
    for _ in range(times(4)):
        wanted = len(back.received) + chance.randrange(40, 280)
        back.at = (wanted, small.kill)
        await back.run(await small.peer("away", present=True, props=window), QUEUED)
        assert wanted <= len(back.received) < QUEUED
        await small.again()
    await back.run(await small.peer("away", present=True), QUEUED)
    hold(publisher, (back,))


async def test_the_will_of_a_clean_session_is_published_after_a_kill(house: House) -> None:
    """Exactly once, when its client had time to come back; one that is back or has left has none [MQTT-3.1.2-8]."""
    await house.away("watcher", ("w/#", 2))
    for name in ("gone", "back", "left"):
        will = Will("w/" + name, name.encode(), 2, True)
        peer = await house.peer(name, clean=True, expiry=0, will=will)
        # What waits for a commit is behind the will.
        await peer.publish("t", b"1", qos=1, retain=True)
        if name == "left":
            await peer.disconnect()
            await (await house.peer("fence", clean=True)).publish("t", b"1", qos=1, retain=True)
    await house.again()
    back = await house.peer("back", clean=True, expiry=0)
    # What waits for a commit is behind the end of its will.
    await back.publish("t", b"1", qos=1, retain=True)
    house.environ = {"CANOPY_STORE__WILL_GRACE": "0.2"}
    await house.again()
    watcher = await house.peer("watcher", present=True)
    assert (await watcher.message()).payload == b"gone"
    await house.again()
    watcher = await house.peer("watcher", present=True)
    assert [one for one in await watcher.fence() if one.kind == wire.PUBLISH] == []

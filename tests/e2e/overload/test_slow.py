"""One client that is slow, stands still or has vanished: what it gets, what others notice, what the broker holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest

from canopy_load.brokers.stats import percentile
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.net.connections.connection import Connection
from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene, StartDaemon
from tests.e2e.overload.scene import (
    KEPT,
    PATIENCE,
    Notes,
    Tap,
    Watch,
    check_ledger,
    join,
    lost,
    number_of,
    scaled,
    stamped,
)

Record = Callable[[str, object], None]

# A thin link: what it takes in a second, what is published for it in a second, and for how long.
THIN: Final = 20_000
PUBLISHED_PER_SECOND: Final = 1000
SECONDS: Final = 5.0
SIZE: Final = 120
FRAME: Final = 2 + 2 + len("display/0") + 1 + SIZE
TOPICS: Final = 5
MAX_AGE: Final = 0.5
TIDY: Final = 0.3
"""Seconds beyond its age after which a message can still be on its way out of a queue that moves."""
BEYOND: Final = 40_000
"""Bytes between the queue and the client at most: transport and socket."""
SLACK: Final = 0.8
"""Seconds that a busy machine may add to an age."""

RETAINED: Final = scaled(20_000, 2000)
FLOOD: Final = scaled(200 << 20, 32 << 20)
"""Bytes that a publisher sends as fast as it can."""


class Display:
    """A client behind a thin link, and how long its messages may wait in the broker; None: as long as it takes."""

    def __init__(self, tap: Tap, session: Session, connection: Connection, waits: float | None) -> None:
        self.tap = tap
        self.session = session
        self.connection = connection
        self.waits = waits
        self.held = 0

    def look(self) -> None:
        """Note how many bytes lie between the broker's queue and the client."""
        self.held = max(self.held, (self.session.delivered_in_all() - len(self.tap.numbers)) * FRAME)


@pytest.mark.long
async def test_a_thin_link_gets_fresh_data(scene: SetScene, record: Record) -> None:
    """Shed by age, or with only the newest of each topic waiting, what is read is as old as that and what lies beyond
    the queue. The plain queue gives what is older and older. For each, the ledger is exact.
    """
    waits = {"aged": MAX_AGE + TIDY, "latest": TOPICS * FRAME / THIN, "both": MAX_AGE + TIDY, "plain": None}
    rules = [
        {"client_id": "aged", "max_age": MAX_AGE},
        {"client_id": "latest", "policy": "latest"},
        {"client_id": "both", "policy": "latest", "max_age": MAX_AGE},
    ]
    stage = await scene(tiny=True, queue={"live_messages": 100_000, "write_batch_bytes": 512, "rules": rules})
    publisher = await stage.join("publisher")
    displays: dict[str, Display] = {}
    for client_id, limit in waits.items():
        tap = await Tap.open(stage.port, client_id, ("display/+", 0), small=True, rate=THIN)
        send_buffer = stage.send_buffer(client_id)
        (connection,) = [found for found in stage.broker.connections if found.send_buffer is send_buffer]
        displays[client_id] = Display(tap, stage.session(client_id), connection, limit)

    loop = asyncio.get_running_loop()
    started = loop.time()
    count = 0
    while (now := loop.time()) < started + SECONDS:
        due = int((now - started) * PUBLISHED_PER_SECOND)
        await publisher.send(
            *(wire.publish(f"display/{number % TOPICS}", stamped(number, SIZE)) for number in range(count, due))
        )
        count = max(count, due)
        for display in displays.values():
            display.look()
        await asyncio.sleep(0.02)  # the pace itself
    ages = {client_id: display.tap.ages.copy() for client_id, display in displays.items()}

    for display in displays.values():
        display.tap.thaw()
    await publisher.fence()
    oldest_fresh = 0.0
    for client_id, display in displays.items():
        numbers, session = display.tap.numbers, display.session
        await display.tap.fence()
        check_ledger(session, offered=count, received=len(numbers))
        assert len(set(numbers)) == len(numbers)
        # Of each topic, newer comes after older, whatever was shed between.
        for topic in range(TOPICS):
            mine = [number for number in numbers if number % TOPICS == topic]
            assert mine == sorted(mine)
        record(client_id, f"oldest read {max(ages[client_id]):.2f} s, {display.held} bytes beyond the queue")
        if display.waits is None:
            assert lost(session) == {}
        else:
            # `docs/overload.md`: small pieces, and little in the system, for those whose messages lose their worth.
            assert display.held < BEYOND
            bound = display.waits + display.held / THIN + SLACK
            oldest_fresh = max(oldest_fresh, bound)
            assert max(ages[client_id]) < bound
            assert set(lost(session)) <= {"age", "replaced-by-latest"}
            assert sum(lost(session).values()) > count / 2
    assert max(ages["plain"]) > oldest_fresh, "the plain queue is fresh too: this test proves nothing"


@pytest.mark.long
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_flood_of_retained_messages_for_a_slow_reader(daemon: StartDaemon, record: Record, qos: int) -> None:
    """All of them come, each once; the broker does not hold them for it, and others do not wait.

    mosquitto#2887 and #1517 (`#` over 100k retained messages lost most of its tail).
    """
    live_bytes = 262_144
    server = daemon({"queue.live_bytes": live_bytes, "queue.live_messages": 100, "queue.session_messages": 100})
    watch = await Watch.open(server.port)
    publisher = await join(server.port, "publisher")
    size = 200
    for start in range(0, RETAINED, 1000):
        block = range(start, min(RETAINED, start + 1000))
        await publisher.send(
            *(
                wire.publish(
                    f"shelf/{i}", stamped(i, size), qos=qos, packet_id=i % 1000 + 1 if qos else None, retain=True
                )
                for i in block
            )
        )
        for packet in await publisher.fence():
            assert (packet.kind, packet.code) == (wire.PUBACK, 0x10)
    await watch.until("all are retained", lambda values: int(values["retained messages/count"]) >= RETAINED)
    good = await Tap.open(server.port, "good", ("news", 0))
    before = server.resident

    slow = await Tap.open(server.port, "slow", small=True, rate=20_000)
    slow.transport.write(wire.subscribe(1, [("shelf/#", qos)]))
    most = 0
    for number in range(100):
        await publisher.publish("news", stamped(number))
        await good.count(number + 1)
        most = max(most, server.resident)
        await asyncio.sleep(0.01)  # over a second of a slow reader
    assert 0 < len(slow.numbers) < RETAINED, "it was not slow"
    slow.thaw()
    await slow.count(RETAINED)
    await slow.fence()
    assert sorted(slow.numbers) == list(range(RETAINED))
    record("memory grown", f"{(most - before) / 2**20:.1f} MiB")
    assert most - before < live_bytes + (16 << 20)
    record("p99 of another", f"{(percentile(sorted(good.ages), 0.99) or 0) * 1000:.1f} ms")
    assert max(good.ages) < 5.0
    await watch.until("it is told", lambda values: "messages/dropped" in values)
    assert watch.number("messages/dropped") == 0


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
async def test_takeover_in_the_middle_of_a_stalled_write(scene: SetScene, version: int) -> None:
    """The new connection does not wait for the old one, which is gone; what was sent and not acknowledged comes again.

    With DUP and its packet identifier where the client had it [MQTT-3.3.1-1] [MQTT-4.4.0-1] [MQTT-3.1.4-3]; what never
    had an identifier comes without. rmqtt#465 (900 sockets for 470 sessions).
    """
    window, known, all_of_them = 10, 5, 30
    stage = await scene(mqtt={"max_inflight": window})
    publisher = await stage.join("publisher")
    props = [(wire.SESSION_EXPIRY, KEPT)] if version == 5 else []
    far = await stage.join_far("twin", ("load", 1), ("plug", 0), version=version, clean=False, props=props)
    for number in range(known):
        assert await publisher.publish("load", stamped(number), qos=1) == 0
    first = [await far.peer.expect(wire.PUBLISH) for _ in range(known)]  # and no acknowledgement
    await stage.plug(far, "twin", "plug", publisher)
    for number in range(known, all_of_them):
        assert await publisher.publish("load", stamped(number), qos=1) == 0
    far.vanish()

    loop = asyncio.get_running_loop()
    started = loop.time()
    twin = await stage.join("twin", version=version, clean=False, props=props)
    # The last packet of an old connection is given two seconds to get out; nobody waits for that.
    assert loop.time() - started < 1.5
    assert twin.connack.session_present
    found = [await twin.message() for _ in range(all_of_them)]
    assert [number_of(packet.payload) for packet in found] == list(range(all_of_them))
    assert [packet.dup for packet in found[:known]] == [True] * known
    assert [packet.packet_id for packet in found[:known]] == [packet.packet_id for packet in first]
    assert [packet.dup for packet in found[window:]] == [False] * (all_of_them - window)
    assert len({packet.packet_id for packet in found[:window]}) == window
    session = stage.session("twin")
    # The plug was handed to the old connection; what became of it there nobody can know.
    check_ledger(session, offered=all_of_them + 1, received=all_of_them + 1)
    await stage.until("the old connection is gone", lambda: len(stage.broker.connections) == 3)
    assert await publisher.publish("load", stamped(all_of_them), qos=1) == 0
    assert number_of((await twin.message()).payload) == all_of_them


@pytest.mark.long
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_publisher_as_fast_as_it_can_for_a_frozen_subscriber(
    daemon: StartDaemon, record: Record, qos: int
) -> None:
    """Memory stays under the queue's bounds, and the publisher is not stopped.

    amqtt#14 and #123, nanomq and hbmqtt users: a process that is killed for its memory.
    """
    live_bytes = session_bytes = 8 << 20
    constant = 48 << 20
    server = daemon({"queue.live_bytes": live_bytes, "queue.session_bytes": session_bytes})
    watch = await Watch.open(server.port)
    frozen = await Tap.open(server.port, "frozen", ("load", qos), small=True, reading=False)
    publisher = await join(server.port, "publisher")
    size, block = 16_384, 64
    count = FLOOD // size // block * block
    loop = asyncio.get_running_loop()
    before = most = server.resident
    slowest = 0.0
    all_started = started = loop.time()
    for start in range(0, count, block):
        await publisher.send(
            *(
                wire.publish("load", stamped(start + i, size), qos=qos, packet_id=i + 1 if qos else None)
                for i in range(block)
            )
        )
        for packet in await publisher.fence():
            assert (packet.kind, packet.code) == (wire.PUBACK, 0)
        slowest = max(slowest, loop.time() - started)
        started = loop.time()
        most = max(most, server.resident)
    spent = loop.time() - all_started
    record("speed", f"{count * size / spent / 2**20:.0f} MiB/s")
    record("memory grown", f"{(most - before) / 2**20:.1f} MiB")
    record("slowest block", f"{slowest * 1000:.0f} ms")
    assert most - before < live_bytes + session_bytes + constant
    assert slowest < 10.0
    assert spent < PATIENCE
    room = (live_bytes + session_bytes) // size + 100
    await watch.until(
        "all that does not fit is counted", lambda values: int(values["messages/dropped"]) >= count - room
    )
    assert not frozen.ended


class TestHalfOpen:
    """A machine that lost its power sends no end. emqx#13338 (shown connected for a month), rmqtt#465."""

    async def test_the_keep_alive_finds_it(self, scene: SetScene) -> None:
        """One and a half times the keep alive. [MQTT-3.1.2-22]"""
        notes = Notes()
        stage = await scene(log=notes)
        will = wire.Will("wills", b"powered off")
        watcher = await stage.join("watcher", "wills")
        far = await stage.join_far("far", keep_alive=1, will=will)
        far.vanish()
        assert (await watcher.message()).payload == b"powered off"
        assert notes.about("far")[-1]["cause"] == "keep-alive"
        await stage.until("its connection is gone", lambda: len(stage.broker.connections) == 2)

    async def test_a_short_break_costs_nothing(self, scene: SetScene) -> None:
        """The way is back before anybody's patience is over."""
        stage = await scene(queue={"stall_timeout": 30.0})
        far = await stage.join_far("far", "load", keep_alive=60)
        publisher = await stage.join("publisher")
        far.vanish()
        for number in range(200):
            await publisher.publish("load", stamped(number, 2000))
        far.thaw()
        assert [number_of(packet.payload) for packet in await far.peer.fence()] == list(range(200))
        check_ledger(stage.session("far"), offered=200, received=200)

"""Imports mosquitto's persistence files: some that a mosquitto here has written, and some as none writes."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.node_messages import TimedMessage, marked
from canopy_mqtt.core.topics import trie
from canopy_mqtt.core.topics.trie import Trie
from canopy_mqtt.settings import Settings, Shutdown, Store
from canopy_mqtt.store.tools import mosquitto_db as mosquitto_file
from canopy_mqtt.store.tools.mosquitto_db import Damaged, read
from tests.core.harness import Network
from tests.e2e import wire
from tests.e2e.links.network import MOSQUITTO, Process
from tests.e2e.wire import CONNACK, PUBLISH, Peer, ack
from tests.store.tools.test_commands import canopy
from tests.support.runs import for_each
from tests.support.waiting import until

HOUR = 3_600
NO_LOCAL = 0x04
AS_PUBLISHED = 0x08


async def come(
    port: int, name: str, *, version: int = 5, expiry: int = HOUR, user: str | None = "ann", clean: bool = False
) -> Peer:
    """A client whose session stays."""
    peer = await Peer.open("127.0.0.1", port, version)
    props = ((wire.SESSION_EXPIRY, expiry), (wire.RECEIVE_MAXIMUM, 10)) if version == 5 else ()
    await peer.send(wire.connect(name, version=version, clean=clean, props=props, user=user))
    connack = await peer.expect(CONNACK)
    assert connack.code == 0
    return peer


@pytest.fixture
async def mosquitto(tmp_path: Path) -> AsyncIterator[tuple[int, Process]]:
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    conf = tmp_path / "mosquitto.conf"
    # Started by root, it would become another user, who may not write here.
    conf.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\n"
        f"persistence_location {tmp_path}/\nmax_inflight_messages 10\n"
    )
    process = Process([MOSQUITTO, "-c", str(conf)], "running")
    await process.start()
    try:
        yield port, process
    finally:
        await process.end()


async def test_its_clients_go_on_in_canopy(mosquitto: tuple[int, Process], tmp_path: Path) -> None:
    port, process = mosquitto
    publisher = await come(port, "publisher", clean=True, expiry=0)
    # Somebody who is away; one of 3.1.1; one in the middle of QoS 2, both ways; one who has a user name.
    away = await come(port, "away")
    await away.send(wire.subscribe(1, [("a/+", 1), ("b/#", 2 | NO_LOCAL | AS_PUBLISHED)], ((wire.SUBSCRIPTION_ID, 7),)))
    await away.expect(wire.SUBACK)
    await away.disconnect()
    old = await come(port, "old", version=4)
    await old.subscribe(("a/1", 1))
    await old.disconnect()
    busy = await come(port, "busy")
    await busy.subscribe(("q/#", 2))
    props = ((wire.CONTENT_TYPE, "text/é"), (wire.USER_PROPERTY, ("k", "v")))
    for number in range(15):
        await publisher.publish("a/1", b"%d" % number, qos=1, props=(*props, (wire.MESSAGE_EXPIRY, HOUR)))
    await publisher.publish("q/released", b"r", qos=2)
    await publisher.publish("q/sent", b"s", qos=2)
    await publisher.publish("r/é", b"\x00kept", qos=1, retain=True, props=props)
    await publisher.publish("r/gone", b"x", qos=1, retain=True, props=((wire.MESSAGE_EXPIRY, 1),))
    expired = time.time() + 1.0
    released, sent = await busy.expect(PUBLISH), await busy.expect(PUBLISH)
    assert released.packet_id is not None
    await busy.send(ack(wire.PUBREC, released.packet_id))
    await busy.expect(wire.PUBREL)
    await busy.send(wire.publish("b/held", b"held", qos=2, packet_id=9, retain=True))
    await busy.expect(wire.PUBREC)
    busy.abort()
    publisher.abort()
    await process.end(Process.TERM)
    await until(lambda: time.time() > expired)
    told = await asyncio.to_thread(canopy, "import", tmp_path / "s", "--mosquitto", tmp_path / "mosquitto.db")
    assert told.endswith(": 3 sessions with 4 subscriptions and 33 messages, 2 retained messages\n")
    assert "not taken over: 1 × retained messages that have expired" in told
    assert (await asyncio.to_thread(canopy, "verify", tmp_path / "s")).endswith(": whole\n")
    settings = Settings(
        listen=("mqtt://127.0.0.1:0",), store=Store(path=str(tmp_path / "s")), shutdown=Shutdown(flush_timeout=0.0)
    )
    async with Broker(settings) as broker:
        port = broker.ports[0]
        # Whose session it was still counts.
        stranger = await Peer.open("127.0.0.1", port, 5)
        await stranger.send(wire.connect("away", clean=False, user="eve"))
        assert (await stranger.expect(CONNACK)).code == 0x85
        away = await come(port, "away")
        found = [await away.message() for _ in range(16)]
        assert [one.payload for one in found[:15]] == [b"%d" % number for number in range(15)]
        assert {one.number(wire.SUBSCRIPTION_ID) for one in found} == {7}
        assert found[0].all(wire.USER_PROPERTY) == [("k", "v")]
        assert found[0].get(wire.CONTENT_TYPE) == "text/é"
        assert 0 < found[0].number(wire.MESSAGE_EXPIRY) <= HOUR
        assert (found[15].topic, found[15].payload, found[15].qos, found[15].retain) == ("b/held", b"held", 2, True)
        old = await come(port, "old", version=4)
        assert [(await old.message()).payload for _ in range(15)] == [b"%d" % number for number in range(15)]
        busy = await come(port, "busy")
        first, second = await busy.recv(), await busy.recv()
        assert {(one.kind, one.packet_id) for one in (first, second)} == {
            (wire.PUBREL, released.packet_id),
            (PUBLISH, sent.packet_id),
        }
        assert all(one.dup for one in (first, second) if one.kind == PUBLISH)
        await busy.send(ack(wire.PUBREL, 9))
        assert (await busy.wait_for(wire.PUBCOMP)).code == 0
        reader = await come(port, "reader", clean=True)
        await reader.subscribe("r/#", "b/#")
        kept = [await reader.message() for _ in range(2)]
        assert {(one.topic, one.payload) for one in kept} == {("r/é", b"\x00kept"), ("b/held", b"held")}
        for peer in (stranger, away, old, busy, reader):
            peer.abort()


async def test_a_client_without_a_user_name_behind_one_with_it(mosquitto: tuple[int, Process], tmp_path: Path) -> None:
    """mosquitto writes the name of that one, and memory behind it: the session must not become another's."""
    port, process = mosquitto
    for number in range(4):
        peer = await come(port, f"c{number}", user=f"user{number}" if number % 2 == 0 else None)
        await peer.disconnect()
    await process.end(Process.TERM)
    await asyncio.to_thread(canopy, "import", tmp_path / "s", "--mosquitto", tmp_path / "mosquitto.db")
    exported = await asyncio.to_thread(canopy, "export", tmp_path / "s")
    lines = [json.loads(line) for line in exported.splitlines()]
    names = {line["client_id"]: line["principal"]["user_name"] for line in lines if line["type"] == "session"}
    assert names == {"c0": "user0", "c1": None, "c2": "user2", "c3": None}


def chunk(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", kind, len(body)) + body


def client(name: bytes, interval: int, expires: int, version: int = 6, user: bytes = b"") -> bytes:
    fixed = struct.pack("<q", expires) + struct.pack(">IHH", interval, 5, len(name))
    return chunk(6, fixed + (struct.pack(">HH4x", 1883, len(user)) if version == 6 else b"") + name + user)


def message(number: int, topic: bytes, payload: bytes = b"x", expires: int = 0, props: bytes = b"") -> bytes:
    fixed = struct.pack("<Qq", number, expires) + struct.pack(">IHHHHHBB", len(payload), 0, 1, 1, len(topic), 0, 1, 0)
    return chunk(2, fixed + b"p" + b"u" + topic + payload + props)


def queued(number: int, name: bytes, state: int = 11, direction: int = 1, packet_id: int = 0) -> bytes:
    return chunk(
        3, struct.pack("<Q", number) + struct.pack(">HHBBBB", packet_id, len(name), 1, state, 0, direction) + name
    )


def subscription(name: bytes, topic_filter: bytes) -> bytes:
    return chunk(5, struct.pack(">IHHBBxx", 0, len(name), len(topic_filter), 1, 0) + name + topic_filter)


def file(folder: Path, *chunks: bytes, version: int = 6) -> Path:
    head = b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, version)
    cfg = chunk(1, struct.pack("<QBB6x", 9, 1, 8))
    path = folder / "mosquitto.db"
    path.write_bytes(head + cfg + b"".join(chunks))
    return path


def test_a_user_name_in_doubt(tmp_path: Path) -> None:
    """Behind a client without one: the same name may be the client's own, or nobody's."""
    path = file(
        tmp_path,
        *(client(b"a", 60, 0, user=b"ann"), client(b"b", 60, 0, user=b"ann\0\0\xff"), client(b"c", 60, 0, user=b"ann")),
        *(client(b"d", 60, 0, user=b"bob"), client(b"e", 60, 0, user=b"ann"), client(b"f", 60, 0)),
    )
    told = canopy("import", tmp_path / "s", "--mosquitto", path)
    [line] = [line for line in told.splitlines() if "user name" in line]
    assert line.startswith("canopy: 'c': its user name may be another's, by a fault of mosquitto 2.0: see docs/from-")
    lines = [json.loads(line) for line in canopy("export", tmp_path / "s").splitlines()[1:]]
    assert [line["principal"]["user_name"] for line in lines] == ["ann", None, "ann", "bob", "ann", None]


def test_version_5_knows_no_user_names(tmp_path: Path) -> None:
    path = file(tmp_path, client(b"c", 60, 0, version=5), subscription(b"c", b"a/#"), version=5)
    canopy("import", tmp_path / "s", "--mosquitto", path)
    _, session, one = [json.loads(line) for line in canopy("export", tmp_path / "s").splitlines()]
    assert session == {"type": "session", "client_id": "c", "principal": {"user_name": None}, "expiry_interval": 60}
    assert (one["filter"], one["client_id"]) == ("a/#", "c")


def test_what_has_no_place_is_counted(tmp_path: Path) -> None:
    now = int(time.time())
    chunks = (
        client(b"$upstream/cloud", 60, 0),
        *(message(1, b"t"), message(2, b"t", expires=now - 5), message(3, b"a/#")),
        *(client(b"c", 60, now + 30, user=b"u"), client(b"zero", 0, 0), client(b"late", 60, now - 1)),
        *(queued(1, b"c"), queued(2, b"c"), queued(3, b"c"), queued(4, b"c"), queued(1, b"late"), queued(1, b"nobody")),
        *(queued(1, b"c", state=8), queued(1, b"c", state=3, packet_id=7), queued(1, b"c", state=3, packet_id=7)),
        *(subscription(b"c", b"a#"), subscription(b"zero", b"a"), chunk(99, b"?")),
        *(chunk(4, struct.pack("<Q", 1)), chunk(4, struct.pack("<Q", 2))),
    )
    told = canopy("import", tmp_path / "s", "--mosquitto", file(tmp_path, *chunks))
    left = {line.partition("not taken over: ")[2] for line in told.splitlines() if "not taken over" in line}
    assert left == {
        "1 × sessions that end with their connection",
        "1 × sessions that have expired",
        "1 × sessions whose client identifiers begin with $upstream/",
        "1 × messages that have expired",
        "1 × messages without content",
        "1 × messages of sessions that are left out",
        "1 × messages of sessions that are not saved",
        "1 × messages in state 8, which is none",
        "1 × subscriptions of sessions that are left out",
        "1 × retained messages that have expired",
        "1 × chunks of kind 99, which is unknown",
        "1 × delivery: topic cannot be: topic name holds a wildcard",
        "1 × delivery: packet_id 7 of its client is in flight already",
        "1 × subscription: filter cannot be: topic filter holds # beside other characters of a level",
    }
    assert told.endswith(": 1 session with 0 subscriptions and 2 messages, 1 retained message\n")
    assert canopy("verify", tmp_path / "s").endswith(": whole\n")
    lines = [json.loads(line) for line in canopy("export", tmp_path / "s").splitlines()]
    assert lines[1]["disconnected_at"] == now - 30


def test_what_a_client_wrote_into_a_retained_message_says_nothing_to_nodes(tmp_path: Path) -> None:
    """It comes back as the client wrote it, with no time of a node."""
    forged = marked(b"", 0, 99)
    props = bytes([len(forged)]) + forged
    path = file(tmp_path, message(1, b"t", props=props), chunk(4, struct.pack("<Q", 1)))
    canopy("import", tmp_path / "s", "--mosquitto", path)
    [stored] = [json.loads(line) for line in canopy("export", tmp_path / "s").splitlines()[1:]]
    properties = base64.b64decode(stored["properties"])
    network = Network()
    store = network.router.retained_store
    row = Message(b"t", b"x", 1, True, properties, 0.0, "p")
    store.restored(row, network.router.accounts.internal)
    kept = store.tree.get("t")
    assert isinstance(kept, TimedMessage)
    assert (kept.properties, kept.at) == (forged, 0)


def test_very_many_unreleased_publishes_meet_very_many_subscriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks for its own alone: whoever subscribes elsewhere costs it nothing."""
    made: list[Trie] = []

    def create(layout: str) -> Trie:
        made.append(trie.create(layout))
        return made[-1]

    monkeypatch.setattr(mosquitto_file, "create", create)
    count = 300
    chunks = (
        *(message(number, b"a/%d/x" % number) for number in range(1, count + 1)),
        *(client(b"c%d" % number, 60, 0) for number in range(1, count + 1)),
        *(subscription(b"c%d" % number, b"a/%d/#" % number) for number in range(1, count + 1)),
        *(subscription(b"c1", name) for name in (b"a/2/+", b"a/2/#", b"a#", b"$share/g/a/3/x")),
        *(queued(number, b"c1", direction=0, packet_id=number) for number in range(1, count + 1)),
    )
    told = canopy("import", tmp_path / "s", "--mosquitto", file(tmp_path, *chunks))
    # The first has the second's too, once.
    assert told.endswith(
        f": {count} sessions with {count + 3} subscriptions and {count + 1} messages, 0 retained messages\n"
    )
    [found] = made
    assert found.probes < 20 * count


def test_a_message_whose_deliveries_all_have_no_place(tmp_path: Path) -> None:
    """The rest of the file comes in."""
    chunks = (
        *(message(1, b"t"), message(2, b"u"), client(b"c", 60, 0)),
        *(queued(1, b"c", state=3), queued(1, b"c", state=3), queued(2, b"c")),
    )
    told = canopy("import", tmp_path / "s", "--mosquitto", file(tmp_path, *chunks))
    assert "2 × delivery: packet_id is missing" in told
    assert told.endswith(": 1 session with 0 subscriptions and 1 message, 0 retained messages\n")
    assert canopy("verify", tmp_path / "s").endswith(": whole\n")


@for_each(
    ("content", "fault"),
    [
        (b"SQLite format 3\x00", "it is not a file of mosquitto"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 4), "it is of version 4, and not 5 or 6"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6) + b"\x00\x00", "it is cut short"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">III", 0, 6, 2) + b"\xff" * 4, "it is cut short"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6) + chunk(6, b"x"), "a client is cut short"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6) + chunk(2, b"x"), "a chunk is cut short"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6) + message(1, b"\xff"), "a text in it is no UTF-8"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6) + message(1, b"t", props=b"\x02"), "another length"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6) + message(1, b"t", props=b"\xff" * 9), "no length"),
        (b"\x00\xb5\x00mosquitto db" + struct.pack(">II", 0, 6) + message(1, b"t", props=b"\x02\x01\x07"), "cannot be"),
    ],
)
def test_a_file_that_cannot_be_read_brings_nothing(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "mosquitto.db").write_bytes(content)
    told = canopy("import", tmp_path / "s", "--mosquitto", tmp_path / "mosquitto.db", code=1)
    assert fault in told
    assert not (tmp_path / "s").exists()


@for_each("arguments", [(), ("x", "--mosquitto", "y")])
def test_one_source_is_named(tmp_path: Path, arguments: tuple[Any, ...]) -> None:
    assert "name one file" in canopy("import", tmp_path / "s", *arguments, code=2)


def test_every_prefix_of_a_file_is_told(tmp_path: Path) -> None:
    """However short it was cut: a line, and never a trace."""
    path = file(tmp_path, message(1, b"t", props=b"\x02\x01\x01"), client(b"c", 60, 0), queued(1, b"c"))
    whole = path.read_bytes()
    faults = 0
    for length in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        with (tmp_path / "cut").open("rb") as source:
            try:
                read(source, length, 0.0)
            except Damaged:
                faults += 1
    # But at the ends of the four chunks and of the head.
    assert faults == len(whole) - 4

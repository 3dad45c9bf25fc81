"""A WebSocket over a socket that the test holds: upgrade, batches, turns, and its ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import pytest

from canopy_mqtt import Broker
from canopy_mqtt.core import causes
from canopy_mqtt.core.jobs import LIGHT_WORK, ROUND_WORK, TURN_WORK, WEBSOCKET_SHIFT
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.stream import LINGER
from canopy_mqtt.net.websocket.frames import FrameReader
from canopy_mqtt.net.websocket.transport import FRAMES_A_TURN, ROOM, WebSocketTransport
from canopy_mqtt.net.websocket.upgrade import Upgrade
from tests.e2e import wire
from tests.net.transports import Embed, Transport, rounds
from tests.net.websocket.framing import BINARY, CLOSE, PING, PONG, TEXT, Frame, close, frame, frames, request
from tests.support.waiting import until

MASK = bytes(4)
WEB: Final = {"url": "ws://127.0.0.1:0", "name": "web"}


@pytest.fixture
async def broker(embed: Embed) -> Broker:
    return await embed(listener=[WEB])


class WebClient:
    """A WebSocket of the broker's, with the socket under it."""

    def __init__(self, broker: Broker, name: str = "", *, asks: bytes | None = None, version: int = 5) -> None:
        self.socket = Transport()
        self.socket.half = True
        self.web = cast(WebSocketTransport, broker.listeners.all[-1].protocol())
        assert isinstance(self.web._connection, Connection)
        self.connection = self.web._connection
        self.web.connection_made(cast(asyncio.Transport, self.socket))
        self.says(request() if asks is None else asks)
        if name:
            assert self.take_http().startswith(b"HTTP/1.1 101 ")
            self.says(frame(wire.connect(name, keep_alive=0, version=version), mask=MASK))

    def says(self, data: bytes) -> None:
        if self.socket.reading:
            self.web.data_received(data)

    def take_http(self) -> bytes:
        data = b"".join(self.socket.written)
        self.socket.written.clear()
        return data

    def take(self) -> list[Frame]:
        """The frames that were written since the last call, which are whole."""
        found, rest = frames(self.take_http())
        assert rest == b""
        return found

    def reads(self) -> bool:
        """True if the broker reads from the socket."""
        return self.socket.reading

    def closed(self) -> bool:
        """True if the broker has closed or cut the socket."""
        return self.socket.aborted

    def lost(self) -> None:
        self.web.connection_lost(None)


async def accepted(broker: Broker, name: str, *filters: str, version: int = 5) -> WebClient:
    client = WebClient(broker, name, version=version)
    if filters:
        pairs = [(one, 0) for one in filters]
        client.says(frame(wire.subscribe(1, pairs, version=version)))
    await rounds()
    found = client.take()
    assert {one.opcode for one in found} == {BINARY}
    assert found[0].payload[:1] == b"\x20"
    return client


# ------------------------------------------------------------------------------------------------------- what is sent


async def test_a_batch_of_the_writer_is_one_frame(broker: Broker) -> None:
    """However many packets it joins, and those of many frames of the publisher: MQTT is a stream [MQTT-6.0.0-2]."""
    there, source = await accepted(broker, "there", "t"), await accepted(broker, "source")
    packets = [wire.publish("t", b"%d" % number) for number in range(50)]
    source.says(b"".join(frame(packet) for packet in packets))
    await rounds()
    assert there.take() == [Frame(BINARY, b"".join(packets))]


# ---------------------------------------------------------------------------------------------------------- the upgrade


async def test_a_refused_upgrade_is_answered_and_ends_the_connection(broker: Broker) -> None:
    client = WebClient(broker, asks=request(protocols="chat"))
    await rounds()
    assert client.take_http().startswith(b"HTTP/1.1 400 ")
    assert client.connection.protocol.close_cause == causes.PROTOCOL_ERROR
    assert client.connection.protocol.close_text == "the sub-protocol mqtt was not offered (HTTP 400)"
    # It lingers until the peer has closed too, and no longer.
    client.says(b"more")
    assert not client.closed()
    client.connection.check(client.connection.loop.time() + LINGER)
    assert client.closed()
    assert client.take_http() == b""


async def test_an_upgrade_that_does_not_come_is_a_connect_that_does_not_come(embed: Embed) -> None:
    """The time counts from accepting the connection, whatever trickles in."""
    broker = await embed(listener=[WEB], limits={"connect_timeout": 0.05})
    client = WebClient(broker, asks=request()[:-2])
    await until(lambda: len(client.socket.written) > 0)
    client.says(b"\r\n")
    assert client.take_http().startswith(b"HTTP/1.1 408 ")
    assert client.connection.protocol.close_cause == causes.CONNECT_TIMEOUT


async def test_requests_that_are_not_finished_count_with_all_that_is_not(embed: Embed) -> None:
    """Of many that trickle, who has been at it for longest goes first."""
    broker = await embed(listener=[WEB], limits={"max_partial_bytes": 40_000})
    half = request(Cookie="x" * 15_000)[:-1]
    clients = [WebClient(broker, asks=half) for _ in range(3)]
    assert broker.connection_table.partial.bytes == 2 * len(half)
    assert [client.connection.protocol.close_cause for client in clients] == [causes.PARTIAL_PACKETS, "", ""]
    clients[1].says(b"\n" + frame(wire.connect("c")))
    assert clients[1].connection.protocol.accepted
    assert broker.connection_table.partial.bytes == len(half)


# ------------------------------------------------------------------------------------------------------------- its ends


async def test_a_client_that_leaves_gets_a_close_frame(broker: Broker) -> None:
    client = await accepted(broker, "there")
    client.says(frame(wire.disconnect()))
    await rounds()
    assert [(one.opcode, one.code) for one in client.take()] == [(CLOSE, 1000)]
    assert client.connection.protocol.close_cause == causes.CLIENT_DISCONNECT
    assert not client.closed()
    client.says(close(1000))
    await rounds()
    assert client.closed()


async def test_a_close_frame_is_answered_and_ends_the_connection_with_its_will(broker: Broker) -> None:
    """In MQTT it is a lost connection; what came before it counts."""
    there, leaving = await accepted(broker, "there", "#"), WebClient(broker)
    will = wire.Will("will", b"gone")
    leaving.says(frame(wire.connect("leaving", will=will)))
    await rounds()
    leaving.take_http()
    leaving.says(frame(wire.publish("t", b"last")) + close(1001, "tab closed") + frame(wire.publish("t", b"late")))
    await rounds()
    assert leaving.take() == [Frame(CLOSE, (1001).to_bytes(2, "big"))]
    assert leaving.closed()
    assert leaving.connection.protocol.close_cause == causes.CONNECTION_LOST
    assert b"".join(one.payload for one in there.take()) == wire.publish("t", b"last") + wire.publish("will", b"gone")


async def test_a_close_frame_waits_for_what_came_before_it(broker: Broker) -> None:
    """Also where that takes several turns: a PUBLISH behind a long SUBSCRIBE is routed."""
    there, leaving = await accepted(broker, "there", "t"), await accepted(broker, "leaving")
    filters = [(f"f/{number}", 0) for number in range(TURN_WORK // 4)]
    last = wire.publish("t", b"last")
    leaving.says(frame(wire.subscribe(1, filters), mask=MASK) + frame(last, mask=MASK) + close(1000))
    assert not leaving.reads()
    await until(lambda: leaving.connection.protocol.close_cause != "")
    await rounds()
    assert there.take() == [Frame(BINARY, last)]


async def test_a_text_frame_ends_it(broker: Broker) -> None:
    """[MQTT-6.0.0-1]: a 5.0 client is told in both languages."""
    client = await accepted(broker, "there")
    client.says(frame(wire.PING) + frame(b"hello", TEXT))
    await rounds()
    found = client.take()
    assert [one.opcode for one in found] == [BINARY, BINARY, CLOSE]
    assert [one.payload[0] >> 4 for one in found[:2]] == [wire.PINGRESP, wire.DISCONNECT]
    assert found[2].code == 1003
    assert client.connection.protocol.close_cause == causes.PROTOCOL_ERROR
    assert client.connection.protocol.close_text == "WebSocket: a text frame; MQTT travels in binary frames"


async def test_a_giant_frame_is_refused_before_it_is_there(broker: Broker) -> None:
    """From a stranger. Nothing of the frames of a client that was accepted is kept, so they may be large."""
    most = 100_000 + ROOM
    stranger = WebClient(broker)
    stranger.take_http()
    stranger.says(frame(bytes(most + 1))[:14])
    await rounds()
    assert [(one.opcode, one.code) for one in stranger.take()] == [(CLOSE, 1009)]
    client = await accepted(broker, "there")
    client.says(frame(wire.PING * most)[:100_000])
    await rounds()
    assert client.connection.protocol.close_cause == ""


@pytest.mark.parametrize("ending", [b"", frame(wire.disconnect()), frame(b"", TEXT), close()])
async def test_what_is_left_of_a_connection_goes_at_once(
    made: Callable[..., list[object]], broker: Broker, ending: bytes
) -> None:
    """No cycle keeps it until the garbage collector comes, which the daemon has come seldom."""
    client = await accepted(broker, "there", "t")
    client.says(ending)
    await rounds()
    client.lost()
    del client
    await rounds()
    assert not made(Connection, WebSocketTransport, FrameReader, Upgrade)


# ------------------------------------------------------------------------------------------------------- pings, turns


async def test_who_does_not_read_gets_no_pong(broker: Broker) -> None:
    """Until there is room again: then one."""
    client = await accepted(broker, "there")
    client.web.pause_writing()
    for number in range(1000):
        client.says(frame(b"%d" % number, PING))
    assert client.take() == []
    client.web.resume_writing()
    assert client.take() == [Frame(PONG, b"999")]


async def test_a_ping_is_no_sign_of_life_in_mqtt(broker: Broker) -> None:
    """Keep alive counts Control Packets [MQTT-3.1.2-22], and WebSocket's frames are none."""
    client = WebClient(broker)
    client.says(frame(wire.connect("there", keep_alive=10)))
    client.says(frame(b"", PING))
    client.connection.check(client.connection.protocol.last_received + 15.0)
    await rounds()
    assert client.connection.protocol.close_cause == causes.KEEP_ALIVE


async def test_a_read_of_many_small_frames_is_worked_off_in_turns(broker: Broker) -> None:
    """Others come in between, the socket is not read from meanwhile, and nothing is lost."""
    there, source = await accepted(broker, "there", "t"), await accepted(broker, "source")
    source.says(frame(b"", mask=MASK) * (3 * FRAMES_A_TURN) + frame(wire.publish("t", b"end")))
    turns = 0
    while not source.reads():
        turns += 1
        assert turns < 10
        await asyncio.sleep(0)
    assert turns >= 3
    assert there.take() == [Frame(BINARY, wire.publish("t", b"end"))]
    assert source.connection.in_transport == 0


@pytest.mark.crowd
async def test_floods_of_many_share_a_round_of_the_event_loop(broker: Broker) -> None:
    """Each has its little; what they have beyond that is no more than one of them alone may have."""
    clients = [await accepted(broker, f"c{number}") for number in range(40)]
    await rounds()
    flood = frame(b"", mask=MASK) * (4 * FRAMES_A_TURN)
    for client in clients:
        client.says(flood)
    left = sum(client.connection.in_transport for client in clients)
    acted_on = (len(clients) * len(flood) - left) // len(frame(b"", mask=MASK))
    assert acted_on <= (ROUND_WORK >> WEBSOCKET_SHIFT) + FRAMES_A_TURN + len(clients) * (LIGHT_WORK >> WEBSOCKET_SHIFT)
    for client in clients:
        await until(client.reads)
    assert [client.connection.in_transport for client in clients] == [0] * len(clients)


async def test_who_is_not_read_from_keeps_no_more_than_a_read(broker: Broker) -> None:
    """The bytes that wait behind the first turn of a read count as unfinished packets of clients."""
    client = await accepted(broker, "there")
    filters = [(f"f/{number}", 0) for number in range(TURN_WORK // 4)]
    subscribe = wire.subscribe(1, filters)
    behind = frame(wire.PING, mask=MASK) * (2 * FRAMES_A_TURN)
    client.says(frame(subscribe, mask=MASK) + behind)
    assert not client.reads()
    assert len(behind) // 2 < broker.connection_table.partial.bytes <= len(subscribe) + len(behind)
    await until(client.reads)
    await rounds()
    assert broker.connection_table.partial.bytes == 0
    answers = b"".join(one.payload for one in client.take())
    assert answers.count(b"\xd0\x00") == 2 * FRAMES_A_TURN

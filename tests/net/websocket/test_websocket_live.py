"""WebSockets over real sockets, plain and over TLS, on both event loops: messages, slow peers, the end, and attacks."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from broker.net.connections.connection import Connection
from broker.net.websocket.transport import FRAMES_A_TURN
from canopy import Broker, Settings
from tests.e2e import wire
from tests.net.websocket.framing import BINARY, PING, PONG, Frame, frame, request
from tests.net.websocket.peer import WebPeer
from tests.support.certificates import Authority
from tests.support.waiting import until

HOST: Final = "127.0.0.1"

Start = Callable[..., Awaitable[Broker]]
Join = Callable[..., Awaitable[WebPeer]]
Lines = list[dict[str, Any]]

SECURE = pytest.mark.parametrize("scheme", ["ws", "wss"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def start(authority: Authority, lines: Lines) -> AsyncIterator[Start]:
    """Start a broker with a WebSocket listener; sections of settings as keywords."""
    del lines
    certificate, key = authority.issue("localhost")
    async with AsyncExitStack() as stack:

        async def begin(scheme: str = "ws", **sections: Any) -> Broker:
            web: dict[str, Any] = {"url": f"{scheme}://{HOST}:0", "name": "web"}
            if scheme == "wss":
                web["tls"] = {"certificate": certificate, "key": key}
            wanted = {"shutdown": {"flush_timeout": 0.0}, **sections, "listener": [web]}
            return await stack.enter_async_context(Broker(Settings.model_validate(wanted)))

        yield begin


@pytest.fixture
async def join(authority: Authority) -> AsyncIterator[Join]:
    """Connect clients; they are gone after the test."""
    peers: list[WebPeer] = []

    async def connect(broker: Broker, client_id: str, **options: Any) -> WebPeer:
        secure = broker.listening[0].startswith("wss:")
        context = authority.client() if secure else None
        peer = await WebPeer.over(HOST, broker.ports[0], options.get("version", 5), context=context)
        peers.append(peer)
        await peer.send(wire.connect(client_id, **{"keep_alive": 0, **options}))
        peer.connack = await peer.expect(wire.CONNACK)
        assert peer.connack.code == 0
        return peer

    yield connect
    for peer in peers:
        peer.abort()


async def test_the_short_form(join: Join, lines: Lines) -> None:
    """`listen` takes ws:// beside mqtt://: no table is needed for either."""
    del lines
    settings = Settings.model_validate(
        {"listen": [f"ws://{HOST}:0", f"mqtt://{HOST}:0"], "shutdown": {"flush_timeout": 0.0}}
    )
    async with Broker(settings) as broker:
        assert [url.split(":")[0] for url in broker.listening] == ["ws", "mqtt"]
        peer = await join(broker, "web")
        await peer.fence()
        peer.abort()


def connection_of(broker: Broker, client_id: str) -> Connection:
    (found,) = (each for each in broker.connections if each.protocol.client_id == client_id)
    assert isinstance(found, Connection)
    return found


@SECURE
async def test_messages_of_every_size_go_through(start: Start, join: Join, scheme: str) -> None:
    broker = await start(scheme)
    peer = await join(broker, "c")
    await peer.subscribe("t")
    for size in (0, 1, 100, 126, 65_530, 65_536, 1_000_000):
        await peer.publish("t", bytes(size))
        assert len((await peer.expect(wire.PUBLISH)).payload) == size
    # Many at once, a frame for each, in both directions.
    peer.frames.write_raw(b"".join(frame(wire.publish("t", b"%d" % number)) for number in range(5_000)))
    for number in range(5_000):
        assert (await peer.expect(wire.PUBLISH)).payload == b"%d" % number


@SECURE
async def test_a_peer_that_reads_nothing_is_evicted(start: Start, join: Join, lines: Lines, scheme: str) -> None:
    broker = await start(scheme, queue={"stall_timeout": 0.4, "live_bytes": 2_000_000})
    for sock in broker.listeners.open[0].sockets:
        with socket.socket(fileno=os.dup(sock.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    slow = await join(broker, "slow")
    await slow.subscribe("t")
    slow.frames.transport.pause_reading()  # type: ignore[attr-defined]
    publisher = await join(broker, "publisher")

    def causes() -> list[str]:
        return [line["cause"] for line in lines if line.get("client_id") == "slow" and "cause" in line]

    while not causes():
        await publisher.publish("t", bytes(100_000))
        await asyncio.sleep(0)
    assert causes() == ["stalled"]


@SECURE
async def test_a_peer_that_is_gone_is_found_out_while_it_is_not_read_from(
    start: Start, join: Join, scheme: str
) -> None:
    """A client that publishes too fast and leaves: nobody reads its end."""
    broker = await start(scheme, limits={"max_publish_rate": 1.0, "publish_patience": 0.0})
    fast = await join(broker, "fast", keep_alive=10)
    await fast.send(*[wire.publish("t", b"x") for _ in range(100)])
    connection = connection_of(broker, "fast")
    await until(lambda: connection.protocol.held_until > 0.0)
    assert not connection.stream.peer_is_gone
    fast.abort()
    await until(lambda: connection.stream.peer_is_gone)


@SECURE
async def test_a_broker_that_stops_says_so(start: Start, join: Join, scheme: str) -> None:
    broker = await start(scheme)
    peer = await join(broker, "c")
    stopping = asyncio.create_task(broker.stop())
    assert (await peer.expect(wire.DISCONNECT)).code == 0x8B
    assert await peer.closed() == []
    assert peer.close_code == 1001
    await stopping


@SECURE
async def test_the_last_packet_comes_before_the_end(start: Start, join: Join, scheme: str) -> None:
    """What the client has sent meanwhile does not have the system reset the connection."""
    broker = await start(scheme, limits={"max_packet_size": 1000})
    peer = await join(broker, "c")
    await peer.send(wire.publish("t", bytes(2000)), *[wire.publish("t", bytes(900)) for _ in range(100)])
    assert (await peer.expect(wire.DISCONNECT)).code == 0x95
    assert await peer.closed() == []
    assert peer.close_code == 1002


async def test_a_text_frame_is_told_its_close_code(start: Start, join: Join) -> None:
    """[MQTT-6.0.0-1]."""
    broker = await start()
    peer = await join(broker, "c", version=4)
    peer.frames.write_raw(frame(b"hello", 1) + frame(bytes(300_000)))
    assert await peer.closed() == []
    assert peer.close_code == 1003


@SECURE
async def test_a_flood_of_pings_and_empty_frames_holds_up_nobody(start: Start, join: Join, scheme: str) -> None:
    """Others have their turn in between: a flood of many reads is not through before another client's answer."""
    broker = await start(scheme)
    flooder, other = await join(broker, "flooder"), await join(broker, "other")
    flood = (frame(b"?", PING, mask=bytes(4)) + frame(b"", mask=bytes(4))) * (20 * FRAMES_A_TURN)
    flooder.frames.write_raw(flood)
    assert await other.fence() == []
    assert await flooder.fence() == []
    pongs = flooder.frames.others
    assert set(pongs) == {Frame(PONG, b"?")}
    assert len(pongs) < 10 * FRAMES_A_TURN  # one at most for each turn, and not for each PING
    assert connection_of(broker, "flooder").in_transport == 0


async def test_garbage_disturbs_nobody_and_leaves_nothing(start: Start, join: Join, lines: Lines) -> None:
    """Before the upgrade and behind it; each connection ends by itself."""
    broker = await start()
    peer = await join(broker, "c")
    noise = random.Random(7)
    begins = [b"", request(), request() + frame(wire.connect("x", keep_alive=0))]
    for number in range(60):
        reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
        writer.write(begins[number % 3] + noise.randbytes(noise.randrange(1, 3000)))
        writer.write_eof()
        async with asyncio.timeout(wire.TIMEOUT):
            with suppress(ConnectionError):
                await reader.read()
        writer.transport.abort()
    await until(lambda: len(broker.connections) == 1)
    assert broker.hub.partial.bytes == 0
    assert await peer.fence() == []
    assert {line["log_level"] for line in lines} <= {"info", "warning", "debug"}


async def test_a_person_with_a_browser_reads_what_it_is(start: Start, lines: Lines) -> None:
    broker = await start()
    reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
    writer.write(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n")
    writer.write_eof()
    async with asyncio.timeout(wire.TIMEOUT):
        answer = await reader.read()
    writer.transport.abort()
    assert answer.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert answer.endswith(b"sub-protocol mqtt.\n")
    (line,) = (line for line in lines if line["event"] == "client broke the protocol")
    assert line["detail"] == "an HTTP request that does not ask for a WebSocket (HTTP 426)"
    assert line["listener"] == "web"


@SECURE
async def test_packets_of_many_in_a_frame(start: Start, join: Join, scheme: str) -> None:
    """[MQTT-6.0.0-2]: a frame larger than any packet may be, as clients send that have saved up for it."""
    broker = await start(scheme, limits={"max_packet_size": 100_000})
    peer = await join(broker, "c")
    await peer.subscribe(("t", 1))
    packets = [wire.publish("t", bytes(90_000), qos=1, packet_id=number) for number in range(1, 21)]
    peer.frames.write_raw(frame(b"".join(packets), BINARY))
    for _ in range(20):
        assert len((await peer.wait_for(wire.PUBLISH)).payload) == 90_000

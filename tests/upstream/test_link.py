"""Links on an event loop: against a broker of our own, and against an upstream that is played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from broker import Broker, Settings
from broker.core import encoder
from broker.core.decoder import Decoder
from broker.core.packets import V5, Connack, Connect, Packet
from broker.settings import Federation, Shutdown, Sys, Upstream
from broker.upstream.link import UpstreamLink
from tests.e2e.wire import Peer, connect

Kind = TypeVar("Kind", bound=Packet)

PATIENCE = 10.0
"""Seconds that anything may take here."""


def settings(port: int, flush: float = 0.0, **upstream: Any) -> Settings:
    """A broker with one link `up` to that port of this machine."""
    terms: dict[str, Any] = {"retry_min": 0.01, "retry_max": 0.02, **upstream}
    return Settings(
        listen=("mqtt://127.0.0.1:0",),
        sys=Sys(interval=0.0),
        shutdown=Shutdown(flush_timeout=flush),
        federation=Federation(broker_id="here"),
        upstream=(Upstream(name="up", url=f"mqtt://127.0.0.1:{port}", **terms),),
    )


def alone(broker_id: str = "there") -> Settings:
    return Settings(
        listen=("mqtt://127.0.0.1:0",),
        sys=Sys(interval=0.0),
        shutdown=Shutdown(flush_timeout=0.0),
        federation=Federation(broker_id=broker_id),
    )


def link_of(broker: Broker) -> UpstreamLink:
    assert broker.links is not None
    return broker.links.links["up"]


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@asynccontextmanager
async def client(broker: Broker, name: str) -> AsyncIterator[Peer]:
    peer = await Peer.open("127.0.0.1", broker.ports[0])
    await peer.send(connect(name))
    await peer.expect(2)
    try:
        yield peer
    finally:
        peer.abort()


class Call:
    """One connection to the upstream that is played by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.version = V5
        self._decoder = Decoder(1 << 28, server=True)

    async def next(self) -> Packet | None:
        """The next packet; None at the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            while not self._decoder.next_frame():
                data = await self.reader.read(65_536)
                if not data:
                    return None
                self._decoder.feed(data)
            packet = self._decoder.packet()
        if isinstance(packet, Connect):
            self.version = packet.version
        return packet

    async def get(self, kind: type[Kind]) -> Kind:
        """The next packet of a kind; the others before it are passed over."""
        while True:
            packet = await self.next()
            assert packet is not None
            if isinstance(packet, kind):
                return packet

    def say(self, *packets: Packet) -> None:
        self.writer.write(b"".join(encoder.encode(each, self.version) for each in packets))

    async def accept(self, present: bool = False) -> Connect:
        connect = await self.get(Connect)
        self.say(Connack(present))
        return connect

    def close(self) -> None:
        self.writer.close()


class Played:
    """The upstream: its connections come in `calls`."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.all: list[Call] = []
        self.port = 0

    def came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = Call(reader, writer)
        self.all.append(call)
        self.calls.put_nowait(call)

    async def call(self) -> Call:
        async with asyncio.timeout(PATIENCE):
            return await self.calls.get()


@asynccontextmanager
async def played() -> AsyncIterator[Played]:
    made = Played()
    server = await asyncio.start_server(made.came, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for call in made.all:
            call.close()
        await asyncio.gather(*(call.writer.wait_closed() for call in made.all), return_exceptions=True)


async def test_what_is_withdrawn_late_is_forgotten_too() -> None:
    async with Broker(alone()) as cloud, Broker(settings(cloud.ports[0])) as edge:
        link = link_of(edge)
        async with client(cloud, "above") as above, client(edge, "below") as below:
            await above.publish("state/a", b"1", retain=True)
            await until(lambda: link.connected)
            await below.subscribe("state/#")
            await below.message()
            # All that was to come has come, and nothing is due any more.
            link.replays.turn(link.declarer.table, edge.loop.time() + 3_600.0)
            assert not link.replays.waits
            if link._ticking is not None:
                link._ticking.cancel()
                link._ticking = None
            await below.unsubscribe("state/#")
            await until(lambda: edge.router.retained.get("state/a") is None)

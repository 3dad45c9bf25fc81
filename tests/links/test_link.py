"""Links on an event loop: against a broker of our own, and against an upstream that is played by hand."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import PUBACK, V5, Ack, Connack, Connect, Packet, Publish, Suback, Subscribe
from canopy_mqtt.core.codec.properties import MAXIMUM_PACKET_SIZE, Properties
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.links.link import UpstreamLink
from canopy_mqtt.links.status import status
from canopy_mqtt.net.stream import FULL_READ
from canopy_mqtt.settings import Federation, Shutdown, Sys, Upstream
from tests.e2e.wire import Peer, connect
from tests.support.runs import for_each
from tests.support.waiting import until

Kind = TypeVar("Kind", bound=Packet)

PATIENCE = 10.0
"""Seconds that anything may take here."""


def settings(port: int, at: str = "mqtt://127.0.0.1", **upstream: Any) -> Settings:
    """A broker with one link `up` to that port of this machine, or of another place."""
    terms: dict[str, Any] = {"retry_min": 0.01, "retry_max": 0.02, **upstream}
    return alone("here").model_copy(update={"upstream": (Upstream(name="up", url=f"{at}:{port}", **terms),)})


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
async def played(room: int = 0, context: ssl.SSLContext | None = None) -> AsyncIterator[Played]:
    """`room`: bytes that the system takes for it while it does not read; 0: as it likes. `context`: it speaks TLS."""
    made = Played()
    listener = socket.create_server(("127.0.0.1", 0))
    if room > 0:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    server = await asyncio.start_server(made.came, sock=listener, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for call in made.all:
            call.close()
        await asyncio.gather(*(call.writer.wait_closed() for call in made.all), return_exceptions=True)


@asynccontextmanager
async def linked(upstream: Played, **terms: Any) -> AsyncIterator[tuple[Broker, Call]]:
    """A broker whose link the upstream has accepted, and the connection there."""
    async with Broker(settings(upstream.port, **terms)) as edge:
        call = await upstream.call()
        await call.accept()
        await until(lambda: link_of(edge).connected)
        yield edge, call


async def test_another_upstream_is_asked_for_everything() -> None:
    """Also where it has a session of ours from earlier times, of which nothing is known."""
    async with played() as first, played() as second:
        given = settings(first.port, clean_start=False, subscribe=["a/#", "b"])
        async with Broker(given) as edge:
            call = await first.call()
            await call.accept(True)
            asked = await call.get(Subscribe)
            call.say(Suback(asked.packet_id, [1] * len(asked.requests)))
            link = link_of(edge)
            await until(lambda: link.connected and link.declarer.settled)
            edge_settings = settings(second.port, clean_start=False, subscribe=["a/#", "b"])
            await edge.reload(edge_settings)
            call = await second.call()
            await call.accept(True)
            found: set[str] = set()
            while len(found) < 2:
                found.update(each.topic_filter for each in (await call.get(Subscribe)).requests)
            assert found == {"a/#", "b"}


async def test_another_qos_is_asked_for() -> None:
    async with played() as upstream:
        given: dict[str, Any] = {"clean_start": False, "subscribe": ["a"], "version": "3.1.1"}
        async with Broker(settings(upstream.port, **given)) as edge:
            call = await upstream.call()
            await call.accept()
            asked = await call.get(Subscribe)
            call.say(Suback(asked.packet_id, [1]))
            link = link_of(edge)
            await until(lambda: link.connected and link.declarer.settled)
            await edge.reload(settings(upstream.port, **given, subscribe_qos=2))
            call = await upstream.call()
            await call.accept(True)
            assert [(each.topic_filter, each.qos) for each in (await call.get(Subscribe)).requests] == [("a", 2)]


async def test_the_password_is_not_told(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_bytes(b"hunter2\xff")
    async with Broker(settings(1, username="me", password_file=str(secret))) as edge:
        link = link_of(edge)
        await until(lambda: link.trouble != "")
        assert "UTF-8" in link.trouble
        assert "hunter2" not in str(status(link))


async def test_a_connection_that_is_over_leaves_nothing() -> None:
    async with played() as upstream, linked(upstream) as (edge, call):
        link = link_of(edge)
        connection = link.connection
        assert connection is not None
        call.close()
        await until(lambda: connection.over)
        assert connection.uplink.send_buffer.owner is None
        assert link.session not in edge.router.peers.send_buffers


@for_each("stage", ["network", "connack", "waiting", "connected"])
async def test_it_stops_at_any_stage(stage: str) -> None:
    async with played() as upstream:
        edge = Broker(settings(upstream.port, version="5.0", retry_min=50.0, retry_max=50.0))
        await edge.start()
        link = link_of(edge)
        if stage != "network":
            call = await upstream.call()
            if stage == "connected":
                await call.accept()
                await until(lambda: link.connected)
            elif stage == "waiting":
                call.close()
                await until(lambda: link.state == "waiting")
        async with asyncio.timeout(PATIENCE / 2):
            await edge.stop()
        assert link.state == "stopped"
        assert link.connection is None
        mine = [task for task in asyncio.all_tasks() if task.get_name().startswith("upstream")]
        assert mine == []


async def test_it_stops_and_starts_again() -> None:
    """Queued messages go on waiting, and the session is the same one."""
    async with played() as upstream:
        async with linked(upstream, publish=["up/#"]) as (edge, call):
            session = link_of(edge).session
            async with client(edge, "c") as peer:
                await peer.publish("up/1", b"1", qos=1)
            assert (await call.get(Publish)).payload == b"1"
        assert session.send_buffer is None
        async with edge:
            call = await upstream.call()
            await call.accept()
            again = await call.get(Publish)
            assert again.payload == b"1"
            call.say(Ack(PUBACK, again.packet_id))
            assert link_of(edge).session is session
            await until(lambda: not session.inflight)
            assert session.offered == session.delivered_in_all() == 1
            assert edge.router.table.count == 1


async def test_a_full_read_is_followed_by_the_others_turns() -> None:
    """As from a client: uvloop would read on, up to 32 times, before it looks at any other connection."""
    async with played() as upstream, linked(upstream, subscribe=["a/#"], keep_alive=0) as (edge, _):
        connection = link_of(edge).connection
        assert connection is not None
        packet = encoder.encode(Publish(b"a/b", bytes(1_000), 0, True), V5)
        connection.data_received(packet * (FULL_READ // len(packet) - 1))
        assert connection.stream.reading is not connection.uplink.unfinished
        await until(lambda: connection.stream.reading)
        connection.data_received(packet * (FULL_READ // len(packet) + 1))
        assert not connection.stream.reading
        await until(lambda: connection.stream.reading)
        assert not connection.uplink.unfinished


async def test_what_the_link_has_not_asked_for_is_dropped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """Counted each time, and in the log once a connection."""
    async with played() as upstream, linked(upstream, subscribe=["a/#"], keep_alive=0) as (edge, call):
        link = link_of(edge)
        for number in range(3):
            call.say(Publish(b"door/open", b"%d" % number, 0, True))
        await until(lambda: link.link_state.figures.outside == 3)
        assert edge.router.retained.get("door/open") is None
        assert dict(status(link))["messages/outside"] == 3
        assert caplog.text.count("no filter of the link matches") == 1


async def test_an_upstream_that_sends_and_does_not_read() -> None:
    """It is not read from either, when many acknowledgements wait; when it reads again, all of them come."""
    count = 40_000
    terms: dict[str, Any] = {"subscribe": ["#"], "publish": ["up/#"], "keep_alive": 0}
    async with played(16_384) as upstream, linked(upstream, **terms) as (edge, call):
        asked = await call.get(Subscribe)
        call.say(Suback(asked.packet_id, [1]))
        link = link_of(edge)
        connection = link.connection
        assert connection is not None
        # Little room on the way.
        ours = connection.stream.transport.get_extra_info("socket")
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        reading = call.writer.transport
        assert isinstance(reading, asyncio.ReadTransport)
        reading.pause_reading()
        session = link.session
        for number in range(10):
            edge.router.publish(Message(b"up/%d" % number, bytes(20_000), 1, False, b"", 0.0, ""), None)
        edge.after_batch()
        sent = b"".join(encoder.encode(Publish(b"a", b"x", 1, packet_id=at % 60_000 + 1), V5) for at in range(count))
        call.writer.write(sent)
        await until(lambda: connection.uplink.send_buffer.congested)
        received = link.link_state.figures.received
        assert received < count
        reading.resume_reading()
        got = 0
        ups = 0
        while got < count or ups < 10:
            packet = await call.next()
            if isinstance(packet, Ack):
                assert packet.packet_id == got % 60_000 + 1
                got += 1
            elif isinstance(packet, Publish):
                ups += 1
                call.say(Ack(PUBACK, packet.packet_id))
        await until(lambda: not session.inflight)
        assert link.link_state.figures.received == count


async def test_a_link_that_is_removed_leaves_nothing() -> None:
    async with Broker(alone()) as cloud, Broker(settings(cloud.ports[0], publish=["up/#"])) as edge:
        link = link_of(edge)
        async with client(cloud, "above") as above, client(edge, "below") as below:
            await above.publish("state/a", b"1", retain=True)
            await below.publish("mine", b"1", retain=True)
            await until(lambda: link.connected)
            await below.subscribe("state/#")
            await below.message()
            assert [each for each in cloud.router.sessions if each.startswith("canopy-")] == ["canopy-here-up"]
            await edge.reload(edge.settings.model_copy(update={"upstream": ()}))
            assert edge.router.retained.get("state/a") is None
            assert edge.router.retained.get("mine") is not None
            assert edge.router.table.listener is None
            assert list(edge.router.sessions) == ["below"]
            assert edge.router.table.count == 1
            # Nor does anything stay upstream.
            await until(lambda: list(cloud.router.sessions) == ["above"])
            assert cloud.router.table.count == 0


async def test_links_are_no_clients() -> None:
    async with played() as upstream, linked(upstream) as (edge, _), client(edge, "c"):
        told = dict(edge._sys.values(edge.loop.time()))
        assert (told["clients/connected"], told["clients/disconnected"], told["clients/total"]) == ("1", "0", "1")


async def test_what_cannot_be_asked_for_is_told_while_the_upstream_is_silent() -> None:
    """And is not kept for the log until it says something."""
    async with played() as upstream, Broker(settings(upstream.port)) as edge:
        call = await upstream.call()
        await call.get(Connect)
        props = Properties()
        props.integers[MAXIMUM_PACKET_SIZE] = 100
        call.say(Connack(False, 0, props))
        link = link_of(edge)
        await until(lambda: link.connected)
        connection = link.connection
        assert connection is not None
        async with client(edge, "c") as peer:
            await peer.subscribe("a" * 200)
            await until(lambda: len(link.declarer.refused) == 1)
            await until(lambda: not connection.uplink.refused)
            assert link.connected


async def test_a_link_that_tries_again_and_again_is_down_since_it_was_connected_last() -> None:
    async with played() as upstream, linked(upstream) as (edge, call):
        link = link_of(edge)
        made = link.down_since
        call.close()
        await until(lambda: not link.connected)
        down = link.down_since
        assert down > made
        # It is refused, and is as long down as before.
        (await upstream.call()).close()
        await upstream.call()
        assert link.down_since == down


def test_a_stop_while_a_name_is_looked_up_on_uvloop() -> None:
    """Nothing is left of the look-up that fails later: asyncio would log an exception that nothing retrieved."""
    told: list[dict[str, Any]] = []

    async def stop_meanwhile() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        # No address, without a question to any server.
        given = settings(1)
        given = given.model_copy(update={"upstream": (given.upstream[0].model_copy(update={"url": "mqtt://-"}),)})
        async with Broker(given) as edge:
            await until(lambda: link_of(edge).state == "connecting")
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("-", 1)
        gc.collect()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(20):
            runner.run(stop_meanwhile())
    assert told == []


def test_what_is_due_at_once_may_be_asked_for_twice_on_uvloop() -> None:
    """Its timers for less than half a millisecond do not know when they are due."""

    async def twice() -> None:
        async with Broker(settings(1)) as broker:
            subscriber = link_of(broker).subscriber
            subscriber.tick_soon(0.0)
            subscriber.tick_soon(0.0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(twice())


async def test_frames_go_up_as_they_came_while_no_other_link_can_bring_any() -> None:
    """To a link of 3.1.1: else each message is looked at, since it carries no path."""
    async with Broker(alone()) as cloud, Broker(settings(cloud.ports[0], version="3.1.1")) as edge:
        link = link_of(edge)
        await until(lambda: link.connected)
        fast = []
        for subscribe in ((), ("down/#",), ()):
            other = Upstream(name="other", url=f"mqtt://127.0.0.1:{cloud.ports[0]}", subscribe=subscribe)
            await edge.reload(edge.settings.model_copy(update={"upstream": (link.settings, other)}))
            fast.append(link.session.fast_path)
        assert fast == [True, False, True]

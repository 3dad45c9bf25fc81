"""The life of one client, its bytes given and taken by hand: no network, and no process but this one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.core.codec import encoder, properties
from broker.core.codec.decoder import Decoder
from broker.core.codec.packets import Connack, Connect, Packet, Pingreq, Publish, Suback, Subscribe
from broker.core.codec.properties import Properties
from loadtest.load.engine.clients.client import Client
from loadtest.load.engine.clients.client_pool import ClientPool
from loadtest.load.engine.clients.connection import Wire, clock
from loadtest.load.engine.job import Job, Target
from loadtest.load.scenario.schema import Group
from tests.loadtest.load.playing import group, reader, scenario, sender

HERE = [Target("127.0.0.1", 1)]


class Link:
    """A transport that ends in the test."""

    def __init__(self, wire: Wire, links: asyncio.Queue[Link]) -> None:
        self.wire = wire
        self._links: asyncio.Queue[Link] | None = links
        self.ended = False
        self._decoder = Decoder(1 << 20, True)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        self._decoder.feed(data)
        if self._links is not None:
            self._links.put_nowait(self)
            self._links = None

    def came(self) -> list[Packet]:
        """What the client has sent since the last call."""
        found: list[Packet] = []
        while self._decoder.next_frame():
            found.append(self._decoder.packet())
        return found

    def give(self, *what: Packet) -> None:
        self.wire.data_received(b"".join(encoder.encode(each, self.wire.version) for each in what))

    def abort(self) -> None:
        """The connection ends, whoever wants it."""
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self.wire.connection_lost, None)

    close = abort


class Hand:
    """A pool whose connections are the test's."""

    def __init__(self, *groups: dict[str, Any], **more: Any) -> None:
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        """Those over which the client has said CONNECT."""
        self.hold: asyncio.Event | None = None
        self.attempts: asyncio.Queue[None] = asyncio.Queue()
        job = Job(scenario(*groups, **more), "", HERE)
        self.plan = job.plan("00000001")
        self.pool = ClientPool(self.plan, job, 0)
        self.pool.open = self._open  # type: ignore[assignment,method-assign]
        self.pool.connect(clock(), list(range(len(groups))))

    async def _open(self, _: Group, __: int, wire: Wire) -> None:
        self.attempts.put_nowait(None)
        if self.hold is not None:
            await self.hold.wait()
        wire.connection_made(Link(wire, self.links))  # type: ignore[arg-type]

    async def link(self, session_present: bool = False, **integers: int) -> Link:
        """The next connection, with its CONNACK given."""
        link = await self.links.get()
        [connect] = link.came()
        assert isinstance(connect, Connect)
        held = Properties()
        held.integers = {getattr(properties, name.upper()): value for name, value in integers.items()}
        link.give(Connack(session_present, 0, held))
        return link

    @property
    def client(self) -> Client:
        return self.pool.clients[0]


@asynccontextmanager
async def hand(*groups: dict[str, Any], **more: Any) -> AsyncIterator[Hand]:
    made = Hand(*groups, **more)
    try:
        yield made
    finally:
        for client in made.pool.clients:
            client.end()
        await asyncio.sleep(0)


LASTING = {"session_expiry": 60, "clean_start": False, "reconnect_delay": 0.001}


def acked(link: Link) -> list[str]:
    """Answer SUBSCRIBE; the filters."""
    wanted: list[str] = []
    for packet in link.came():
        assert isinstance(packet, Subscribe)
        link.give(Suback(packet.packet_id, [0] * len(packet.requests)))
        wanted += [request.topic_filter for request in packet.requests]
    return wanted


async def test_a_session_from_an_earlier_run_is_not_taken_for_this_ones_subscriptions() -> None:
    async with hand(reader(keys=LASTING)) as made:
        link = await made.link(session_present=True)
        assert acked(link) == ["t/#"]
        assert made.client.up


async def test_who_was_cut_off_before_the_suback_subscribes_again() -> None:
    async with hand(reader(keys=LASTING)) as made:
        link = await made.link()
        link.abort()
        link = await made.link(session_present=True)
        assert acked(link) == ["t/#"]
        link.abort()
        link = await made.link(session_present=True)
        assert link.came() == []
        assert made.client.up


async def test_a_session_that_should_be_gone_is_an_error_in_words() -> None:
    async with hand(sender(qos=1, keys={"reconnect_delay": 0.001})) as made:
        link = await made.link()
        made.pool.start(clock())
        made.pool.set_load("go", 1, clock() - 1_000_000)
        made.pool.pacer.run(clock())
        assert all(isinstance(packet, Publish) for packet in link.came())
        count = int(made.client.senders[0].under_way)
        assert count > 0
        link.abort()
        await made.link(session_present=True)
        assert made.client.up
        assert any("session" in text for text in made.pool.errors)
        assert made.pool.sent().uncertain[0][:count] == [(number, number + 1) for number in range(count)]


async def test_a_suback_has_to_answer_every_filter() -> None:
    async with hand(reader(filters="a b")) as made:
        link = await made.link()
        [packet] = [each for each in link.came() if isinstance(each, Subscribe)][:1]
        link.give(Suback(packet.packet_id, [0, 0]))
        await asyncio.sleep(0)
        assert any("SUBACK" in text for text in made.pool.errors), made.pool.errors


async def test_the_brokers_keep_alive_counts() -> None:
    async with hand(group("one", keep_alive=600)) as made:
        link = await made.link(server_keep_alive=2)
        assert made.client._timers.handles["ping"].when() - asyncio.get_running_loop().time() <= 1
        made.client._ping()
        assert [type(packet) for packet in link.came()] == [Pingreq]


async def test_the_will_of_a_connection_that_got_no_answer_may_have_been_published() -> None:
    async with hand(group("one", will={"topic": "w"}, reconnect_delay=0.001)) as made:
        first = await made.links.get()
        [before] = [packet.will for packet in first.came() if isinstance(packet, Connect)]
        first.abort()
        second = await made.links.get()
        [after] = [packet.will for packet in second.came() if isinstance(packet, Connect)]
        assert before is not None
        assert after is not None
        assert before.payload != after.payload, "another number, or the second will would be a copy of the first"
        assert made.pool.sent().streams == {0: 1}
        assert made.pool.sent().uncertain == {0: [(0, 1)]}
        second.give(Connack(False, 0x87))
        await made.links.get()
        assert made.pool.sent().streams == {0: 1}, "who was refused has no will"


async def test_one_who_is_still_connecting_when_it_should_return_returns() -> None:
    async with hand(group("one", cycle={"up": 100, "down": 0, "spread": 0})) as made:
        await made.link()
        made.hold = asyncio.Event()
        await made.attempts.get()
        made.client._leave()
        await made.attempts.get()
        made.client._leave()  # its time is up before it is there
        made.client._return()
        made.hold.set()
        await made.link()
        assert made.client.up


CYCLE = {"cycle": {"up": 100, "down": 0, "spread": 0}}


async def test_what_is_due_once_it_should_be_back_is_due_though_the_broker_keeps_it_waiting() -> None:
    async with hand(sender(rate=1000, keys=CYCLE)) as made:
        link = await made.link()
        made.pool.start(clock())
        made.pool.set_load("go", 1, clock())
        made.hold = asyncio.Event()
        await made.attempts.get()
        made.client._leave()
        [one] = made.client.senders
        assert one.away
        await made.attempts.get()
        returned = clock()
        await asyncio.sleep(0.02)
        made.hold.set()
        link = await made.link()
        made.pool.pacer.run(clock())
        sent = [packet for packet in link.came() if isinstance(packet, Publish)]
        assert sent
        times = [int.from_bytes(packet.payload[2:8], "big") for packet in sent]
        assert min(times) < returned + 10_000


async def test_what_was_overdue_when_it_left_is_unsent() -> None:
    async with hand(sender(rate=1000, messages=20, keys=CYCLE)) as made:
        await made.link()
        made.pool.start(clock())
        made.pool.set_load("go", 1, clock() - 1_000_000)
        made.client._leave()
        assert made.pool.unsent == [20]


async def test_who_comes_up_after_the_stages_stays() -> None:
    keys = {**CYCLE, "reading": {"freeze_after": 100}, "churn": {"filter": "c/%n", "rate": 1}}
    async with hand(reader(keys=keys)) as made:
        made.hold = asyncio.Event()
        await made.attempts.get()
        made.pool.start(clock())
        made.pool.finish_stages(clock())
        made.hold.set()
        link = await made.link()
        assert acked(link) == ["t/#"]
        assert made.client.up
        assert set(made.client._timers.handles) <= {"ping"}


async def test_who_is_not_connected_is_looked_at_when_it_is() -> None:
    async with hand(sender(rate=1000, messages=1_000_000, keys={"reconnect_delay": 0.001})) as made:
        woken: list[int] = []
        made.pool.wake = lambda: woken.append(1)
        made.pool.start(clock())
        made.pool.set_load("go", 1, clock() - 1_000_000)
        assert made.pool.pacer.run(clock()) == float("inf"), "nobody can send: nothing to wake up for"
        link = await made.link()
        assert woken
        assert made.client.senders[0].sent > 0
        assert link.came()
        assert made.pool.pacer.run(clock()) < float("inf")


async def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kind = (socket.SOCK_STREAM, 6, "")
    found = [(socket.AF_INET, *kind, ("127.0.0.9", port)), (socket.AF_INET, *kind, ("127.0.0.1", port))]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        job = Job(scenario(group("one")), "", [Target("twice", port)])
        pool = ClientPool(job.plan("00000001"), job, 0)
    [client] = pool.clients
    async with server:
        client.connect(clock())
        assert client._task is not None
        await client._task
        assert pool.errors == {}
        wire = client.wire
        assert wire is not None
        assert wire.transport is not None
        assert pool.addresses(client.index)[0][1] == ("127.0.0.1", port), "it is the first to be tried from now on"
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        client.leave(cut=True)
        wire.on_closed = gone.set_result
        await gone
        client.end()

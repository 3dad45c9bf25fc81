"""A whole broker under random and mutated packets, over real sockets, with honest clients beside them.

What must hold whatever comes in: honest pairs go on exchanging QoS 0, 1 and 2 in order, with nothing lost or doubled;
no exception reaches the event loop's handler and nothing is logged as an error; every byte that the broker answers is
MQTT that a client can decode; no structure grows beyond its settings; and when the clients are gone, so is everything
that the broker had for them: connections, tasks, sessions, subscriptions, routes to them, deadlines.

The inputs follow from the seed, each client's from its own number; how the clients' packets interleave does not. A
finding therefore tells the seed and what each client sent last.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
import struct
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.routing.share_queues import ShareQueue
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.settings import Settings
from tests.e2e import wire
from tests.fuzz.finding import Finding
from tests.fuzz.mutate import CORPUS, cut, packet
from tests.support.frames import pending_size
from tests.support.losses import dropped_by_cause

HOSTILE: Final = 12
"""Connections under attack at a time."""

BURST: Final = 20
"""Inputs on one connection at most."""

BATCH: Final = 8
"""Messages that an honest publisher has under way at most."""

PATIENCE: Final = 20.0
"""Seconds in which an honest client has to get what is due, and the broker to get rid of the others."""

SHOWN: Final = 6
"""Inputs of each client that a finding shows."""

# Small enough to be reached by what the fuzzing clients send.
MAX_SESSIONS: Final = 60
MAX_RETAINED: Final = 150
MAX_RETAINED_BYTES: Final = 60_000
MAX_CACHED: Final = 64
LIVE_MESSAGES: Final = 64
LIVE_BYTES: Final = 32_768

NAMES: Final = (b"a", b"b", b"a/b", b"a/b/c", b"/", b"x/" * 40, b"$x/y", "é".encode())
FILTERS: Final = (
    b"#", b"+", b"+/+", b"a/#", b"+/b/#", b"a", b"a/b", b"$x/#", b"$SYS/#",
    b"$share/g/#", b"$share/g/a", b"$share/h/+/b",
)  # fmt: skip


def settings(rng: random.Random) -> Settings:
    """Limits that are within reach, and the variants of the core in turn."""
    sections: dict[str, Any] = {
        "listen": ("mqtt://127.0.0.1:0",),
        "limits": {"max_packet_size": 4096, "connect_timeout": 0.5, "max_subscriptions_per_client": 20},
        "mqtt": {
            "receive_maximum": rng.choice((20, 1024)),
            "max_inflight": rng.choice((8, 1024)),
            "topic_alias_maximum": rng.choice((0, 3)),
            "topic_alias_outbound": rng.choice((0, 2)),
        },
        "session": {"max_expiry": 1, "queue_qos0": rng.random() < 0.5, "max_sessions": MAX_SESSIONS},
        "queue": {
            "live_messages": LIVE_MESSAGES,
            "live_bytes": LIVE_BYTES,
            "session_messages": 50,
            "session_bytes": 20_000,
            "write_batch_bytes": rng.choice((1_000, 262_144)),
        },
        "retained": {"max_messages": MAX_RETAINED, "max_bytes": MAX_RETAINED_BYTES},
        "routing": {"trie": rng.choice(("nodes", "compact")), "match_cache": MAX_CACHED},
        "sys": {"interval": 0.2},
        "shutdown": {"flush_timeout": 0.2},
    }
    return Settings(**sections)


class Watch:
    """What goes wrong where nobody waits for it, and what was sent lately."""

    def __init__(self) -> None:
        self.trouble: list[str] = []
        self.lately: dict[int, deque[bytes]] = {}
        self.inputs = 0
        self.taken = 0  # packets that the broker took apart
        self.answers: dict[int, int] = {}
        self.exchanged = 0

    def on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        self.trouble.append(f"{context.get('message')}: {context.get('exception')!r}")

    def sent(self, client: int, raw: bytes) -> None:
        self.inputs += 1
        self.lately.setdefault(client, deque(maxlen=SHOWN)).append(raw)

    def check(self, seed: int) -> None:
        if self.trouble:
            raise self.finding(seed, self.trouble[0])

    def finding(self, seed: int, what: str) -> Finding:
        recent = {client: list(raws) for client, raws in sorted(self.lately.items())}
        return Finding(what, seed=seed, inputs=self.inputs, **{f"client {key}": raws for key, raws in recent.items()})


class _Errors(logging.Handler):
    """Anything that is logged as an error is trouble."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.ERROR)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.trouble.append(f"logged: {record.getMessage()}")


class _Log:
    """The broker's own log."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def is_enabled_for(self, level: int) -> bool:
        """Every line is made, so that one that cannot be is found."""
        del level
        return True

    def debug(self, event: str, **fields: object) -> None:
        str((event, fields))

    info = debug
    warning = debug

    def error(self, event: str, **fields: object) -> None:
        self._watch.trouble.append(f"logged: {event} {fields}")

    exception = error
    critical = error


class Hostile(asyncio.Protocol):
    """The client's side of one connection that is up to no good. What it is answered has to be MQTT all the same."""

    def __init__(self, watch: Watch, versions: tuple[int, ...]) -> None:
        self.watch = watch
        self.transport: asyncio.Transport
        self.closed = asyncio.get_running_loop().create_future()
        # Whatever the CONNECT was, the answers have to make sense in one version at least.
        self.decoders = {version: Decoder(1 << 20, False, version) for version in versions}
        self.answers = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.answers += data
        why = ""
        for version, decoder in list(self.decoders.items()):
            try:
                decoder.feed(data)
                while decoder.next_frame():
                    kind = decoder.packet().kind
                    self.watch.answers[kind] = self.watch.answers.get(kind, 0) + 1
            except ProtocolError as error:
                del self.decoders[version]
                why = str(error)
        if why and not self.decoders:
            self.watch.trouble.append(f"an answer that is not MQTT ({why}): {bytes(self.answers[-500:])!r}")

    def eof_received(self) -> bool:
        if self.decoders and all(pending_size(decoder) for decoder in self.decoders.values()):
            self.watch.trouble.append(f"the connection ended inside a packet: {bytes(self.answers[-200:])!r}")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.closed.done():
            self.closed.set_result(None)


def valid(rng: random.Random, version: int) -> bytes:
    """A well-formed packet of a connected client, from a small world, so that clients get in each other's way."""
    five = version == 5
    packet_id = rng.choice((1, 2, 3, 4, 65535))
    kind = rng.randrange(12)
    if kind < 4:
        qos = rng.choice((0, 0, 1, 2))
        props: list[wire.Property] = []
        topic = rng.choice(NAMES)
        if five and rng.random() < 0.4:
            if rng.random() < 0.5:
                props.append((wire.MESSAGE_EXPIRY, rng.choice((0, 1, 4_294_967_295))))
            if rng.random() < 0.3:
                props.append((wire.USER_PROPERTY, ("k", "v" * rng.choice((0, 300)))))
            if rng.random() < 0.4:
                props.append((wire.TOPIC_ALIAS, rng.randint(1, 3)))
                topic = rng.choice((topic, b""))
        payload = b"x" * rng.choice((0, 0, 1, 10, 200, 3_000))
        return wire.publish(
            topic, payload, version=version, qos=qos, packet_id=packet_id if qos else None,
            retain=rng.random() < 0.3, dup=qos > 0 and rng.random() < 0.2, props=props,
        )  # fmt: skip
    if kind < 6:
        filters = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            name = rng.choice(FILTERS)
            options = rng.randint(0, 2)
            if five:
                options |= rng.choice((0, 0x10, 0x20)) | rng.choice((0, 8))
                if not name.startswith(b"$share"):
                    options |= rng.choice((0, 4))
            filters.append((name, options))
        identifier: list[wire.Property] = [(wire.SUBSCRIPTION_ID, rng.choice((1, 268_435_455)))] if five else []
        return wire.subscribe(packet_id, filters, rng.choice(([], identifier)), version=version)
    if kind == 6:
        return wire.unsubscribe(packet_id, [rng.choice(FILTERS)], version=version)
    if kind == 7:
        return wire.PING
    code = rng.choice((0, 0, 0, 0x80)) if kind != 10 and kind != 11 else rng.choice((0, 0x92))
    return wire.ack(
        (wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP)[kind - 8], packet_id, code, version=version
    )  # fmt: skip


def opening(rng: random.Random, version: int) -> bytes:
    """A good CONNECT, of one of a few clients that take each other's sessions over."""
    five = version == 5
    props: list[wire.Property] = []
    will = None
    if five:
        if rng.random() < 0.5:
            props.append((wire.SESSION_EXPIRY, rng.choice((0, 1, 4_294_967_295))))
        if rng.random() < 0.3:
            props.append((wire.RECEIVE_MAXIMUM, rng.choice((1, 2, 65_535))))
        if rng.random() < 0.3:
            props.append((wire.MAXIMUM_PACKET_SIZE, rng.choice((2, 5, 20, 40, 100, 1_000))))
        if rng.random() < 0.3:
            props.append((wire.TOPIC_ALIAS_MAXIMUM, rng.choice((1, 65_535))))
    if rng.random() < 0.4:
        delay: list[wire.Property] = [(wire.WILL_DELAY, rng.choice((0, 1, 100)))] if five else []
        will = wire.Will(rng.choice(NAMES), b"gone", rng.randint(0, 2), rng.random() < 0.3, delay)
    clean = rng.random() < 0.5
    client_id = rng.choice(("", "h1", "h2", "h3", f"h{rng.randrange(1000)}"))
    if not five and not client_id:
        clean = True
    return wire.connect(
        client_id, version=version, clean=clean, keep_alive=rng.choice((0, 0, 1, 60, 65_535)), props=props, will=will
    )  # fmt: skip


async def attack(port: int, client: int, rng: random.Random, watch: Watch) -> None:
    """One connection: good manners or not at the start, then anything, then one of many ways to go."""
    loop = asyncio.get_running_loop()
    version = rng.choice((4, 5, 5))
    polite = rng.random() < 0.8
    try:
        transport, protocol = await loop.create_connection(
            lambda: Hostile(watch, (version,) if polite else (5, 4, 3)), "127.0.0.1", port
        )
    except OSError:
        return
    pieces: list[bytes] = []

    def over() -> bool:
        return protocol.closed.done() or transport.is_closing()

    if polite:
        first = opening(rng, version)
        watch.sent(client, first)
        pieces.append(first)
    for turn in range(rng.randint(1, BURST)):
        if over():
            break
        dice = rng.random()
        if polite and dice < 0.88:
            raw = valid(rng, version)
        elif dice < 0.92:
            raw = rng.choice(CORPUS)
        else:
            raw = packet(rng)
        watch.sent(client, raw)
        pieces.append(raw)
        if rng.random() < 0.5:
            whole = b"".join(pieces)
            pieces.clear()
            for part in cut(whole, rng) if rng.random() < 0.5 else [whole]:
                if over():
                    break
                transport.write(part)
                if rng.random() < 0.6:
                    await asyncio.sleep(0)
        if turn == 3 and rng.random() < 0.05 and not over():
            transport.pause_reading()
    await _leave(transport, protocol, version, b"".join(pieces), rng)
    if not over():
        transport.resume_reading()
    await asyncio.wait([protocol.closed], timeout=PATIENCE)
    if not protocol.closed.done():
        watch.trouble.append("the broker has not closed a connection whose client is gone")
        transport.abort()


async def _leave(
    transport: asyncio.Transport, protocol: Hostile, version: int, last: bytes, rng: random.Random
) -> None:
    """Go, politely or not, now or later."""
    way = rng.random()
    if way < 0.3:
        last += wire.disconnect(rng.choice((0, 0, 4)), version=version)
    if not protocol.closed.done() and not transport.is_closing():
        transport.write(last)
    for _ in range(rng.choice((0, 1, 3, 10))):
        await asyncio.sleep(0)
    if protocol.closed.done() or transport.is_closing():
        return
    if way < 0.5:
        transport.close()
    elif way < 0.8:
        # The hard way: whatever is on its way is answered by a reset.
        sock = transport.get_extra_info("socket")
        if rng.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    elif way < 0.9:
        try:
            transport.write_eof()
        except OSError:
            # asyncio's own loop tells that the broker has reset the connection meanwhile.
            transport.abort()
    else:
        await asyncio.wait([protocol.closed], timeout=rng.choice((0.0, 0.05, 0.7)))
        transport.abort()


async def _keep_attacking(port: int, client: int, seed: int, watch: Watch, stop: Callable[[], bool]) -> None:
    rng = random.Random(f"{seed} client {client}")
    while not stop() and not watch.trouble:
        await attack(port, client, rng, watch)


class Pair:
    """An honest publisher and an honest subscriber, of the two versions."""

    def __init__(self, publisher: wire.Peer, subscriber: wire.Peer, topic: str, rng: random.Random) -> None:
        self.publisher = publisher
        self.subscriber = subscriber
        self.topic = topic
        self.rng = rng
        self.number = 0

    @classmethod
    async def open(cls, port: int, versions: tuple[int, int], rng: random.Random) -> Pair:
        peers = []
        for version in versions:
            peer = await wire.Peer.open("127.0.0.1", port, version)
            await peer.send(wire.connect(f"honest-{uuid.uuid4().hex[:8]}", version=version, keep_alive=60))
            assert (await peer.expect(wire.CONNACK)).code == 0
            peers.append(peer)
        topic = f"honest/{uuid.uuid4().hex}"
        assert await peers[1].subscribe((f"{topic}/#", 2)) == (2,)
        return cls(peers[0], peers[1], topic, rng)

    async def exchange(self) -> int:
        """Some messages at once; each has to come, once, in the order of its topic. How many there were."""
        version = self.publisher.version
        due: dict[int, deque[bytes]] = {0: deque(), 1: deque(), 2: deque()}
        packets = []
        acknowledged = {}
        count = self.rng.randint(1, BATCH)
        for _ in range(count):
            self.number += 1
            qos = self.rng.randint(0, 2)
            payload = b"%d" % self.number
            due[qos].append(payload)
            packet_id = self.publisher.next_id() % 65_535 + 1 if qos else None
            if packet_id is not None:
                acknowledged[packet_id] = qos
            packets.append(
                wire.publish(f"{self.topic}/{qos}", payload, version=version, qos=qos, packet_id=packet_id)
            )  # fmt: skip
        await self.publisher.send(*packets)
        while any(due.values()):
            found = await self.subscriber.message()
            expected = due[found.qos].popleft() if due[found.qos] else None
            if found.payload != expected or found.dup or found.topic != f"{self.topic}/{found.qos}":
                raise AssertionError(f"{expected!r} was due to an honest client, {found} came")
        while acknowledged:
            answer = await self.publisher.recv()
            assert answer.packet_id is not None
            assert answer.code == 0
            if answer.kind == wire.PUBREC:
                await self.publisher.send(wire.ack(wire.PUBREL, answer.packet_id, version=version))
            else:
                assert answer.kind == (wire.PUBACK, wire.PUBCOMP)[acknowledged.pop(answer.packet_id) - 1]
        return count

    def abort(self) -> None:
        """Whatever became of them: leave no socket behind."""
        self.publisher.abort()
        self.subscriber.abort()

    async def close(self) -> None:
        for peer in (self.publisher, self.subscriber):
            left = await peer.fence()
            assert not left, f"an honest client got {left[0]} and was due nothing"
            await peer.disconnect()


async def _keep_exchanging(pair: Pair, watch: Watch, stop: Callable[[], bool]) -> None:
    try:
        while not stop() and not watch.trouble:
            watch.exchanged += await pair.exchange()
        await pair.close()
    except (wire.WireError, wire.Closed, AssertionError, TimeoutError) as error:
        watch.trouble.append(f"an honest client suffers: {type(error).__name__}: {error}")


def _beyond_bounds(broker: Broker) -> str:
    """The first structure that is larger than its setting allows; nothing when all are within."""
    router = broker.router
    sizes = {
        "sessions": (len(router.sessions), MAX_SESSIONS),
        "retained messages": (len(router.retained) - router.retained_store.system_count, MAX_RETAINED),
        "retained bytes": (router.retained_store.bytes, MAX_RETAINED_BYTES),
        "cached topics": (len(router.cache), MAX_CACHED),
        "subscriptions": (router.table.count, MAX_SESSIONS * 20),
        "deadlines": (len(router.deadlines), MAX_SESSIONS + MAX_RETAINED),
        "listed send buffers": (len(router.peers.touched), 0),
    }
    what = _first_beyond(sizes)
    for connection in broker.connections:
        send_buffer = connection.send_buffer
        sizes["messages in a send buffer"] = (send_buffer.messages, LIVE_MESSAGES)
        sizes["bytes in a send buffer"] = (send_buffer.bytes, LIVE_BYTES)
        session = connection.protocol.session
        if session is not None:
            sizes["streams of a session"] = (0 if session.streams is None else len(session.streams.streams), 20)
            sizes["messages waiting in a session"] = (len(session.queue.pending or ()), 50)
        what = what or _first_beyond(sizes)
    return what


def _first_beyond(sizes: dict[str, tuple[int, int]]) -> str:
    for what, (size, most) in sizes.items():
        if size > most:
            return f"{size} {what}, where at most {most} are allowed"
    return ""


def _unaccounted(broker: Broker) -> str:
    """The first account that does not agree with what it counts; nothing when the books are in order."""
    router = broker.router
    subscriptions = 0
    for session in router.sessions.values():
        subscriptions += len(session.subscriptions)
        known = session.delivered_in_all() + sum(dropped_by_cause(session)) + session.queued()
        if session.offered != known:
            return f"{session.offered} messages were offered to {session.client_id!r}, and {known} are accounted for"
        waiting = session.queue.pending or ()
        if session.queue.bytes != sum(delivery.message.size for delivery in waiting):
            return f"{session.queue.bytes} bytes wait in {session.client_id!r}, it says"
        quota = session.window.quota + sum(1 for delivery in session.inflight.values() if delivery.counted)
        if session.send_buffer is not None and quota != session.window.limit:
            return f"a window of {session.window.limit} and a quota of {quota} for {session.client_id!r}"
        if session.send_buffer is None and session.expires_at == 0.0 and not isinstance(session, ShareQueue):
            return f"{session.client_id!r} is away and never expires"
    if subscriptions != router.table.count:
        return f"{subscriptions} subscriptions, counted as {router.table.count}"
    return ""


async def _guard(broker: Broker, watch: Watch, stop: Callable[[], bool]) -> None:
    while not stop() and not watch.trouble:
        await asyncio.sleep(0.05)
        what = _beyond_bounds(broker) or _unaccounted(broker)
        if what:
            watch.trouble.append(what)


def _remains(broker: Broker) -> str:
    """What the broker still has of clients that are gone; nothing when it has nothing."""
    router = broker.router
    counts = {
        "connections": len(broker.connections),
        "peers": len(router.peers.send_buffers),
        "sessions": len(router.sessions),
        "subscriptions": router.table.count,
        "topic filters": len(router.trie),
        "nodes of the trie": router.trie.nodes,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


async def _rid(broker: Broker, tasks: set[asyncio.Task[Any]]) -> str:
    """Wait until everything is gone; what is not."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    left = ""
    while loop.time() < end:
        left = _remains(broker)
        more = [task for task in asyncio.all_tasks() - tasks if not task.done()]
        if not left and not more:
            return ""
        if more:
            left += f" {len(more)} tasks, one of them {more[0].get_coro()}"
        await asyncio.sleep(0.05)
    return f"left over: {left}"


async def _forgotten() -> str:
    """Wait until the garbage collector finds no connection that is gone; what still refers to one."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE / 4
    while True:
        gc.collect()
        alive = [thing for thing in gc.get_objects() if isinstance(thing, Connection)]
        if not alive:
            return ""
        if loop.time() > end:
            holders = {type(holder).__name__ for holder in gc.get_referrers(alive[0]) if holder is not alive}
            return f"{len(alive)} connections that are gone are still referred to, one of them by {holders}"
        del alive
        await asyncio.sleep(0.2)


async def _run(seed: int, stop: Callable[[], bool]) -> Watch:
    loop = asyncio.get_running_loop()
    rng = random.Random(seed)
    watch = Watch()
    loop.set_exception_handler(watch.on_exception)
    handler = _Errors(watch)
    logging.getLogger().addHandler(handler)
    pairs: list[Pair] = []
    try:
        async with Broker(settings(rng)) as broker:
            broker.log = _Log(watch)
            broker.log_changed()
            # The broker's own among them, which last as long as it does.
            tasks = asyncio.all_tasks()
            port = broker.ports[0]
            for versions in ((4, 5), (5, 4)):
                pairs.append(await Pair.open(port, versions, rng))
            # The honest ones go on for a while after the last attack.
            attackers = [
                loop.create_task(_keep_attacking(port, number, seed, watch, stop)) for number in range(HOSTILE)
            ]
            over = asyncio.gather(*attackers)
            others = [loop.create_task(_keep_exchanging(pair, watch, over.done)) for pair in pairs]
            others.append(loop.create_task(_guard(broker, watch, over.done)))
            await over
            await asyncio.gather(*others)
            watch.check(seed)
            left = await _rid(broker, tasks) or await _forgotten()
            if left:
                watch.trouble.append(left)
            watch.taken = broker.router.counters.packets_received
            watch.check(seed)
        # Closed transports and unobserved exceptions of tasks speak up when they are collected.
        gc.collect()
        await asyncio.sleep(0)
        watch.check(seed)
    finally:
        logging.getLogger().removeHandler(handler)
        for pair in pairs:
            pair.abort()
        # One turn for the transports to close their sockets, and one for good measure.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return watch


def watched(seed: int, stop: Callable[[], bool], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> Watch:
    """A run on one event loop; what was seen.

    Raises:
        Finding: the broker did what it must not do.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_run(seed, stop))


def loop_factories() -> list[Callable[[], asyncio.AbstractEventLoop] | None]:
    """asyncio's own event loop, and uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return [None]
    return [uvloop.new_event_loop, None]


def run(seed: int, stop: Callable[[], bool]) -> int:
    """Inputs until `stop()`; how many there were. The seed chooses the event loop too.

    Raises:
        Finding: the broker did what it must not do.
    """
    factories = loop_factories()
    return watched(seed, stop, factories[seed % len(factories)]).inputs

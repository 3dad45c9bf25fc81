"""TLS and WebSocket: whichever worker makes the handshake, each client is served by its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, Peer, Will, connect
from tests.net.websocket.framing import close, frame
from tests.net.websocket.peer import WebPeer
from tests.support.certificates import Authority
from tests.support.daemon import Daemon
from tests.support.waiting import until
from tests.workers.crew import HOUR, Crew, accepted, three_workers

WAYS: Final = ("mqtts", "ws", "wss", "proxied ws", "proxied mqtts")
PROXIED: Final[Mapping[str, object]] = {"proxy_protocol": "v1", "proxy_from": ["127.0.0.1/32"]}
HEADER: Final = b"PROXY TCP4 192.0.2.7 192.0.2.1 4000 1883\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def shared(authority: Authority) -> Iterator[Daemon]:
    tls = {**keys(authority), "client_certificates": "optional", "client_ca": authority.file}
    tables: list[Mapping[str, object]] = [
        {"name": "mqtts", "url": "mqtts://127.0.0.1:0", "tls": tls},
        {"name": "ws", "url": "ws://127.0.0.1:0"},
        {"name": "wss", "url": "wss://127.0.0.1:0", "tls": tls},
        {"name": "proxied ws", "url": "ws://127.0.0.1:0", **PROXIED},
        {"name": "proxied mqtts", "url": "mqtts://127.0.0.1:0", "tls": tls, **PROXIED},
    ]
    authenticators = [{"type": "certificate", "user": "cn"}, {"type": "anonymous"}]
    environ = {"CANOPY_LISTENER": toml(tables), "CANOPY_AUTHENTICATOR": toml(authenticators)}
    with three_workers(environ=environ) as daemon:
        yield daemon


def keys(authority: Authority) -> dict[str, object]:
    """What a listener with TLS has to show."""
    return dict(zip(("certificate", "key"), authority.issue("localhost"), strict=True))


def toml(tables: Sequence[Mapping[str, object]]) -> str:
    """Tables as an inline list."""

    def value(each: object) -> str:
        if isinstance(each, dict):
            return "{" + ", ".join(f"{key} = {value(item)}" for key, item in each.items()) + "}"
        return json.dumps(each)

    return "[" + ", ".join(map(value, tables)) + "]"


@pytest.fixture
async def own(stack: AsyncExitStack, authority: Authority) -> Crew:
    """Two workers for a test that ends them, or counts what they have."""
    tables = [{"url": f"{scheme}://127.0.0.1:0", "tls": keys(authority)} for scheme in ("mqtts", "wss")]
    made = Crew(stack, 2)
    # Without $SYS, for which workers open sockets to each other.
    quiet = ("--set", "sys.interval=0")
    await made.start("--set", f"listener={toml(tables)}", "--set", "shutdown.flush_timeout=60", *quiet)
    return made


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def dial(crew: Crew, authority: Authority, way: str) -> Callable[[], Awaitable[Peer]]:
    return lambda: opened(crew, way, authority.client())


async def opened(crew: Crew, way: str, context: ssl.SSLContext, listener: int = 0) -> Peer:
    """A connection on which nothing of MQTT was sent. `listener`: another one than that of the shared workers."""
    port = crew.daemon.ports[listener or 1 + WAYS.index(way)]
    before = HEADER if way.startswith("proxied") else b""
    secure = context if (way.endswith("s") and not way.endswith("ws")) or way.endswith("wss") else None
    if way.endswith(("ws", "wss")):
        peer: Peer = await WebPeer.over("127.0.0.1", port, context=secure, before=before)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(before)
        assert secure is not None
        await writer.start_tls(secure, server_hostname="localhost")
        peer = Peer(reader, writer, 5)
    crew.stack.callback(peer.abort)
    return peer


async def joined(peer: Peer, client_id: str, clean: bool = False, **options: object) -> Peer:
    await peer.send(connect(client_id, clean=clean, props=((SESSION_EXPIRY, HOUR),), **options))  # type: ignore[arg-type]
    await accepted(peer)
    return peer


async def test_each_client_is_at_its_worker(crew: Crew, dial: Callable[[], Awaitable[Peer]], way: str) -> None:
    """Its session is found again, by plain TCP too, whoever made the handshake."""
    for worker in range(3):
        name = next(crew.names(worker, way.replace(" ", "-")))
        for turn in range(3):
            peer = await joined(await dial(), name)
            assert peer.connack.session_present is (turn > 0)
            await peer.disconnect()
        plain = await crew.stay(name, present=True)
        await plain.disconnect()
        line = await crew.line("client connected", client_id=name, listener=way)
        assert line["worker"] == f"w{worker}"
        assert line["address"].startswith("192.0.2.7:4000" if way.startswith("proxied") else "127.0.0.1:")


@pytest.mark.parametrize("way", ["ws", "wss"])
@pytest.mark.parametrize("after", [close(), frame(bytes(1 << 20))], ids=["close", "large frame"])
async def test_a_session_is_one_whatever_follows_its_connect_at_once(
    crew: Crew, authority: Authority, way: str, after: bytes
) -> None:
    # Of one worker: any that is taken in turn cannot be theirs each time.
    for name in islice(crew.names(1, f"at-once-{way}-{len(after)}"), 3):
        peer = await opened(crew, way, authority.client())
        assert isinstance(peer, WebPeer)
        peer.frames.write_raw(frame(connect(name, clean=False, props=((SESSION_EXPIRY, HOUR),))) + after)
        await peer.closed()
        await crew.stay(name, present=True)


async def test_large_messages_pass_both_ways(crew: Crew, dial: Callable[[], Awaitable[Peer]], way: str) -> None:
    large = bytes(range(256)) * 8_000
    names = [next(crew.names(worker, f"large-{way.replace(' ', '-')}")) for worker in range(3)]
    peers = [await joined(await dial(), name, clean=True) for name in names]
    for peer in peers:
        await peer.subscribe((f"large/{way}", 1))
    assert await peers[0].publish(f"large/{way}", large, qos=1) == 0
    for peer in peers:
        assert (await peer.message()).payload == large


async def test_what_the_broker_says_last_arrives(crew: Crew, dial: Callable[[], Awaitable[Peer]]) -> None:
    for worker in range(3):
        name = next(crew.names(worker, "last"))
        first = await joined(await dial(), name)
        await crew.join(name)
        found = await first.closed()
        assert [(each.kind, each.code) for each in found] == [(wire.DISCONNECT, 0x8E)]


async def test_a_lost_connection_is_lost_at_the_worker_too(crew: Crew, dial: Callable[[], Awaitable[Peer]]) -> None:
    looker = await crew.join("looker", ("will/#", 1))
    for worker in range(3):
        name = next(crew.names(worker, "lost"))
        peer = await joined(await dial(), name, clean=True, will=Will(f"will/{worker}"))
        peer.abort()
        assert (await looker.message()).topic == f"will/{worker}"


async def test_clients_of_a_killed_worker_wait(crew: Crew, dial: Callable[[], Awaitable[Peer]]) -> None:
    await crew.kill(1)
    peers = [await dial() for _ in range(6)]
    for peer, name in zip(peers, islice(crew.names(1, "waits"), 6), strict=True):
        await peer.send(connect(name))
    for peer in peers:
        await accepted(peer)


async def test_a_stop_lets_clients_take_what_waits_whoever_made_their_handshake(
    own: Crew, authority: Authority
) -> None:
    # All are clients of w1, and w0 has made the handshakes of half of them.
    names = own.names(1)
    peers = [await joined(await opened(own, "mqtts", authority.client(), 1), next(names), True) for _ in range(4)]
    for peer in peers:
        await peer.subscribe("a")
    sender = await own.join(next(names))
    # More than the system takes for a client.
    for _ in range(12):
        await sender.send(*[wire.publish("a", bytes(100_000))] * 10)
    # All that was published has reached its worker.
    assert await sender.fence() == []
    await sender.disconnect()
    own.daemon.process.send_signal(signal.SIGTERM)
    await own.line("stopped", worker="w0")
    for found in await asyncio.gather(*(peer.closed() for peer in peers)):
        assert Counter(each.kind for each in found) == {wire.PUBLISH: 120, wire.DISCONNECT: 1}
        assert found[-1].code == 0x8B


async def test_a_client_certificate_counts_at_the_worker(crew: Crew, authority: Authority) -> None:
    context = authority.client(authority.issue("client", common_name="pump-7"))
    for worker in range(3):
        name = next(crew.names(worker, "shows"))
        await joined(await opened(crew, "mqtts", context), name)
        line = await crew.line("client connected", client_id=name)
        assert line["user_name"] == "pump-7"


async def test_connections_that_are_over_leave_nothing_behind(own: Crew, authority: Authority) -> None:
    def sockets() -> int:
        files = chain(*(Path(f"/proc/{pid}/fd").iterdir() for pid in (*own.pids.values(), own.daemon.process.pid)))
        return sum(os.path.realpath(file).rpartition("/")[2].startswith("socket:") for file in files)

    before = sockets()
    names = own.names(0)
    for _ in range(10):
        peer = await opened(own, "mqtts", authority.client(), 1)
        peer.abort()
        peer = await joined(await opened(own, "wss", authority.client(), 2), next(names), clean=True)
        await peer.disconnect()
    await until(lambda: sockets() == before, "all sockets are closed")


async def test_limits_hold_whoever_makes_the_handshake(stack: AsyncExitStack, authority: Authority) -> None:
    """Of an address that a proxy names, and of all; what has left makes room."""
    tls = keys(authority)
    tables: list[Mapping[str, object]] = [
        {"url": "mqtts://127.0.0.1:0", "tls": tls, "name": "direct"},
        {"url": "mqtts://127.0.0.1:0", "tls": tls, "name": "proxied", **PROXIED},
    ]
    crew = Crew(stack, 3)
    limits = ("--set", "limits.max_connections=8", "--set", "limits.max_connections_per_address=6")
    await crew.start("--set", f"listener={toml(tables)}", "--set", "log.level=info", *limits)
    context = authority.client()

    async def come(way: str, listener: int, count: int) -> tuple[list[Peer], list[int]]:
        peers = [await opened(crew, way, context, listener) for _ in range(count)]
        for number, peer in enumerate(peers):
            await peer.send(connect(f"{way}-{number}"))
        answers = [await peer.expect(wire.CONNACK) for peer in peers]
        codes = sorted(each.code for each in answers)
        return [peer for peer, answer in zip(peers, answers, strict=True) if not answer.code], codes

    for turn in range(2):
        direct, codes = await come("mqtts", 1, 7)
        assert codes == [0] * 6 + [0x97]
        behind, codes = await come("proxied mqtts", 2, 3)
        assert codes == [0] * 2 + [0x89]
        for peer in (*direct, *behind):
            await peer.disconnect()
        await until(
            lambda turn=turn: len(crew.told("client disconnected")) == 8 * (turn + 1)  # type: ignore[misc]
        )

"""Listening, what may wait for how long, and what is answered to requests for nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import trustme
from aiohttp import web

from canopy_mqtt import Broker, Settings
from canopy_mqtt.admin.http_connections import HttpConnection
from canopy_mqtt.admin.routes import all_routes
from canopy_mqtt.admin.routing import AT_ONCE, Call, Route
from canopy_mqtt.assembly.draining import Draining
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.observe.figures import catalogue
from tests.admin.conftest import Serve
from tests.support.runs import for_each
from tests.support.waiting import until


async def raw(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert broker.admin is not None
    return await asyncio.open_connection("127.0.0.1", broker.admin.open[0].port)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end, however that comes."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


def told(broker: Broker, name: str) -> str:
    """A figure of HTTP, as `$SYS` says it."""
    return dict(catalogue.topics(broker.figures.read()))[f"http/{name}"]


async def test_what_there_is_not_is_said_as_json(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    async with ask.get(broker.http[0] + "/api/v5/nothing") as answer:
        assert answer.status == 404
        assert (await answer.json())["code"] == "NOT_FOUND"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Server"] == "canopy"
    async with ask.put(broker.http[0] + "/healthz") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
        assert (await answer.json())["code"] == "METHOD_NOT_ALLOWED"
    async with ask.get(broker.http[0] + "/healthz", headers={"Expect": "a miracle"}) as answer:
        assert (answer.status, await answer.json()) == (417, {"code": "BAD_REQUEST", "message": "Expectation Failed"})
    async with ask.get(broker.http[0] + "/api/v5/stats?figure=x") as answer:
        assert (answer.status, (await answer.json())["message"]) == (400, "figure: this path takes no query")


async def test_a_fault_of_a_handler_is_answered_and_stays_there(
    serve: Serve, ask: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve()
    monkeypatch.setattr(Broker, "not_ready", lambda _: 1 / 0)
    for _ in range(2):
        async with ask.get(broker.http[0] + "/api/v5/status") as answer:
            assert answer.status == 500
            assert "ZeroDivision" not in await answer.text()


async def test_a_broker_that_stops_is_not_ready(serve: Serve) -> None:
    broker = await serve()
    assert broker.not_ready() == []
    await broker.stop()
    assert broker.not_ready() == ["the broker is stopping"]
    assert broker.http == []


def https(folder: Path) -> tuple[dict[str, Any], ssl.SSLContext]:
    """Settings with a certificate for localhost, and who trusts it."""
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return {
        "listen": ("https://127.0.0.1:0",),
        "certificate": str(folder / "cert.pem"),
        "key": str(folder / "key.pem"),
    }, context


def held(entered: asyncio.Event, release: asyncio.Event) -> list[Route]:
    """A route that answers when it is told to."""

    async def hold(_: Call) -> web.StreamResponse:
        entered.set()
        await release.wait()
        return web.Response(text="held")

    return [Route("GET", "/hold", hold, "", role="anyone")]


async def test_one_connection_too_many_is_closed_where_all_others_are_being_answered(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr("canopy_mqtt.admin.server.all_routes", lambda: held(entered, release))
    broker = await serve({"max_connections": 1})
    answered, one = await raw(broker)
    one.write(b"GET /hold HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    await entered.wait()
    reader, other = await raw(broker)
    assert await rest(reader) == b""
    release.set()
    assert (await rest(answered)).endswith(b"held")
    assert broker.admin is not None
    assert (told(broker, "connections/refused"), told(broker, "connections/evicted")) == ("1", "0")
    for writer in (one, other):
        writer.close()


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHo"])
async def test_connections_that_ask_for_nothing_keep_nobody_out(
    serve: Serve, tmp_path: Path, secured: bool, sent: bytes
) -> None:
    """Whoever reaches the port could otherwise make every probe fail, and the broker be restarted."""
    http: dict[str, Any] = {"max_connections": 4, "timeout": 20.0}
    more, trusted = https(tmp_path)
    if secured:
        http |= more
    broker = await serve(http)
    assert broker.admin is not None
    silent = []
    for _ in range(12):
        reader, writer = await raw(broker)
        # With TLS: nothing, or the beginning of a record that never ends.
        writer.write(b"\x16\x03\x01\x3f\xff" + sent if secured and sent else sent)
        silent.append((reader, writer))
    await until(lambda: told(broker, "connections/evicted") == "8")
    assert told(broker, "connections") == "4"
    for reader, _ in silent[:8]:
        assert await rest(reader) == b""
    url = f"{broker.http[0].replace('127.0.0.1', 'localhost')}/healthz"
    connector = aiohttp.TCPConnector(ssl=trusted, family=socket.AF_INET)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
        assert answer.status == 200
    for _, writer in silent:
        writer.close()


async def test_who_has_asked_before_makes_room_last(serve: Serve) -> None:
    broker = await serve({"max_connections": 2})
    asked, keeps = await raw(broker)
    keeps.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await asked.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
    silent, one = await raw(broker)
    _, other = await raw(broker)
    assert await rest(silent) == b""
    keeps.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await asked.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
    for writer in (keeps, one, other):
        writer.close()


async def test_a_client_hello_that_is_there_before_the_broker_looks(serve: Serve, tmp_path: Path) -> None:
    """A broker that is late finds the connection and its first bytes in the same turn."""
    http, context = https(tmp_path)
    broker = await serve(http)
    assert broker.admin is not None
    hello, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(hello, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    sock = socket.socket()
    sock.setblocking(False)
    # Until both are sent this thread is nobody else's.
    sock.connect_ex(("127.0.0.1", broker.admin.open[0].port))
    sock.send(outgoing.read())
    reader, writer = await asyncio.open_connection(sock=sock)
    async with asyncio.timeout(10):
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                hello.write(await reader.read(65_536))
    tls.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    writer.write(outgoing.read())
    async with asyncio.timeout(10):
        while True:
            hello.write(await reader.read(65_536))
            try:
                assert tls.read(65_536).startswith(b"HTTP/1.1 200")
                break
            except ssl.SSLWantReadError:
                continue
    writer.close()


async def test_a_broker_stops_while_handshakes_are_under_way(serve: Serve, tmp_path: Path) -> None:
    broker = await serve(https(tmp_path)[0])
    kept = [await raw(broker) for _ in range(3)]
    assert broker.admin is not None
    connections = broker.admin.connections
    await until(lambda: len(connections.open) == 3)
    await broker.stop()
    assert not connections.open
    for reader, writer in kept:
        assert await rest(reader) == b""
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHo", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET"])
async def test_a_request_that_does_not_come_is_waited_for_no_longer_than_set(serve: Serve, sent: bytes) -> None:
    broker = await serve({"timeout": 0.2})
    reader, writer = await raw(broker)
    writer.write(sent)
    await rest(reader)
    assert broker.admin is not None
    assert not broker.admin.connections.open
    writer.close()


async def test_an_answer_that_nobody_takes_is_given_up(serve: Serve) -> None:
    broker = await serve({"timeout": 0.2})
    assert broker.admin is not None
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", broker.admin.open[0].port))
    request = b"GET /api/v5/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    left = loop.time() + 20
    while not broker.admin.connections.cut and loop.time() < left:
        try:
            await asyncio.wait_for(loop.sock_sendall(sock, request * 50), 0.1)
        except (TimeoutError, ConnectionError):
            await asyncio.sleep(0.01)
    assert told(broker, "connections/cut") == "1"
    sock.close()


async def test_a_body_that_is_too_large_is_not_read(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve({"max_request_bytes": 1_024})
    bodied = [route for route in all_routes() if route.body is not None]
    for route in bodied[:1]:
        url = broker.http[0] + route.path.replace("{", "").replace("}", "")
        async with ask.request(route.method, url, json={"x": "y" * 5_000}) as answer:
            assert answer.status == 413


async def test_a_body_that_names_a_key_twice_is_refused(serve: Serve, ask: aiohttp.ClientSession) -> None:
    url = (await serve({})).http[0] + "/api/v5/publish"
    body, headers = b'{"topic": "a", "topic": "b"}', {"Content-Type": "application/json"}
    async with ask.post(url, data=body, headers=headers) as answer:
        assert (answer.status, (await answer.json())["message"]) == (400, "body: the key 'topic' stands twice")


async def test_https(serve: Serve, tmp_path: Path) -> None:
    http, context = https(tmp_path)
    broker = await serve(http)
    assert broker.admin is not None
    url = f"https://localhost:{broker.admin.open[0].port}/healthz"
    connector = aiohttp.TCPConnector(ssl=context, family=socket.AF_INET)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
        assert await answer.text() == "ok\n"


@for_each(
    ("http", "why"),
    [
        ({"password_file": "/nowhere/users"}, "/nowhere/users"),
        ({"viewer_token_file": "/nowhere/tokens"}, "/nowhere/tokens"),
        ({"listen": ("https://127.0.0.1:0",), "certificate": "/nowhere/c.pem", "key": "/nowhere/k.pem"}, "/nowhere/c"),
        ({"listen": ("http+unix:///nowhere/at/all.sock",)}, "there is no folder"),
    ],
)
async def test_what_cannot_be_had_is_one_line_and_no_broker(http: dict[str, Any], why: str) -> None:
    settings = {"listen": ("mqtt://127.0.0.1:0",), "http": {"listen": ("http://127.0.0.1:0",)} | http}
    broker = Broker(Settings.model_validate(settings))
    with pytest.raises(StartupError, match=why) as caught:
        await broker.start()
    assert "\n" not in str(caught.value)
    assert not broker.connections


async def test_a_port_in_use_is_told_with_the_setting_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = {"listen": (f"http://127.0.0.1:{taken.getsockname()[1]}",)}
        broker = Broker(Settings.model_validate({"listen": ("mqtt://127.0.0.1:0",), "http": http}))
        with pytest.raises(StartupError, match=r"the port is in use; .* choose another port \(http\.listen\)$"):
            await broker.start()


async def test_a_broker_that_stops_begins_nothing_new(
    serve: Serve, ask: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve()
    emptied = asyncio.Event()

    async def empty(_: Broker) -> None:
        await emptied.wait()

    monkeypatch.setattr(Broker, "emptied", empty)
    url = broker.http[0]
    stopping = asyncio.create_task(broker.stop())
    await until(lambda: bool(broker.not_ready()))
    try:
        async with ask.post(url + "/api/v5/drain", json={"seconds": 3_600}) as answer:
            assert (answer.status, (await answer.json())["message"]) == (503, "the broker is stopping")
        async with ask.get(url + "/api/v5/drain") as answer:
            assert (answer.status, (await answer.json())["active"]) == (200, False)
    finally:
        emptied.set()
        await stopping


async def test_what_is_no_http_is_not_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    broker = await serve()
    reader, writer = await raw(broker)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"0123456789" * 1_000 + b"\r\n\r\n")
    assert b" 400 " in await rest(reader)
    writer.close()
    reader, writer = await raw(broker)
    writer.write(b"FETCH /api/v5/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = (await rest(reader)).partition(b"\r\n\r\n")
    writer.close()
    assert b"Server: canopy\r\n" in head
    assert json.loads(body) == {"code": "BAD_REQUEST", "message": "Invalid method encountered"}
    assert "0123456789" not in caplog.text
    assert broker.faults.counts.get("http", 0) == 0


async def test_few_requests_are_worked_at_in_one_turn(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await serve()
    looked: Counter[int] = Counter()
    turns = 0
    ticking = asyncio.get_running_loop().call_soon(lambda: None)

    def tick() -> None:
        nonlocal turns, ticking
        turns += 1
        ticking = asyncio.get_running_loop().call_soon(tick)

    def left(_: Draining) -> int:
        looked[turns] += 1
        return 0

    monkeypatch.setattr(Draining, "left", property(left))
    clients = [await raw(broker) for _ in range(32)]
    tick()
    for _, writer in clients:
        writer.write(b"GET /api/v5/drain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answers = await asyncio.gather(*(rest(reader) for reader, _ in clients))
    ticking.cancel()
    for _, writer in clients:
        writer.close()
    assert [b"200 OK" in answer for answer in answers] == [True] * 32
    assert (sum(looked.values()), max(looked.values())) == (32, AT_ONCE)


HERE: Final = b"Host: localhost\r\nConnection: close\r\n"
BODY: Final = b"POST /api/v5/publish HTTP/1.1\r\n" + HERE + b"Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /api/v5/status HTTP/1.1\r\nConnection: close\r\nHost: [\r\n\r\n", 403),
        (b"POST /api/v5/publish HTTP/1.1\r\n" + HERE + b"Origin: http://[\r\n\r\n", 403),
        (BODY + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd", 400),
    ],
)
async def test_headers_that_say_nothing_are_no_fault_of_the_broker(serve: Serve, sent: bytes, status: int) -> None:
    broker = await serve()
    reader, writer = await raw(broker)
    writer.write(sent)
    assert (await rest(reader)).startswith(f"HTTP/1.1 {status} ".encode())
    writer.close()
    assert "http" not in broker.faults.counts


async def test_a_token_that_is_no_text_is_a_wrong_one(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef")
    broker = await serve({"viewer_token_file": str(tmp_path / "tokens")})
    reader, writer = await raw(broker)
    writer.write(b"GET /api/v5/status HTTP/1.1\r\n" + HERE + b"Authorization: Bearer \xff\r\n\r\n")
    assert (await rest(reader)).startswith(b"HTTP/1.1 401 ")
    writer.close()
    assert "http" not in broker.faults.counts


async def test_who_goes_in_the_middle_of_a_request_is_no_fault_of_the_broker(serve: Serve) -> None:
    broker = await serve()
    assert broker.admin is not None
    _, writer = await raw(broker)
    writer.write(BODY + b"Content-Length: 400\r\n\r\nabcd")
    (connection,) = await connections_of(broker)
    await until(lambda: connection._answering)
    writer.close()
    await until(lambda: not connection._answering)
    assert "http" not in broker.faults.counts


async def connections_of(broker: Broker) -> set[HttpConnection]:
    """The connections, as soon as there is one."""
    assert broker.admin is not None
    opened = broker.admin.connections.open
    await until(lambda: opened)
    return opened

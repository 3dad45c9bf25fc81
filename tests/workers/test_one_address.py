"""`[http]` with several workers: one address that answers for all of them, and says who is missing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from canopy_mqtt.admin.events import SAMPLE
from canopy_mqtt.admin.paging import Meta
from tests.e2e import wire
from tests.support.daemon import canopy
from tests.support.waiting import until
from tests.workers.crew import Crew, accepted

HTTP = FLAGS = ("--set", "http.listen=http://127.0.0.1:0")


class Http:
    """Asks the one address."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def text(self, crew: Crew, path: str) -> str:
        async with self._session.get(crew.daemon.started["http"][0] + path) as answer:
            return await answer.text()

    async def get(self, crew: Crew, path: str, status: int = 200, **query: str) -> Any:
        return await self.ask("GET", crew, path, status, params=query)

    async def pages(self, crew: Crew, path: str) -> list[Any]:
        """All entries of a list, which is read in small pages."""
        found: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self.get(crew, path, limit="5", cursor=cursor)
            assert len(page["data"]) <= 5
            assert page["meta"].keys() == Meta.model_fields.keys()
            found += page["data"]
            cursor = page["meta"]["cursor"]
        return found

    async def ask(self, method: str, crew: Crew, path: str, status: int = 200, **more: Any) -> Any:
        url = f"{crew.daemon.started['http'][0]}/api/v5{path}"
        async with self._session.request(method, url, **more) as answer:
            assert answer.status == status, await answer.text()
            return None if status == 204 else await answer.json()


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    # A connection each: the worker that answers may end.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Http(session)


def samples(text: str, name: str) -> dict[str, float]:
    """The values of a metric by their labels."""
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


async def test_metrics_are_those_of_all_workers(crew: Crew, http: Http) -> None:
    before = samples(await http.text(crew, "/metrics"), "canopy_clients_connected")[""]
    for worker in range(3):
        await crew.join(next(crew.names(worker, "counted")), ("m/#", 0), ("n", 0))
    text = await http.text(crew, "/metrics")
    assert samples(text, "canopy_clients_connected")[""] == before + 3
    assert samples(text, "canopy_subscriptions")[""] == 6
    assert set(samples(text, "canopy_worker_up").values()) == {1.0}
    processes = {f'worker="{name}"' for name in ("w0", "w1", "w2", "supervisor")}
    assert set(samples(text, "process_resident_memory_bytes")) == processes
    assert (await http.get(crew, "/stats"))["clients.connected"] == before + 3


async def test_connections_and_sessions_are_those_of_clients(stack: AsyncExitStack, http: Http) -> None:
    crew = await Crew.started(stack, 2, *HTTP, "--set", "session.max_sessions=20")
    peer = await crew.join("device")
    text = await http.text(crew, "/metrics")
    assert samples(text, "canopy_connections") == {"": 1.0}
    assert samples(text, "canopy_clients_maximum") == {"": 1.0}
    assert samples(text, "canopy_room_held")['room="sessions"'] == 1.0
    assert samples(text, "canopy_room_bound")['room="sessions"'] <= 20.0
    await peer.disconnect()
    await crew.restarted(1)
    assert samples(await http.text(crew, "/metrics"), "canopy_connections") == {"": 0.0}


async def test_retained_messages_count_once(crew: Crew, http: Http) -> None:
    sender = await crew.join(next(crew.names(0, "sender")))
    before = (await http.get(crew, "/stats"))["room.held.retained-messages"]
    await sender.publish("once/1", b"kept", qos=1, retain=True)
    await sender.publish("once/2", b"kept", qos=1, retain=True)
    looker = await crew.join(next(crew.names(2, "looker")), ("once/#", 1))
    assert {(await looker.message()).topic for _ in range(2)} == {"once/1", "once/2"}
    assert (await http.get(crew, "/stats"))["room.held.retained-messages"] == before + 2
    listed = await http.get(crew, "/mqtt/retainer/messages", topic="once/#")
    assert [each["topic"] for each in listed["data"]] == ["once/1", "once/2"]
    await http.ask("DELETE", crew, "/mqtt/retainer/message/once%2F1", 204)

    for worker in range(3):
        await until_equal(partial(kept, crew, worker, "once/#"), ["once/2"])
    # No subscriber is told.
    assert await looker.fence() == []


async def kept(crew: Crew, worker: int, topic_filter: str) -> list[str]:
    """The topics of the retained messages at a worker."""
    peer = await crew.join(next(crew.names(worker, "again")), (topic_filter, 1))
    found = [await peer.message(), *(await peer.fence())]
    await peer.disconnect()
    return [each.topic for each in found]


async def until_equal(what: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait until a coroutine function returns this."""
    async with asyncio.timeout(60.0):
        while await what() != wanted:  # noqa: ASYNC110 (other processes tell nothing)
            await asyncio.sleep(0.02)


async def test_pages_of_clients_are_those_of_one_list(crew: Crew, http: Http) -> None:
    names = sorted(name for worker in range(3) for name in islice(crew.names(worker, "paged"), 4))
    for name in names:
        await crew.join(name, "a", "b")
    found = [each["clientid"] for each in await http.pages(crew, "/clients")]
    filters = [(each["clientid"], each["topic"]) for each in await http.pages(crew, "/subscriptions")]
    assert [name for name in found if name.startswith("paged")] == names
    wanted = [(name, topic) for name in names for topic in ("a", "b")]
    assert [each for each in filters if each[0].startswith("paged")] == wanted


@pytest.mark.parametrize("worker", range(3))
async def test_a_client_is_asked_for_and_kicked_where_it_is(crew: Crew, http: Http, worker: int) -> None:
    name = next(crew.names(worker, "kicked"))
    peer = await crew.join(name, "x/y")
    found = await http.get(crew, f"/clients/{name}")
    assert (found["clientid"], found["worker"]) == (name, f"w{worker}")
    assert [each["topic"] for each in (await http.get(crew, f"/clients/{name}/subscriptions"))["data"]] == ["x/y"]
    await http.ask("DELETE", crew, f"/clients/{name}", 204)
    (told,) = await peer.closed()
    assert told.code == 0x98
    await http.get(crew, f"/clients/nobody-{worker}", 404)


async def test_a_ban_holds_at_all_workers_and_is_one(crew: Crew, http: Http) -> None:
    body = {"as": "username", "who": "mallory"}
    there = [await crew.knock(next(crew.names(worker)), user="mallory", password=b"x") for worker in range(3)]
    for peer in there:
        await accepted(peer)
    await http.ask("POST", crew, "/banned", json=body)
    for peer in there:
        (told,) = await peer.closed()
        assert (told.kind, told.code) == (wire.DISCONNECT, 0x98)
    for worker in range(3):
        await until_equal(partial(answer_to, crew, worker, "mallory"), 0x8A)
    assert [each["who"] for each in (await http.get(crew, "/banned"))["data"]] == ["mallory"]
    await http.ask("DELETE", crew, "/banned/username/mallory", 204)
    await http.ask("DELETE", crew, "/banned/username/mallory", 404)
    for worker in range(3):
        await until_equal(partial(answer_to, crew, worker, "mallory"), 0)


async def answer_to(crew: Crew, worker: int, user: str) -> int:
    """The reason code of the CONNACK for a user."""
    peer = await crew.knock(next(crew.names(worker)), user=user, password=b"x")
    code = (await peer.expect(wire.CONNACK)).code
    peer.abort()
    return code


async def test_a_message_that_an_operator_publishes_reaches_all(crew: Crew, http: Http) -> None:
    peers = [await crew.join(next(crew.names(worker, "reached")), ("from/api", 1)) for worker in range(3)]
    await http.ask("POST", crew, "/publish", json={"topic": "from/api", "payload": "hello", "qos": 1})
    assert [(await peer.message()).payload for peer in peers] == [b"hello"] * 3


async def test_ctl_has_one_broker(crew: Crew) -> None:
    names = [next(crew.names(worker, "told")) for worker in range(3)]
    for name in names:
        await crew.join(name)
    url = crew.daemon.started["http"][0]
    listed = await asyncio.to_thread(canopy, "ctl", "clients", "--url", url, "--json")
    assert listed.returncode == 0, listed.stderr
    assert set(names) <= {each["clientid"] for each in json.loads(listed.stdout)["data"]}
    kicked = await asyncio.to_thread(canopy, "ctl", "kick", names[1], "--url", url)
    assert kicked.returncode == 0, kicked.stderr


async def test_a_reload_is_one_of_all_workers(stack: AsyncExitStack, http: Http, tmp_path: Path) -> None:
    config = tmp_path / "canopy.toml"
    config.write_text("[mqtt]\nmax_keep_alive = 100\n")
    crew = await Crew.started(stack, 2, "--config", str(config), *HTTP)
    config.write_text("[mqtt]\nmax_keep_alive = 50\n")
    assert await http.ask("POST", crew, "/reload") == {"restart": []}
    await until(lambda: len(crew.told("settings reloaded")) == 2, "both have reloaded")
    config.write_text("[mqtt]\nmax_keep_alive = true\n")
    assert "max_keep_alive" in (await http.ask("POST", crew, "/reload", 400))["message"]


async def test_who_is_away_is_said(stack: AsyncExitStack, http: Http) -> None:
    """A worker that hangs, and then that it is killed: the answers of the others come, and say so."""
    crew = await Crew.started(stack, 3, *HTTP)
    name = next(crew.names(2))
    await crew.join(name)
    os.kill(crew.pids["w2"], signal.SIGSTOP)
    stack.callback(_go_on, crew.pids["w2"])
    assert "w2 does not answer" in await http.text(crew, "/readyz")
    text = await http.text(crew, "/metrics")
    assert samples(text, "canopy_worker_up") == {'worker="w0"': 1.0, 'worker="w1"': 1.0, 'worker="w2"': 0.0}
    assert "w2 does not answer" in (await http.get(crew, f"/clients/{name}", 503))["message"]
    undone = await http.ask("PUT", crew, "/log-level", 503, json={"level": "info"})
    assert (undone["code"], undone["message"]) == (
        "PARTLY_DONE",
        "done at w0, w1, and not at w2 (w2 does not answer)",
    )
    url = crew.daemon.started["http"][0]
    listed = await asyncio.to_thread(canopy, "ctl", "clients", "--url", url)
    assert "w2 does not answer" in listed.stderr
    await crew.restarted(2)
    await until_equal(lambda: http.text(crew, "/readyz"), "ok\n")
    text = await http.text(crew, "/metrics")
    assert samples(text, "canopy_worker_restarts_total")['worker="w2"'] == 1.0


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def test_another_worker_answers_once_the_one_that_did_is_gone(stack: AsyncExitStack, http: Http) -> None:
    crew = await Crew.started(stack, 2, *HTTP)
    assert await http.text(crew, "/healthz") == "ok\n"
    os.kill(crew.pids["w0"], signal.SIGKILL)
    await crew.line("worker ended", worker="w0")
    assert await http.text(crew, "/healthz") == "ok\n"
    await crew.line("worker serves again", worker="w0")


async def test_wrong_tokens_and_foreign_headers_are_refused_as_in_one_process(
    stack: AsyncExitStack, http: Http, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    crew = await Crew.started(stack, 2, *HTTP, "--set", f"http.viewer_token_file={token}")
    await http.get(crew, "/clients", 401)
    right = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
    await http.ask("GET", crew, "/clients", headers=right)
    await http.ask("DELETE", crew, "/clients/somebody", 403, headers=right)
    await http.ask("GET", crew, "/clients", 401, headers={"Authorization": "Bearer " + "0" * 32})


async def test_other_tokens_hold_at_all_workers_or_none_and_at_those_that_start_later(
    stack: AsyncExitStack, http: Http, tmp_path: Path
) -> None:
    config, token = tmp_path / "canopy.toml", tmp_path / "token"

    def write(name: str, text: str) -> dict[str, str]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
        config.write_text(f'[http]\nviewer_token_file = "{tmp_path / name}"\n')
        return {"Authorization": f"Bearer {text}"}

    old = write(token.name, "0" * 32)
    crew = await Crew.started(stack, 2, "--config", str(config), *HTTP)
    await http.ask("GET", crew, "/clients", headers=old)
    write("short", "too short")
    crew.daemon.process.send_signal(signal.SIGHUP)
    line = await crew.line("settings not reloaded")
    assert "short" in line["detail"]
    await http.ask("GET", crew, "/clients", headers=old)

    new = write("other", "1" * 32)
    await crew.reload()
    for worker in (0, 1):
        await crew.restarted(worker)
        await http.ask("GET", crew, "/clients", headers=new)
        await http.ask("GET", crew, "/clients", 401, headers=old)


async def test_a_unix_socket_is_an_address_too(stack: AsyncExitStack, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    crew = await Crew.started(stack, 2, "--set", f"http.listen=http+unix://{path}")
    listed = await asyncio.to_thread(canopy, "ctl", "status", "--url", f"http+unix://{path}")
    assert listed.returncode == 0, listed.stderr
    assert await crew.stop() == 0
    assert not path.exists()


async def test_the_page_hears_of_all_workers_and_of_who_is_missing(stack: AsyncExitStack) -> None:
    crew = await Crew.started(stack, 3, *HTTP)
    for worker in range(3):
        await crew.join(next(crew.names(worker)))
    session = await stack.enter_async_context(aiohttp.ClientSession())
    answer = await stack.enter_async_context(session.get(crew.daemon.started["http"][0] + "/events"))

    async def event() -> tuple[str, Any]:
        name = (await answer.content.readline()).decode().removeprefix("event: ").strip()
        data = json.loads((await answer.content.readline()).removeprefix(b"data: "))
        await answer.content.readline()
        return name, data

    assert (await event())[0] == "hello"
    name, history = await event()
    assert name == "history"
    assert all(len(row) == len(SAMPLE) for row in history)
    name, snapshot = await event()
    assert (name, snapshot["not_ready"]) == ("snapshot", [])
    while snapshot["sample"][SAMPLE.index("connected")] != 3:
        _, snapshot = await event()
    assert snapshot["upstream"] == []
    assert snapshot["totals"]["sessions"] == 3
    os.kill(crew.pids["w2"], signal.SIGSTOP)
    stack.callback(_go_on, crew.pids["w2"])
    while not snapshot["not_ready"]:
        _, snapshot = await event()
    assert snapshot["not_ready"] == ["w2 does not answer"]
    await crew.restarted(2)
    while snapshot["not_ready"]:
        _, snapshot = await event()

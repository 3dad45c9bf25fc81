"""TLS, WebSocket, and both, against our own broker: the same scenario, the same account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from canopy_load.engine import conductor
from canopy_load.engine.conductor import RunError
from canopy_load.engine.job import FORM, Job, Target, Tls
from canopy_load.engine.transports import TargetError, context
from canopy_load.report.result import Result
from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import AccessControl, Origin, Ticket
from tests.loadtest.playing import balanced, named, reader, scenario, sender
from tests.support.certificates import Authority
from tests.support.runs import for_each

SCHEMES = ["mqtt", "mqtts", "ws", "wss"]


class Users(AccessControl):
    """Notes who comes, and lets in who has the password of his name."""

    def __init__(self) -> None:
        self.seen: set[str | None] = set()

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        del origin, ticket
        self.seen.add(connect.user_name)
        number = (connect.user_name or "").removeprefix("user-")
        return 0x00 if connect.password == f"key-{number}".encode() else 0x86


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def start(authority: Authority) -> AsyncIterator[Any]:
    """Start a broker that listens in all ways; its targets."""
    certificate, key = authority.issue("localhost", "127.0.0.1")
    async with AsyncExitStack() as stack:

        async def begin(users: Users | None = None, **tls: Any) -> list[Target]:
            listeners = [
                {"url": f"{scheme}://127.0.0.1:0"}
                | ({"tls": {"certificate": certificate, "key": key, **tls}} if scheme in ("mqtts", "wss") else {})
                for scheme in SCHEMES
            ]
            settings = Settings.model_validate(
                {"listener": listeners, "sys": {"interval": 0.1}, "shutdown": {"flush_timeout": 0.0}}
            )
            broker = await stack.enter_async_context(Broker(settings, access_control=users))
            urls = [f"{scheme}://127.0.0.1:{port}" for scheme, port in zip(SCHEMES, broker.ports, strict=True)]
            return [Target.parse(url, Tls(ca=authority.file)) for url in urls]

        yield begin


async def played(targets: list[Target], **keys: Any) -> Result:
    """Four publishers and four subscribers, dealt to the targets in turn: every way hears every other."""
    groups = sender(clients=4, qos=1, keys=keys), reader(clients=4, qos=1, keys=keys)
    return await conductor.play(Job(scenario(*groups), "", targets))


async def test_every_way_to_a_broker_carries_every_message(start: Any) -> None:
    result = await played(await start())
    balanced(result)
    assert result.errors == {}
    assert (result.deliveries.received, result.deliveries.lost) == (4 * 4 * 30, 0)
    assert named(result, "pub").connects == named(result, "sub").connects == 4


async def test_payloads_larger_than_a_frame_of_any_layer_come_through(start: Any) -> None:
    """Longer than 65,535 bytes, so that all three forms of a WebSocket frame's length are sent."""
    groups = sender(clients=4, qos=1, messages=2, rate=10, payload={"size": 90_000}), reader(clients=4, qos=1)
    result = await conductor.play(Job(scenario(*groups), "", await start()))
    assert (result.deliveries.received, result.deliveries.altered) == (4 * 4 * 2, 0)


async def test_a_server_that_opens_no_websocket_is_an_error_in_words() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        target = Target.parse(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(RunError, match="the server closed the connection instead of opening a WebSocket"):
            await played([target])


@pytest.mark.long
async def test_the_broker_asks_for_a_certificate_and_gets_the_clients(start: Any, authority: Authority) -> None:
    certificate, key = authority.issue(common_name="generator")
    targets = [each for each in await start(client_certificates="required", client_ca=authority.file) if each.encrypted]
    shown = [Target.parse(str(each), Tls(authority.file, certificate, key)) for each in targets]

    assert (await played(shown)).errors == {}
    with pytest.raises(RunError, match="no client could connect"):
        await played(targets)


@pytest.mark.long
async def test_a_certificate_that_nobody_vouches_for_is_refused_unless_insecure(start: Any) -> None:
    url = str((await start())[1])
    with pytest.raises(RunError, match=r"the broker's certificate is not trusted .*certificate"):
        await played([Target.parse(url)])
    assert (await played([Target.parse(url, Tls(insecure=True))])).errors == {}


async def test_user_names_and_passwords_by_pattern(start: Any) -> None:
    users = Users()
    result = await played(await start(users), user_name="user-%{c+10}", password="key-%{c+10}")
    assert result.errors == {}
    assert users.seen == {"user-10", "user-11", "user-12", "user-13"}


@pytest.mark.long
async def test_user_names_and_passwords_from_a_file_in_turn(start: Any, tmp_path: Path) -> None:
    users, file = Users(), tmp_path / "users.csv"
    file.write_text('user_name,password\nuser-1,key-1\n"user-2",key-2\n')
    result = await played(await start(users), users=str(file))
    assert result.errors == {}
    assert users.seen == {"user-1", "user-2"}


@for_each(
    ("text", "target"),
    [
        ("mqtts://[::1]", "mqtts://[::1]:8883"),
        ("ws://h", "ws://h:8080/mqtt"),
        ("wss://h:1/a/b?c=d", "wss://h:1/a/b?c=d"),
    ],
)
def test_targets(text: str, target: str) -> None:
    assert str(Target.parse(text)) == target
    assert Target.parse(target) == Target.parse(text)


def test_what_is_no_target() -> None:
    for text in ("http://h", "mqtts://h/path", "h:1883", "ws://"):
        with pytest.raises(ValueError, match="not of the form"):
            Target.parse(text)
    assert "wss://" in FORM
    with pytest.raises(ValueError, match="use --user and --password") as caught:
        Target.parse("mqtts://me:secret@h")
    assert "secret" not in str(caught.value)


def test_files_of_tls_that_are_none(tmp_path: Path, authority: Authority) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(TargetError, match=r"--ca .*none.pem: no such file"):
        context(Target.parse("mqtts://h", Tls(ca=str(tmp_path / "none.pem"))))
    with pytest.raises(TargetError, match=r"--cert .*empty.pem"):
        context(Target.parse("mqtts://h", Tls(authority.file, str(empty))))
    assert context(Target.parse("ws://h", Tls(ca="nowhere"))) is None

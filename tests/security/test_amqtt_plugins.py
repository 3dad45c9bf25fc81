"""Authentication plug-ins of amqtt in a chain: amqtt's own, and one that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import pbkdf2_hmac
from pathlib import Path
from typing import Any, ClassVar

import pytest
from amqtt.plugins.authentication import AnonymousAuthPlugin, FileAuthPlugin, PasswordFileError
from pwdlib.hashers.argon2 import Argon2Hasher

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security import Attempt, Refusal, amqtt_plugins
from canopy_mqtt.security.amqtt_plugins import AmqttAuthenticator
from canopy_mqtt.settings import Security
from tests.e2e import wire
from tests.e2e.wire import CONNACK, PINGRESP, Peer


@asynccontextmanager
async def hosted(*args: Any) -> AsyncIterator[AmqttAuthenticator]:
    made = await asyncio.to_thread(AmqttAuthenticator, *args)
    try:
        yield made
    finally:
        await made.close()
        assert made.name not in {thread.name for thread in threading.enumerate()}


def attempt(user_name: str | None, password: bytes | None) -> Attempt:
    connect = Connect("c")
    connect.user_name, connect.password = user_name, password
    return Attempt(connect, Origin("192.0.2.1:5000", "192.0.2.1"))


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    path = tmp_path / "passwords"
    hasher = Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1)
    path.write_text(f"ann:{hasher.hash('pencil')}\n")
    return path


@pytest.mark.parametrize(
    ("user_name", "password", "verdict"),
    [
        ("ann", b"pencil", "ann"),
        ("ann", b"rubber", 0x86),
        ("eve", b"pencil", 0x86),
        ("ann", b"\xff", 0x86),
        ("ann", None, 0x86),
        (None, None, None),
    ],
)
async def test_a_file_of_amqtt_decides(
    passwords: Path, user_name: str | None, password: bytes | None, verdict: str | int | None
) -> None:
    """Who names no user is not the file's to judge: that is left to the next."""
    async with hosted(FileAuthPlugin, {"password_file": passwords}) as authenticator:
        found = await authenticator.authenticate(attempt(user_name, password))
    if isinstance(found, Principal):
        assert found.user_name == verdict
    elif isinstance(found, Refusal):
        assert found.reason_code == verdict
        assert "pencil" not in found.text
    else:
        assert found is verdict


async def test_whom_a_plugin_calls_anonymous_has_no_user_name() -> None:
    async with hosted(AnonymousAuthPlugin) as authenticator:
        found = await authenticator.authenticate(attempt("admin", None))
    assert isinstance(found, Principal)
    assert found.user_name is None


async def test_a_plugin_that_cannot_be_made_says_why_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(PasswordFileError, match="not found"):
        await asyncio.to_thread(AmqttAuthenticator, FileAuthPlugin, {"password_file": tmp_path / "none"}, "none")
    assert [thread.name for thread in threading.enumerate() if thread.name == "none"] == []
    assert threading.active_count() <= before + 1  # that of to_thread


class Hashing:
    """A plug-in that hashes in its coroutine, until the test lets it go."""

    begun: ClassVar = threading.Event()
    go_on: ClassVar = threading.Event()
    closed: ClassVar = 0

    def __init__(self, context: Any) -> None:
        assert context.loop is asyncio.get_running_loop()

    async def authenticate(self, *, session: Any) -> bool:
        self.begun.set()
        left = 100_000
        while not self.go_on.is_set():
            pbkdf2_hmac("sha256", b"password", b"salt", 1000)
            left -= 1
            assert left > 0
        return bool(session.username == "ann")

    async def close(self) -> None:
        Hashing.closed += 1


async def test_no_other_client_waits_for_a_plugin_that_blocks() -> None:
    """While one client's plug-in computes, another is answered; then the plug-in's word counts."""
    Hashing.begun.clear()
    Hashing.go_on.clear()
    Hashing.closed = 0
    authenticator = await asyncio.to_thread(AmqttAuthenticator, Hashing)
    settings = Settings(listen=["mqtt://127.0.0.1:0"], security=Security(failure_delay=0.0))
    async with Broker(settings, authenticators=[authenticator]) as broker:
        first, second = [await Peer.open("127.0.0.1", broker.ports[0]) for _ in range(2)]
        await first.send(wire.connect("a", user="ann"))
        assert await asyncio.to_thread(Hashing.begun.wait, 10)
        # The broker's loop goes on: a second client's CONNECT is read, and waits in the plug-in's line alone.
        await second.send(wire.connect("b", user="eve"))
        Hashing.go_on.set()
        assert (await first.expect(CONNACK)).code == 0
        assert (await second.expect(CONNACK)).code == 0x86
        await first.send(wire.PING)
        await first.expect(PINGRESP)
        first.abort()
        second.abort()
    assert Hashing.closed == 1


async def test_a_broker_that_is_started_again_asks_the_plugin_again() -> None:
    authenticator = await asyncio.to_thread(AmqttAuthenticator, AnonymousAuthPlugin, {"allow_anonymous": True})
    broker = Broker(Settings(listen=["mqtt://127.0.0.1:0"]), authenticators=[authenticator])
    for _ in range(2):
        async with broker:
            peers = [await Peer.open("127.0.0.1", broker.ports[0]) for _ in range(2)]
            for number, peer in enumerate(peers):
                await peer.send(wire.connect(f"c{number}", user="ann"))
            for peer in peers:
                assert (await peer.expect(CONNACK)).code == 0
                peer.abort()
        assert authenticator.name not in {thread.name for thread in threading.enumerate()}


async def test_the_end_does_not_wait_long_for_a_plugin_that_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqtt_plugins, "STOP_TIMEOUT", 0.01)
    Hashing.begun.clear()
    Hashing.go_on.clear()
    authenticator = await asyncio.to_thread(AmqttAuthenticator, Hashing)
    asked = asyncio.ensure_future(authenticator.authenticate(attempt("ann", None)))
    assert await asyncio.to_thread(Hashing.begun.wait, 10)
    life = authenticator._life
    assert life is not None
    await authenticator.close()
    assert life.thread.is_alive()
    Hashing.go_on.set()
    await asyncio.to_thread(life.thread.join, 10)
    assert not life.thread.is_alive()
    await asyncio.wait([asked])
    assert asked.cancelled() or isinstance(asked.result(), Principal)

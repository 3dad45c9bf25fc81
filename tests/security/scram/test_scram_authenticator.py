"""SCRAM-SHA-256 through AUTH packets: who comes in, who authenticates again, and what the others hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import AuthExchange
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.scram.key_file import credential_line, secret_line
from canopy_mqtt.security.scram.scram_authenticator import ScramAuthenticator
from canopy_mqtt.settings import ScramTable
from tests.e2e import wire
from tests.e2e.wire import AUTH, CONNACK, DISCONNECT, PINGRESP, Packet, Peer
from tests.security.scram_client import ScramClient

SUCCESS, CONTINUE, AGAIN = 0x00, 0x18, 0x19
METHOD: wire.Property = (wire.AUTH_METHOD, "SCRAM-SHA-256")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "scram"
    lines = [secret_line(), credential_line("ann", "pencil", 4096), credential_line("bob", "rubber", 4096)]
    path.write_text("\n".join(lines) + "\n")
    return path


def made(path: Path) -> ScramAuthenticator:
    return ScramAuthenticator.from_table(ScramTable(type="scram-sha-256", path=str(path)))


def begun(path: Path) -> AuthExchange:
    return made(path).methods()["SCRAM-SHA-256"].begin()


def connect(user_name: str | None = None) -> Connect:
    packet = Connect("c")
    packet.user_name = user_name
    return packet


class TestExchange:
    def test_the_first_message_may_come_when_it_is_asked_for(self, path: Path) -> None:
        exchange, client = begun(path), ScramClient("ann", "pencil")
        exchange.start(connect(), None)
        assert (exchange.reason_code, exchange.data) == (CONTINUE, None)
        exchange.proceed(client.first())
        assert exchange.data is not None
        exchange.proceed(client.final(exchange.data))
        assert exchange.reason_code == SUCCESS

    @pytest.mark.parametrize(
        ("user", "password", "user_name"),
        [("ann", "rubber", None), ("eve", "pencil", None), ("ann", "pencil", "bob")],
    )
    def test_who_does_not_is_refused_at_the_end(
        self, path: Path, user: str, password: str, user_name: str | None
    ) -> None:
        """An unknown user hears it where one with a wrong password does; nobody comes in under two names."""
        exchange, client = begun(path), ScramClient(user, password)
        exchange.start(connect(user_name), client.first())
        assert exchange.reason_code == CONTINUE
        assert exchange.data is not None
        exchange.proceed(client.final(exchange.data))
        assert exchange.reason_code == 0x86
        assert exchange.principal is None


class TestFile:
    async def test_a_user_that_is_gone_is_not_known_any_more(self, path: Path) -> None:
        before = await asyncio.to_thread(made, path)
        assert before.files() == (path,)
        await asyncio.to_thread(path.write_text, credential_line("ann", "other", 4096) + "\n")
        after = await before.renewed()
        assert [after.still_knows(Principal(user)) for user in ("ann", "bob")] == [True, False]
        assert before.still_knows(Principal("bob"))
        await asyncio.to_thread(path.write_text, "nonsense\n")
        with pytest.raises(SecurityError, match="line 1"):
            await after.renewed()


@pytest.fixture
async def broker(path: Path) -> AsyncIterator[Broker]:
    authenticator = await asyncio.to_thread(made, path)
    settings = Settings(listen=["mqtt://127.0.0.1:0"])
    async with Broker(settings, auth_methods=dict(authenticator.methods())) as running:
        yield running


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    opened = await Peer.open("127.0.0.1", broker.ports[0])
    yield opened
    opened.abort()


def said(code: int, data: bytes) -> bytes:
    return wire.auth(code, [METHOD, (wire.AUTH_DATA, data)])


async def through(peer: Peer, client: ScramClient, code: int = 0) -> Packet:
    """The exchange up to the broker's last word; with `code` an open connection authenticates again."""
    first = client.first()
    await peer.send(said(code, first) if code else wire.connect("c", props=[METHOD, (wire.AUTH_DATA, first)]))
    challenge = await peer.expect(AUTH)
    assert (challenge.code, challenge.get(wire.AUTH_METHOD)) == (CONTINUE, "SCRAM-SHA-256")
    data = challenge.get(wire.AUTH_DATA)
    assert isinstance(data, bytes)
    await peer.send(said(CONTINUE, client.final(data)))
    return await peer.recv()


async def test_a_client_comes_in_and_authenticates_again(broker: Broker, peer: Peer) -> None:
    """The broker proves too that it knows the password: in CONNACK, and in AUTH. [MQTT-4.12.0-2] [MQTT-4.12.0-5]"""
    client = ScramClient("ann", "pencil")
    last = await through(peer, client)
    assert (last.kind, last.code, last.get(wire.AUTH_DATA)) == (CONNACK, SUCCESS, client.signature)
    assert broker.router.sessions["c"].principal.user_name == "ann"
    client = ScramClient("ann", "pencil", "another")
    last = await through(peer, client, AGAIN)
    assert (last.kind, last.code, last.get(wire.AUTH_DATA)) == (AUTH, SUCCESS, client.signature)
    await peer.send(wire.PING)
    await peer.expect(PINGRESP)


@pytest.mark.parametrize(("user", "password", "code"), [("ann", "wrong", 0x86), ("bob", "rubber", 0x87)])
async def test_who_authenticates_again_stays_the_same(peer: Peer, user: str, password: str, code: int) -> None:
    """Another password, or another user with a good one: the connection ends. [MQTT-4.12.1-2]"""
    await through(peer, ScramClient("ann", "pencil"))
    last = await through(peer, ScramClient(user, password), AGAIN)
    assert (last.kind, last.code) == (DISCONNECT, code)


async def test_who_authenticates_again_needs_what_is_in_force_now(path: Path) -> None:
    """A reload has put another password in force: the old one opens nothing on an open connection either."""
    before = await asyncio.to_thread(made, path)
    exchange, client = before.methods()["SCRAM-SHA-256"].begin(), ScramClient("ann", "pencil")
    exchange.start(connect(), client.first())
    assert exchange.data is not None
    exchange.proceed(client.final(exchange.data))
    await asyncio.to_thread(path.write_text, credential_line("ann", "new", 4096) + "\n")
    after = await before.renewed()
    codes = []
    for password in ("pencil", "new"):
        # Read, and not in force yet; then in force.
        client = ScramClient("ann", password)
        exchange.again(client.first())
        assert exchange.data is not None
        exchange.proceed(client.final(exchange.data))
        codes.append(exchange.reason_code)
        after.methods()
    assert codes == [SUCCESS, SUCCESS]
    client = ScramClient("ann", "pencil")
    exchange.again(client.first())
    assert exchange.data is not None
    exchange.proceed(client.final(exchange.data))
    assert exchange.reason_code == 0x86

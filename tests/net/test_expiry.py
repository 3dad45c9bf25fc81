"""Credentials that expire: the connection ends with them, told why where the protocol can, and no other does."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import AccessControl, AuthExchange, AuthMethod, Origin, Ticket
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.settings import Limits, Shutdown
from tests.e2e import wire
from tests.net.transports import Client, lose_all, rounds
from tests.support.runs import for_each
from tests.support.waiting import until


class Until(AccessControl):
    """Lets everybody in, for as long as the user name says (seconds)."""

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        del origin
        lasts = float(connect.user_name or "inf")
        ticket.principal = Principal("ann", expires_at=0.0 if math.isinf(lasts) else time.time() + lasts)
        return 0


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    settings = Settings(listen=["mqtt://127.0.0.1:0"], shutdown=Shutdown(flush_timeout=0.0))
    async with Broker(settings, access_control=Until()) as running:
        yield running
        lose_all(running)


def client(broker: Broker, name: str, lasts: str, *, version: int = 5, keep_alive: int = 0) -> Client:
    return Client(broker, name, says=wire.connect(name, version=version, user=lasts, keep_alive=keep_alive))


@pytest.mark.parametrize("keep_alive", [0, 600])
@pytest.mark.parametrize("version", [4, 5])
async def test_the_connection_ends_with_them(broker: Broker, version: int, keep_alive: int) -> None:
    """5.0 is told 0x87 (Not authorized); 3.1.1 has no packet that would tell it."""
    began = time.time()
    short = client(broker, "short", "0.2", version=version, keep_alive=keep_alive)
    client(broker, "long", "3600")
    client(broker, "ever", "inf")
    await rounds()
    short.take()
    await until(lambda: short.connection.protocol.close_cause)
    await rounds()
    assert short.connection.protocol.close_cause == "credentials-expired"
    assert time.time() >= began + 0.2
    said = short.take()
    assert (said[:1], said[2:3]) == ((b"\xe0", b"\x87") if version == 5 else (b"", b""))
    assert set(broker.router.sessions) == {"long", "ever"}


async def test_a_token_that_has_expired_meanwhile_ends_at_once(broker: Broker) -> None:
    late = client(broker, "late", "-1")
    await until(lambda: late.connection.protocol.close_cause)
    assert late.connection.protocol.close_cause == "credentials-expired"


async def test_the_clock_of_the_system_decides(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be set while the client is connected: the broker looks again from time to time."""
    there = client(broker, "there", "86400")
    await rounds()
    now = broker.loop.time()
    again = there.connection.check(now)
    assert again - now == pytest.approx(600.0)
    later = time.time() + 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    there.connection.check(now)
    await rounds()
    assert there.connection.protocol.close_cause == "credentials-expired"


async def test_who_has_no_such_end_is_not_looked_at(broker: Broker) -> None:
    ever = client(broker, "ever", "inf")
    await rounds()
    assert ever.connection.check(broker.loop.time()) == 0.0


class Lasting(AuthExchange):
    """Lets everybody in, for as long as the Authentication Data says (seconds); nothing there: for ever."""

    def start(self, connect: Connect, data: bytes | None) -> None:
        del connect
        self.again(data)

    def again(self, data: bytes | None) -> None:
        self.principal = Principal("ann", expires_at=time.time() + float(data) if data else 0.0)
        self.reason_code = 0


class Lastings(AuthMethod):
    """Makes these exchanges."""

    def begin(self) -> AuthExchange:
        return Lasting()


@for_each(("first", "then", "ends"), [(b"", b"0.2", True), (b"3600", b"0.2", True), (b"0.2", b"", False)])
async def test_who_authenticates_again_has_another_end(first: bytes, then: bytes, ends: bool) -> None:
    """An earlier one holds at once, and with a later one the first means nothing. [MQTT-4.12.1-1]"""
    # Without a time-out for the CONNECT nothing else has the connection looked at.
    settings = Settings(
        listen=["mqtt://127.0.0.1:0"], shutdown=Shutdown(flush_timeout=0.0), limits=Limits(connect_timeout=0.0)
    )
    method: wire.Property = (wire.AUTH_METHOD, "lasting")
    async with Broker(settings, auth_methods={"lasting": Lastings()}) as broker:
        there = Client(broker, "there", says=wire.connect("there", props=[method, (wire.AUTH_DATA, first)]))
        await rounds()
        there.connection.data_received(wire.auth(0x19, [method, (wire.AUTH_DATA, then)]))
        # And what comes behind it is acted on.
        there.connection.data_received(wire.PING)
        await rounds()
        assert there.take().endswith(b"\xd0\x00")
        if ends:
            await until(lambda: there.connection.protocol.close_cause)
            assert there.connection.protocol.close_cause == "credentials-expired"
        else:
            assert there.connection.check(broker.loop.time() + 3600) == 0.0
            assert there.connection.protocol.close_cause == ""
        there.connection.connection_lost(None)

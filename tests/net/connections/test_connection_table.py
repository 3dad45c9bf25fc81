"""Who hears of clients that come and go, and who gives way. More of the latter: `test_connection`, `test_admission`."""

from __future__ import annotations

from typing import Any

from canopy_mqtt import Broker
from canopy_mqtt.net.connections.admission import UNACCEPTED_ROOM
from canopy_mqtt.net.connections.connection import Connection as Counted
from canopy_mqtt.settings import Presence, Settings, Shutdown, Sys
from tests.e2e import wire
from tests.net.transports import Client, rounds
from tests.support.runs import for_each


class Hearing(Broker):
    """Writes down what it is told of its clients."""

    quiet = True

    def __init__(self, settings: Settings) -> None:
        self.told: list[tuple[str, str]] = []
        super().__init__(settings)

    @property
    def hears_of_clients(self) -> bool:
        return super().hears_of_clients if self.presence is not None else not self.quiet

    def report_open(self, connection: Counted) -> None:
        self.told.append(("open", connection.protocol.client_id))

    def report_end(self, connection: Counted) -> None:
        self.told.append((connection.protocol.close_cause, connection.protocol.client_id))


def broker(**sections: Any) -> Hearing:
    return Hearing(
        Settings(listen=["mqtt://127.0.0.1:0"], shutdown=Shutdown(flush_timeout=0.0), sys=Sys(interval=0.0), **sections)
    )


async def come_and_go(broker: Broker) -> None:
    for name, last in (("a", wire.disconnect()), ("b", b"\xff\x00")):
        client = Client(broker, name)
        client.connection.data_received(last)
        await rounds()
        client.connection.connection_lost(None)
    assert not broker.connections


async def test_what_nobody_wants_to_hear_is_not_told() -> None:
    """A client that comes, and one that goes as a client does. Whatever else ends a connection is told always."""
    quiet = broker()
    async with quiet:
        await come_and_go(quiet)
        assert quiet.told == [("protocol-error", "b")]


async def test_a_log_that_is_turned_up_hears_from_then_on() -> None:
    hearing = broker()
    async with hearing:
        hearing.quiet = False
        await hearing.reload(hearing.settings)
        await come_and_go(hearing)
        assert hearing.told == [
            ("open", "a"),
            ("client-disconnect", "a"),
            ("open", "b"),
            ("protocol-error", "b"),
        ]


@for_each("topic", ["", "presence"])
async def test_who_publishes_who_is_here_hears_of_all(topic: str) -> None:
    """However quiet the log is."""
    hearing = broker(presence=Presence(topic=topic))
    async with hearing:
        await come_and_go(hearing)
        assert (("open", "a") in hearing.told) == bool(topic)


async def test_one_address_closes_no_connection_of_others_that_sends_its_connect_late() -> None:
    """Its own give way, however many come while the CONNECT of a client far away is on its way."""
    full = broker(limits={"max_connections": 10})
    async with full:
        far = Client(full, "", "192.0.2.1", says=b"")
        others = [Client(full, "", "192.0.2.2", says=b"") for _ in range(200)]
        await rounds()
        far.connection.data_received(wire.connect("far"))
        assert far.connection.protocol.accepted
        left = 10 - 1 + UNACCEPTED_ROOM
        assert [client.transport.aborted for client in others] == [True] * (200 - left) + [False] * left

"""A connection of the broker's over a transport that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from canopy_mqtt import Broker
from canopy_mqtt.net.connections.connection import Connection
from tests.e2e import wire

Embed = Callable[..., Awaitable[Broker]]
"""Starts a broker with those settings: the fixture `embed`."""


class Transport:
    """Takes what is written and does nothing by itself."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.reading = True
        self.told = asyncio.Event()  # to read on, or that it is over
        self.written: list[bytes] = []
        self.failing = False
        self.aborted = False
        self.most = 0  # bytes in its buffer at which it wants no more
        self.half = False  # whether it can close its own half
        self.connection: Connection | None = None  # to be told that one write is enough

    def write(self, data: bytes) -> None:
        if self.failing:
            raise RuntimeError("no more")
        self.written.append(data)
        if self.connection is not None:
            self.connection.pause_writing()

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_extra_info(self, name: str) -> Any:
        return (self.host, 4711) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        self.most = high

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.told.set()

    def can_write_eof(self) -> bool:
        return self.half

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self.aborted = True
        self.told.set()


def lose_all(broker: Broker) -> None:
    """The sockets of all connections are gone."""
    for connection in list(broker.connections):
        connection.connection_lost(None)


class Client:
    """A connection of the broker's, with its transport."""

    def __init__(
        self, broker: Broker, name: str, host: str = "127.0.0.1", *, says: bytes | None = None, half: bool = False
    ) -> None:
        self.transport = Transport(host)
        self.transport.half = half
        self.connection = Connection(broker.connection_table, broker.listeners.all[0].terms)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self.connection.data_received(wire.connect(name) if says is None else says)

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return data


async def rounds(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)

"""A WebSocket between a socket and a simulated client: the protocol of the one, and the transport of the other.

Both by their methods. What is said on the WebSocket is `canopy_mqtt.client.websocket`'s.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from canopy_mqtt.client.websocket import WebSocketMachine


class WebSocket:
    """Between a socket and `inner`, which speaks MQTT. `opened` is done when MQTT may begin."""

    def __init__(self, inner: Any, authority: str, path: str) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner = inner
        self._machine = WebSocketMachine(authority, path)
        self._transport: asyncio.Transport | None = None
        self._fault: ConnectionError | None = None

    # -- as a protocol -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._machine.take())

    def data_received(self, data: bytes) -> None:
        was_open = self._machine.open
        try:
            data = self._machine.receive(data)
        except ConnectionError as error:
            self._fault = error
            self.abort()
            return
        if self._machine.open and not was_open:
            if not self.opened.done():
                self.opened.set_result(None)
            self._inner.connection_made(self)
        self._flush()
        if data:
            self._inner.data_received(data)
        if self._machine.closed and self._transport is not None:
            self._transport.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._machine.open:
            self._inner.connection_lost(self._fault or exc)
        elif not self.opened.done():
            hung_up = ConnectionError("the server closed the connection instead of opening a WebSocket")
            self.opened.set_exception(exc if isinstance(exc, OSError) else self._fault or hung_up)

    def pause_writing(self) -> None:
        if self._machine.open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._machine.open:
            self._inner.resume_writing()

    # -- as a transport ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes of MQTT, as one frame."""
        self._machine.send(data)
        self._flush()

    def close(self) -> None:
        """Send a close frame behind the written bytes, and close."""
        self._machine.close()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        return self._machine.closed or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        data = self._machine.take()
        if data and self._transport is not None:
            self._transport.write(data)

"""A client for asyncio: the machine on a TCP, TLS, WebSocket or Unix socket connection of the running event loop.

Owns: the connection and its timer, and those that wait for an answer.

Promises: `connect` ends within the time-out. `publish` returns when the broker has the message, and waits before that
where too many are on their way or the socket takes no more. A lost connection wakes all that wait.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, cast

from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.failures import HUNG_UP, ClientError, LostError, describe
from canopy_mqtt.client.machine import ClientMachine, Delivered, Event
from canopy_mqtt.client.websocket import WebSocketMachine
from canopy_mqtt.core.codec.packets import Connack, Publish, Suback, SubscriptionRequest

LINGER: Final = 1.0
"""Seconds that `disconnect` waits at most for the broker to take what was written."""


class _Wire(asyncio.Protocol):
    """The network connection of a client: what asyncio calls."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.web: WebSocketMachine | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        if client.address.websocket:
            self.web = WebSocketMachine(client.address.authority, client.address.websocket)

    @property
    def made(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.web is None:
            self._client._begin(self)
        else:
            self._transport.write(self.web.take())

    def data_received(self, data: bytes) -> None:
        web = self.web
        if web is not None:
            opened = web.open
            try:
                data = web.receive(data)
            except ConnectionError as error:
                self._client._lost(self, error)
                return
            if web.open and not opened:
                self._client._begin(self)
            self.write(b"")
        if data:
            self._client._read(self, data)
        if web is not None and web.closed:
            self.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.writable.set()
        self.closed.set_result(None)
        self._client._lost(self, exc or ConnectionResetError(HUNG_UP))

    def now(self) -> float:
        return self._loop.time()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def write(self, data: bytes) -> None:
        if self.web is not None:
            self.web.send(data)
            data = self.web.take()
        if data and self._transport is not None:
            self._transport.write(data)

    def read_on(self, on: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        if self.web is not None:
            self.web.close()
            self.write(b"")
        if self._transport is not None:
            self._transport.close()
            # A broker that does not read what was written last does not hold us up.
            self._loop.call_later(LINGER, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class AsyncClient:
    """A connection that can be made again and again; `async with` connects, and disconnects at the end.

    `on_message` gets each message as it is read, and may stop the reading (`read_on`). Calls that wait for an answer
    raise LostError after `timeout` seconds; `publish` has no such limit.
    """

    def __init__(
        self,
        address: BrokerAddress,
        machine: ClientMachine,
        *,
        timeout: float = 10.0,
        on_message: Callable[[Publish], None] | None = None,
    ) -> None:
        self.address = address
        self.machine = machine
        self.timeout = timeout
        self._on_message = on_message
        self._wire: _Wire | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._news = asyncio.Event()
        """Set when the window has room, or the connection is over."""
        self._connected: asyncio.Future[Connack] | None = None
        self._answers: dict[int, asyncio.Future[Suback]] = {}
        self._outcomes: dict[int, asyncio.Future[int]] = {}

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    # -- what the caller wants -----------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """True if there is a connection, as far as is known."""
        return self._wire is not None and self.machine.connected

    async def connect(self) -> Connack:
        """Connect, anew after a loss, and wait for the CONNACK of success.

        Raises:
            RefusedError: the broker does not want this client.
            LostError: there is no connection, or no answer in time.
        """
        if self._wire is not None:
            self._wire.abort()
            self._over()
        self.machine.lost("closed")
        self.machine.failure = None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Connack] = loop.create_future()
        self._connected = answer
        address = self.address
        wire = self._wire = _Wire(self)
        try:
            async with asyncio.timeout(self.timeout):
                if address.unix:
                    await loop.create_unix_connection(lambda: wire, address.unix)
                else:
                    name = (address.server_name or address.host) if address.tls is not None else None
                    await loop.create_connection(
                        lambda: wire, address.host, address.port, ssl=address.tls, server_hostname=name
                    )
                return await answer
        except TimeoutError:
            raise LostError(f"no CONNACK within {self.timeout:g} s").at(address) from None
        except (OSError, ValueError) as error:
            lasting = isinstance(error, (ssl.SSLCertVerificationError, ValueError))
            raise LostError(describe(error), lasting=lasting).at(address) from error
        finally:
            self._connected = None
            if answer.done() and not answer.cancelled():
                answer.exception()
            if not self.machine.connected:
                wire.abort()
                self._over()

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: bytes = b"",
        message_expiry: int = -1,
    ) -> int:
        """Publish, and wait for the acknowledgement: its reason code, 0 with QoS 0. `properties`: `encode_forward`.

        Raises:
            LostError: the connection is over; the message may have arrived, and is sent again if there is a next one.
            NotSupportedError, ValueError: as `ClientMachine.publish`.
        """
        machine = self.machine
        packet = Publish(topic.encode(), payload, qos, retain, properties=properties, message_expiry=message_expiry)
        wire = self._wire
        if wire is not None:
            await wire.writable.wait()
        while qos and machine.unacknowledged >= machine.window:
            self._connection()
            await self._wait()
        self._connection()
        number = machine.publish(packet)
        self._write()
        if not number:
            return 0
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._outcomes[number] = outcome
        try:
            return await outcome
        finally:
            self._outcomes.pop(number, None)

    async def subscribe(self, *requests: SubscriptionRequest | str) -> Suback:
        """Subscribe, and wait for the SUBACK. A filter alone asks for QoS 0. Raises LostError."""
        wanted = [SubscriptionRequest(each) if isinstance(each, str) else each for each in requests]
        number = self.machine.subscribe(wanted)
        answer: asyncio.Future[Suback] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._write()
        try:
            async with asyncio.timeout(self.timeout):
                return await answer
        except TimeoutError:
            raise LostError(f"no SUBACK within {self.timeout:g} s").at(self.address) from None
        finally:
            self._answers.pop(number, None)

    def read_on(self, on: bool) -> None:
        """Stop or resume reading, for an `on_message` that cannot keep up."""
        self._paused = not on
        if self._wire is not None:
            self._wire.read_on(on)

    async def lost(self) -> ClientError | None:
        """Wait until the connection is over: why; None where this side ended it."""
        while self._wire is not None:
            await self._wait()
        return self.machine.failure

    async def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT and close the connection; `connect` may begin another one."""
        wire = self._wire
        self.machine.disconnect(reason_code)
        self._write()
        self._over()
        if wire is not None:
            wire.close()
            if wire.made:
                await asyncio.shield(wire.closed)

    def close(self) -> None:
        """End the connection at once, without a DISCONNECT."""
        wire = self._wire
        self.machine.lost("closed")
        self._over()
        if wire is not None:
            wire.abort()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _connection(self) -> None:
        """Raise LostError if there is none."""
        if self._wire is None or not self.machine.connected:
            raise self._why()

    def _why(self) -> LostError:
        failure = self.machine.failure
        if isinstance(failure, LostError):
            return LostError(failure.why, failure.reason_code, failure.lasting).at(self.address)
        return LostError("there is no connection").at(self.address)

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _write(self) -> None:
        data = self.machine.take()
        if data and self._wire is not None:
            self._wire.write(data)

    def _begin(self, wire: _Wire) -> None:
        """Begin MQTT on the connection."""
        if wire is not self._wire:
            # The client gave this connection up while it was made.
            wire.abort()
            return
        self._paused = False
        self.machine.open(wire.now())
        self._write()

    def _read(self, wire: _Wire, data: bytes) -> None:
        if wire is not self._wire:
            return
        for event in self.machine.receive(data, wire.now()):
            self._dispatch(event)
        self._write()
        if self.machine.failure is not None:
            self._lost(wire, None)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Publish):
            if self._on_message is not None:
                self._on_message(event)
            return
        if isinstance(event, Delivered):
            outcome = self._outcomes.get(event.packet_id)
            if outcome is not None and not outcome.done():
                outcome.set_result(event.reason_code)
        elif isinstance(event, Suback):
            answer = self._answers.get(event.packet_id)
            if answer is not None and not answer.done():
                answer.set_result(event)
        elif isinstance(event, Connack):
            self._look()
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(event)
        self._news.set()

    def _look(self) -> None:
        """Check the keep alive, now and when it is due again."""
        wire = self._wire
        if wire is None:
            return
        self.machine.tick(wire.now(), reading=not self._paused)
        self._write()
        if self.machine.failure is not None:
            self._lost(wire, None)
        elif not math.isinf(self.machine.due):
            self._timer = asyncio.get_running_loop().call_at(self.machine.due, self._look)

    def _lost(self, wire: _Wire, error: Exception | None) -> None:
        """End the connection with the network's error, or the machine's."""
        if wire is not self._wire:
            return
        if error is not None:
            self.machine.lost(describe(error), error)
        failure = self.machine.failure
        if failure is None:
            # Before MQTT began.
            failure = LostError(str(error))
        failure.at(self.address)
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(failure)
        # Behind a DISCONNECT that says what the broker did wrong.
        wire.close()
        self._over()

    def _over(self) -> None:
        """Wake all that wait for the connection, which is over."""
        self._wire = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), *self._outcomes.values()]
        for each in waiting:
            if not each.done():
                each.set_exception(self._why())
        self._news.set()

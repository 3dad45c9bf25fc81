"""A client that blocks: for threads, command lines, and jobs that have no event loop.

Owns: `Stream`, the bytes of one connection (TCP, TLS, WebSocket, Unix socket), and `BlockingClient`, the machine on it.
No thread runs, and nothing happens between two calls: nothing is acknowledged that the caller did not let through.

Promises: connecting ends within the time-out. `Stream.write` keeps what the socket does not take, and `exchange` reads
`MAX_READ` bytes at most.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.failures import HUNG_UP, LostError, describe
from canopy_mqtt.client.machine import ClientMachine, Delivered, Event
from canopy_mqtt.client.websocket import WebSocketMachine
from canopy_mqtt.core.codec.packets import Connack, Publish, Suback, SubscriptionRequest

MAX_READ: Final = 1 << 18
"""Bytes of one read: what a socket's buffer holds, so that a fast broker costs few calls."""
SLICE: Final = 0.1
"""Seconds after which a call that waits looks at `abandoned`."""
LEAVING: Final = 1.0
"""Seconds that `disconnect` takes at most to write what waits."""


class Stream:
    """Connects at once, TLS and WebSocket included, within `timeout` seconds for each of them.

    Raises:
        OSError: there is no connection (`ssl.SSLError`: no TLS).
        ValueError: no such host name is possible.
    """

    def __init__(self, address: BrokerAddress, timeout: float) -> None:
        if address.unix:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            made = socket.create_connection((address.host, address.port), timeout)
        self._tls: ssl.SSLSocket | None = None
        self._web: WebSocketMachine | None = None
        self._out = bytearray()
        self._in = b""
        try:
            if address.unix:
                made.settimeout(timeout)
                made.connect(address.unix)
            else:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                self._tls = made = address.tls.wrap_socket(made, server_hostname=address.server_name or address.host)
            self._socket = made
            made.setblocking(False)
            if address.websocket:
                self._web = WebSocketMachine(address.authority, address.websocket)
                self._handshake(self._web, timeout)
        except BaseException:
            made.close()
            raise

    def _handshake(self, web: WebSocketMachine, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not web.open:
            if time.monotonic() > deadline:
                raise TimeoutError("the server did not answer the WebSocket's handshake")
            self._in += self.exchange(SLICE)

    def fileno(self) -> int:
        """Return the descriptor of the socket; negative: it is closed."""
        return self._socket.fileno()

    @property
    def unwritten(self) -> int:
        """Bytes that wait to be written."""
        return len(self._out)

    def write(self, data: bytes) -> None:
        """Write, or keep what cannot be written now. A failure shows at the next `exchange`."""
        if self._web is not None:
            self._web.send(data)
            data = self._web.take()
        self._out += data

    def exchange(self, timeout: float) -> bytes:
        """Write what waits, and return what has come; empty when nothing came within `timeout` seconds.

        Raises:
            OSError: the connection is over.
        """
        if self._in:
            data, self._in = self._in, b""
            return data
        if self._web is not None:
            self._out += self._web.take()
        self.flush()
        if self._tls is None or not self._tls.pending():
            ready = select.poll()
            ready.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
            found = ready.poll(max(timeout, 0) * 1000)
            if not found:
                return b""
            if found[0][1] & select.POLLOUT:
                self.flush()
            if not found[0][1] & ~select.POLLOUT:
                return b""
        try:
            data = self._socket.recv(MAX_READ)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        if not data:
            raise ConnectionResetError(HUNG_UP)
        if self._web is None:
            return data
        data = self._web.receive(data)
        if self._web.closed and not data:
            raise ConnectionResetError(HUNG_UP)
        return data

    def flush(self) -> None:
        """Write what the socket takes now. Raises OSError: the connection is over."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def drain(self, timeout: float) -> None:
        """Write all that waits, within `timeout` seconds. Raises OSError: the connection is over, or too slow."""
        deadline = time.monotonic() + timeout
        while self._out:
            left = deadline - time.monotonic()
            ready = select.poll()
            ready.register(self._socket, select.POLLOUT)
            if not ready.poll(max(left, 0) * 1000):
                raise TimeoutError("the other side does not read")
            self.flush()

    def close(self) -> None:
        """Close at once."""
        self._socket.close()


class BlockingClient:
    """A connection that can be made again and again; a context manager that disconnects.

    `on_message` gets each message while a call reads, `on_delivered` what became of each message with QoS 1 and 2.
    Calls that wait raise LostError after `timeout` seconds, or soon when any thread sets `abandoned`.
    """

    def __init__(
        self,
        address: BrokerAddress,
        machine: ClientMachine,
        *,
        timeout: float = 10.0,
        on_message: Callable[[Publish], None] | None = None,
        on_delivered: Callable[[Delivered], None] | None = None,
    ) -> None:
        self.address = address
        self.machine = machine
        self.timeout = timeout
        self.on_message = on_message
        self.on_delivered = on_delivered
        self.abandoned = False
        self._stream: Stream | None = None
        self._answers: dict[int, Suback] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    @property
    def connected(self) -> bool:
        """True if there is a connection, as far as is known."""
        return self._stream is not None and self.machine.connected

    @property
    def unwritten(self) -> int:
        """Bytes that wait to be written."""
        return 0 if self._stream is None else self._stream.unwritten

    def connect(self) -> Connack:
        """Connect, anew after a loss, and wait for the CONNACK of success.

        Raises:
            RefusedError: the broker does not want this client.
            LostError: there is no connection, or no answer in time.
        """
        self.close()
        where = str(self.address)
        try:
            stream = Stream(self.address, self.timeout)
        except (OSError, ValueError) as error:
            lasting = isinstance(error, (ssl.SSLCertVerificationError, ValueError))
            raise LostError(describe(error), lasting=lasting).at(where) from error
        self._stream = stream
        # Before the CONNECT, which would take the session from another one that has the client identifier by now.
        self._go_on()
        self.machine.open(time.monotonic())
        deadline = time.monotonic() + self.timeout
        while not self.machine.connected:
            self._go_on()
            self.step(SLICE)
            if time.monotonic() > deadline:
                self.close()
                raise LostError(f"no CONNACK within {self.timeout:g} s").at(where)
        return self.machine.connack

    def step(self, timeout: float = 0.0) -> None:
        """Read and write what there is; wait at most `timeout` seconds for something to come.

        Raises:
            RefusedError, LostError: the connection is over, or there is none.
        """
        machine = self.machine
        stream = self._stream
        if stream is None:
            raise LostError("there is no connection").at(self.address)
        machine.tick(time.monotonic())
        stream.write(machine.take())
        try:
            data = stream.exchange(max(min(timeout, machine.due - time.monotonic()), 0.0))
            for event in machine.receive(data, time.monotonic()) if data else ():
                self._dispatch(event)
            stream.write(machine.take())
            stream.flush()
        except OSError as error:
            machine.lost(describe(error), error)
        if machine.failure is not None:
            self.close()
            raise machine.failure.at(self.address)

    def stay(self) -> None:
        """Stay connected without reading: send a PINGREQ if one is due. A failure shows at the next `step`."""
        if self._stream is None:
            return
        self.machine.tick(time.monotonic(), reading=False)
        self._stream.write(self.machine.take())
        try:
            self._stream.flush()
        except OSError:
            return

    def publish(self, packet: Publish) -> int:
        """Send a message, or keep it (`ClientMachine.publish`), without waiting. Returns its packet identifier."""
        number = self.machine.publish(packet)
        if self._stream is not None:
            self._stream.write(self.machine.take())
        return number

    def subscribe(self, *requests: SubscriptionRequest | str) -> Suback:
        """Subscribe, and wait for the SUBACK. A filter alone asks for QoS 0. Messages may arrive meanwhile.

        Raises:
            LostError: there is no connection any more, or no SUBACK in time.
        """
        wanted = [SubscriptionRequest(each) if isinstance(each, str) else each for each in requests]
        self._answers.clear()
        number = self.machine.subscribe(wanted)
        self._until("a SUBACK", lambda: number in self._answers)
        return self._answers.pop(number)

    def ping(self) -> None:
        """Send PINGREQ and wait for the PINGRESP: all earlier packets of the broker have arrived then. Raises
        LostError."""
        if self.machine.connected:
            self.machine.ping(time.monotonic())
        self._until("a PINGRESP", lambda: self.connected and not self.machine.unanswered)

    def acknowledge(self, messages: Iterable[Publish]) -> None:
        """Send PUBACK or PUBREC for messages that were held (`ClientMachine.acknowledge`)."""
        for packet in messages:
            self.machine.acknowledge(packet)
        if self._stream is not None:
            self._stream.write(self.machine.take())

    def disconnect(self) -> None:
        """Send DISCONNECT and close the connection; `connect` may begin another one."""
        self.machine.disconnect()
        if self._stream is not None:
            try:
                self._stream.write(self.machine.take())
                self._stream.drain(LEAVING)
            except OSError:
                # The broker has gone before us.
                pass
        self.close()

    def close(self) -> None:
        """End the connection without a DISCONNECT."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self.machine.lost("closed")

    def _until(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.timeout
        while not done():
            self._go_on()
            if time.monotonic() > deadline:
                raise LostError(f"waited {self.timeout:g} s for {what}").at(self.address)
            self.step(SLICE)

    def _go_on(self) -> None:
        if self.abandoned:
            self.close()
            raise LostError("the connection is not wanted any more").at(self.address)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Publish):
            if self.on_message is not None:
                self.on_message(event)
        elif isinstance(event, Delivered):
            if self.on_delivered is not None:
                self.on_delivered(event)
        elif isinstance(event, Suback):
            self._answers[event.packet_id] = event

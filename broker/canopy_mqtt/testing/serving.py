"""Runs in the thread of a broker under test: the broker itself, the proxy before it, the record of what it routed.

Owns their life, and every look at the broker's state. Nothing here may be called from another thread; `control` is the
face for tests.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core import causes
from canopy_mqtt.core.queues.message import Message as CoreMessage
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.store import MemoryStore
from canopy_mqtt.store.times import Clocks
from canopy_mqtt.testing.clock import ClockLoop
from canopy_mqtt.testing.proxy import BUFFER, ConnectionFault, PacketFault, Proxy
from canopy_mqtt.testing.record import Message, Record, of_retained
from canopy_mqtt.testing.waiting import Waiters

MAX_JUMP: Final = 30 * 86_400.0
"""Seconds by which the clock may jump at once: what is looked at each tenth of a second is looked at so often."""


class ServedBroker:
    """One broker under test, over its restarts."""

    def __init__(self, settings: Settings, hooks: Mapping[str, Any], loop: ClockLoop) -> None:
        """`hooks`: keyword arguments of `Broker`."""
        self._settings = settings
        self._hooks = hooks
        self._loop = loop
        self.waiters = Waiters(loop)
        self.record = Record(self.waiters.changed)
        self.proxy = Proxy(loop, self.waiters.changed)
        self._store: MemoryStore | None = None
        self._broker: Broker | None = None

    @property
    def running(self) -> bool:
        """True if the broker serves."""
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        """The broker that runs. Raises RuntimeError: it is stopped."""
        if self._broker is None:
            raise RuntimeError("the broker is stopped")
        return self._broker

    async def start(self) -> None:
        """Start the broker."""
        if self._broker is not None:
            raise RuntimeError("the broker runs already")
        if self._store is None and not self._settings.store.path:
            self._store = MemoryStore(Clocks(self._loop.time, self._loop.time, ""))
        broker = Broker(self._settings, store=self._store, **self._hooks)
        await broker.start()
        self._broker = broker
        for sock in broker.listeners.open[0].sockets:
            # Accepted connections inherit it: a client that does not read is to be noticed soon.
            with socket.socket(fileno=os.dup(sock.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.record.attach(broker)
        await self.proxy.open(broker.ports[0], self._settings.limits.max_packet_size)

    async def stop(self, abrupt: bool) -> None:
        """See `RunningBroker.stop`."""
        broker, self._broker = self._broker, None
        await self.proxy.close()
        for link in list(self.proxy.links):
            if abrupt:
                link.cut()
            elif link.silent:
                # A silent client would not hear that the broker ends, and the broker would wait for it.
                link.abort()
        if broker is not None:
            await broker.stop()
        self.proxy.abort()
        # Transports that were given up close their sockets in the next round.
        await asyncio.sleep(0)
        self.waiters.changed()

    async def restart(self, keep_store: bool, down_for: float, abrupt: bool) -> None:
        """See `RunningBroker.restart`."""
        if not keep_store and self._settings.store.path:
            raise ValueError(f"the store is in {self._settings.store.path}: stop, remove it and start instead")
        check_jump(down_for)
        await self.stop(abrupt)
        self._loop.ahead += down_for
        if not keep_store:
            self._store = None
        await self.start()

    async def advance(self, seconds: float, silent: bool | str) -> None:
        """See `RunningBroker.advance`."""
        # What was sent before the jump is heard before it.
        await self._loop.settle()
        broker = self._broker
        if broker is None:
            self._loop.ahead += seconds
            return
        connections = list(broker.connections)
        mute = [each for each in connections if silent is True or _client_id(each) == silent]
        if isinstance(silent, str) and not mute:
            raise AssertionError(f"{silent!r} is not connected; connected: {self.record.clients()}")
        held = [each for each in mute if each.stream.reading]
        for connection in held:
            # What it sends from here on comes after the time in which it was silent.
            connection.stream.transport.pause_reading()
        self._loop.ahead += seconds
        # The jump is no lag of the loop.
        broker.lag_monitor.close()
        broker.lag_monitor.start()
        now = self._loop.time()
        for connection in connections:
            if connection not in mute:
                connection.protocol.last_received = connection.sign_at = now
        while broker.router.tick(now):  # noqa: ASYNC110 (it works some of it off)
            await asyncio.sleep(0)
        broker.after_batch()
        # Timers that became due by the jump, and what they have called.
        await self._loop.settle()
        for connection in held:
            if connection.stream.reading and not connection.stream.transport.is_closing():
                connection.stream.transport.resume_reading()
        self.waiters.changed()

    def _session(self, client_id: str) -> Session | None:
        return None if self._broker is None else self._broker.router.sessions.get(client_id)

    def connected(self, client_id: str) -> bool:
        """Return whether a client is connected."""
        session = self._session(client_id)
        return session is not None and session.send_buffer is not None

    def subscriptions(self, client_id: str) -> dict[str, int]:
        """Topic filters with their QoS."""
        session = self._session(client_id)
        return {} if session is None else {name: int(each.qos) for name, each in session.subscriptions.items()}

    def retained(self, topic_filter: str) -> list[Message]:
        """Retained messages, by topic."""
        now = self._loop.time()
        nodes = self.broker.router.retained_store.tree.matching(topic_filter)
        held = [node.value for node in nodes if isinstance(node.value, CoreMessage)]
        return sorted((of_retained(message, now) for message in held), key=lambda message: message.topic)

    def state_of(self, client_id: str) -> str:
        """Describe the state of a client in a line."""
        if self._broker is None:
            return "the broker is stopped"
        session = self._session(client_id)
        if session is None:
            return f"it has no session; sessions: {sorted(self._broker.router.sessions)}"
        away = "" if session.send_buffer is not None else "; it is not connected"
        return f"its subscriptions: {sorted(session.subscriptions)}{away}"

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool, expiry: int) -> None:
        """Route a message of the broker's own."""
        broker = self.broker
        due = self._loop.time() + expiry if expiry else 0.0
        broker.router.publish(CoreMessage(topic.encode(), payload, qos, retain, b"", due, ""), None)
        broker.after_batch()

    def disconnect(self, client_id: str, reason_code: int) -> bool:
        """End a connection, and return whether there was one."""
        session = self._session(client_id)
        owner = None if session is None or session.send_buffer is None else session.send_buffer.owner
        if isinstance(owner, Connection):
            owner.end(CLOSE, causes.ADMINISTRATIVE_ACTION, reason_code, "the test ended this connection")
        return isinstance(owner, Connection)

    def begin(self, act: ConnectionFault | PacketFault) -> None:
        """Begin a fault."""
        if isinstance(act, PacketFault):
            self.proxy.packet_faults.append(act)
        else:
            self.proxy.begin(act)

    def end(self, act: ConnectionFault | PacketFault) -> None:
        """End a fault."""
        if isinstance(act, PacketFault):
            if act in self.proxy.packet_faults:
                self.proxy.packet_faults.remove(act)
        elif act in self.proxy.link_faults:
            self.proxy.link_faults.remove(act)
        act.end()

    def heal(self) -> None:
        """End all faults."""
        for act in list(self.proxy.packet_faults):
            self.end(act)
        self.proxy.link_faults.clear()
        for link in list(self.proxy.links):
            link.heal()


def _client_id(connection: Connection) -> str | None:
    session = connection.protocol.session
    return None if session is None else session.client_id


def check_jump(seconds: float) -> None:
    """Raise ValueError unless the clock may be put forward by so much."""
    if not 0.0 <= seconds <= MAX_JUMP:
        raise ValueError(f"{seconds} s: the clock goes forward, by at most {MAX_JUMP:.0f} s at once")

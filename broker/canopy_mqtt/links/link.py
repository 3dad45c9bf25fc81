"""One link to an upstream broker: it connects, reconnects, and subscribes there.

Owns the life of a link: its session in the router, its subscriptions, and one connection at a time.

Promises:
- It reconnects for as long as it runs, with delays up to `retry_max`, at another time than other links.
- With `version = "auto"` it uses 5.0 if the upstream does, and 3.1.1 otherwise, with the bridge bit if the upstream
  knows it.
- An orderly stop gives waiting messages `flush` seconds to be sent, and then sends a DISCONNECT.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from canopy_mqtt import sockets
from canopy_mqtt.client.failures import describe
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import V5, V311, SubscriptionRequest
from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.core.persistence.restore import refill
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.links import parameters
from canopy_mqtt.links.filters.declarer import Declarer
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.protocol.connection import Owner, UpstreamConnection
from canopy_mqtt.links.protocol.link_state import LinkState
from canopy_mqtt.links.protocol.session import UplinkSession
from canopy_mqtt.links.protocol.uplink import ConnectTerms, Uplink
from canopy_mqtt.links.subscriber import LOOK, UpstreamSubscriber
from canopy_mqtt.settings import Upstream, parse_upstream

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

PATIENCE: Final = 10.0
"""Seconds for each step of a connection: `UpstreamLink.patience`."""

STEADY: Final = 5.0
"""Seconds that a connection has to last for the next attempt to come soon."""

LEAVING: Final = 1_024
"""Retained messages that are looked at in one turn when a link leaves."""

WAYS: Final = {
    "auto": ((V5, False), (V311, True), (V311, False)),
    "5.0": ((V5, False),),
    "3.1.1": ((V311, True), (V311, False)),
}
"""Protocol version and bridge bit, in the order in which they are tried."""

WORDLESS: Final = frozenset({0, reason_codes.PROTOCOL_ERROR, reason_codes.MALFORMED_PACKET})
"""The reasons with which a connection ends if the upstream does not understand the CONNECT."""

OF_THE_CONNECTION: Final = (
    "url", "username", "password", "password_file", "ca_file", "cert_file", "key_file", "client_id", "version",
    "keep_alive", "session_expiry", "status_topic", "subscribe_qos",
)  # fmt: skip
"""The settings that need another connection when they change."""

OF_THE_FILTERS: Final = ("subscribe", "aggregate", "max_filters", "hold", "roots", "unfolded")
"""The settings that say what is asked for upstream."""


class UpstreamLink(Owner):
    """One of the broker's links. Made and started on the event loop."""

    def __init__(self, server: Server, settings: Upstream, broker_id: str, hop_limit: int) -> None:
        self.server = server
        self.settings = settings
        self.name = settings.name
        self.log: Any = server.log
        self.loop = server.loop
        self.patience = PATIENCE
        """Seconds for the network connection, and again for the CONNACK."""
        router = server.router
        self.mapping = Mapping(settings.local_prefix, settings.remote_prefix)
        # A broker that was stopped and is started again goes on with what waited; so does a link that was gone.
        kept = router.sessions.get(UPLINKS + settings.name)
        if isinstance(kept, UplinkSession) and (kept.abandoned or kept.mapping.alike(self.mapping)):
            self.session = kept
            kept.mapping = self.mapping
            kept.broker_id = broker_id
        else:
            self.session = UplinkSession(
                settings.name, self.mapping, broker_id, hop_limit, router.counters, router.sessions
            )
        self.declarer = Declarer(settings.subscribe_qos, settings.packet_filters)
        self.link_state = LinkState(router, self.session, self.declarer)
        self.subscriber = UpstreamSubscriber(server, settings.name, self.link_state, self.mapping)
        self.connection: UpstreamConnection | None = None
        self.state = "stopped"
        self.state_changed: Callable[[UpstreamLink], None] | None = None
        """Called at once when `state` changes."""
        self.trouble = ""
        """Why there is no connection, if there is none."""
        self.down_since = self.loop.time()
        """When it was last connected, or was made (loop time); of no meaning while it is connected."""
        self.connects = 0
        self._broker_id = broker_id
        self._spoken: tuple[int, bool] | None = None
        """The version and the bridge bit of the last connection."""
        self._known = False
        """True if the upstream's session is from this link's time."""
        self._task: asyncio.Task[None] | None = None
        self._done: asyncio.Future[None] | None = None
        self._hurry = asyncio.Event()
        self._stopping = False
        self._told = ""

    # -- life ----------------------------------------------------------------------------------------------------------

    def prepare(self, record: SessionRecord | None) -> Iterator[None]:
        """Add the link's session to the router: messages published from now on wait in it. `record`: what a store kept
        of it.

        In steps of bounded work, of which it is one where there is no record.
        What waited has the name upstream that it had got when it was published, whatever the prefixes are now.
        """
        router = self.server.router
        session = self.session
        session.abandoned = False
        session.expires_at = 0.0
        router.deadlines.cancel(session)
        router.adopt(session)
        self._settle_queue()
        if record is not None:
            yield from refill(router, session, record, self.loop.time())
        self._publish()

    def start(self) -> None:
        self.subscriber.survey(self.settings)
        self._stopping = False
        self._task = self.loop.create_task(self._run(), name=f"upstream {self.name}")

    def change(self, settings: Upstream) -> bool:
        """Change the settings, and connect again if these are about the connection.

        What waits to go up goes on waiting. False: the prefixes differ, so that what waits has the wrong names; then
        nothing has changed, and another link has to take this one's place.
        """
        old = self.settings
        if not self.mapping.alike(Mapping(settings.local_prefix, settings.remote_prefix)):
            return False
        self.settings = settings
        self.declarer.qos = settings.subscribe_qos
        self.declarer.packet_filters = settings.packet_filters
        self._settle_queue()
        self._publish()
        if _differ(old, settings, OF_THE_FILTERS):
            self.subscriber.survey(settings)
        self.subscriber.flush_soon()
        if _differ(old, settings, OF_THE_CONNECTION):
            elsewhere = (old.url, old.client_id) != (settings.url, settings.client_id)
            anew = elsewhere or old.subscribe_qos != settings.subscribe_qos
            self._spoken = None
            if anew:
                self._known = False
            if self.connection is not None:
                self.connection.close("the settings have changed", anew)
            if elsewhere:
                self.declarer.move()
                # Nor are the packet identifiers of what came from there of any meaning, nor what it would not take.
                self.session.forget_received()
                self.session.forgive()
            elif anew:
                self.declarer.renew()
            self._hurry.set()
        return True

    def hurry(self) -> None:
        """Try to connect now, if it is not connected: the other side is there."""
        self._hurry.set()

    def reset(self) -> None:
        """Connect again, at once: passwords and certificates are read anew. The session goes on, with what waits."""
        if self.connection is not None:
            self.connection.close("an operator has reset the link", False)
        self._hurry.set()

    def _settle_queue(self) -> None:
        self.session.limit(*parameters.queue(self.settings, self.session))
        self.session.queue_qos0 = self.settings.queue_qos0

    def _publish(self) -> None:
        """Subscribe here to what goes up, and to nothing else."""
        router = self.server.router
        wanted = parameters.published(self.settings, self.mapping)
        for topic_filter in list(self.session.subscriptions):
            if topic_filter not in wanted:
                router.unsubscribe(self.session, topic_filter)
        for topic_filter in wanted:
            old = self.session.subscriptions.get(topic_filter)
            if old is None or old.qos != min(self.settings.publish_qos, router.limits.max_qos):
                request = SubscriptionRequest(topic_filter, self.settings.publish_qos, True, True, 0)
                router.subscribe(self.session, "", topic_filter, request, 0)

    async def stop(self, flush: float, forget: bool) -> None:
        """Send what waits, for `flush` seconds at most, and disconnect.

        `forget`: the link is gone for good; the upstream is told to keep nothing of it.
        """
        self._stopping = True
        if forget:
            for topic_filter in list(self.declarer.wanted):
                self.declarer.withdraw(topic_filter)
            self.subscriber.flush()
        until = self.loop.time() + flush
        # Nothing tells when the last acknowledgement has come.
        while self.connected and not self._idle() and self.loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        connection = self.connection
        if connection is not None and not connection.over:
            over = self._done = self.loop.create_future()
            connection.close("the link was stopped", forget or self.settings.clean_start)
            await asyncio.wait([over], timeout=self.patience)
        self.subscriber.stop()
        self._connect(None)
        self._become("stopped")

    def _become(self, state: str) -> None:
        if state != self.state:
            if self.state == "connected":
                self.down_since = self.loop.time()
            self.state = state
            if self.state_changed is not None:
                self.state_changed(self)

    async def forget_retained(self) -> None:
        """Forget what the upstream had retained: the link will hear of no further changes."""
        router = self.server.router
        cursor = router.retained.walk(self.mapping.local + "#")
        while not cursor.done:
            for node in cursor.take(LEAVING):
                message = node.value
                if isinstance(message, Message) and message.publisher == self.session.client_id:
                    router.retained_store.drop(node.topic)
            await asyncio.sleep(0)

    def _idle(self) -> bool:
        session = self.session
        send_buffer = session.send_buffer
        return (
            not session.inflight
            and not session.backlog
            and (send_buffer is None or send_buffer.empty)
            and self.declarer.settled
        )

    @property
    def connected(self) -> bool:
        return self.subscriber.connected

    async def _run(self) -> None:
        failures = 0
        while True:
            self._hurry.clear()
            try:
                failures = 0 if await self._round() else failures + 1
            except Exception as error:
                # A fault of ours: the link goes on trying.
                self.broke(error)
                self._give_up_connection()
                failures += 1
            longest = min(self.settings.retry_max, self.settings.retry_min * 2.0 ** min(max(failures - 1, 0), 32))
            self._become("waiting")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest * random.uniform(0.5, 1.0)):
                    await self._hurry.wait()

    async def _round(self) -> bool:
        """Try each version until the upstream accepts one, and stay connected. Returns whether that lasted."""
        settings = self.settings
        for way in WAYS[settings.version]:
            began = self.loop.time()
            connection = await self._attempt(way)
            if connection is not None and connection.was_open and self._only_resets_session(connection):
                # The old session has ended with this connection: now for one that stays.
                connection = await self._attempt(way)
            if connection is None:
                return False
            if connection.was_open:
                self._spoken = way
                # Without the message that it ended the connection for, it may last.
                return connection.uplink.given_up is not None or self.loop.time() - began >= STEADY
            code = connection.uplink.close_code
            # The upstream says that it does not speak this version, or closes without a word, as some brokers do.
            # But one that has spoken it before has another reason.
            if code != reason_codes.UNSUPPORTED_PROTOCOL_VERSION and (code not in WORDLESS or way == self._spoken):
                return False
        return False

    def _only_resets_session(self, connection: UpstreamConnection) -> bool:
        """Return whether the only purpose of a connection was that the upstream discards an earlier session of ours.

        In 3.1.1 a session that begins anew ends with its connection.
        """
        lasts = self.settings.session_expiry > 0
        return connection.uplink.version == V311 and connection.clean_start and lasts

    async def _attempt(self, way: tuple[int, bool]) -> UpstreamConnection | None:
        """Make one connection and stay to its end; None if there was no network connection."""
        settings = self.settings
        self._become("connecting")
        version, bridge = way
        clean = settings.clean_start and not self._known
        try:
            terms = self.connect_terms()
            context = self.tls()
        except ValueError as error:
            self.failed(str(error))
            return None
        router = self.server.router
        send_buffer = SendBuffer(router.peers.touched, router.counters, terms.live_messages, terms.live_bytes)
        # A slow upstream slows no client here: what it does not take in time is dropped and counted.
        send_buffer.holds = False
        uplink = Uplink(self.link_state, terms, send_buffer, version, bridge)
        if not clean and not self._known:
            uplink.stale = parameters.may_be_stale(settings, self.mapping)
        if version == V311 and settings.session_expiry == 0:
            clean = True
        connection = UpstreamConnection(self.server.rounds, uplink, self, clean, self.patience)
        uplink.session_reset = self._only_resets_session(connection)
        self._done = self.loop.create_future()
        self._connect(connection)
        try:
            async with asyncio.timeout(self.patience):
                transport = await self.reach(lambda: cast(asyncio.Protocol, connection), context)
            sockets.tune(transport.get_extra_info("socket"), self.server.settings)
        except TimeoutError:
            self.failed(f"no network connection to {self.place} within {self.patience:g} s")
            self._connect(None)
            return None
        except (OSError, UnicodeError) as error:
            self.failed(f"no network connection to {self.place}: {describe(error)}")
            self._connect(None)
            return None
        except asyncio.CancelledError:
            self._unmade(connection)
            raise
        await self._done
        self._connect(None)
        if not (uplink.session_reset and connection.was_open):
            self.failed(uplink.close_text)
        return connection

    def connect_terms(self) -> ConnectTerms:
        """Return the terms of the next CONNECT. Raises ValueError: a file cannot be read."""
        return parameters.connect_terms(self.settings, self.server.settings, self.server.router.limits, self._broker_id)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the next connection; None: it has no TLS. Raises ValueError."""
        return parameters.tls(self.settings)

    @property
    def place(self) -> str:
        """The other end of the network connection, for people."""
        remote = parse_upstream(self.settings.url)
        return f"{remote.host}:{remote.port}"

    async def reach(
        self, factory: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
    ) -> asyncio.BaseTransport:
        """Make the network connection: to the first address of the host that takes it. Raises OSError, UnicodeError."""
        remote = parse_upstream(self.settings.url)
        name = remote.host if context is not None else None
        # Looked up here: within create_connection of uvloop the look-up outlasts an attempt that is given up, and its
        # failure is logged as an exception that nothing retrieved.
        found = await self.loop.getaddrinfo(remote.host, remote.port, type=socket.SOCK_STREAM)
        failure = OSError("the host has no address")
        for *_, address in found:
            try:
                transport, _ = await self.loop.create_connection(
                    factory, str(address[0]), remote.port, ssl=context, server_hostname=name
                )
            except OSError as error:
                failure = error
            else:
                return transport
        raise failure

    def _connect(self, connection: UpstreamConnection | None) -> None:
        """Set the link's present connection; None: there is none."""
        self.connection = connection
        self.subscriber.uplink = None if connection is None else connection.uplink

    def _give_up_connection(self) -> None:
        """Give up the connection after a fault, and release the task that waits for its end: there is one at a time."""
        connection = self.connection
        self._connect(None)
        if connection is not None and connection.stream.made and not connection.over:
            connection.stream.transport.abort()

    def _unmade(self, connection: UpstreamConnection) -> None:
        if not connection.stream.made:
            self._connect(None)

    # -- what the connection says --------------------------------------------------------------------------------------

    def opened(self) -> None:
        connection = self.connection
        assert connection is not None
        uplink = connection.uplink
        self._known = True
        if uplink.session_reset:
            return
        self.trouble = self._told = ""
        self.connects += 1
        self._become("connected")
        self.tell_connected(uplink)
        self.subscriber.tick_soon(LOOK)

    def tell_connected(self, uplink: Uplink) -> None:
        """Log that the link is up."""
        self.log.info(
            "upstream connected",
            upstream=self.name,
            url=self.settings.url,
            version=uplink.spoken,
            session_present=uplink.session_present,
            filters=len(self.declarer.wanted),
        )

    def ended(self) -> None:
        """Called when the connection is over, or an earlier one that was given up before it was made."""
        connection = self.connection
        if connection is not None and connection.uplink.given_up is not None:
            self._tell_given_up(connection.uplink.given_up, connection.uplink.close_text)
        if (connection is None or connection.over) and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _tell_given_up(self, delivery: Delivery, why: str) -> None:
        message = delivery.message
        self.log.error(
            "upstream ended connections for a message: it is dropped",
            upstream=self.name,
            topic=message.topic.decode()[:256],
            bytes=len(message.payload()),
            qos=delivery.qos,
            publisher=message.publisher[:256],
            why=why,
            topic_barred=self.session.trial.bars(message.topic, self.loop.time()),
        )

    def moved(self) -> None:
        self.subscriber.moved()

    def broke(self, error: Exception) -> None:
        self.server.faults.broke("upstream", error, upstream=self.name)

    def failed(self, why: str) -> None:
        """Note that there is no connection. The log has the reason once, and again when it changes."""
        self.trouble = why
        if why != self._told and not self._stopping:
            self._told = why
            self.tell_failed(why)

    def tell_failed(self, why: str) -> None:
        """Log that the link is not up."""
        self.log.warning("upstream not connected", upstream=self.name, url=self.settings.url, why=why)

    # -- what is asked for ---------------------------------------------------------------------------------------------

    @property
    def demanding(self) -> bool:
        """True if the link subscribes upstream to what local clients subscribe to."""
        return self.settings.subscribe == "demand"

    @property
    def brings(self) -> bool:
        """True if the link may bring messages down."""
        return bool(self.settings.subscribe or self.settings.roots)


def _differ(old: Upstream, new: Upstream, names: tuple[str, ...]) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in names)

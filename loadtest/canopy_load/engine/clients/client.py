"""One simulated client: connects, subscribes, publishes, leaves, comes back.

Owns: the life of a client over all its connections. ``ClientConnection`` owns its bytes, its ``Sender``s its messages.

Promises:
- A connection attempt's time counts from when it was meant to begin, waiting for its turn included.
- What goes wrong is counted under one line of words for people, and is not raised.
- After the end of the run it leaves no task and no socket.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from canopy_load.engine.clients import connecting
from canopy_load.engine.clients.connection import ClientConnection, clock
from canopy_load.engine.clients.pool import Pool
from canopy_load.engine.clients.requests import Requests
from canopy_load.engine.clients.round_trips import Responder, asked
from canopy_load.engine.clients.sending import Outgoing, Sender, Session
from canopy_load.engine.clients.timers import Timers
from canopy_load.ledger.counters import Tally, add
from canopy_mqtt.client.failures import describe
from canopy_mqtt.core.codec import encoder, packets, properties
from canopy_mqtt.core.codec.packets import (
    Connack,
    Disconnect,
    Packet,
    Pingresp,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.reason_codes import name as reason_name

CONNECT_TIMEOUT: Final = 20.0
"""Seconds for a connection attempt, and again for its CONNACK; and for a SUBACK."""

UNANSWERED: Final = 500_000
"""Microseconds without an answer at the end of a run that are worth a line."""

MAX_DELAY: Final = 30.0
"""Seconds between two attempts at the most."""

PACKET_BYTES: Final = 32_768
"""Topic filters of one SUBSCRIBE take about so much."""


class Client:
    """Client `number` of a group."""

    def __init__(self, pool: Pool, group: int, number: int) -> None:
        self.pool = pool
        self.group = group
        self.number = number
        plan = pool.plan
        self.settings = plan.groups[group]
        self.index = plan.client(group, number)
        self.client_id = plan.client_id(group, number)
        self.version = connecting.version(self.settings)
        self.tally: Tally = pool.tallies[group]
        self.session = Session(keep_frames=self.persistent)
        self.judge = pool.judge(group, number) if self.settings.subscribe or self.settings.churn else None
        self.asked = asked(plan, group, number, self.tally)
        reply = self.settings.reply
        self._answers = None if reply is None else Responder(reply, self.version, self.session, pool.error)
        self.senders: list[Sender] = []
        self.wire: ClientConnection | None = None
        self.up = False
        """Connected, and every subscription answered."""
        self.wanted = False
        """True while it is meant to be connected."""
        self.ended = False
        self._task: asyncio.Task[None] | None = None
        self._timers = Timers()
        self._intended = 0
        self._connected = False
        self._introduced = False
        """True if a broker that has not answered may hold its will."""
        self._subscribed = False
        """True once its session has the subscriptions of this run."""
        self._keep_alive = 0
        """Seconds, as the broker wants it."""
        self._limits: dict[int, int] = {}
        self._requests = Requests(self.session)
        self.attempts = 0
        """Connection attempts that failed since it was last connected."""
        self._ping_open = False
        self._will_sequence = 0
        self._churned = 0
        self._random: random.Random = plan.random(self.index, 1)

    @property
    def persistent(self) -> bool:
        """True if it asks the broker to keep its session."""
        if self.settings.version == "5.0":
            return self.settings.session_expiry > 0
        return not self.settings.clean_start

    # -- connecting ----------------------------------------------------------------------------------------------------

    def connect(self, intended: int) -> None:
        """Begin a connection attempt that was meant to begin at `intended` (microseconds)."""
        if self.ended:
            return
        self.wanted = True
        if self._task is not None or self.wire is not None:
            return
        # Timers of the event loop may come up to a millisecond early.
        self._intended = min(intended, clock())
        self._task = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        pool = self.pool
        wire = ClientConnection(
            self.version, self.judge, pool.streams, self.tally, self.session, self._on_packet, self._on_closed
        )
        if self.asked is not None:
            wire.answered = self.asked.take
        if self._answers is not None:
            self._answers.wire, wire.asked = wire, self._answers.hear
        try:
            async with pool.connect_slots:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await pool.open(self.settings, self.index, wire)
        except TimeoutError:
            self._task = None
            self._failed(f"no connection in {CONNECT_TIMEOUT:g} s")
        except OSError as error:
            self._task = None
            self._failed(describe(error))
        else:
            self._task = None
            self._greet(wire)

    def _greet(self, wire: ClientConnection) -> None:
        """Send CONNECT over the open socket."""
        self.wire = wire
        if self.ended or not self.wanted:
            self.leave(cut=True)
            return
        self._introduced = True
        wire.write(connecting.connect(self.pool.plan, self.group, self.number, self._will_sequence))
        self._timers.set("answer", CONNECT_TIMEOUT, self._no_answer, "CONNACK")

    def _failed(self, why: str) -> None:
        self.attempts += 1
        self.pool.failed_connects[self.group] += 1
        self.pool.error(f"CONNECT: {why}")
        self._again()

    def _no_answer(self, what: str) -> None:
        if self.wire is not None:
            self.wire.fail(f"no {what} in {CONNECT_TIMEOUT:g} s")

    def _again(self) -> None:
        if self.ended or not self.wanted or not self.settings.reconnect:
            return
        delay = min(self.settings.reconnect_delay * 2 ** min(max(self.attempts - 1, 0), 16), MAX_DELAY)
        self._timers.set("again", delay, lambda: self.connect(clock()))

    # -- packets -------------------------------------------------------------------------------------------------------

    def _on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._connack(packet)
        elif isinstance(packet, Suback):
            self._suback(packet)
        elif isinstance(packet, Pingresp):
            self._ping_open = False
            for sender in self.senders:
                sender.ping_answered()
        elif isinstance(packet, Unsuback):
            self._requests.answered(packet.packet_id)
        elif isinstance(packet, Disconnect):
            if self.wire is not None:
                self.wire.fail(f"the broker sent DISCONNECT: {reason_name(packet.reason_code)}")
        elif self.wire is not None:
            self.wire.fail(f"the broker sent {packets.NAMES[packet.kind]} to a client")

    def _connack(self, packet: Connack) -> None:
        wire = self.wire
        if wire is None or self._connected:
            if wire is not None:
                wire.fail("the broker sent a second CONNACK")
            return
        self._timers.cancel("answer")
        if packet.reason_code:
            code = packet.reason_code
            known = connecting.refusal(code, self.version)
            self._introduced = False
            wire.fail(f"refused: {known}")
            return
        self._connected = True
        present = packet.session_present
        if present and self.settings.clean_start:
            self.pool.error("the broker broke the protocol: it resumed a session that was to be a new one")
            present = False
        self.attempts = 0
        add(self.tally.connect_times, clock() - self._intended, 1)
        self.tally.connects += 1
        if not present:
            self._subscribed = False
            if self.judge is not None and self.judge.absence > 0 and not self.judge.shared:
                self.judge.forgotten()
            for outgoing in self.session.unacked.values():
                outgoing.sender.lose(outgoing)
            self.session.unacked.clear()
            self.session.taken.clear()
        self._limits = packet.properties.integers
        if self._answers is not None:
            self._answers.maximum = self._limits.get(properties.RECEIVE_MAXIMUM, 65_535)
        self._keep_alive = self._limits.get(properties.SERVER_KEEP_ALIVE, self.settings.keep_alive)
        self._ping_later()
        self._read_as_told()
        # A session may be an earlier run's, or have begun on a connection that ended before the SUBACK.
        if (self.settings.subscribe or self.asked) and not self._subscribed:
            self._subscribe()
        else:
            self._be_up()

    def _subscribe(self) -> None:
        """SUBSCRIBE packets for all filters, several to a packet."""
        for index, entry in enumerate(self.settings.subscribe):
            requests: list[SubscriptionRequest] = []
            size = 0
            held = Properties()
            held.user = list(entry.user.items())
            for topic_filter, qos, at in self.pool.plan.topic_filters(self.group, self.number):
                if at != index:
                    continue
                requests.append(SubscriptionRequest(topic_filter, qos, entry.no_local, False, entry.retain_handling))
                size += len(topic_filter) + 3
                if size > PACKET_BYTES:
                    self._send_subscribe(Subscribe(0, requests, held))
                    requests, size = [], 0
            if requests:
                self._send_subscribe(Subscribe(0, requests, held))
        if self.asked is not None:
            topics = self.pool.plan.reply_topics(self.group, self.number)
            self._send_subscribe(Subscribe(0, [SubscriptionRequest(topic, qos) for topic, qos in topics]))
        self._timers.set("answer", CONNECT_TIMEOUT, self._no_answer, "SUBACK")

    def _send_subscribe(self, packet: Subscribe, churn: bool = False) -> None:
        wire = self.wire
        if wire is None:
            return
        packet.packet_id = self._requests.identifier(None if churn else packet)
        wire.write(encoder.encode(packet, self.version))

    def _suback(self, packet: Suback) -> None:
        begun, request = self._requests.answered(packet.packet_id)
        if not begun:
            if self.wire is not None:
                self.wire.fail("the broker sent a SUBACK nobody asked for")
            return
        add(self.tally.subscribe_times, clock() - begun, 1)
        self.tally.subscribes += 1
        if request is not None and len(packet.reason_codes) != len(request.requests) and self.wire is not None:
            codes, filters = len(packet.reason_codes), len(request.requests)
            self.wire.fail(f"the broker broke the protocol: a SUBACK with {codes} reason codes for {filters} filters")
            return
        for code in packet.reason_codes:
            if code >= 0x80:
                self.pool.refused_subscribes[self.group] += 1
                known = reason_name(code) if self.version >= packets.V5 else "failure"
                self.pool.error(f"SUBSCRIBE: refused: {known}")
        if request is not None and self.judge is not None:
            for wanted, code in zip(request.requests, packet.reason_codes, strict=True):
                self.judge.answered(wanted.topic_filter, code < 0x80)
        if request is not None and not self._requests.subscribing:
            self._timers.cancel("answer")
            self._subscribed = True
            self._be_up()

    def _be_up(self) -> None:
        wire = self.wire
        if wire is None:
            return
        judge = self.judge
        if judge is not None:
            if not judge.shared:
                judge.open = True
            elif not self.up:
                judge.joined()
        if not self.up:
            self.up = True
            self.pool.up += 1
        wire.senders = self.senders
        unacked = self.session.unacked
        for number in [number for number, each in unacked.items() if not each.frame and not each.received]:
            # It was not kept, since the session should not have been.
            outgoing = unacked.pop(number)
            outgoing.sender.lose(outgoing)
        resent = list(unacked.items())
        if resent:
            wire.write(b"".join(self._again_frame(number, outgoing) for number, outgoing in resent))
        for sender in self.senders:
            sender.connected(
                wire,
                self._limits.get(properties.TOPIC_ALIAS_MAXIMUM, 0),
                self._limits.get(properties.RECEIVE_MAXIMUM, 65_535),
            )
            sender.pump(clock())
            self.pool.scheduler.put(sender)
        if self.pool.running:
            self.pool.wake()
            self.begin()

    def _again_frame(self, identifier: int, outgoing: Outgoing) -> bytes:
        """Return the packet that sends an unacknowledged message again [MQTT-4.4.0-1]."""
        if outgoing.received:
            return encoder.ack(packets.PUBREL, identifier, 0, self.version)
        frame = outgoing.frame
        self.pool.resent(outgoing)
        return bytes((frame[0] | 8,)) + frame[1:]

    # -- while the stages run ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        cycle = self.settings.cycle
        if cycle is not None:
            self._timers.set("cycle", cycle.up * self._around(cycle.spread), self._leave)
        if self.settings.churn is not None and "churn" not in self._timers:
            self._timers.set("churn", self._random.random() / self.settings.churn.rate, self._churn)
        reading = self.settings.reading
        if reading is not None and reading.freeze_after is not None:
            self._timers.set("freeze", max(0.0, reading.freeze_after - self.pool.since_start()), self._freeze)

    def finish_stages(self) -> None:
        """End the stages: a connected client stays connected, reads freely and publishes no more."""
        for name in ("cycle", "churn", "freeze"):
            self._timers.cancel(name)
        if self.wire is not None:
            self.wire.read_freely()

    def _around(self, spread: float) -> float:
        return 1 + spread * (2 * self._random.random() - 1)

    def _read_as_told(self) -> None:
        reading = self.settings.reading
        if reading is not None and reading.rate is not None and self.wire is not None and not self.pool.over:
            self.wire.read_rate = reading.rate

    def _freeze(self) -> None:
        if self.wire is not None:
            self.wire.freeze()

    def _leave(self) -> None:
        cycle = self.settings.cycle
        assert cycle is not None
        self.wanted = False
        self._timers.cancel("again")
        now = clock()
        for sender in self.senders:
            if not sender.away:
                self.pool.give_up(self.group, sender.overdue(now) if sender.active else 0)
            sender.away = True
        self.leave(cut=cycle.goodbye == "cut")
        self._timers.set("cycle", cycle.down * self._around(cycle.spread), self._return)

    def _return(self) -> None:
        """Connect again. From now on its messages are due, however long the broker takes."""
        for sender in self.senders:
            sender.skip(clock(), self._random.random())
            self.pool.scheduler.put(sender)
        self.connect(clock())

    def _churn(self) -> None:
        """Subscribe to another filter, and unsubscribe from the one before."""
        churn = self.settings.churn
        assert churn is not None
        self._timers.set("churn", 1 / churn.rate, self._churn)
        wire = self.wire
        # One who is not answered is asked no more; its requests stay bounded.
        if wire is None or not self.up or self._requests.many:
            return
        number = self._churned
        self._churned += 1
        pattern = self.pool.churns[self.group]
        group = self.settings.name
        wanted = pattern.expand(self.pool.plan.run, group, self.number, number % churn.filters)
        self._send_subscribe(Subscribe(0, [SubscriptionRequest(wanted, churn.qos)]), churn=True)
        if number:
            former = pattern.expand(self.pool.plan.run, group, self.number, (number - 1) % churn.filters)
            identifier = self._requests.identifier(None)
            wire.write(encoder.encode(Unsubscribe(identifier, [former]), self.version))

    def _ping_later(self) -> None:
        """Send PINGREQ after half the keep alive time, and expect the answer within the next half."""
        if self._keep_alive:
            self._ping_open = False
            self._timers.set("ping", self._keep_alive / 2, self._ping)

    def _ping(self) -> None:
        wire = self.wire
        if wire is None:
            return
        slow = wire.frozen or wire.read_rate > 0
        if self._ping_open and not slow:
            wire.fail("no PINGRESP in time")
            return
        self._ping_open = True
        wire.write(encoder.PINGREQ)
        for sender in self.senders:
            sender.ping_sent()
        self._timers.set("ping", self._keep_alive / 2, self._ping)

    # -- leaving -------------------------------------------------------------------------------------------------------

    def leave(self, cut: bool = False) -> None:
        """Close the connection, with a DISCONNECT or, `cut`, without."""
        wire = self.wire
        if wire is None:
            return
        self._gone(cleanly=not cut)
        if cut:
            self._count_will(certain=True)
        self.wire = None
        self._connected = False
        wire.on_closed = _nothing
        if wire.transport is None:
            return
        if cut:
            wire.transport.abort()
        else:
            wire.write(encoder.encode(Disconnect(), self.version))
            wire.transport.close()

    def _count_will(self, certain: bool) -> None:
        will = self.settings.will
        if will is None or not (self._connected or self._introduced):
            return
        certain = certain and self._connected
        self._introduced = False
        stream = self.pool.plan.wills[self.group].stream(self.number, 0)
        if not certain or will.delay:
            self.pool.uncertain.append((stream, self._will_sequence, self._will_sequence + 1))
        self._will_sequence += 1
        self.pool.will_sent[stream] = self._will_sequence

    def _gone(self, cleanly: bool) -> None:
        for name in ("answer", "ping", "churn", "freeze"):
            self._timers.cancel(name)
        judge = self.judge
        if judge is not None and judge.shared:
            if self.up:
                judge.parted()
        elif judge is not None:
            if self._connected:
                judge.left(self.persistent)
            judge.open = False
        if self.up:
            self.up = False
            self.pool.up -= 1
        for sender in self.senders:
            sender.lost(cleanly)
        self._requests.clear()

    def _on_closed(self, why: str) -> None:
        """Handle a connection that the client did not close."""
        connected = self._connected
        self._gone(cleanly=False)
        self.wire = None
        if not connected:
            self._count_will(certain=False)
            self._failed(why)
            return
        self._count_will(certain=False)
        self._connected = False
        self.pool.lost_connections[self.group] += 1
        self.tally.connections_lost += 1
        self.pool.error(why)
        self._again()

    def end(self) -> None:
        """Leave for good. A connection attempt that has waited for long counts as failed, even before its timeout."""
        waits = self.wanted and not self._connected and (self.wire is not None or self._task is not None)
        if waits and clock() - self._intended > UNANSWERED:
            self.pool.failed_connects[self.group] += 1
            self.pool.error(
                f"CONNECT: no {'CONNACK' if self.wire is not None else 'connection'} before the run was over"
            )
        self.ended = True
        self._timers.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.leave()


def _nothing(_: str) -> None:
    """Ignore the end of a connection that the client left."""

"""A client that writes down all that it asks for and gets.

Owns: `Client`, one client identifier with its session and at most one present connection.

Promises: what the history says happened, happened: a CONNECT that was never written has failed, one without an answer
is unknown; a will is due only if the client lost its connection and did nothing else. After the end of a connection the
client comes back by itself, as long as it is meant to be there. A connection that was given up is read to its end but
answers nothing.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from canopy_load.engine.job import Target
from canopy_load.engine.transports import TargetError, open_stream
from canopy_load.ledger.history import UNKNOWN, Connect, Delivery, Ended, Hush, Ping, Publish, Subscribe, Unsubscribe
from canopy_load.ledger.packet_log import NO_LOG, PacketLog
from canopy_load.prove.ground import Ground
from canopy_load.prove.roles import ClientPlan
from canopy_load.prove.wire import Wire
from canopy_mqtt.client.failures import FAILURE, ClientError, NotSupportedError, RefusedError, describe
from canopy_mqtt.client.machine import ClientMachine, Delivered, connect_packet
from canopy_mqtt.core.codec import packets
from canopy_mqtt.core.codec import properties as names
from canopy_mqtt.core.codec.packets import V5, Connack, Disconnect, Suback, SubscriptionRequest, Unsuback, Will
from canopy_mqtt.core.codec.reason_codes import QOS_NOT_SUPPORTED
from canopy_mqtt.core.codec.topic_names import parse_shared

SESSION_SECONDS: Final = 3600
"""The Session Expiry Interval of a session that lasts."""
NEVER: Final = 0xFFFF_FFFF
"""The Session Expiry Interval of a session that does not end."""
FIRST_DELAY: Final = 0.02
MAX_DELAY: Final = 0.5
"""Seconds between two attempts to connect."""
WILL_MARGIN: Final = 1.0
"""Seconds after the delay of a will within which the broker may find that it is not over: it counts from when it saw
that the connection was lost."""
BREAKS: Final = "the broker breaks the protocol: "


class Client:
    """One client identifier. `run` keeps it connected for as long as it is `wanted`; all other calls are acts of it."""

    def __init__(self, plan: ClientPlan, ground: Ground) -> None:
        self.plan = plan
        self.version = plan.version
        self.ground = ground
        # What so many clients get would take more memory than it is worth.
        self.log = NO_LOG if plan.kind == "crowd" else PacketLog(plan.version, ground.streams)
        ground.logs[plan.name] = self.log
        self.wanted = False
        self.connected = False
        """True if its present connection has its CONNACK."""
        self.failure: ClientError | None = None
        """Why the last connection, or attempt, failed."""
        self.ever = False
        """True if it was connected once."""
        self.retained: dict[str, tuple[tuple[str, str, int], int]] = {}
        """The retained messages of the present connection, by topic."""
        self.machine = ClientMachine(
            connect_packet(
                f"{ground.prefix}-{plan.name}",
                version=plan.version,
                clean_start=plan.clean,
                keep_alive=plan.keep_alive,
                user_name=ground.login.user,
                password=ground.login.password if ground.login.user is not None else None,
                session_expiry=0 if plan.clean or plan.version != V5 else SESSION_SECONDS,
            )
        )
        self._node = plan.node
        self._tried = False
        """True if it has tried to connect to this node."""
        self._wire: Wire | None = None
        self._wires: set[Wire] = set()
        self._old: Wire | None = None
        self._changed = asyncio.Event()
        self._pending: dict[int, Publish] = {}
        """Messages of its own without an acknowledgement, by packet identifier."""
        self._asked: dict[int, Subscribe | Unsubscribe] = {}
        self._granted: set[str] = set()
        """Its filters that the broker has, or has refused."""
        self._subscribes = True
        """True if it wants its subscriptions."""
        self._beat: asyncio.TimerHandle | None = None
        self._max_qos = 2
        """The highest QoS that the broker takes, as far as it has said so."""
        self._hushed = False
        self._hushed_at = 0.0
        self._will: Publish | None = None
        self._delayed_will: Publish | None = None
        """The will of an earlier connection whose delay was not over when a CONNECT was sent."""

    # -- what it does --------------------------------------------------------------------------------------------------

    @property
    def why(self) -> str:
        """Why it is not connected, for people."""
        return self.failure.why if self.failure is not None else "no answer"

    @property
    def node(self) -> Target:
        """Where it connects."""
        return self.ground.targets[self._node % len(self.ground.targets)]

    def move(self) -> None:
        """Connect to the next node from now on, unless it stays with its node."""
        if not self.plan.stays:
            self.go(self._node + 1)

    def go(self, node: int) -> None:
        """Connect to a node from now on, by its number, which begins anew after the last one."""
        self._node = node
        self._tried = False

    @property
    def settled(self) -> bool:
        """True if it is connected where it is wanted, and everything that it asked for has been answered."""
        if not self.wanted:
            return True
        return self.connected and not self._pending and not self._asked

    @property
    def ready(self) -> bool:
        """True if it is connected, and its SUBSCRIBEs have been answered."""
        return self.connected and not self._asked

    @property
    def hushed(self) -> bool:
        """True if it waits for the broker to end its connection."""
        return self._hushed and self.connected

    def come(self) -> None:
        """Be there from now on."""
        self.wanted = True
        self._changed.set()

    def publish(self, number: int, clears: bool = False) -> None:
        """Publish a message to one of its topics, now, or with QoS 1 and 2 as soon as there is a connection. `clears`:
        with an empty payload."""
        output = self.plan.outputs[number]
        qos = min(output.qos, self._max_qos)
        if not qos and not self.connected:
            return
        stream = self.plan.name, output.topic, qos
        sequence, payload = self.ground.streams.message(stream)
        payload = b"" if clears else payload
        topic = self.ground.topic(output.topic)
        packet = packets.Publish(topic.encode(), payload, qos, output.retain)
        operation = Publish(
            client=self.plan.name,
            began=self.ground.now(),
            topic=output.topic,
            qos=qos,
            sequence=sequence,
            retain=output.retain,
            clears=clears,
        )
        try:
            packet_id = self.machine.publish(packet)
        except NotSupportedError as error:
            self.ground.refused[error.why] += 1
            return
        operation.packet_id = packet_id
        self.ground.note(operation)
        if clears:
            self.ground.cleared[output.topic] = operation
            self.ground.retained.discard(output.topic)
        if packet_id:
            self._pending[packet_id] = operation
        self._flush()

    def leave(self, stay_away: bool = True) -> None:
        """Say goodbye; come back at once unless it is to stay away."""
        self.wanted = self.wanted and not stay_away
        wire = self._wire
        if wire is None or not self.connected:
            return
        self.machine.disconnect()
        self._flush()
        now = self.ground.now()
        if self._will is not None:
            self._will.fail(now)
            self._will = None
        self._end(wire, own=True)
        wire.linger()

    def cut(self, stay_away: bool = False) -> None:
        """Lose the connection; come back at once unless it is to stay away."""
        self.wanted = self.wanted and not stay_away
        wire = self._wire
        if wire is None or not self.connected:
            return
        self.machine.lost("cut")
        if self._will is not None:
            now = self.ground.now()
            delay = self.plan.will.delay if self.plan.will is not None else 0
            self._will.ok(now + delay)
            self._will.lost_at = now
            self._will.not_before = now + delay if delay else 0.0
            if not delay:
                self._will = None
        self._end(wire, own=True)
        wire.give_up()
        wire.abort()

    def roam(self) -> None:
        """Say goodbye and come back, at the next node."""
        self.move()
        self.leave(stay_away=False)

    def take_over(self) -> None:
        """Open another connection while this one is still there; it goes on with the same session."""
        wire = self._wire
        if wire is None or not self.connected:
            return
        wire.give_up()
        self.machine.lost("taken over")
        self._will = None
        self.move()
        self._old = wire
        self._release(wire)

    def freeze(self, on: bool) -> None:
        """Stop or resume reading."""
        if self._wire is not None:
            self._wire.freeze(on)

    def subscribe(self, on: bool) -> None:
        """Have its subscriptions from now on, or no more."""
        self._subscribes = on
        if self.connected:
            self._request()
            self._flush()

    def hush(self) -> None:
        """Send nothing more on this connection."""
        granted = self.machine.connack.properties.integers.get(names.SERVER_KEEP_ALIVE, self.plan.keep_alive)
        if self._wire is not None and self.connected and granted and not self._hushed:
            self._hushed, self._hushed_at = True, self.ground.now()
            number = self._wire.connect.number
            self.ground.note(Hush(client=self.plan.name, at=self.ground.now(), connection=number, keep_alive=granted))

    # -- its connections -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep it connected while it is wanted, until this is cancelled; then no connection is left."""
        delay = FIRST_DELAY
        try:
            while True:
                if self.wanted and self._wire is None:
                    async with self.ground.doors:
                        accepted = await self._attempt()
                    if accepted:
                        delay = FIRST_DELAY
                    else:
                        await asyncio.sleep(delay)
                        delay = min(delay * 2, MAX_DELAY)
                    continue
                self._changed.clear()
                await self._changed.wait()
        finally:
            for wire in self._wires:
                wire.abort()

    async def closed(self) -> None:
        """Wait until no connection of it is left."""
        while self._wires:
            await next(iter(self._wires)).over.wait()

    async def _attempt(self) -> bool:
        """Connect once; return True if the broker has accepted it."""
        ground, plan = self.ground, self.plan
        if plan.roams and self._tried:
            self.move()
        self._tried = True
        target = self.node
        clean = self.machine.connect.clean_start
        keeps = not (plan.clean if plan.version == V5 else clean)
        connect = ground.note(Connect(client=plan.name, began=ground.now(), node=str(target), clean=clean, keeps=keeps))
        will = self._prepare_will()
        wire = self._wire = Wire(self, connect)
        self._wires.add(wire)
        self.failure = None
        try:
            async with asyncio.timeout(ground.patience):
                await self._open(target, wire)
                while self._wire is wire and not self.connected:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.failure = ClientError(f"{target}: no CONNACK within {ground.patience:g} s")
            connect.silent = wire.written
        except (OSError, ValueError, TargetError) as error:
            self.failure = ClientError(f"{target}: {describe(error)}")
        if self.connected or connect.outcome == "ok":
            return True
        connect.over = ground.now()
        if not wire.written:
            connect.fail(ground.now())
        if connect.outcome == "fail" and will is not None:
            will.fail(ground.now())
        self.machine.lost("no connection")
        wire.abort()
        if self._wire is wire:
            self._wire = None
        ground.news.set()
        return False

    async def _open(self, target: Target, wire: Wire) -> None:
        try:
            await open_stream(target, wire)
        except BaseException:
            # uvloop does not call `connection_lost` for a connection that is given up while it is made.
            self._wires.discard(wire)
            raise

    def _prepare_will(self) -> Publish | None:
        """Put a new will into the CONNECT. One of before whose delay is not over may come or not until it is known
        when the CONNECT arrives."""
        plan = self.plan.will
        if plan is None:
            return None
        qos = min(plan.qos, self._max_qos)
        sequence, payload = self.ground.streams.message((self.plan.name, plan.topic, qos))
        self.machine.connect.will = Will(self.ground.topic(plan.topic), payload, qos, False, plan.delay)
        will = Publish(
            client=self.plan.name,
            began=self.ground.now(),
            topic=plan.topic,
            qos=qos,
            sequence=sequence,
            will=True,
        )
        before, self._will = self._will, self.ground.note(will)
        if before is not None and before.not_before and before.not_before + WILL_MARGIN > self.ground.now():
            # Unless it is answered in time, nobody knows.
            before.outcome = "unknown"
            self._delayed_will = before
        return will

    def begin(self, wire: Wire) -> None:
        """Begin MQTT on a connection."""
        if wire is not self._wire:
            wire.abort()
            return
        self.machine.open(self.ground.now())
        self._flush()

    def read(self, wire: Wire, data: bytes) -> None:
        """Process what came on the present connection."""
        if wire is not self._wire:
            return
        code: int | None = None
        events = self.machine.receive(data, self.ground.now())
        for event in events:
            if isinstance(event, packets.Publish):
                self._delivered(event)
            elif isinstance(event, Delivered):
                self._acknowledged(event)
            elif isinstance(event, Suback | Unsuback):
                self._answered(event)
            elif isinstance(event, Connack):
                self._accepted(wire, event)
            elif isinstance(event, Disconnect):
                code = event.reason_code
        if self.connected and any(isinstance(event, Connack | Suback | Unsuback) for event in events):
            # What came together with the CONNACK came before the SUBSCRIBE; after an answer it may want the other.
            self._request()
        self._flush()
        failure = self.machine.failure
        if failure is not None:
            self.failure = failure
            if isinstance(failure, RefusedError):
                wire.connect.fail(self.ground.now())
                if failure.reason_code == QOS_NOT_SUPPORTED:
                    # It takes no such will, and perhaps a lower one [MQTT-3.2.2-12].
                    self._max_qos = max(0, self._max_qos - 1)
            broke = failure.why.removeprefix(BREAKS) if failure.why.startswith(BREAKS) else ""
            self._end(wire, code=code, broke=broke)
            wire.linger()
        if events or failure is not None:
            self.ground.news.set()

    def lost(self, wire: Wire, why: str, code: int | None) -> None:
        """Note that a connection is over."""
        self._wires.discard(wire)
        if wire is self._wire:
            self.machine.lost(why)
            self.failure = ClientError(f"{wire.connect.node}: {why}")
        self._end(wire, code=code)

    def _end(self, wire: Wire, own: bool = False, code: int | None = None, broke: str = "") -> None:
        """Write down the end of a connection that was one, once."""
        if not wire.ended and (wire.connect.outcome == "ok" or broke):
            wire.ended = True
            self.ground.note(
                Ended(
                    client=self.plan.name,
                    at=self.ground.now(),
                    connection=wire.connect.number,
                    own=own,
                    code=code,
                    broke=broke,
                )
            )
        if wire is self._wire:
            if self._hushed and self._will is not None and not own and not broke:
                # Nobody but the broker ended it, which publishes the will then, perhaps before its end is seen here.
                self._will.ok(self.ground.now())
                self._will.lost_at = self._hushed_at
            self._will = self._will if own else None
            self._release(wire)

    def _release(self, wire: Wire) -> None:
        assert wire is self._wire
        self._wire = None
        self.connected = self._hushed = False
        if self._beat is not None:
            self._beat.cancel()
        self._asked.clear()
        self._changed.set()
        self.ground.news.set()

    def _flush(self) -> None:
        data = self.machine.take()
        if self._wire is not None:
            self._wire.write(data)

    # -- what comes ----------------------------------------------------------------------------------------------------

    def _accepted(self, wire: Wire, packet: Connack) -> None:
        ground = self.ground
        now = ground.now()
        wire.connect.present = packet.session_present
        granted = packet.properties.integers.get(names.SESSION_EXPIRY_INTERVAL, NEVER)
        self._max_qos = min(self._max_qos, packet.properties.integers.get(names.MAXIMUM_QOS, 2))
        wire.connect.lasts = inf if granted == NEVER else granted
        wire.connect.ok(now)
        self.connected = self.ever = True
        self._changed.set()
        self.retained.clear()
        delayed, self._delayed_will = self._delayed_will, None
        if delayed is not None and now < delayed.not_before:
            # It came back before the delay was over.
            delayed.fail(now)
        if not packet.session_present:
            self._granted.clear()
        for each in self._pending.values():
            # Before it was written to any connection it is not sent again, but nobody can tell.
            each.resent = True
            each.again = each.again or each.qos == 1 or not packet.session_present
        if self._old is not None:
            old, self._old = self._old, None
            if not old.ended:
                old.ask(ground.note(Ping(client=self.plan.name, began=ground.now(), connection=old.connect.number)))
        if self.plan.keep_alive:
            self._keep_alive()
        if self.plan.kind == "brief":
            # The next time it asks for the session that has ended, or does not.
            self.machine.connect.clean_start = not wire.connect.clean
        if not self.wanted:
            # It was to go while the CONNECT was on its way.
            self.leave()

    def _request(self) -> None:
        """Send SUBSCRIBE or UNSUBSCRIBE for each filter that the broker has not as it should."""
        ground, name, now = self.ground, self.plan.name, self.ground.now()
        for each in self.plan.filters:
            topic_filter = ground.filter(each.topic_filter)
            on_the_way = any(one.topic_filter == each.topic_filter for one in self._asked.values())
            if on_the_way or self._subscribes == (each.topic_filter in self._granted):
                continue
            if why := self._unavailable(each.topic_filter):
                ground.refused[why] += 1
                self._granted.add(each.topic_filter)
                continue
            asked: Subscribe | Unsubscribe
            if self._subscribes:
                asked = Subscribe(
                    client=name,
                    began=now,
                    topic_filter=each.topic_filter,
                    qos=each.qos,
                    no_local=each.no_local,
                    as_published=each.as_published,
                    handling=each.handling,
                )
                request = SubscriptionRequest(topic_filter, each.qos, each.no_local, each.as_published, each.handling)
                asked.packet_id = self.machine.subscribe([request])
            else:
                asked = Unsubscribe(client=name, began=now, topic_filter=each.topic_filter)
                asked.packet_id = self.machine.unsubscribe([topic_filter])
            self._asked[asked.packet_id] = ground.note(asked)

    def _unavailable(self, topic_filter: str) -> str:
        """Return why the broker takes no such filter, as its CONNACK says."""
        available = self.machine.connack.properties.integers
        if parse_shared(topic_filter)[0] and not available.get(names.SHARED_SUBSCRIPTION_AVAILABLE, 1):
            return "the broker takes no shared subscriptions"
        if set("#+") & set(topic_filter) and not available.get(names.WILDCARD_SUBSCRIPTION_AVAILABLE, 1):
            return "the broker takes no filters with wildcards"
        return ""

    def _keep_alive(self) -> None:
        """Send PINGREQ now, and again in half of the keep alive time, unless it is hushed."""
        if self.connected and not self._hushed:
            self.machine.ping(self.ground.now())
            self._flush()
            self._beat = asyncio.get_running_loop().call_later(self.plan.keep_alive / 2, self._keep_alive)

    def _answered(self, packet: Suback | Unsuback) -> None:
        asked = self._asked.pop(packet.packet_id)
        # An UNSUBACK of 3.1.1 has no reason codes.
        code = packet.reason_codes[0] if packet.reason_codes else None
        if isinstance(asked, Subscribe):
            self._granted.add(asked.topic_filter)
        else:
            self._granted.discard(asked.topic_filter)
            asked.code = code
        if code is not None and code >= FAILURE:
            asked.fail(self.ground.now())
            request = type(asked).__name__.upper()
            self.ground.refused[f"{request} {asked.topic_filter} was refused with 0x{code:02x}"] += 1
        else:
            asked.ok(self.ground.now())
            if isinstance(asked, Subscribe) and code is not None:
                asked.qos = code

    def _acknowledged(self, event: Delivered) -> None:
        operation = self._pending.pop(event.packet_id, None)
        if operation is None:
            return
        if event.reason_code >= FAILURE:
            operation.fail(self.ground.now())
            self.ground.refused[f"PUBLISH with QoS {operation.qos} was refused with 0x{event.reason_code:02x}"] += 1
        else:
            operation.ok(self.ground.now())
            cleared = self.ground.cleared.get(operation.topic)
            if operation.retain and (cleared is None or cleared.number < operation.number):
                self.ground.retained.add(operation.topic)

    def _delivered(self, packet: packets.Publish) -> None:
        wire_topic = packet.topic.decode(errors="replace")
        topic = self.ground.name(wire_topic)
        found = self.ground.streams.read(packet.payload)
        if found is None and topic == wire_topic:
            self.ground.foreign += 1
            return
        stream, sequence, whole = found or ((UNKNOWN, topic, packet.qos), -1, False)
        if packet.retain or (self.plan.kind == "looker" and packet.payload):
            # What comes to a looker as a new message is the retained one from then on, and may come in its place.
            self.retained[topic] = stream, sequence
        elif self.plan.kind == "looker":
            self.retained.pop(topic, None)
        if not packet.payload and topic in self.ground.cleared:
            # It is one of these, and nobody can tell which.
            return
        live = any(each.as_published for each in self.plan.filters)
        self.ground.note(
            Delivery(
                client=self.plan.name,
                at=self.ground.now(),
                stream=stream,
                sequence=sequence,
                qos=packet.qos,
                packet_id=packet.packet_id,
                dup=packet.dup,
                retain=packet.retain,
                retained=packet.retain and not live,
                intact=whole and topic == stream[1],
            )
        )

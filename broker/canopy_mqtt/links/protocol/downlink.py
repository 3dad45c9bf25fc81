"""Handles an upstream broker's PUBLISH packets: to the router, and the acknowledgement back.

Owns the acknowledgements to the upstream, and the decision whether a message is published here. An `Uplink` has one,
and owns everything else of a connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import ack
from canopy_mqtt.core.codec.framing import plain_payload
from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, V5, Publish
from canopy_mqtt.core.codec.reason_codes import ReceiveMaximumExceeded, TopicAliasInvalid
from canopy_mqtt.core.codec.topic_names import DOLLAR
from canopy_mqtt.core.jobs import DECODE_WORK, NEXT_WORK, PROPERTY_SHIFT
from canopy_mqtt.core.protocol.publish import route_plain, topic_refusal
from canopy_mqtt.core.queues.held import HeldAnswers
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.requests import Peer, Request
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.links import has_looped, visited, with_hop
from canopy_mqtt.core.routing.node_messages import MARK_SIZE, GroupMessage, Mark, NodeMessage, read_mark
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.links.filters.declarer import COPY, OUTSIDE
from canopy_mqtt.links.protocol.link_state import LinkState
from canopy_mqtt.links.protocol.node_publishes import publish_again, publish_to_group
from canopy_mqtt.links.protocol.session import renamed

if TYPE_CHECKING:
    from mypy_extensions import i64

BETWEEN_NODES: Final = NODES.encode()
"""The topics of what nodes say to each other begin so."""

UNANSWERED: Final = -1
"""Stands for a reason code that is not known yet."""

MAX_ACKS: Final = 131_070
"""Acknowledgements that can wait for others: one PUBREC or PUBACK, and one PUBCOMP, for each packet identifier."""


class Held:
    """An acknowledgement that waits, for itself or for one before it. `since` in seconds."""

    def __init__(self, kind: int, packet_id: int, code: int, since: float) -> None:
        self.kind = kind
        self.packet_id = packet_id
        self.code = code
        self.since = since


class Downlink(Peer):
    """The receiving side of one connection to an upstream, and the peer of the requests that come from there.

    `version`: 4 or 5.

    Promises:
    - A message from upstream is published here before it is acknowledged there, and kept where a store keeps it; a QoS
      2 message is published once [MQTT-4.3.3-10].
    - Acknowledgements go in the order in which the messages came, also where one of them has to wait until it is known
      whether a request was served [MQTT-4.6.0-2] [MQTT-4.6.0-3].
    - A message that has been here goes no further; nothing from upstream goes back there.
    - Only what a filter or a root of the link matches is published here.
    - What is not published is counted, by the reason (`LinkStats`).
    """

    def __init__(self, link: LinkState, send_buffer: SendBuffer, version: int) -> None:
        self._router = link.router
        self._session = link.session
        self._declarer = link.declarer
        self._replays = link.replays
        self._heard = link.heard
        self._figures = link.figures
        self._send_buffer = send_buffer
        self._version = version
        # The topic of the last message that no filter or root of the link matches; empty: there was none.
        self.outside_topic = b""
        # The broker id of the upstream, if it has told one.
        self.peer_id = ""
        # With a store that commits later: those that wait for that.
        self._uncommitted: HeldAnswers | None = None
        commits = self._router.commits
        if commits is not None:
            self._uncommitted = HeldAnswers(send_buffer, commits)
            send_buffer.held = self._uncommitted
        # Acknowledgements that wait for the first of them.
        self._acks: deque[Held] = deque()
        # Requests from upstream whose answers wait for other links, by packet identifier.
        self._requests: dict[int, Request] = {}

    def publish_plain(self, decoder: Decoder) -> i64:
        """Publish the current frame of a node and those behind it that go the same way, as `publish.on_publish` does.

        Return the number of frames; 0: none, because the frame must be decoded, or no client here has asked for it.
        """
        router = self._router
        limits = router.limits
        body: i64 = decoder.body
        stop: i64 = decoder.end
        buffer = decoder.buffer
        if (
            not self._session.node
            or decoder.header != 0x30
            or body + 2 >= stop
            or buffer[body + 2] == DOLLAR
            or router.fanout.broadcasting
            or limits.upgrade_outgoing_qos
        ):
            return 0
        payload_at: i64 = plain_payload(buffer, body, stop, 0, True)
        if payload_at <= 0 or 0 < limits.max_payload_size < stop - payload_at:
            return 0
        topic = buffer[body + 2 : payload_at - 1]
        route = router.fanout.route(topic)
        if route is None or (route.listeners == 0 and not route.groups):
            return 0
        taken = route_plain(router, self._session, decoder, True, route, topic, payload_at)
        self._figures.received += taken
        router.budget.used += NEXT_WORK * (taken - 1)
        return taken

    def publish(self, packet: Publish, now: float) -> None:
        """Publish a message from the upstream here, unless it has been here, and acknowledge it."""
        session = self._session
        figures = self._figures
        figures.received += 1
        self._router.budget.used += DECODE_WORK + (len(packet.properties) >> PROPERTY_SHIFT)
        heard = self._heard
        if heard is not None and packet.qos == 0 and packet.topic.startswith(BETWEEN_NODES):
            # For this node itself, and for no client.
            heard(packet.topic, packet.payload)
            return
        packet_id = packet.packet_id
        if packet_id in self._requests:
            # The message came again before it was acknowledged: one answer is for both.
            return
        if packet.qos == 2:
            received_qos2 = session.received_qos2
            if received_qos2 is None:
                received_qos2 = set()
                session.received_qos2 = received_qos2
            elif packet_id in received_qos2:
                # Known already: acknowledged again, not published again [MQTT-4.3.3-10].
                self.acknowledge(PUBREC, packet_id, reason_codes.SUCCESS, now)
                return
            received_qos2.add(packet_id)
            if session.journal is not None:
                session.journal.received(session.client_id, packet_id)
        kind = PUBACK if packet.qos == 1 else PUBREC
        looped = figures.looped
        message = self._from_upstream(packet, now)
        reached = figures.looped == looped
        if message is not None:
            router = self._router
            # No node asks whom a message reaches that is to be retained: it goes to all of them.
            if isinstance(message, GroupMessage):
                count = publish_to_group(router, message)
            elif packet.request and packet.qos > 0 and self.peer_id and not isinstance(message, NodeMessage):
                request = Request(packet_id, packet.qos)
                count = router.ask(message, session, request)
                if request.waits(self, count):
                    self._requests[packet_id] = request
                    self.acknowledge(kind, packet_id, UNANSWERED, now)
                    return
            elif isinstance(message, NodeMessage) and message.clears and not message.payload():
                count = 1
                router.retained_store.retain(message, session)
            elif packet.retain and isinstance(message, NodeMessage):
                count = 1
                if not publish_again(router, message, session):
                    figures.replayed += 1
            else:
                count = router.publish(message, session)
            reached = count != 0
            if not reached and not (session.node and message.retain):
                figures.unmatched += 1
        if packet.qos > 0:
            # Only a broker that knows what a link is takes this from a client: the code is a server's.
            code = reason_codes.SUCCESS if reached or not self.peer_id else reason_codes.NO_MATCHING_SUBSCRIBERS
            self.acknowledge(kind, packet_id, code, now)

    def _from_upstream(self, packet: Publish, now: float) -> Message | None:
        """Return the message under its local name; None, and counted: it is not for us."""
        session = self._session
        figures = self._figures
        if packet.topic_alias > 0:
            raise TopicAliasInvalid("a topic alias, and none was allowed")  # [MQTT-3.1.2-27]
        mark = read_mark(packet.properties) if session.node else None
        if mark is not None and mark.share:
            return self._for_group(packet, mark, now)
        verdict = self._declarer.verdict(packet.topic, packet.subscription_ids)
        if verdict == COPY:
            figures.copies += 1
            return None
        topic = session.mapping.local_topic(packet.topic)
        limits = self._router.limits
        if topic is None or topic_refusal(self._router, topic, True)[0] > 0:
            figures.nameless += 1
            return None
        properties, qos = packet.properties, packet.qos
        if session.node:
            if mark is not None:
                properties = properties[:-MARK_SIZE]
                if qos == 2 and mark.qos == 1:
                    qos = 1
            elif packet.retain:
                mark = Mark(0, 0, False)
        # Of a node, with RETAIN: it was sent because the link is new. Others come as they are published.
        kept_anyway = mark is not None and (packet.retain or mark.at > 0)
        if verdict == OUTSIDE and not kept_anyway and not session.mapping.within_roots(topic):
            # No client has asked for it, and no access rule is about a link.
            figures.outside += 1
            self.outside_topic = topic
            return None
        if 0 < limits.max_payload_size < len(packet.payload):
            self._router.counters.oversized += 1
            return None
        if self._version == V5 and not session.node:
            # Between nodes a message goes one hop, whatever a client has written into it.
            been = visited(properties) if properties else []
            if has_looped(been, session.broker_id, session.hop_limit):
                figures.looped += 1
                return None
            if self.peer_id and (not been or been[-1] != self.peer_id):
                properties = with_hop(properties, self.peer_id)
            if packet.properties and not session.mapping.plain:
                properties = renamed(properties, session.mapping, False)
        expires_at = now + packet.message_expiry if packet.message_expiry >= 0 else 0.0
        retain = (packet.retain or kept_anyway) and limits.retain_available
        message = Message(topic, packet.payload, qos, retain, properties, expires_at, session.client_id)
        message.held = session.node
        if packet.retain and (self._replays.knows(message, packet.topic, now) or (session.node and not retain)):
            figures.replayed += 1
            return None
        return NodeMessage(message, mark) if retain and mark is not None else message

    def _for_group(self, packet: Publish, mark: Mark, now: float) -> GroupMessage:
        """Return a message for one share group: another worker knows of its members here, whatever is declared."""
        expires_at = now + packet.message_expiry if packet.message_expiry >= 0 else 0.0
        properties, publisher = packet.properties[: -mark.size], self._session.client_id
        message = Message(packet.topic, packet.payload, mark.qos, mark.retain, properties, expires_at, publisher)
        message.held = True
        return GroupMessage(message, mark.share, mark.away)

    def acknowledge(self, kind: int, packet_id: int, code: int, now: float) -> None:
        """Send a PUBACK, PUBREC or PUBCOMP, after the earlier ones; UNANSWERED: once `answer` has come."""
        if not self._acks and code != UNANSWERED:
            self._send(ack(kind, packet_id, code, self._version))
            return
        if len(self._acks) >= MAX_ACKS:
            raise ReceiveMaximumExceeded("more publishes than there are packet identifiers")
        self._acks.append(Held(kind, packet_id, code, now))
        self._send_acks()

    def _send_acks(self) -> None:
        """Send the acknowledgements up to the first that is not known yet."""
        acks = self._acks
        while acks and acks[0].code != UNANSWERED:
            held = acks.popleft()
            self._send(ack(held.kind, held.packet_id, held.code, self._version))

    def _send(self, packet: bytes) -> None:
        """Send a packet when everything told so far is committed."""
        uncommitted = self._uncommitted
        if uncommitted is None:
            self._send_buffer.control(packet)
        else:
            uncommitted.send(packet, uncommitted.commits.journal_position)

    # -- answers to requests -------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> None:
        kind = PUBACK if request.qos == 1 else PUBREC
        packet_id = request.packet_id
        self._requests.pop(packet_id, None)
        for held in self._acks:
            if held.kind == kind and held.packet_id == packet_id and held.code == UNANSWERED:
                held.code = reason_codes.SUCCESS if request.reached else reason_codes.NO_MATCHING_SUBSCRIBERS
                break
        self._send_acks()

    @property
    def answer_due(self) -> float:
        """Return when `hurry` has something to do; 0.0: never, as things stand."""
        return self._acks[0].since + self._router.limits.answer_timeout if self._acks else 0.0

    def hurry(self, now: float) -> None:
        """Answer the requests that have waited for other links for as long as they may."""
        timeout = self._router.limits.answer_timeout
        while self._acks and self._acks[0].since + timeout <= now:
            held = self._acks[0]
            request = self._requests.pop(held.packet_id, None)
            if request is not None:
                request.peer = None
            held.code = reason_codes.SUCCESS
            self._send_acks()

    def forget(self) -> None:
        """Acknowledge nothing any more, since the connection is over."""
        self._acks.clear()
        if self._uncommitted is not None:
            self._send_buffer.held = None
            self._uncommitted.drop()
        for request in self._requests.values():
            request.peer = None
        self._requests.clear()

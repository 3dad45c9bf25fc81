"""Acknowledges a client's publishes, and enforces the Receive Maximum for them.

Every PUBACK, PUBREC and PUBCOMP of a client's connection is sent by `Acknowledger._send`, which knows what each
acknowledges. With a store it is sent when that has been committed (`windows.held`). A request's acknowledgement
first waits until the links have answered (`queues.requests`).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.codec import reasons
from broker.core.codec.encoder import ack
from broker.core.codec.errors import ProtocolViolation, ReceiveMaximumExceeded
from broker.core.codec.packets import PUBACK, PUBCOMP, PUBREC, V5
from broker.core.limits import Limits
from broker.core.persistence.commits import Commits
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.queue_totals import UNLIMITED
from broker.core.queues.requests import Request, WaitingRequests
from broker.core.queues.windows.held import HeldAnswers
from broker.core.queues.windows.receive_window import uncounted_pubcomp
from broker.core.routing.deadlines import Deadlines
from broker.core.session.session import Session

PUBACK_HEAD: Final = b"\x40\x02"
PUBREC_HEAD: Final = b"\x50\x02"
PUBCOMP_HEAD: Final = b"\x70\x02"

RELEASE_RUN: Final = 1_024
"""PUBRELs that are answered together, at most."""


class Acknowledger:
    """The acknowledgements of one connection. A publish is unacknowledged, as section 3.3.4 counts, from when it came
    on this connection until its PUBACK, its PUBCOMP, or a PUBREC that refuses it was written."""

    def __init__(self, outbox: Outbox, limits: Limits, deadlines: Deadlines) -> None:
        self._outbox = outbox
        self._window = outbox.receive_window
        self._limits = limits
        self._deadlines = deadlines
        # Known from the CONNECT on.
        self._session: Session | None = None
        self._version = 0
        self._v5 = False
        # Acknowledgements that wait to be read, at which the client is not read from: 3.1.1 knows no Receive Maximum.
        self.most_unread: i64 = limits.receive_maximum
        # With a store that commits later: the line of what waits for that, and how much the journal had been told when
        # the publish that is dealt with came; -1: it came earlier.
        self._held: HeldAnswers | None = None
        self._told_before: i64 = -1
        # QoS 2 publishes of earlier connections that are not released and did not come again on this one: they do not
        # count against Receive Maximum, and neither do their PUBCOMPs (section 4.9).
        self._earlier: set[int] | None = None
        # Requests whose answers wait for links, once there was one: they are this connection's.
        self._requests: WaitingRequests | None = None

    def connected(self, session: Session, version: int, commits: Commits | None = None) -> None:
        """The client was accepted. `commits`: of the router's journal."""
        self._session = session
        if session.incoming_qos2:
            self._earlier = set(session.incoming_qos2)
        if commits is not None:
            self._held = HeldAnswers(self._outbox, commits)
            self._outbox.held = self._held
        self._version = version
        self._v5 = version == V5
        if self._v5:
            self.most_unread = UNLIMITED

    def ended(self) -> None:
        """The connection is over: nobody waits for what is held any more.

        A request of QoS 2 stays known by its identifier: sent again on the session's next connection it gets its
        PUBREC, and is not routed again [MQTT-4.3.3-10].
        """
        self._session = None
        self._earlier = None
        held = self._held
        if held is not None:
            self._held = None
            self._outbox.held = None
            held.drop()
        requests = self._requests
        if requests is not None:
            self._requests = None
            self._deadlines.cancel(requests)
            for request in requests.by_id.values():
                request.peer = None

    # -- Receive Maximum -----------------------------------------------------------------------------------------------

    def unacknowledged(self) -> int:
        """Publishes of the client that count against its Receive Maximum now."""
        session = self._session
        incoming = None if session is None else session.incoming_qos2
        window = self._window
        count = window.unwritten + window.held + (0 if incoming is None else len(incoming))
        earlier = self._earlier
        # More than that a client has not sent which publishes within Receive Maximum and completes what it resumes.
        return count if earlier is None else count - min(len(earlier), self._limits.receive_maximum)

    def full(self) -> bool:
        """Whether one more QoS 1 or 2 publish would exceed the Receive Maximum that was announced [MQTT-3.3.4-7]."""
        return self.room() <= 0

    def room(self) -> int:
        """How many more QoS 1 and 2 publishes may come."""
        return self._limits.receive_maximum - self.unacknowledged()

    def behind(self) -> bool:
        """Whether a 3.1.1 client has as many acknowledgements to read as a 5.0 client may have publishes in flight."""
        return self._window.unwritten + self._window.held >= self.most_unread

    # -- what came -----------------------------------------------------------------------------------------------------

    def holds(self, packet_id: int) -> bool:
        """Whether the acknowledgement of that identifier waits for something."""
        requests = self._requests
        return requests is not None and packet_id in requests.by_id

    def knows(self, packet_id: int) -> bool:
        """Whether a QoS 2 publish with that identifier came before and was not released: it is not routed again."""
        session = self._session
        assert session is not None
        incoming = session.incoming_qos2
        return incoming is not None and packet_id in incoming

    def remember(self, packet_id: int) -> None:
        """Know the identifier of a QoS 2 publish until its PUBREL.

        Only the identifier: that the message may expire meanwhile changes nothing in what follows [MQTT-4.3.3-13].
        """
        session = self._session
        assert session is not None
        incoming = session.incoming_qos2
        if incoming is None:
            incoming = set()
            session.incoming_qos2 = incoming
        incoming.add(packet_id)
        if session.journal is not None:
            session.journal.received(session.client_id, packet_id)

    def comes_again(self, packet_id: int) -> None:
        """A QoS 2 publish came again. If its first PUBLISH came on an earlier connection, it counts on this one, too.

        Raises:
            ReceiveMaximumExceeded: one more may not come [MQTT-3.3.4-7].
        """
        if not self._counts(packet_id) and self._v5 and self.room() < 0:
            raise ReceiveMaximumExceeded(f"more than {self._limits.receive_maximum} publishes in flight")

    def _counts(self, packet_id: int) -> bool:
        """Whether a publish counted on this connection already; it does from now on."""
        earlier = self._earlier
        if earlier is None or packet_id not in earlier:
            return True
        earlier.discard(packet_id)
        if not earlier:
            self._earlier = None
        return False

    def _forget(self, packet_id: int) -> bool:
        session = self._session
        assert session is not None
        incoming = session.incoming_qos2
        if incoming is None or packet_id not in incoming:
            return False
        incoming.discard(packet_id)
        self._counts(packet_id)
        if session.journal is not None:
            session.journal.completed(session.client_id, packet_id)
        return True

    def begin(self) -> None:
        """A publish of QoS 1 or 2 came: what the journal is told from here to its `answer` is told because of it."""
        held = self._held
        if held is not None:
            self._told_before = held.commits.told
            held.commits.begin()

    # -- what is answered ----------------------------------------------------------------------------------------------

    def answer(self, qos: int, packet_id: int, reason: int) -> None:
        """Acknowledge a publish of QoS 1 or 2: PUBACK [MQTT-4.3.2-4], or PUBREC [MQTT-4.3.3-8].

        QoS 1: the identifier is not remembered; coming again, with DUP or not, it is a new message [MQTT-4.3.2-5]. QoS
        2: it is, until its PUBREL; but with a reason code of 0x80 or above it is free at once [MQTT-4.3.3-9]. 3.1.1 has
        no such code: it hears success [MQTT3-3.3.5-2].
        """
        if qos == 1:
            self._send(ack(PUBACK, packet_id, reason, self._version), self._told())
            return
        if reason >= 0x80 and self._v5:
            self._forget(packet_id)
        elif not self.knows(packet_id):
            self.remember(packet_id)
        self._send(ack(PUBREC, packet_id, reason, self._version), self._told())

    def answer_again(self, packet_id: int) -> None:
        """PUBREC for a QoS 2 publish that came before.

        What it stands for may have been told on a connection that was lost, and not be committed: it waits for all.
        """
        self._told_before = -1
        self._send(ack(PUBREC, packet_id, reasons.SUCCESS, self._version), self._told())

    def answer_one(self, qos: i64, packet_id: bytes) -> None:
        """`answer_run` for one publish: an identifier of two bytes that came in goes out as it is."""
        self._send((PUBACK_HEAD if qos == 1 else PUBREC_HEAD) + packet_id, self._told())

    def answer_run(self, qos: int, packet_ids: list[bytes]) -> None:
        """Acknowledge some publishes in a row, one at least, all of the same QoS and with success, in one piece.

        Those of QoS 2 are remembered. `packet_ids` have two bytes each.
        """
        head = PUBACK_HEAD if qos == 1 else PUBREC_HEAD
        self._send(head + head.join(packet_ids), self._told())  # [MQTT-4.3.2-4] [MQTT-4.3.3-8]

    def released_run(self, data: bytes, start: i64) -> i64:
        """PUBRELs of four bytes that stand side by side in `data` from `start` on, as `released`, in one go.

        At most `RELEASE_RUN`, and up to the first whose identifier is not one that waits for it. Where the last of them
        ends; `start` where it is already the first.
        """
        at: i64 = start
        end: i64 = len(data) - 3
        if end > start + 4 * RELEASE_RUN:
            end = start + 4 * RELEASE_RUN
        packet_ids: list[bytes] = []
        requests = self._requests
        if self._earlier is None and (requests is None or not requests.by_id):
            while at < end and data[at] == 0x62 and data[at + 1] == 2:
                if not self._forget(data[at + 2] << 8 | data[at + 3]):
                    break
                packet_ids.append(data[at + 2 : at + 4])
                at += 4
        if at > start:
            self._send(PUBCOMP_HEAD + PUBCOMP_HEAD.join(packet_ids), self._told_of_session())  # [MQTT-4.3.3-11]
        return at

    def released(self, packet_id: int) -> None:
        """PUBREL came: the identifier is free, and means a new message after the PUBCOMP [MQTT-4.3.3-12].

        Raises:
            ProtocolViolation: its PUBLISH got no PUBREC yet.
        """
        if self.holds(packet_id) and self.knows(packet_id):
            raise ProtocolViolation("PUBREL for a publish that got no PUBREC yet")
        earlier = self._earlier is not None and packet_id in self._earlier
        known = self._forget(packet_id)
        reason = reasons.SUCCESS if known or not self._v5 else reasons.PACKET_IDENTIFIER_NOT_FOUND
        if earlier and self._v5:
            self._send(uncounted_pubcomp(packet_id), self._told_of_session())  # [MQTT-4.3.3-11]
            return
        # An identifier that is free already may have become so on a connection that was lost, and not be committed.
        self._send(ack(PUBCOMP, packet_id, reason, self._version), self._told_of_session())  # [MQTT-4.3.3-11]

    def hold(self, request: Request, until: float) -> None:
        """The acknowledgement has to wait for what links say, until a time at most (s).

        Until then the publish counts as unacknowledged.
        """
        requests = self._requests
        if requests is None:
            requests = WaitingRequests()
            self._requests = requests
        if requests.wait(request, until):
            self._deadlines.set(requests, requests.due)
        requests.by_id[request.packet_id] = request
        if request.qos == 1:
            self._window.held += 1
        elif not self.knows(request.packet_id):
            self.remember(request.packet_id)

    def settle(self, request: Request) -> None:
        """It is known whether a request reached anybody: acknowledge it, if the connection still waits for that."""
        requests = self._requests
        if requests is None:
            return
        if requests.by_id.pop(request.packet_id, None) is not None:
            if request.qos == 1:
                self._window.held -= 1
            self._told_before = -1
            reason = reasons.SUCCESS if request.reached else reasons.NO_MATCHING_SUBSCRIBERS
            self.answer(request.qos, request.packet_id, reason)

    def _told(self) -> i64:
        """What has to be committed before the publish is acknowledged that is dealt with; 0: nothing."""
        held = self._held
        return 0 if held is None or held.commits.told == self._told_before else held.commits.told

    def _told_of_session(self) -> i64:
        """The same for what became of an identifier, now or earlier: nothing where nobody keeps the session."""
        held = self._held
        session = self._session
        return 0 if held is None or session is None or session.journal is None else held.commits.told

    def _send(self, packet: bytes, number: i64) -> None:
        """Send an acknowledgement when what it promises is true: all that was told up to `number` is committed."""
        held = self._held
        if held is None:
            self._outbox.acknowledge(packet)
        else:
            held.send(packet, number)

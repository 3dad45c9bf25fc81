"""Acknowledges a client's publishes, takes its acknowledgements, and enforces the Receive Maximum.

Every PUBACK, PUBREC and PUBCOMP of a client's connection is sent by `_send`, which knows what each acknowledges. With a
store it is sent when that has been committed (`queues.held`). A request's acknowledgement first waits until the links
have answered (`queues.requests`). A publish is unacknowledged, as section 3.3.4 counts, from when it came on this
connection until its PUBACK, its PUBCOMP, or a PUBREC that refuses it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.accounts import SESSION_SIZE
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.encoder import ack
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack
from canopy_mqtt.core.codec.reason_codes import ProtocolViolation, ReceiveMaximumExceeded, Refused
from canopy_mqtt.core.queue_totals import UNLIMITED
from canopy_mqtt.core.queues.held import HeldAnswers, send_promise
from canopy_mqtt.core.queues.requests import Request, WaitingRequests
from canopy_mqtt.core.queues.send_buffer import uncounted_pubcomp

if TYPE_CHECKING:
    from canopy_mqtt.core.protocol.server_protocol import ServerProtocol

PUBACK_HEAD: Final = b"\x40\x02"
PUBREC_HEAD: Final = b"\x50\x02"
PUBCOMP_HEAD: Final = b"\x70\x02"

MAX_RELEASED: Final = 1_024
"""PUBRELs that are answered together, at most."""


def start(protocol: ServerProtocol) -> None:
    """Begin to acknowledge: the client was accepted."""
    session = protocol.session
    assert session is not None
    if session.received_qos2:
        protocol.earlier_qos2 = set(session.received_qos2)
    commits = protocol.router.commits
    if commits is not None:
        protocol.send_buffer.held = HeldAnswers(protocol.send_buffer, commits)
    if protocol.v5:
        protocol.max_unread = UNLIMITED


def end(protocol: ServerProtocol) -> None:
    """Forget what is held: the connection is over.

    A request of QoS 2 stays known by its identifier: sent again on the session's next connection it gets its PUBREC,
    and is not routed again [MQTT-4.3.3-10].
    """
    held = protocol.send_buffer.held
    if held is not None:
        protocol.send_buffer.held = None
        held.drop()
    requests = protocol.requests
    if requests is not None:
        protocol.requests = None
        protocol.router.deadlines.cancel(requests)
        for request in requests.by_id.values():
            request.peer = None


# -- Receive Maximum ---------------------------------------------------------------------------------------------------


def quota_left(protocol: ServerProtocol) -> i64:
    """Return how many more QoS 1 and 2 publishes may come before the announced Receive Maximum is exceeded; below 1:
    none [MQTT-3.3.4-7]."""
    session = protocol.session
    received = None if session is None else session.received_qos2
    send_buffer = protocol.send_buffer
    maximum: i64 = protocol.router.limits.receive_maximum
    left: i64 = maximum - send_buffer.unwritten - send_buffer.unqueued
    if received is not None:
        left -= len(received)
    earlier = protocol.earlier_qos2
    if earlier is not None:
        # More than that a client has not sent which publishes within Receive Maximum and completes what it resumes.
        count: i64 = len(earlier)
        left += count if count < maximum else maximum
    return left


def check_unreleased(protocol: ServerProtocol) -> None:
    """Count the identifiers that a client of 3.1.1, which knows no Receive Maximum, has not released beyond it.

    They are a part of its session, like those of a client that is away.

    Raises:
        Refused: sessions have no room for all of them (0x97).
    """
    session = protocol.session
    assert session is not None
    router = protocol.router
    limits, table, account = router.limits, router.session_table, session.account
    table.count(session)
    if (
        (limits.max_session_bytes > 0 and not table.is_fair(limits, SESSION_SIZE, account.owner, 1))
        or not account.has_room(0)
        or router.accounts.lacks(account.owner, 0, limits.max_user_bytes)
    ):
        count = 0 if session.received_qos2 is None else len(session.received_qos2)
        raise Refused(
            f"the broker has no room for {count} publishes that are not released", reason_codes.QUOTA_EXCEEDED
        )


# -- publishes that came -----------------------------------------------------------------------------------------------


def publish_came(protocol: ServerProtocol) -> None:
    """Note that a publish of QoS 1 or 2 came: the journal is told what follows, to its `answer`, because of it."""
    held = protocol.send_buffer.held
    if held is not None:
        protocol.noted_before = held.commits.journal_position
        held.commits.begin()


def waits_for_links(protocol: ServerProtocol, packet_id: int) -> bool:
    """Return whether the acknowledgement of a packet identifier waits for links."""
    requests = protocol.requests
    return requests is not None and packet_id in requests.by_id


def is_duplicate(protocol: ServerProtocol, packet_id: int) -> bool:
    """Return whether a QoS 2 publish with that identifier came before and was not released: it is not routed again."""
    session = protocol.session
    assert session is not None
    incoming = session.received_qos2
    return incoming is not None and packet_id in incoming


def remember(protocol: ServerProtocol, packet_id: int) -> None:
    """Keep the identifier of a QoS 2 publish until its PUBREL.

    Only the identifier: that the message may expire meanwhile changes nothing in what follows [MQTT-4.3.3-13].
    """
    session = protocol.session
    assert session is not None
    incoming = session.received_qos2
    if incoming is None:
        incoming = set()
        session.received_qos2 = incoming
    incoming.add(packet_id)
    if session.journal is not None:
        session.journal.received(session.client_id, packet_id)


def answer_duplicate(protocol: ServerProtocol, packet_id: int) -> None:
    """Answer a QoS 2 publish that came again. If its first PUBLISH came on an earlier connection, it counts on this
    one, too.

    What the PUBREC stands for may have been told on a connection that was lost, and not be committed: it waits for all.

    Raises:
        ReceiveMaximumExceeded: one more may not come [MQTT-3.3.4-7].
    """
    if not _was_counted(protocol, packet_id) and protocol.v5 and quota_left(protocol) < 0:
        raise ReceiveMaximumExceeded(f"more than {protocol.router.limits.receive_maximum} publishes in flight")
    protocol.noted_before = -1
    _send(protocol, ack(PUBREC, packet_id, reason_codes.SUCCESS, protocol.version))


def _was_counted(protocol: ServerProtocol, packet_id: int) -> bool:
    """Return whether a publish counted on this connection already; it does from now on."""
    earlier = protocol.earlier_qos2
    if earlier is None or packet_id not in earlier:
        return True
    earlier.discard(packet_id)
    if not earlier:
        protocol.earlier_qos2 = None
    return False


def _forget(protocol: ServerProtocol, packet_id: int) -> bool:
    """Free the identifier of a QoS 2 publish. Return False if it was free."""
    session = protocol.session
    assert session is not None
    incoming = session.received_qos2
    if incoming is None or packet_id not in incoming:
        return False
    incoming.discard(packet_id)
    _was_counted(protocol, packet_id)
    if len(incoming) == protocol.max_unread:
        # Of 3.1.1, as many as Receive Maximum: see `check_unreleased`.
        protocol.router.session_table.count(session)
    if session.journal is not None:
        session.journal.completed(session.client_id, packet_id)
    return True


# -- acknowledgements to the client ------------------------------------------------------------------------------------


def answer(protocol: ServerProtocol, qos: int, packet_id: int, reason: int) -> None:
    """Acknowledge a publish of QoS 1 or 2: PUBACK [MQTT-4.3.2-4], or PUBREC [MQTT-4.3.3-8].

    QoS 1: the identifier is not remembered; coming again, with DUP or not, it is a new message [MQTT-4.3.2-5]. QoS 2:
    it is, until its PUBREL; but with a reason code of 0x80 or above it is free at once [MQTT-4.3.3-9]. 3.1.1 has no
    such code: it hears success [MQTT3-3.3.5-2].
    """
    if qos == 1:
        _send(protocol, ack(PUBACK, packet_id, reason, protocol.version))
        return
    if reason >= 0x80 and protocol.v5:
        _forget(protocol, packet_id)
    elif not is_duplicate(protocol, packet_id):
        remember(protocol, packet_id)
    _send(protocol, ack(PUBREC, packet_id, reason, protocol.version))


def answer_run(protocol: ServerProtocol, qos: i64, packet_ids: list[bytes]) -> None:
    """Acknowledge some publishes in a row, one at least, all of the same QoS and with success, in one piece.

    Those of QoS 2 are remembered. `packet_ids` have two bytes each, as they came in.
    """
    head = PUBACK_HEAD if qos == 1 else PUBREC_HEAD
    _send(protocol, head + head.join(packet_ids))  # [MQTT-4.3.2-4] [MQTT-4.3.3-8]


def wait_for_links(protocol: ServerProtocol, request: Request, until: float) -> None:
    """Hold the acknowledgement of a request until the links have answered, or a time at most (s).

    Until then the publish counts as unacknowledged.
    """
    requests = protocol.requests
    if requests is None:
        requests = WaitingRequests()
        protocol.requests = requests
    if requests.wait(request, until):
        protocol.router.deadlines.set(requests, requests.due)
    requests.by_id[request.packet_id] = request
    if request.qos == 1:
        protocol.send_buffer.unqueued += 1
    elif not is_duplicate(protocol, request.packet_id):
        remember(protocol, request.packet_id)


def answer_request(protocol: ServerProtocol, request: Request) -> None:
    """Acknowledge a request, of which it is known now whether it reached a subscriber, if it still waits for that."""
    requests = protocol.requests
    if requests is None or requests.by_id.pop(request.packet_id, None) is None:
        return
    if request.qos == 1:
        protocol.send_buffer.unqueued -= 1
    protocol.noted_before = -1
    reason = reason_codes.SUCCESS if request.reached else reason_codes.NO_MATCHING_SUBSCRIBERS
    answer(protocol, request.qos, request.packet_id, reason)


def _send(protocol: ServerProtocol, packet: bytes) -> None:
    """Send the answer to the publish that is dealt with, when what was noted since it came is committed."""
    held = protocol.send_buffer.held
    if held is None:
        protocol.send_buffer.control(packet)
    else:
        position: i64 = held.commits.journal_position
        if position == protocol.noted_before:
            position = 0  # it stands for nothing
        held.send(packet, position)


def _send_promise(protocol: ServerProtocol, packet: bytes) -> None:
    """Send what became of an identifier, now or earlier, when all that was noted of the session is committed."""
    session = protocol.session
    send_promise(protocol.send_buffer, packet, session is not None and session.journal is not None)


# -- acknowledgements of the client ------------------------------------------------------------------------------------


def on_acknowledgement(protocol: ServerProtocol, kind: i64, now: float) -> i64:
    """Take the decoder's current frame, of that packet type, and those of four bytes behind it. Return how many."""
    session = protocol.session
    assert session is not None
    decoder = protocol.decoder
    first: i64 = decoder.start
    stop: i64 = first
    if kind == PUBREL:
        stop = _released_run(protocol, decoder.buffer, first)
    else:
        stop = session.on_acks(kind, decoder.buffer, first, now)
    if stop > first:
        decoder.end = stop
        return (stop - first) // 4
    packet_id = decoder.short_ack()
    reason_code = reason_codes.SUCCESS
    if packet_id <= 0:
        packet = decoder.packet()
        assert isinstance(packet, Ack)
        packet_id = packet.packet_id
        reason_code = packet.reason_code
    if kind == PUBREL:
        _released(protocol, packet_id)
    else:
        session.on_ack(kind, packet_id, reason_code, now)
    return 1


def _released_run(protocol: ServerProtocol, data: bytes, first: i64) -> i64:
    """Take the PUBRELs of four bytes that stand side by side in `data` from `first` on, as `_released`, in one go.

    At most `MAX_RELEASED`, and up to the first whose identifier is not one that waits for it. Return where the last of
    them ends; `first` where it is already the first.
    """
    at: i64 = first
    stop: i64 = len(data) - 3
    if stop > first + 4 * MAX_RELEASED:
        stop = first + 4 * MAX_RELEASED
    packet_ids: list[bytes] = []
    requests = protocol.requests
    if protocol.earlier_qos2 is None and (requests is None or not requests.by_id):
        while at < stop and data[at] == 0x62 and data[at + 1] == 2:
            if not _forget(protocol, data[at + 2] << 8 | data[at + 3]):
                break
            packet_ids.append(data[at + 2 : at + 4])
            at += 4
    if at > first:
        # [MQTT-4.3.3-11]
        _send_promise(protocol, PUBCOMP_HEAD + PUBCOMP_HEAD.join(packet_ids))
    return at


def _released(protocol: ServerProtocol, packet_id: int) -> None:
    """Take a PUBREL: the identifier is free, and means a new message after the PUBCOMP [MQTT-4.3.3-12].

    Raises:
        ProtocolViolation: its PUBLISH got no PUBREC yet.
    """
    if waits_for_links(protocol, packet_id) and is_duplicate(protocol, packet_id):
        raise ProtocolViolation("PUBREL for a publish that got no PUBREC yet")
    earlier = protocol.earlier_qos2 is not None and packet_id in protocol.earlier_qos2
    known = _forget(protocol, packet_id)
    if earlier and protocol.v5:
        packet = uncounted_pubcomp(packet_id)
    else:
        reason = reason_codes.SUCCESS if known or not protocol.v5 else reason_codes.PACKET_IDENTIFIER_NOT_FOUND
        packet = ack(PUBCOMP, packet_id, reason, protocol.version)
    # An identifier that is free already may have become so on a connection that was lost, and not be committed.
    _send_promise(protocol, packet)  # [MQTT-4.3.3-11]

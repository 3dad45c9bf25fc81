"""The figures about messages, packets and bytes: received, sent, queued, dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from canopy_mqtt.core.accounts import FILTERS, RETAINED, RETAINED_SIZE, ROOMS
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.observe.figures.figure import Figure, Kind, Topic, each, one
from canopy_mqtt.observe.figures.merging import Merge, Value, added, but_copies, greatest
from canopy_mqtt.observe.figures.sources import Reading
from canopy_mqtt.observe.room import RoomUse

COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE


def _by_qos(total: int, first: int, second: int) -> dict[str, int]:
    return {"0": total - first - second, "1": first, "2": second}


def _received(reading: Reading) -> dict[str, int]:
    counters = reading.counters
    return _by_qos(int(counters.messages_received), int(counters.received_qos1), int(counters.received_qos2))


def _sent(reading: Reading) -> dict[str, int]:
    counters = reading.counters
    return _by_qos(int(counters.messages_sent), int(counters.sent_qos1), int(counters.sent_qos2))


COPIED: Final = (ROOMS[FILTERS], ROOMS[RETAINED], ROOMS[RETAINED_SIZE])
"""The rooms of what each of several workers has a copy of."""


def _room(name: str, kind: Kind, text: str, read: Callable[[RoomUse], int], merge: Merge = added) -> Figure:
    """Make a figure of the limits that all accounts share (`core.accounts`)."""
    samples = each(lambda reading: {room.name: read(room) for room in reading.rooms})
    topics = (Topic(f"room/{{room}}/{name}"),)
    return Figure(f"room_{name}", kind, text, samples, labels=("room",), topics=topics, merge=merge)


def totals(reading: Reading) -> dict[str, int]:
    """Return the totals that load averages are computed from, by topic below `load/`."""
    counters = reading.counters
    return {
        "messages/received": int(counters.packets_received),
        "messages/sent": int(counters.messages_sent + counters.control_sent),
        "publish/dropped": counters.dropped_in_all(),
        "publish/received": int(counters.messages_received),
        "publish/sent": int(counters.messages_sent),
        "bytes/received": int(counters.bytes_received),
        "bytes/sent": int(counters.bytes_sent),
        "sockets": int(counters.connections),
        "connections": int(counters.connects),
    }


def _hundredths(value: Value) -> str:
    return f"{value:.2f}"


TRAFFIC: Final = (
    Figure(
        "messages_received",
        COUNTER,
        "PUBLISH packets that clients and links sent to this broker, by QoS",
        each(_received),
        labels=("qos",),
        topics=(Topic("publish/messages/received"), Topic("publish/messages/received/qos{qos}")),
    ),
    Figure(
        "messages_sent",
        COUNTER,
        "PUBLISH packets that this broker sent, by QoS; what is sent again counts again",
        each(_sent),
        labels=("qos",),
        topics=(Topic("publish/messages/sent"), Topic("publish/messages/sent/qos{qos}")),
    ),
    Figure(
        "messages_dropped",
        COUNTER,
        "Messages for a client that it did not get, by cause",
        each(lambda reading: dict(zip(DROP_CAUSES, reading.counters.dropped, strict=True))),
        labels=("cause",),
        topics=(Topic("messages/dropped"), Topic("publish/messages/dropped"), Topic("messages/dropped/{cause}")),
    ),
    Figure(
        "publish_received",
        COUNTER,
        "Bytes of PUBLISH packets received, including headers",
        one(lambda reading: int(reading.counters.publish_bytes_received)),
        unit="bytes",
        topics=(Topic("publish/bytes/received"),),
    ),
    Figure(
        "publish_sent",
        COUNTER,
        "Bytes of PUBLISH packets sent, including headers",
        one(lambda reading: int(reading.counters.publish_bytes_sent)),
        unit="bytes",
        topics=(Topic("publish/bytes/sent"),),
    ),
    Figure(
        "packets_received",
        COUNTER,
        "MQTT packets received",
        one(lambda reading: int(reading.counters.packets_received)),
        topics=(Topic("messages/received"), Topic("packets/received")),
    ),
    Figure(
        "packets_sent",
        COUNTER,
        "MQTT packets sent, except the last one of a connection",
        one(lambda reading: int(reading.counters.messages_sent + reading.counters.control_sent)),
        topics=(Topic("messages/sent"), Topic("packets/sent")),
    ),
    Figure(
        "network_received",
        COUNTER,
        "Bytes received on MQTT connections, without TLS overhead",
        one(lambda reading: int(reading.counters.bytes_received)),
        unit="bytes",
        topics=(Topic("bytes/received"),),
    ),
    Figure(
        "network_sent",
        COUNTER,
        "Bytes sent on MQTT connections, without TLS overhead",
        one(lambda reading: int(reading.counters.bytes_sent)),
        unit="bytes",
        topics=(Topic("bytes/sent"),),
    ),
    Figure(
        "load",
        Kind.INTERVAL,
        "Averages per minute over 1, 5 or 15 minutes of packets, PUBLISH packets, bytes, opened connections "
        "(`sockets`) and CONNECT packets (`connections`)",
        lambda reading: reading.sources.loads.averages().items(),
        labels=("of", "span"),
        topics=(Topic("load/{of}/{span}", _hundredths),),
    ),
    Figure(
        "messages_looped",
        COUNTER,
        "Messages not routed because they had been here before, or had crossed too many links",
        one(lambda reading: int(reading.counters.looped)),
        topics=(Topic("messages/looped"),),
    ),
    Figure(
        "messages_oversized",
        COUNTER,
        "Messages not routed because of limits.max_payload_size",
        one(lambda reading: int(reading.counters.oversized)),
        topics=(Topic("messages/oversized"),),
    ),
    Figure(
        "messages_not_authorized",
        COUNTER,
        "Messages, including wills, that access control did not allow",
        one(lambda reading: int(reading.counters.denied_publishes)),
        topics=(Topic("messages/not authorized"),),
    ),
    Figure(
        "publishers_held",
        COUNTER,
        "How often a publisher was held back for a slower subscriber (queue.hold_publishers)",
        one(lambda reading: int(reading.totals.holds)),
        topics=(Topic("publishers/held"),),
    ),
    Figure(
        "protocol_errors",
        COUNTER,
        "Connections that ended because of a protocol error",
        one(lambda reading: int(reading.counters.protocol_errors)),
        topics=(Topic("packets/protocol errors"),),
    ),
    Figure(
        "queue_messages",
        GAUGE,
        "Messages for clients in memory, queued or in flight",
        one(lambda reading: int(reading.totals.messages)),
        topics=(Topic("messages/queued"),),
    ),
    Figure(
        "queue",
        GAUGE,
        "Bytes of the messages for clients in memory",
        one(lambda reading: int(reading.totals.bytes)),
        unit="bytes",
        topics=(Topic("bytes/queued"),),
    ),
    Figure(
        "inflight_messages",
        GAUGE,
        "QoS 1 and 2 messages in flight to clients",
        one(lambda reading: int(reading.totals.inflight)),
        topics=(Topic("messages/inflight"),),
    ),
    Figure(
        "stored_messages",
        GAUGE,
        "Stored messages: retained ones, and queued ones, once for each client",
        one(lambda reading: int(reading.totals.messages) + len(reading.router.retained)),
        topics=(Topic("store/messages/count"), Topic("messages/stored")),
        parts=("queue_messages", "retained_messages"),
    ),
    Figure(
        "stored",
        GAUGE,
        "Bytes of the stored messages",
        one(lambda reading: int(reading.totals.bytes) + int(reading.router.retained_store.bytes)),
        unit="bytes",
        topics=(Topic("store/messages/bytes"),),
        parts=("queue", "retained"),
    ),
    Figure(
        "retained_messages",
        GAUGE,
        "Retained messages",
        one(lambda reading: len(reading.router.retained)),
        topics=(Topic("retained messages/count"),),
        merge=greatest,
    ),
    Figure(
        "retained",
        GAUGE,
        "Bytes of retained messages, including overhead",
        one(lambda reading: int(reading.router.retained_store.bytes)),
        unit="bytes",
        topics=(Topic("retained messages/bytes"),),
        merge=greatest,
    ),
    _room("held", GAUGE, "What is used of the room: bytes, or a number", lambda room: room.held, but_copies(COPIED)),
    _room("bound", GAUGE, "The bound of the room; 0: none", lambda room: room.bound, but_copies(COPIED)),
    _room(
        "largest",
        GAUGE,
        "What the user or address that holds most holds of the room",
        lambda room: room.largest[0][1] if room.largest else 0,
        greatest,
    ),
    _room(
        "accounts",
        GAUGE,
        "Users and addresses that hold something of the room",
        lambda room: room.accounts,
        but_copies(COPIED),
    ),
    _room("refusals", COUNTER, "How often a user or address was refused some of the room", lambda room: room.refused),
    _room(
        "evictions",
        COUNTER,
        "Absent sessions and retained messages of one user or address that went for another's",
        lambda room: room.gave_way,
    ),
    Figure(
        "retained_refused",
        COUNTER,
        "Messages that were not retained because of a limit",
        one(lambda reading: int(reading.counters.retained_refused)),
        topics=(Topic("retained messages/refused"),),
    ),
    Figure(
        "retained_withheld",
        COUNTER,
        "Retained messages that were not sent because their publisher may not publish there any more",
        one(lambda reading: int(reading.counters.totals.retained_withheld)),
        topics=(Topic("retained messages/withheld"),),
    ),
)

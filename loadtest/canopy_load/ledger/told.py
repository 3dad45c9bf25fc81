"""Operations, events and packets of a history as lines for people, and which packets show a finding.

Owns: ``told``, a line for an event, and ``packets``, those of the operations of a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from canopy_load.ledger import packet_log
from canopy_load.ledger.history import (
    UNKNOWN,
    Connect,
    Delivery,
    Ended,
    Event,
    Hush,
    Look,
    Operation,
    Ping,
    Publish,
    Subscribe,
    Unsubscribe,
)
from canopy_load.ledger.packet_log import PacketLog, Seen
from canopy_mqtt.core.codec.packets import CONNACK, CONNECT, DISCONNECT, PINGREQ, PINGRESP, PUBLISH

MAX_PACKETS: Final = 40
"""Packets that are shown of a finding."""


def time_of(event: Event) -> float:
    """Return when an event was, or an operation began."""
    return float(event.began if isinstance(event, Operation) else getattr(event, "at", 0.0))


def packets(events: Iterable[Event], logs: dict[str, PacketLog], origin: float) -> list[str]:
    """Return the packets of these operations and deliveries as lines, in the order of time, with their times in seconds
    after `origin`."""
    lines: dict[tuple[float, str], None] = {}
    for event in events:
        log = logs.get(event.client)
        for seen in _of(event, log) if log is not None else ():
            lines[seen.at, packet_log.told(seen, event.client, origin)] = None
    return [line for _, line in sorted(lines, key=lambda each: each[0])[:MAX_PACKETS]]


def _of(event: Event, log: PacketLog) -> Iterator[Seen]:
    """Yield the packets of one event."""
    match event:
        case Connect():
            for seen in log.packets():
                if seen.connection == event.number and seen.packet.kind in (CONNECT, CONNACK, DISCONNECT):
                    yield seen
        case Ping():
            for seen in log.packets():
                if seen.connection == event.connection and seen.packet.kind in (PINGREQ, PINGRESP):
                    yield seen
        case Publish() if not event.will:
            message = event.stream, event.sequence
            for seen in log.packets():
                mine = seen.sent and seen.message == message
                answers = event.packet_id and seen.packet_id == event.packet_id and seen.message is None
                if mine or (answers and event.began <= seen.at <= event.ended):
                    yield seen
        case Subscribe() | Unsubscribe():
            for seen in log.packets():
                if seen.packet_id == event.packet_id and event.began <= seen.at <= event.ended and not seen.message:
                    yield seen
        case Delivery():
            yield from _delivery(event, log)


def _delivery(event: Delivery, log: PacketLog) -> Iterator[Seen]:
    """Yield the PUBLISH of a delivery, and its acknowledgements until the next message with this identifier."""
    message = None if event.stream[0] == UNKNOWN else (event.stream, event.sequence)
    connection = -1
    for seen in log.packets():
        if seen.sent and seen.message is not None:
            continue
        came = seen.packet.kind == PUBLISH and not seen.sent
        if came and seen.message == message and seen.packet_id == event.packet_id:
            connection = seen.connection
            yield seen
        elif connection >= 0 and event.packet_id and seen.packet_id == event.packet_id:
            if seen.message is not None:
                return
            if seen.connection == connection:
                yield seen


def told(event: Event, origin: float = 0.0) -> str:
    """Return an operation or event as a line for people; times in seconds after `origin`."""
    match event:
        case Connect():
            present = ", Session Present" if event.present else ""
            what = f"CONNECT{' clean' if event.clean else ''} to {event.node}{present}"
        case Publish():
            packet = "the will" if event.will else "PUBLISH"
            retained = ", retained" if event.retain else ""
            what = f"{packet} {event.topic} number {event.sequence}, QoS {event.qos}{retained}"
        case Subscribe():
            options = (("No Local", event.no_local), ("Retain As Published", event.as_published))
            said = "".join(f", {name}" for name, on in options if on)
            handling = f", Retain Handling {event.handling}" if event.handling else ""
            what = f"SUBSCRIBE {event.topic_filter}, QoS {event.qos}{said}{handling}"
        case Unsubscribe():
            what = f"UNSUBSCRIBE {event.topic_filter}"
        case Ping():
            what = "PINGREQ on the connection before"
        case Delivery():
            publisher, topic, qos = event.stream
            retained = ", RETAIN 1" if event.retain or event.retained else ""
            whose = "of nobody" if publisher == UNKNOWN else f"number {event.sequence} of {publisher} (QoS {qos})"
            what = f"got {topic} {whose} with QoS {event.qos}{retained}"
        case Ended():
            code = "" if event.code is None else f" with DISCONNECT 0x{event.code:02x}"
            what = f"connection ended by {'the client' if event.own else 'the broker'}{code}"
        case Look():
            found = ", ".join(f"{topic} number {message[1]}" for topic, message in event.found.items())
            what = f"retained messages at {event.node}: {found}"
        case Hush():
            what = f"sends nothing more, with a Keep Alive of {event.keep_alive} s"
        case _:
            what = type(event).__name__
    at = f"{time_of(event) - origin:9.3f} s"
    if isinstance(event, Operation):
        answer = event.outcome if event.ended == inf else f"{event.outcome} after {event.ended - event.began:.3f} s"
        what += f": {answer}"
    step = f" (step {event.step})" if event.step >= 0 else ""
    return f"{at}  {event.client}: {what}{step}"

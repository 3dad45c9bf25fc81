"""The packets of a client: what is kept, and how it is shown."""

from __future__ import annotations

from canopy_load.ledger.history import Connect, Delivery, Publish, Subscribe
from canopy_load.ledger.packet_log import NO_LOG, PacketLog, told
from canopy_load.ledger.streams import Streams
from canopy_load.ledger.told import packets as packets_of
from canopy_mqtt.core.codec import encoder, packets
from canopy_mqtt.core.codec.packets import PUBACK, V5, Ack, Connack, Suback, SubscriptionRequest


def log() -> tuple[PacketLog, Streams]:
    streams = Streams(5)
    return PacketLog(V5, streams), streams


def talk() -> tuple[PacketLog, list[bytes]]:
    """A client connects, subscribes, and gets two messages."""
    made, streams = log()
    connect = packets.Connect("c", V5, True, 30, None, "somebody", b"secret")
    made.note(1.0, 7, True, encoder.encode(connect, V5))
    made.note(1.1, 7, False, encoder.encode(Connack(), V5))
    made.note(1.2, 7, True, encoder.encode(packets.Subscribe(3, [SubscriptionRequest("t/#", 1)]), V5))
    made.note(1.3, 7, False, encoder.encode(Suback(3, [1]), V5))
    payloads = [streams.message(("p", "t/0", 1))[1] for _ in range(2)]
    for number, payload in enumerate(payloads):
        packet = packets.Publish(b"t/0", payload, 1, False, number == 1, 3)
        made.note(1.4 + number, 7, False, encoder.publish(packet, V5))
        made.note(1.5 + number, 7, True, encoder.ack(PUBACK, 3))
    return made, payloads


def test_packets_are_lines_without_passwords_and_payloads() -> None:
    made, _ = talk()
    lines = [told(each, "c", 1.0) for each in made.packets()]
    assert [line.split("s  ")[1] for line in lines] == [
        "c -> CONNECT clean keep alive 30 s (connection 7)",
        "c <- CONNACK 0x00, Session Present 0 (connection 7)",
        "c -> SUBSCRIBE id 3 t/# QoS 1 (connection 7)",
        "c <- SUBACK id 3 0x01 (connection 7)",
        "c <- PUBLISH id 3 t/0 number 0 of p, QoS 1 (connection 7)",
        "c -> PUBACK id 3 (connection 7)",
        "c <- PUBLISH id 3 t/0 number 1 of p, QoS 1 DUP (connection 7)",
        "c -> PUBACK id 3 (connection 7)",
    ]
    assert lines[1].startswith("    0.100 s")


def test_the_packets_of_an_operation_are_its_own() -> None:
    made, _ = talk()
    stream = ("p", "t/0", 1)
    asked = Subscribe(client="c", began=1.2, ended=1.3, topic_filter="t/#", qos=1, packet_id=3)
    first, second = (Delivery(client="c", at=0, stream=stream, sequence=each, qos=1, packet_id=3) for each in (0, 1))
    connect = Connect(client="c", number=7, began=1.0)
    of = {"c": made}

    assert [line.split()[4] for line in packets_of([connect], of, 0.0)] == ["CONNECT", "CONNACK"]
    assert [line.split()[4] for line in packets_of([asked], of, 0.0)] == ["SUBSCRIBE", "SUBACK"]
    assert [line.split()[0] for line in packets_of([first], of, 0.0)] == ["1.400", "1.500"]
    assert [line.split()[0] for line in packets_of([second], of, 0.0)] == ["2.400", "2.500"]
    assert packets_of([asked], {}, 0.0) == []


def test_a_publish_is_shown_each_time_that_it_was_sent_with_its_answers() -> None:
    made, streams = log()
    sequence, payload = streams.message(("c", "t/0", 1))
    for at, dup in ((1.0, False), (2.0, True)):
        made.note(at, int(at), True, encoder.publish(packets.Publish(b"t/0", payload, 1, False, dup, 9), V5))
    made.note(2.5, 2, False, encoder.encode(Ack(PUBACK, 9), V5))
    publish = Publish(client="c", began=1.0, ended=2.5, topic="t/0", qos=1, sequence=sequence, packet_id=9)
    lines = packets_of([publish], {"c": made}, 0.0)
    assert [("DUP" in line, "PUBACK" in line) for line in lines] == [(False, False), (True, False), (False, True)]


def test_what_is_broken_ends_the_packets_of_its_connection() -> None:
    made, _ = log()
    made.note(1.0, 1, False, b"\xff\xff\xff\xff\xff\xff")
    made.note(2.0, 1, False, encoder.encode(Connack(), V5))
    made.note(3.0, 2, False, encoder.encode(Connack(), V5))
    assert [each.connection for each in made.packets()] == [2]


def test_of_a_crowd_nothing_is_kept() -> None:
    NO_LOG.note(1.0, 1, True, b"anything")
    assert list(NO_LOG.packets()) == []

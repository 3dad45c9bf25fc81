"""Attacks by clients that publish or acknowledge: what is retained, remembered, forwarded or waited for of it.

`FLOODS` are those of one client that sends one packet after the other, made from its number, until the time is over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from benchmarks.attack.field import ATTACKS, BATCH, CROWD, Attack, Field, Hostile, Refused, attack
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Packet, Publish
from canopy_mqtt.core.codec.properties import Properties, encode_forward

DEEP: Final = b"/a" * 99
TAIL: Final = b"x" * 1000
KINDS: Final = (PUBACK, PUBREC, PUBREL, PUBCOMP)
LONG: Final = "t" * 256
"""A client identifier as long as `limits.max_client_id_length` allows, which stands before the topics of a tenant."""
ELSEWHERE: Final = "127.0.0.67"
"""An address that no well-behaved client comes from."""
KEPT: Final = 5.0
"""Seconds in which the broker must have closed the socket of a client that has left; it gives it two."""

FLOODS: Final[dict[str, tuple[str, Callable[[int], Packet]]]] = {
    "retained-flood": (
        "A retained message of one byte to each of very many topics",
        lambda number: Publish(b"%d" % number, b"x", 0, True),
    ),
    "retained-deep": (
        "Retained messages below 100 levels that share nothing",
        lambda number: Publish(b"%d" % number + DEEP, b"x", 0, True),
    ),
    "topics-never-seen-again": (
        "Topics of a kilobyte, each another one",
        lambda number: Publish(b"%d" % number + TAIL, b""),
    ),
    "bogus-acknowledgements": (
        "PUBACK, PUBREC, PUBREL and PUBCOMP for identifiers that are not in use",
        lambda number: Ack(KINDS[number // 5_000 % 4], number % 5_000 + 1),
    ),
}


def _flood(make: Callable[[int], Packet]) -> Callable[[Field], None]:
    return lambda field: field.client().flood(make)


for name, (about, make) in FLOODS.items():
    ATTACKS[name] = Attack(about, _flood(make))


@attack()
def retained_large(field: Field) -> None:
    """4,000 retained messages of 100 kB"""
    client = field.client()
    payload = os.urandom(100_000)
    for number in field.rounds(4_000):
        if not client.publish(b"%d" % number, payload, retain=True):
            return


@attack()
def retained_expiring(field: Field) -> None:
    """100,000 retained messages that expire, set anew with another expiry over and over"""
    topics = field.some(100_000)
    field.client().flood(
        lambda at: Publish(b"%d" % (at % topics), b"x", 0, True, message_expiry=1_000 + at // topics), BATCH
    )


@attack()
def topic_aliases(field: Field) -> None:
    """Every topic alias there is, each for a name of 65 kB, on ten connections"""
    for number in range(10):
        name = b"%d" % number + b"x" * 65_000
        field.client().packets(Publish(name + b"%d" % alias, b"", topic_alias=alias) for alias in range(1, 65))


@attack()
def user_properties(field: Field) -> None:
    """PUBLISHes of 1 MiB that are nothing but empty user properties"""
    client = field.client()
    client.subscribe(["props"])
    properties = encode_forward(user=[("", "")] * field.some(200_000))
    client.flood(lambda _: Publish(b"props", b"", properties=properties), 1)


@attack()
def acknowledgements_with_properties(field: Field) -> None:
    """PUBACKs of 1 MiB that are nothing but empty user properties"""
    properties = Properties()
    properties.user.extend([("", "")] * field.some(200_000))
    field.client().flood(lambda _: Ack(PUBACK, 1, 0, properties), 4)


@attack()
def flood(field: Field) -> None:
    """Small PUBLISHes without end to a topic that nobody wants"""
    field.client(version=4).repeat(b"\x30\x08\x00\x05flood1" * 20_000)


@attack()
def unread_answers(field: Field) -> None:
    """PINGREQs without end from a client that reads no PINGRESP"""
    field.client(reads=False, narrow=True).repeat(b"\xc0\x00" * 100_000)


@attack()
def flood_of_oneself(field: Field) -> None:
    """A client that subscribes to what it publishes with QoS 1, and acknowledges nothing"""
    client = field.client(version=4, clean_start=False)
    client.subscribe(["self"], qos=1)
    payload = os.urandom(30_000)
    while not field.over and client.publish(b"self", payload, 1):
        pass


@attack()
def messages_that_expire(field: Field) -> None:
    """QoS 1 messages that expire after a second, for a session that is away"""
    away = field.client("away", clean_start=False, session_expiry=3600)
    away.subscribe(["away"], qos=1)
    away.wait_for("SUBACK")
    away.close()
    client = field.client()
    batch = 500
    for done in count(1):
        if not client.packets(
            Publish(b"away", b"x", 1, packet_id=number, message_expiry=1) for number in range(1, batch + 1)
        ):
            return
        if field.over or not client.wait_for("PUBACK", done * batch):
            return


@attack()
def requests_of_a_link(field: Field) -> None:
    """A client that says it is a link and never answers, and requests that would wait for it"""
    link = field.client(user_properties=(("canopy-link", "evil"),))
    link.subscribe(["requests/#"], qos=1)
    properties = encode_forward(response_topic="answers")
    field.client().flood(
        lambda at: Publish(b"requests/1", b"?", 1, packet_id=at % 60_000 + 1, properties=properties), 1
    )


@attack()
def topics_of_a_long_tenant(field: Field) -> None:
    """A tenant with an identifier of 256 bytes that publishes to ever new topics of a few bytes, and retains them"""
    client = field.client(LONG, listener="mounted")
    client.subscribe(["nothing/+"])
    client.flood(lambda number: Publish(b"%d" % (number % 100_000), b"x", 0, True))


@attack()
def messages_of_a_long_tenant(field: Field) -> None:
    """A tenant with an identifier of 256 bytes that sends small messages to itself and reads none"""
    client = field.client(LONG, narrow=True, listener="mounted")
    client.subscribe(["own"], qos=1)
    client.reads = False
    client.flood(lambda _: Publish(b"own", b"x", 1, packet_id=1))


@attack()
def receive_maximum_evaded(field: Field) -> None:
    """PUBRELs for unknown identifiers, then more QoS 2 publishes than Receive Maximum allows"""
    client = field.client(reads=False)
    client.packets(Ack(PUBREL, number) for number in range(1, 3_000))
    client.packets(Publish(b"t", b"x" * 100, 2, packet_id=number) for number in range(1, 60_000))
    client.reads = True
    client.wait_for("DISCONNECT")


@attack()
def never_released(field: Field) -> None:
    """3.1.1 clients that begin 65,535 QoS 2 publishes each and release none"""
    for number in field.rounds(5):
        client = field.client(f"unreleased-{number}", version=4, clean_start=False)
        client.packets(Publish(b"t", b"", 2, packet_id=at) for at in range(1, field.some(65_535)))


def _crowd_that_reads_nothing(field: Field, clients: int, **connect: Any) -> list[Hostile]:
    """Return clients that read nothing, for each of whom more waits than their systems take."""
    crowd = [field.client(**connect) for _ in field.rounds(clients)]
    for client in crowd:
        client.subscribe(["much"])
        client.wait_for("SUBACK")
        client.reads = False
    field.client().packets(Publish(b"much", b"x" * 10_000) for _ in range(field.some(1_000)))
    return crowd


@attack(growth=CROWD)
def disconnects_with_window_0(field: Field) -> None:
    """20 clients that read nothing and send DISCONNECT while much waits for them: no socket is kept"""
    crowd = _crowd_that_reads_nothing(field, 20)
    for client in crowd:
        client.send(b"\xe0\x00")
    end = time.monotonic() + KEPT
    while any(not client.closed for client in crowd):
        if time.monotonic() > end:
            raise RuntimeError(f"{sum(not client.closed for client in crowd)} sockets were kept")
        time.sleep(0.1)
        for client in crowd:
            # A socket that the broker has closed answers with a reset.
            client.send(b"\xc0\x00")


@attack(growth=CROWD, settings=("limits.max_connections_per_address=250",))
def lost_while_timed_out(field: Field) -> None:
    """150 clients that are lost when their keep alive is over, while much waits for them: each leaves its place"""
    crowd = _crowd_that_reads_nothing(field, 150, keep_alive=1, source=ELSEWHERE)
    time.sleep(1.5)
    for client in crowd:
        client.vanish()
        time.sleep(0.001)
    time.sleep(0.5)
    try:
        for _ in crowd:
            field.client(source=ELSEWHERE).close()
    except Refused as error:
        raise RuntimeError(f"a connection that is lost takes a place: {error}") from error


@attack(growth=CROWD)
def packets_never_finished(field: Field) -> None:
    """200 clients that hold all but the end of a PUBLISH of 1 MiB"""
    data = b"\x30\xf0\xff\x3f\x00\x01t\x00" + bytes((1 << 20) - 100)
    for _ in field.rounds(200):
        field.client().send(data)
    field.listen()


@attack()
def trickled_packets(field: Field) -> None:
    """300 clients that send PUBLISHes byte by byte"""
    clients = [field.client(keep_alive=1) for _ in field.rounds(300)]
    data = b"\x30\x06\x00\x01t\x00xy"
    for at in count():
        if field.over:
            break
        for client in clients:
            client.send(data[at % len(data) :][:1])


@attack()
def short_keep_alives(field: Field) -> None:
    """500 clients with a keep alive of a second that never PING"""
    for _ in field.rounds(500):
        field.client(keep_alive=1)
    field.listen(2.0)

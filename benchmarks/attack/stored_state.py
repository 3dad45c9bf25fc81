"""Attacks by what outlives a connection: sessions, wills, what is kept on disk, and the room that it takes of all."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final

from benchmarks.attack.field import CROWD, Field, Hostile, Refused, attack
from benchmarks.attack.subscribing import deep
from canopy_load.brokers.process import HOST
from canopy_mqtt.core.codec.packets import V5, Connect, Disconnect, Publish, Subscribe, SubscriptionRequest, Will
from canopy_mqtt.core.codec.properties import SESSION_EXPIRY_INTERVAL, Properties

GREEDY: Final = "127.0.0.66"
"""The address that takes the room of all others, which come from `HOST`."""
OTHERS: Final = 20
NEVER: Final = 0xFFFFFFFF


def _stays(field: Field, name: str, will: Will | None = None, expiry: int = 3600, **more: Any) -> Hostile:
    """Return a client whose session stays for an hour when it leaves."""
    return field.client(name, clean_start=False, session_expiry=expiry, will=will, **more)


@attack(growth=CROWD)
def will_storm(field: Field) -> None:
    """300 delayed wills that fall due at one instant, for 100 subscribers each"""
    for _ in field.rounds(100):
        field.client().subscribe(["wills"])
    will = Will("wills", b"x" * 1000, 1, delay=1)
    clients = [field.client(will=will, session_expiry=100) for _ in field.rounds(300)]
    for client in clients:
        client.vanish()
    field.listen(1.5)


@attack(growth=CROWD)
def large_wills(field: Field) -> None:
    """2,000 sessions that stay, each with a will of 60 kB"""
    will = Will("w", os.urandom(60_000), delay=3600)
    for number in field.rounds(2_000):
        _stays(field, f"willing-{number}", will).vanish()


@attack()
def wills_by_reconnecting(field: Field) -> None:
    """A client that comes and vanishes over and over, so that its will goes to 100 subscribers each time"""
    for _ in field.rounds(100):
        field.client().subscribe(["wills"])
    while not field.over:
        field.client("restless", will=Will("wills", b"x" * 10_000)).vanish()


@attack()
def takeover_storm(field: Field) -> None:
    """Connections that take over one session with a full queue from each other, over and over"""
    _stays(field, "contested").subscribe(["contested/+"], qos=1)
    field.client().packets(
        Publish(b"contested/%d" % number, b"x" * 100, 1, packet_id=number) for number in range(1, field.some(1_000))
    )
    while not field.over:
        _stays(field, "contested")


@attack(growth=CROWD)
def session_flood(field: Field) -> None:
    """Sessions that stay, of clients that never come back"""
    for number in field.rounds(20_000):
        _stays(field, f"stays-{number}-" + "x" * 200).close()


@attack(growth=CROWD)
def sessions_that_end_together(field: Field) -> None:
    """20 clients with 5,000 filters each that leave at one instant"""
    clients = [field.client() for _ in field.rounds(20)]
    count = field.some(5_000)
    for at, client in enumerate(clients):
        client.subscribe([f"{at}/{number}/+" for number in range(count)])
        client.wait_for("SUBACK", -(-count // 1000))
    for client in clients:
        client.vanish()
    field.listen(0.5)


@attack(growth=CROWD)
def a_crowd_of_long_tenants(field: Field) -> None:
    """200 tenants with identifiers of 256 bytes that leave sessions with a filter and messages behind"""
    clients = []
    for number in field.rounds(200):
        clients.append(_stays(field, f"{number:06}" + "t" * 250, listener="mounted"))
        clients[-1].subscribe(["own/+"], qos=1)
    while not field.over and clients:
        for client in clients:
            client.packets(Publish(b"own/1", b"x", 1, packet_id=1) for _ in range(10))


@attack()
def everything_at_once(field: Field) -> None:
    """One client that takes all it may of each: filters, retained messages, queues, aliases, a will, cached topics"""
    will = Will("w", os.urandom(60_000))
    client = field.client(
        "everything", clean_start=False, session_expiry=3600, will=will, narrow=True, receive_maximum=65_535
    )
    client.packets(Publish(b"%d" % alias + b"x" * 3_900, b"", topic_alias=alias) for alias in range(1, 64))
    client.packets(Publish(b"%d" % number + b"y" * 200, b"") for number in range(field.some(16_000)))
    # What is counted for a large message is what it takes, so that these come before filters.
    client.packets(Publish(b"large/%d" % each, os.urandom(100_000), 0, True) for each in range(field.some(400)))
    for number in field.rounds(8):
        client.subscribe(deep(number, 100), each=100)
        client.packets(Publish(b"%d/%d" % (number, each), b"x", 0, True) for each in range(field.some(8_000)))
    client.subscribe(["queued/+", "live/+"], qos=2)
    client.wait_for("SUBACK", 9)
    client.reads = False
    for number in field.rounds(1_000):
        client.packets([Publish(b"live/%d" % number, os.urandom(30_000))])
    for number in field.rounds(1_000):
        client.packets([Publish(b"queued/%d" % number, os.urandom(30_000), 1, packet_id=number + 1)])
    # And a packet that never ends.
    client.send(b"\x30\xff\xff\x3e" + bytes(1_000_000))
    client.wait_for("nothing", timeout=0.5)


@attack(growth=CROWD, stored=True)
def kept_for_sessions_that_are_away(field: Field) -> None:
    """A flood of QoS 1 for 100 sessions that are away, with a store"""
    clients = [_stays(field, f"away-{number}") for number in field.rounds(100)]
    for client in clients:
        client.subscribe(["kept"], qos=1)
    for client in clients:
        client.wait_for("SUBACK")
        client.close()
    publisher = field.client(version=4)
    payload = os.urandom(1000)
    while not field.over and publisher.publish(b"kept", payload, 1):
        pass


def _offline(field: Field, topic: str, most: int) -> None:
    """Leave sessions that get QoS 1 of a topic and stay offline. Their clients wait for no answer."""
    properties = Properties()
    properties.integers[SESSION_EXPIRY_INTERVAL] = 3600
    subscribe = Subscribe(1, [SubscriptionRequest(topic, 1)])
    for number in field.rounds(most):
        connect = Connect(f"{topic}-{number}", V5, False, 0, None, properties=properties)
        field.socket(reads=False).packets([connect, subscribe, Disconnect()])


@attack(growth=CROWD, settings=("queue.total_bytes=134217728",))
def cheap_publishes_then_dear_ones(field: Field) -> None:
    """A client that sends 250 QoS 1 PUBLISHes for itself and 250 for 1,000 offline sessions in one piece, on and on"""
    _offline(field, "dear", 1_000)
    client = field.client(version=4)
    client.subscribe(["cheap"], qos=1)
    topics = [b"cheap"] * field.some(250) + [b"dear"] * field.some(250)
    while not field.over and not client.closed:
        client.packets(Publish(topic, b"x", 1, packet_id=at) for at, topic in enumerate(topics, 1))
        client.drain()


@attack(growth=CROWD, stored=True)
def kept_for_very_many(field: Field) -> None:
    """QoS 1 again and again for 4,300 sessions that are away, with a store"""
    publisher = field.client(version=4)
    _offline(field, "many", 4_300)
    while not field.over and publisher.publish(b"many", b"x" * 100, 1):
        pass


@attack(growth=CROWD, stored=True)
def kept_wills(field: Field) -> None:
    """Small sessions that stay, each with a will, of clients that vanish and come back anew, with a store"""
    will = Will("kept/wills", b"x" * 1000, 1, delay=1)
    field.client("heir").subscribe(["kept/wills"], qos=1)
    while not field.over:
        for number in field.rounds(1_000):
            _stays(field, f"willing-{number}", will).vanish()


@attack(growth=CROWD, stored=True)
def kept_sessions_that_begin_anew(field: Field) -> None:
    """Sessions with 1,000 messages each that wait, thrown away by a clean start over and over, with a store"""
    publisher = field.client()
    while not field.over:
        for number in field.rounds(20):
            client = field.client(f"anew-{number}", clean_start=True, session_expiry=3600)
            client.subscribe(["anew"], qos=1)
            client.close()
        for _ in field.rounds(1_000):
            publisher.publish(b"anew", b"x" * 100, 1)


class NoRoom(Exception):
    """Others were refused what they asked for: the attack has succeeded."""


def _greedy(field: Field, number: int, will: Will | None = None) -> Hostile:
    return _stays(field, f"greedy-{number}", will, NEVER, source=GREEDY)


def _others(field: Field) -> None:
    """Twenty clients of another address connect, subscribe to some filters that no other has, and retain a message.

    Raises:
        NoRoom: one of them was refused.
    """
    before = field.answers.copy()
    try:
        for number in range(OTHERS):
            client = field.client(f"other-{number}", clean_start=False, session_expiry=60, source=HOST)
            client.subscribe([f"home/{number}/{each}/+/temperature" for each in range(50)])
            client.publish(b"home/%d/humidity" % number, b"21", retain=True)
            if not client.wait_for("SUBACK"):
                raise NoRoom(f"the client {number} was not answered")
        if refused := field.answers - before:
            raise NoRoom(", ".join(refused))
        reader = field.client("reader", source=HOST)
    except Refused as refused:
        raise NoRoom(str(refused)) from None
    reader.subscribe(["home/+/humidity"], retain_handling=0)
    if not reader.wait_for("PUBLISH", OTHERS):
        raise NoRoom(f"{reader.seen['PUBLISH']} of {OTHERS} messages were retained")


@attack(growth=CROWD, settings=("limits.max_filter_bytes=16777216",))
def all_room_for_filters(field: Field) -> None:
    """One address with deep filters under ever new identifiers, each of which leaves; then 20 others subscribe"""
    each = field.some(500)
    for number in field.rounds(500):
        client = _greedy(field, number)
        client.subscribe([f"{number}.{at}" + "/a" * 120 + "/+" for at in range(each)], each=20)
        client.wait_for("SUBACK", each // 20)
        client.close()
        if field.answers["SUBACK 0x97"]:
            break
    _others(field)


@attack(growth=CROWD, settings=("retained.max_bytes=16777216", "limits.max_client_bytes=0"))
def all_room_for_retained_messages(field: Field) -> None:
    """One address that retains ever more messages under ever new identifiers, and leaves; then 20 others retain some"""
    for number in field.rounds(6):
        client = _greedy(field, number)
        client.packets(Publish(b"x/%d/%d" % (number, each), b"y" * 4_000, 0, True) for each in range(field.some(1_000)))
        client.publish(b"x/end", b"", 1)
        client.wait_for("PUBACK")
        client.close()
    _others(field)


@attack(growth=CROWD, settings=("session.max_bytes=16777216",))
def all_room_for_sessions(field: Field) -> None:
    """One address with large wills under ever new identifiers, each of which leaves; then 20 others connect"""
    will = Will("w", b"x" * 60_000, delay=NEVER)
    with suppress(Refused):
        for number in field.rounds(2_000):
            _greedy(field, number, will).close()
    _others(field)

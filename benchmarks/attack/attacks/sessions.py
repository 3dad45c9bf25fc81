"""Attacks by what outlives a connection: sessions, wills, and the end of what was kept."""

from __future__ import annotations

import os

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.attacks.subscriptions import deep
from benchmarks.attack.field import Field
from broker.core.codec.packets import Publish, Will


@attack(growth=CROWD)
def will_storm(field: Field) -> None:
    """300 delayed wills that fall due at one instant, for 100 subscribers each"""
    for _ in field.rounds(100):
        field.client().subscribe(["wills"])
    will = Will("wills", b"x" * 1000, 1, delay=1)
    clients = [field.client(will=will, expiry=100) for _ in field.rounds(300)]
    for client in clients:
        client.vanish()
    field.listen(1.5)


@attack(growth=CROWD)
def large_wills(field: Field) -> None:
    """2,000 sessions that stay, each with a will of 60 kB"""
    will = Will("w", os.urandom(60_000), delay=3600)
    for number in field.rounds(2_000):
        field.client(f"willing-{number}", clean=False, expiry=3600, will=will).vanish()


@attack()
def takeover_storm(field: Field) -> None:
    """Connections that take over one session with a full queue from each other, over and over"""
    contested = field.client("contested", clean=False, expiry=3600)
    contested.subscribe(["contested/+"], qos=1)
    publisher = field.client()
    publisher.packets(
        Publish(b"contested/%d" % number, b"x" * 100, 1, packet_id=number) for number in range(1, field.some(1_000))
    )
    while not field.over:
        field.client("contested", clean=False, expiry=3600)


@attack(growth=CROWD)
def session_flood(field: Field) -> None:
    """Sessions that stay, of clients that never come back"""
    for number in field.rounds(20_000):
        field.client(f"stays-{number}-" + "x" * 200, clean=False, expiry=3600).close()


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


@attack()
def wills_by_reconnecting(field: Field) -> None:
    """A client that comes and vanishes over and over, so that its will goes to 100 subscribers each time"""
    for _ in field.rounds(100):
        field.client().subscribe(["wills"])
    will = Will("wills", b"x" * 10_000)
    while not field.over:
        field.client("restless", will=will).vanish()


@attack()
def everything_at_once(field: Field) -> None:
    """One client that takes all it may of each: filters, retained messages, queues, aliases, a will, cached topics"""
    client = field.client(
        "everything", clean=False, expiry=3600, will=Will("w", os.urandom(60_000)), narrow=True, receive_maximum=65_535
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

"""Attacks on what is kept on disk: messages for sessions that are away, and sessions with wills that come and go."""

from __future__ import annotations

import os

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import Field
from broker.core.codec.packets import V5, Connect, Disconnect, Subscribe, SubscriptionRequest, Will
from broker.core.codec.properties import SESSION_EXPIRY_INTERVAL, Properties


@attack(growth=CROWD, stored=True)
def kept_for_sessions_that_are_away(field: Field) -> None:
    """A flood of QoS 1 for 100 sessions that are away, with a store"""
    clients = [field.client(f"away-{number}", clean=False, expiry=3600) for number in field.rounds(100)]
    for client in clients:
        client.subscribe(["kept"], qos=1)
    for client in clients:
        client.wait_for("SUBACK")
        client.close()
    publisher = field.client(version=4)
    payload = os.urandom(1000)
    while not field.over and publisher.publish(b"kept", payload, 1):
        pass


@attack(growth=CROWD, stored=True)
def kept_for_very_many(field: Field) -> None:
    """QoS 1 again and again for 4,300 sessions that are away, with a store"""
    publisher = field.client(version=4)
    properties = Properties()
    properties.integers[SESSION_EXPIRY_INTERVAL] = 3600
    for number in field.rounds(4_300):
        # Nobody waits for an answer: the broker has enough to do.
        field.socket(reads=False).packets(
            [
                Connect(f"many-{number}", V5, False, 0, None, properties=properties),
                Subscribe(1, [SubscriptionRequest("many", 1)]),
                Disconnect(),
            ]
        )
    while not field.over and publisher.publish(b"many", b"x" * 100, 1):
        pass


@attack(growth=CROWD, stored=True)
def kept_wills(field: Field) -> None:
    """Small sessions that stay, each with a will, of clients that vanish and come back anew, with a store"""
    will = Will("kept/wills", b"x" * 1000, 1, delay=1)
    field.client("heir").subscribe(["kept/wills"], qos=1)
    while not field.over:
        for number in field.rounds(1_000):
            field.client(f"willing-{number}", clean=False, expiry=3600, will=will).vanish()


@attack(growth=CROWD, stored=True)
def kept_sessions_that_begin_anew(field: Field) -> None:
    """Sessions with 1,000 messages each that wait, thrown away by a clean start over and over, with a store"""
    publisher = field.client()
    while not field.over:
        for number in field.rounds(20):
            client = field.client(f"anew-{number}", clean=True, expiry=3600)
            client.subscribe(["anew"], qos=1)
            client.close()
        for _ in field.rounds(1_000):
            publisher.publish(b"anew", b"x" * 100, 1)

"""Attacks by tenants: what stands before their topics in the broker has their name, which is as long as they like."""

from __future__ import annotations

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import Field, Hostile
from broker.core.codec.packets import Publish

LONG = 256
"""Bytes of a client identifier, as many as `limits.max_client_id_length` allows."""


def _tenant(field: Field, *, narrow: bool = False) -> Hostile:
    return field.client("t" * LONG, narrow=narrow, port=field.listeners.mounted)


@attack()
def filters_of_a_long_tenant(field: Field) -> None:
    """A tenant with an identifier of 256 bytes and ever more filters, each of them a few bytes"""
    client = _tenant(field)
    for at in range(0, 100_000, 1000):
        if not client.subscribe([f"{number}/+" for number in range(at, at + 1000)]):
            break


@attack()
def topics_of_a_long_tenant(field: Field) -> None:
    """A tenant with an identifier of 256 bytes that publishes to ever new topics of a few bytes, and retains them"""
    client = _tenant(field)
    client.subscribe(["nothing/+"])
    while not field.over and client.packets(Publish(b"%d" % number, b"x", 0, True) for number in range(100_000)):
        pass


@attack()
def messages_of_a_long_tenant(field: Field) -> None:
    """A tenant with an identifier of 256 bytes that sends small messages to itself and reads none"""
    client = _tenant(field, narrow=True)
    client.subscribe(["own"], qos=1)
    client.reads = False
    while not field.over and client.packets(Publish(b"own", b"x", 1, packet_id=1) for _ in range(10_000)):
        pass


@attack(growth=CROWD)
def a_crowd_of_long_tenants(field: Field) -> None:
    """200 tenants with identifiers of 256 bytes that leave sessions with a filter and messages behind"""
    clients: list[Hostile] = []
    for number in field.rounds(200):
        name = f"{number:06}" + "t" * (LONG - 6)
        clients.append(field.client(name, clean=False, expiry=3600, port=field.listeners.mounted))
        clients[-1].subscribe(["own/+"], qos=1)
    while not field.over and clients:
        for client in clients:
            client.packets(Publish(b"own/1", b"x", 1, packet_id=1) for _ in range(10))

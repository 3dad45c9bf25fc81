"""Attacks by acknowledgements: false ones, missing ones, and ones that nobody reads."""

from __future__ import annotations

from benchmarks.attack.attacks.registry import attack
from benchmarks.attack.field import Field
from broker.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Publish
from broker.core.codec.properties import Properties


@attack()
def unread_answers(field: Field) -> None:
    """PINGREQs without end from a client that reads no PINGRESP"""
    client = field.client(reads=False, narrow=True)
    while not field.over and client.send(b"\xc0\x00" * 100_000):
        pass


@attack()
def bogus_acknowledgements(field: Field) -> None:
    """PUBACK, PUBREC, PUBREL and PUBCOMP for identifiers that are not in use"""
    client = field.client()
    while not field.over and client.packets(
        Ack(kind, number) for kind in (PUBACK, PUBREC, PUBREL, PUBCOMP) for number in range(1, 5_000)
    ):
        pass


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
        client = field.client(f"unreleased-{number}", version=4, clean=False)
        client.packets(Publish(b"t", b"", 2, packet_id=at) for at in range(1, field.some(65_535)))


@attack()
def acknowledgements_with_properties(field: Field) -> None:
    """PUBACKs of 1 MiB that are nothing but empty user properties"""
    client = field.client()
    properties = Properties()
    properties.user.extend([("", "")] * field.some(200_000))
    while not field.over and client.packets([Ack(PUBACK, 1, 0, properties)] * 4):
        pass

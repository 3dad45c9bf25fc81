"""Attacks on the room of all: one address fills a bound on the whole under many identifiers, and leaves.

Twenty clients of another address then get what they ask for. Each attack has a bound that it can reach in its time.
"""

from __future__ import annotations

from typing import Final

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import Field, Hostile, Refused
from broker.core.codec.packets import Publish, Will
from loadtest.brokers.process import HOST

GREEDY: Final = "127.0.0.66"
"""The address of the attacker. The others come from `HOST`."""

OTHERS: Final = 20

NEVER: Final = 0xFFFFFFFF


class NoRoom(Exception):
    """Others were refused what they asked for: the attack has succeeded."""


def _greedy(field: Field, number: int, will: Will | None = None) -> Hostile:
    return field.client(f"greedy-{number}", clean=False, expiry=NEVER, will=will, source=GREEDY)


def _others(field: Field) -> None:
    """Twenty clients of another address connect, subscribe to some filters that no other has, and retain a message.

    Raises:
        NoRoom: one of them was refused.
    """
    try:
        _come(field)
    except Refused as refused:
        raise NoRoom(str(refused)) from None


def _come(field: Field) -> None:
    before = dict(field.answers)
    for number in range(OTHERS):
        client = field.client(f"other-{number}", clean=False, expiry=60, source=HOST)
        client.subscribe([f"home/{number}/{each}/+/temperature" for each in range(50)])
        client.publish(b"home/%d/humidity" % number, b"21", retain=True)
        if not client.wait_for("SUBACK"):
            raise NoRoom(f"the client {number} was not answered")
    refused = {name: count for name, count in field.answers.items() if count > before.get(name, 0)}
    if refused:
        raise NoRoom(", ".join(refused))
    reader = field.client("reader", source=HOST)
    reader.subscribe(["home/+/humidity"], retain_handling=0)
    if not reader.wait_for("PUBLISH", OTHERS):
        raise NoRoom(f"{reader.seen['PUBLISH']} of {OTHERS} messages were retained")


@attack(growth=CROWD, settings=("limits.max_filter_bytes=16777216",))
def all_room_for_filters(field: Field) -> None:
    """One address with deep filters under ever new identifiers, each of which leaves; then 20 others subscribe"""
    for number in field.rounds(500):
        client = _greedy(field, number)
        client.subscribe([f"{number}.{each}" + "/a" * 120 + "/+" for each in range(field.some(500))], each=20)
        client.wait_for("SUBACK", field.some(500) // 20)
        client.close()
        if field.answers["SUBACK 0x97"]:
            break
    field.answers.clear()
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
    for number in field.rounds(2_000):
        try:
            _greedy(field, number, will).close()
        except Refused:
            break
    field.answers.clear()
    _others(field)

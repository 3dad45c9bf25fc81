"""Attacks by PUBLISH: what is retained, remembered or forwarded of it."""

from __future__ import annotations

import os
from itertools import count

from benchmarks.attack.attacks.registry import attack
from benchmarks.attack.field import Field
from broker.core.codec.packets import Publish
from broker.core.codec.properties import encode_forward

BATCH = 2_000
"""PUBLISHes that are made at once."""


@attack()
def retained_flood(field: Field) -> None:
    """A retained message of one byte to each of very many topics"""
    client = field.client()
    numbers = count()
    while not field.over and client.packets(Publish(b"%d" % next(numbers), b"x", 0, True) for _ in range(BATCH)):
        pass


@attack()
def retained_deep(field: Field) -> None:
    """Retained messages below 100 levels that share nothing"""
    client = field.client()
    numbers = count()
    deep = b"/a" * 99
    while not field.over and client.packets(Publish(b"%d" % next(numbers) + deep, b"x", 0, True) for _ in range(BATCH)):
        pass


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
    client = field.client()
    for again in count(1000):
        for begin in range(0, field.some(100_000), BATCH):
            if field.over or not client.packets(
                Publish(b"%d" % number, b"x", 0, True, message_expiry=again) for number in range(begin, begin + BATCH)
            ):
                return


@attack()
def topic_aliases(field: Field) -> None:
    """Every topic alias there is, each for a name of 65 kB, on ten connections"""
    for number in range(10):
        client = field.client()
        name = b"%d" % number + b"x" * 65_000
        client.packets(Publish(name + b"%d" % alias, b"", topic_alias=alias) for alias in range(1, 65))


@attack()
def user_properties(field: Field) -> None:
    """PUBLISHes of 1 MiB that are nothing but empty user properties"""
    client = field.client()
    client.subscribe(["props"])
    properties = encode_forward(user=[("", "")] * field.some(200_000))
    while not field.over and client.packets([Publish(b"props", b"", properties=properties)]):
        pass


@attack()
def topics_never_seen_again(field: Field) -> None:
    """Topics of a kilobyte, each another one"""
    client = field.client()
    numbers = count()
    tail = b"x" * 1000
    while not field.over and client.packets(Publish(b"%d" % next(numbers) + tail, b"") for _ in range(BATCH)):
        pass


@attack()
def flood(field: Field) -> None:
    """Small PUBLISHes without end to a topic that nobody wants"""
    client = field.client(version=4)
    data = b"\x30\x08\x00\x05flood1" * 20_000
    while not field.over and client.send(data):
        pass


@attack()
def flood_of_oneself(field: Field) -> None:
    """A client that subscribes to what it publishes with QoS 1, and acknowledges nothing"""
    client = field.client(version=4, clean=False)
    client.subscribe(["self"], qos=1)
    payload = os.urandom(30_000)
    while not field.over and client.publish(b"self", payload, 1):
        pass


@attack()
def messages_that_expire(field: Field) -> None:
    """QoS 1 messages that expire after a second, for a session that is away"""
    away = field.client("away", clean=False, expiry=3600)
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
    link = field.client(user=(("canopy-link", "evil"),))
    link.subscribe(["requests/#"], qos=1)
    client = field.client()
    properties = encode_forward(response_topic="answers")
    for number in count():
        if field.over or not client.packets(
            [Publish(b"requests/1", b"?", 1, packet_id=number % 60_000 + 1, properties=properties)]
        ):
            return

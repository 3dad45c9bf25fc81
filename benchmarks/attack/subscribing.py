"""Attacks by SUBSCRIBE and UNSUBSCRIBE: many filters, deep ones, and ones that make others' messages dear."""

from __future__ import annotations

import os
import time
from itertools import islice, product

from benchmarks.attack.field import CROWD, Field, attack
from canopy_mqtt.core.codec.packets import Publish, Unsubscribe


def combinations(levels: int, count: int) -> list[str]:
    """Up to `count` of the 2 ** levels filters of `a` and `+`: all of them match the topic `a/a/…`."""
    return ["/".join(each) for each in islice(product("a+", repeat=levels), count)]


def deep(number: int, count: int) -> list[str]:
    """So many filters of 128 levels that share nothing, each with nodes of its own; other ones for each `number`."""
    return [f"{number}.{each}" + f"/{each % 10}" * 126 + "/+" for each in range(count)]


@attack()
def deep_filters(field: Field) -> None:
    """20,000 filters of 128 levels that share nothing"""
    client = field.client()
    for number in field.rounds(200):
        if not client.subscribe(deep(number, 100), each=100):
            return
    client.wait_for("SUBACK", field.some(200))


@attack()
def packed_subscribe(field: Field) -> None:
    """Three SUBSCRIBE packets of 1 MiB with 130,000 filters each"""
    client = field.client()
    count = field.some(130_000)
    for number in field.rounds(3):
        client.subscribe([f"{number}{each:x}" for each in range(count)], each=count)
        client.wait_for("SUBACK", number + 1)


@attack()
def packed_unsubscribe(field: Field) -> None:
    """100,000 subscriptions, taken back by one packet"""
    client = field.client()
    names = [f"{number:x}" for number in range(field.some(100_000))]
    client.subscribe(names)
    client.packets([Unsubscribe(2, names)])
    client.wait_for("UNSUBACK")


@attack()
def long_filters(field: Field) -> None:
    """Filters of 60 kB, as many as there is time for"""
    client = field.client()
    tail = "/" + "x" * 60_000
    for number in field.rounds(4_000):
        if not client.subscribe([f"{number}{tail}"]):
            return


@attack()
def filters_of_a_long_tenant(field: Field) -> None:
    """A tenant with an identifier of 256 bytes and ever more filters, each of them a few bytes"""
    client = field.client("t" * 256, listener="mounted")
    for at in range(0, 100_000, 1000):
        if not client.subscribe([f"{number}/+" for number in range(at, at + 1000)]):
            break


@attack()
def subscription_churn(field: Field) -> None:
    """Filters that match everything, subscribed to and unsubscribed from, over and over"""
    client = field.client()
    names = ["+/#", "pairs/+", "#"]
    while not field.over and client.subscribe(names, each=1) and client.packets([Unsubscribe(2, names)]):
        pass


@attack()
def share_groups_of_everything(field: Field) -> None:
    """One client in 10,000 share groups at #: each message of anybody is so many deliveries"""
    field.client().subscribe([f"$share/g{number}/#" for number in range(field.some(10_000))])
    field.listen()


@attack(growth=CROWD)
def large_share_group(field: Field) -> None:
    """A share group of 300 clients of which most never read, and a flood for it"""
    members = [field.client(reads=number % 10 == 0, narrow=True) for number in field.rounds(300)]
    for member in members:
        member.subscribe(["$share/group/flood"], qos=1)
    publisher = field.client(version=4)
    payload = os.urandom(1000)
    while not field.over and publisher.publish(b"flood", payload, 1):
        for member in members:
            if member.reads:
                member.drain()


@attack()
def filters_in_all_combinations(field: Field) -> None:
    """32,768 filters of a and + in all combinations, and topics below them that no cache knows"""
    client = field.client()
    client.subscribe([f"{name}/z" for name in combinations(15, field.some(2**15))])
    client.flood(lambda _: Publish(b"a/" * 15 + os.urandom(4).hex().encode(), b""), 1_000)


@attack(growth=CROWD)
def slow_readers_of_everything(field: Field) -> None:
    """20 clients that subscribe to every topic, with QoS 0 and 1, and read a little all the time or nothing, and one
    that keeps their queues full"""
    readers = [field.client(narrow=True, reads=False) for _ in field.rounds(20)]
    for number, reader in enumerate(readers):
        reader.subscribe(["#"], qos=number % 2)
    filler = field.client(reads=False)
    while not field.over:
        for _ in range(20):
            filler.publish(b"filler", bytes(500))
        for reader in readers[::3] + readers[1::3]:
            reader.take(2_000)


@attack(growth=CROWD, steady=True)
def bursty_readers_of_everything(field: Field) -> None:
    """Four clients that subscribe to every topic and read all of it now and then, beside a publisher of 200 messages a
    second of 100 kB, which must not be held back for them"""
    readers = [field.client(narrow=True, reads=False) for _ in field.rounds(4)]
    for number, reader in enumerate(readers):
        reader.subscribe(["#"], qos=number % 2)
    publisher = field.client(version=4)
    due = time.monotonic()
    sent = 0
    while not field.over:
        # Late ones are left out: a burst would be another's fault.
        due = max(due + 0.005, time.monotonic())
        if not publisher.publish(b"steady", bytes(100_000), 1):
            return
        sent += 1
        while time.monotonic() < due:
            if sent % 70 < 10:
                for reader in readers:
                    reader.take(1 << 20)
            publisher.drain()
            time.sleep(0.001)


@attack()
def overlapping_identifiers(field: Field) -> None:
    """8,192 filters with identifiers that match one topic: a small PUBLISH becomes one of 40 kB"""
    client = field.client(narrow=True)
    client.subscribe(combinations(13, field.some(2**13)), identifier=200_000_000)
    client.reads = False
    field.client().flood(lambda _: Publish(b"/".join([b"a"] * 13), b"x"), 1)


@attack()
def subscription_queues(field: Field) -> None:
    """100,000 filters, each with a queue of its own"""
    client = field.client()
    count = field.some(100_000)
    asked = (("canopy-queue", "drop-oldest"), ("canopy-max-age", "3"))
    client.subscribe([f"{number:x}" for number in range(count)], user=asked)
    client.wait_for("SUBACK", count // 1000)


@attack()
def retained_streams(field: Field) -> None:
    """131,072 filters that each ask for the same retained message"""
    client = field.client()
    client.publish(b"/".join([b"a"] * 17), b"x", retain=True)
    names = combinations(17, field.some(2**17))
    client.subscribe(names, each=20_000, retain_handling=0)
    client.wait_for("SUBACK", -(-len(names) // 20_000))
    field.listen()


@attack(growth=CROWD)
def system_topics_for_everybody(field: Field) -> None:
    """300 clients that ask for all of $SYS again and again"""
    clients = [field.client() for _ in field.rounds(300)]
    while not field.over:
        for client in clients:
            client.subscribe(["$SYS/#"], retain_handling=0)


@attack(growth=CROWD)
def half_open_peers(field: Field) -> None:
    """100 clients that stop reading while QoS 1 messages come for them"""
    for _ in field.rounds(100):
        client = field.client(narrow=True)
        client.subscribe(["half-open"], qos=1)
        client.reads = False
    publisher = field.client(version=4)
    payload = os.urandom(1000)
    while not field.over and publisher.publish(b"half-open", payload, 1):
        pass

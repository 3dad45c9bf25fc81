"""Attacks by connections: too many, too slow, half open, or no MQTT at all."""

from __future__ import annotations

import os
from itertools import cycle

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import Field
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, Connect

PART = (1 << 20) - 100
"""Bytes that are sent of a packet of 1 MiB."""


@attack(growth=CROWD)
def connects_never_finished(field: Field) -> None:
    """300 connections that hold all but the end of a CONNECT of 1 MiB"""
    data = b"\x10\xf0\xff\x3f\x00\x04MQTT\x05\x02\x00\x00" + bytes(PART)
    for _ in field.rounds(300):
        field.socket().send(data)
    field.listen()


@attack(growth=CROWD)
def packets_never_finished(field: Field) -> None:
    """200 clients that hold all but the end of a PUBLISH of 1 MiB"""
    data = b"\x30\xf0\xff\x3f\x00\x01t\x00" + bytes(PART)
    for _ in field.rounds(200):
        field.client().send(data)
    field.listen()


@attack()
def trickled_connects(field: Field) -> None:
    """300 connections that send a CONNECT byte by byte"""
    data = encode(Connect("trickle" + "x" * 200, V5), V5)
    sockets = [field.socket() for _ in field.rounds(300)]
    for at in range(len(data) - 1):
        for each in sockets:
            if field.over:
                return
            each.send(data[at : at + 1])


@attack()
def trickled_packets(field: Field) -> None:
    """300 clients that send PUBLISHes byte by byte"""
    clients = [field.client(keep_alive=1) for _ in field.rounds(300)]
    data = b"\x30\x06\x00\x01t\x00xy"
    at = 0
    while not field.over:
        for client in clients:
            client.send(data[at : at + 1])
        at = (at + 1) % len(data)


@attack()
def names_that_fill_the_log(field: Field) -> None:
    """Clients with names that JSON writes at length, which come and go as fast as it can be done"""
    name = "\U0001f600" * 60
    for number in cycle(range(50)):
        if field.over:
            break
        hostile = field.socket()
        hostile.send(encode(Connect(f"{number}{name}", V5, user_name=name * 4), V5) + b"\xe0\0")
        hostile.wait_for("CONNACK")
        hostile.close()


@attack()
def connect_flood(field: Field) -> None:
    """Clients that come, are let in and vanish, as fast as it can be done"""
    while not field.over:
        field.client().vanish()


@attack()
def connections_without_a_word(field: Field) -> None:
    """2,000 connections that send nothing"""
    for _ in field.rounds(2_000):
        field.socket()
    field.listen()


@attack()
def short_keep_alives(field: Field) -> None:
    """500 clients with a keep alive of a second that never PING"""
    for _ in field.rounds(500):
        field.client(keep_alive=1)
    field.listen(2.0)


@attack()
def no_mqtt(field: Field) -> None:
    """HTTP, TLS and noise, on as many connections as there is time for"""
    noise = (
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        os.urandom(500),
    )
    for number in field.rounds(20_000):
        each = field.socket()
        each.send(noise[number % 3])
        if number % 100:
            each.close()


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

"""Attacks on `[http]`: the page, the probes and the API."""

from __future__ import annotations

from itertools import cycle

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import Field

HOST = b" HTTP/1.1\r\nHost: localhost\r\n"
SLOW = b"GET /api/v5/clients" + HOST + b"".join(b"X-%d: %s\r\n" % (number, 20 * b"x") for number in range(40))
LIST = b"GET /api/v5/subscriptions?limit=1000" + HOST + b"\r\n"
EVENTS = b"GET /events" + HOST + b"\r\n"
POST = b"POST /api/v5/publish" + HOST + b"Content-Type: application/json\r\n"
PIECE = (1 << 16) * b"x"
MANY = 50
"""Requests in one piece of a flood."""


@attack()
def trickled_requests(field: Field) -> None:
    """300 connections that send the headers of an HTTP request byte by byte"""
    sockets = [field.raw(field.listeners.http) for _ in field.rounds(300)]
    for at in range(len(SLOW)):
        for each in sockets:
            if field.over:
                return
            each.send(SLOW[at : at + 1])


@attack()
def http_connections(field: Field) -> None:
    """Connections to [http] that begin a request and stay, as many as there is time for"""
    for _ in field.rounds(5_000):
        field.raw(field.listeners.http).send(SLOW)
    field.listen()


@attack()
def endless_headers(field: Field) -> None:
    """20 connections whose header never ends, at the same time"""
    sockets = [field.raw(field.listeners.http) for _ in field.rounds(20)]
    for each in sockets:
        each.send(b"GET /" + HOST + b"X: ")
    while not field.over and not all(each.closed for each in sockets):
        for each in sockets:
            each.send(PIECE)


@attack(growth=CROWD)
def huge_bodies(field: Field) -> None:
    """100 connections with bodies of a gigabyte: as they say, or in pieces without an end"""
    lengths = cycle((b"Content-Length: 1073741824\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"))
    for each, length in zip([field.raw(field.listeners.http) for _ in field.rounds(100)], lengths, strict=False):
        piece = PIECE if length.startswith(b"C") else b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
        each.send(POST + length)
        for _ in field.rounds(64):
            if not each.send(piece):
                break


@attack(growth=CROWD)
def pages_that_read_nothing(field: Field) -> None:
    """200 pages that are open, and take nothing of what they are told each second"""
    for _ in field.rounds(200):
        page = field.raw(field.listeners.http, narrow=True)
        page.send(EVENTS)
        page.reads = False
    field.listen()


@attack(growth=CROWD)
def lists_for_nobody(field: Field) -> None:
    """100 connections that ask for lists one behind the other, and read no answer"""
    asking = [field.raw(field.listeners.http, narrow=True) for _ in field.rounds(100)]
    for each in asking:
        each.reads = False
    while not field.over and not all(each.closed for each in asking):
        for each in asking:
            each.send(MANY * LIST)

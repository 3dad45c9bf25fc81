"""Nodes that know each other from a third one, and lose the connection between them alone."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.mesh.zenoh.reconnecting import LAST_RETRY, MOST_PLACES, REMEMBERED, Reconnector
from broker.mesh.zenoh.session import configuration
from broker.settings.brokers.mesh import Mesh
from tests.mesh.zenoh.nodes import Node, together
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.waiting import until


def cut(ports: set[int]) -> int:
    """Break the connection of this process that has these ports at its ends; how many of its sockets still had it."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            each = socket.socket(fileno=os.dup(int(number)))
            with each:
                if each.family == socket.AF_INET and {each.getsockname()[1], each.getpeername()[1]} == ports:
                    each.shutdown(socket.SHUT_RDWR)
                    found += 1
    return found


def between(node: Node, port: int) -> set[int]:
    """The ports of the connection that a node has made to a port, or that somebody has made to it there."""
    session = node.bus._session._session
    assert session is not None
    for link in session.info.links():
        ports = {int(place.rpartition(":")[2]) for place in (link.src, link.dst)}
        if port in ports:
            return ports
    return set()


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of a process are found in /proc")
@pytest.mark.parametrize("listen", ["tcp/127.0.0.1", "tcp/0.0.0.0", "tls/127.0.0.1"])
async def test_two_that_a_third_told_of_each_other_connect_again(tmp_path: Path, listen: str) -> None:
    ports = [free_port() for _ in range(3)]
    certificates: dict[str, Any] = {}
    if listen.startswith("tls/"):
        authority = Authority(tmp_path)
        certificate, key = authority.issue("node.example")
        certificates = {"ca_file": authority.file, "cert_file": certificate, "key_file": key}
    first = f"{listen}:{ports[0]}".replace("0.0.0.0", "127.0.0.1")
    a, b, c = (
        Node(name, listen=[f"{listen}:{port}"], connect=[first] if name != "a" else [], **certificates)
        for name, port in zip("abc", ports, strict=True)
    )
    async with together(a, b, c):
        for count in (1, 2):
            # One of the two has connected to the other.
            made = between(b, ports[2]) or between(c, ports[1])
            assert cut(made)
            await until(lambda count=count: b.events.count("-c") == c.events.count("-b") == count, "both see it")  # type: ignore[misc]
            await b.sees("a", "c")
            await c.sees("a", "b")
        b.send("c", b"again")
        await c.hears(1)
        assert a.events == ["+b", "+c"]


async def test_a_place_where_another_node_is_by_now_is_not_tried_any_more(tmp_path: Path) -> None:
    places = {name: f"unixsock-stream/{tmp_path}/{name}" for name in "abc"}
    a, b = (Node(name, listen=[places[name]], connect=[places["a"]] if name == "b" else []) for name in "ab")
    async with together(a, b):
        reconnector = b.bus._session._reconnector
        reconnector.lose(places["c"], 0.0)
        c = Node("c", listen=[places["c"]], connect=[places["a"]])
        async with together(c):
            await b.sees("a", "c")
            await until(lambda: not reconnector.lost and reconnector._thread is None, "the place is forgotten")


def test_places_are_tried_ever_more_seldom_and_for_a_day() -> None:
    made = Reconnector(Mesh(name="m", node="a"), configuration)
    made.lose("tcp/b:1", 0.0)
    tried: list[float] = []
    now = 0.0
    while made.lost and now < 2 * REMEMBERED:
        if made.due(now):
            tried.append(now)
        now += 0.25
    assert tried[:5] == [0.5, 1.5, 3.5, 7.5, 15.5]
    assert tried[-1] - tried[-2] == LAST_RETRY
    assert REMEMBERED - LAST_RETRY <= tried[-1] < now - 0.25 == REMEMBERED


def test_only_so_many_places_are_remembered() -> None:
    made = Reconnector(Mesh(name="m", node="a"), configuration)
    for number in range(MOST_PLACES + 5):
        made.lose(f"tcp/b:{number}", float(number))
    assert len(made.lost) == MOST_PLACES
    assert next(iter(made.lost)) == "tcp/b:5"

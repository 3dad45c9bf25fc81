"""A fault of the broker, wherever it is raised while a client comes or goes: the client can come back.

Also nothing of it stays for ever: no connection that is over has a session, and each session that may expire does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from canopy_mqtt.core.causes import CONNECTION_LOST, INTERNAL_ERROR
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Connect, Will
from canopy_mqtt.core.protocol.phases import CLOSED
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.routing.router import Router
from tests.core.harness import Client, Network, bag

EXPIRY = 100
"""Seconds for which the client's session outlives its connection."""

BOOKKEEPING = ("Heap", "Deadline", "SessionTable.remove", "Router.end_session", "Router.peer_disconnected")
"""The functions that do what a fault may not keep from being done: they raise nothing that is caught anywhere."""


class Fault(Exception):
    """Raised in place of a call."""


class Raises:
    """Raises in place of the call of a function of the core with this number, of those made within a `with`."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.place = ""

    def __enter__(self) -> Raises:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or "/canopy_mqtt/core/" not in code.co_filename:
            return
        if code.co_qualname.startswith(BOOKKEEPING):
            return
        self._left -= 1
        if self._left == 0:
            self.place = code.co_qualname
            raise Fault


def _peopled(expiry: int, delay: int, connected: bool) -> tuple[Network, Client]:
    """A broker with a client that has a will, subscriptions, a place in a share group and messages of each kind."""
    network = Network()
    other = network.client("other", expiry=EXPIRY)
    other.subscribe("#", "$share/g/shared")
    client = network.client("a", clean=False, expiry=expiry, will=Will("will", b"", delay=delay))
    client.subscribe("t", "$share/g/shared", qos=2)
    client.answering = False
    for number in range(6):
        other.publish("shared" if number % 2 else "t", b"%d" % number, qos=number % 3)
    if not connected:
        client.cut()
        other.publish("t", b"", qos=2)
    network.settle()
    return network, client


def _connecting(
    clean: bool, expiry: int = EXPIRY, connected: bool = False, new: bool = False
) -> tuple[Network, ServerProtocol, Callable[[], object]]:
    network = Network() if new else _peopled(EXPIRY, 50, connected)[0]
    protocol = network.idle("a").dial().protocol
    connect = Connect("a", p.V5, clean, 0, Will("will", b""), None, None, bag(i={0x11: expiry}))
    return network, protocol, lambda: protocol.receive(encoder.encode(connect, p.V5), network.now)


def _going(expiry: int, delay: int) -> tuple[Network, ServerProtocol, Callable[[], object]]:
    network, client = _peopled(expiry, delay, True)
    protocol = client.wire.protocol
    return network, protocol, lambda: protocol.end(CONNECTION_LOST, network.now)


def _due(after: int) -> tuple[Network, ServerProtocol, Callable[[], object]]:
    network, client = _peopled(EXPIRY, 50, False)
    network.now += after
    return network, client.wire.protocol, lambda: network.router.tick(network.now)


SCENES: dict[str, Callable[[], tuple[Network, ServerProtocol, Callable[[], object]]]] = {
    "a new session": lambda: _connecting(True, new=True),
    "a new session that ends with its connection": lambda: _connecting(True, 0, new=True),
    "a session goes on": lambda: _connecting(False),
    "a session begins anew": lambda: _connecting(True),
    "a connection is taken over": lambda: _connecting(False, connected=True),
    "a connection is taken over and its session begins anew": lambda: _connecting(True, connected=True),
    "a connection is lost": lambda: _going(EXPIRY, 0),
    "a connection is lost, and a will waits": lambda: _going(EXPIRY, 50),
    "a connection is lost, and its session ends": lambda: _going(0, 0),
    "a will is due": lambda: _due(50),
    "a session expires": lambda: _due(EXPIRY),
}


def _left_behind(router: Router) -> Iterator[str]:
    """What no connection or session may leave."""
    for session in router.sessions.values():
        buffer = session.send_buffer
        if session.ended:
            yield "a session that has ended is found"
        if buffer is not None and isinstance(buffer.peer, ServerProtocol) and buffer.peer.state == CLOSED:
            yield "a session has a connection that is over"
        if buffer is None and session.expires_at == 0.0:
            yield "a session never expires"
    if set(router.peers.send_buffers) != {each for each in router.sessions.values() if each.send_buffer is not None}:
        yield "others are connected than the sessions say"


# Calls of a compiled core cannot be made to raise.
if hasattr(ServerProtocol.end, "__code__"):

    @pytest.mark.parametrize("scene", SCENES)
    def test_a_client_can_come_back_whatever_has_raised(scene: str) -> None:
        number = 0
        while True:
            number += 1
            network, protocol, act = SCENES[scene]()
            router = network.router
            with Raises(number) as raises:
                try:
                    act()
                except Fault:
                    # As the shell does, for each of these ways; it calls the router again.
                    sys.setprofile(None)
                    protocol.end(INTERNAL_ERROR, network.now)
                    router.tick(network.now)
            if not raises.place:
                break
            router.peers.drain(router, network.now)
            assert (raises.place, list(_left_behind(router))) == (raises.place, [])
            back = network.idle("a")
            back.judge.enabled = False
            assert (raises.place, back.connect(clean=False, expiry=EXPIRY).reason_code) == (raises.place, 0)
            back.subscribe("back")
            back.publish("back", b"is back")
            assert (raises.place, back.inbox[-1].payload) == (raises.place, b"is back")
        assert number > 10

"""Connections as the log sees them: real ones, with a router, but without a socket or an event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.guards.log import Faults
from canopy_mqtt.net.connections.admission import ListenerTerms
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_table import ConnectionTable
from canopy_mqtt.net.rounds import Rounds
from tests.e2e import wire


def connection(accepted: bool) -> Connection:
    """A connection whose client was accepted, or one that has said nothing."""
    router = Router(Limits())
    terms = ListenerTerms("mqtt://0.0.0.0:1883", tls=False, max_packet_size=0, mount="", admission=None)
    faults = Faults(lambda: None)
    table = ConnectionTable(faults, None, 0, None, lambda _: None, lambda _: None)
    loop = cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: 1.0))
    table.rounds = Rounds(router, loop, lambda: None, faults.broke)
    made = Connection(table, terms)
    made.send_buffer = SendBuffer(router.peers.touched, router.counters, 0, 0)
    made.protocol = ServerProtocol(router, made.send_buffer, made.origin)
    if accepted:
        made.protocol.receive(wire.connect("c", props=[(wire.SESSION_EXPIRY, 604_800)]), 1.0)
    assert made.protocol.accepted == accepted
    return made

"""The way of a simulated client to a broker: its socket, its CONNECT, and the words for a refusal.

Owns: turning a group's settings into both. Pure, but for the socket that it makes.
"""

from __future__ import annotations

import socket

from canopy_load.ledger.mark import filler, pack
from canopy_load.scenario.plan import Plan
from canopy_load.scenario.scenario_schema import Group
from canopy_mqtt.client.failures import V3_REASONS
from canopy_mqtt.core.codec import encoder, packets, properties
from canopy_mqtt.core.codec.packets import Connect, Will
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.reason_codes import name as reason_name


def new_socket(settings: Group, family: int) -> socket.socket:
    """Return an unconnected socket with the settings of the group's clients."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if settings.reading is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.reading.receive_buffer)
        # With the loopback's own segments the sender's kernel takes megabytes for one who does not read.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1460)
    return sock


def version(settings: Group) -> int:
    return packets.V5 if settings.version == "5.0" else packets.V311


def connect(plan: Plan, group: int, number: int, will_sequence: int) -> bytes:
    """Return the CONNECT of a client; its will carries the next number of the will's stream."""
    settings = plan.groups[group]
    level = version(settings)
    held = Properties()
    if level == packets.V5:
        if settings.session_expiry:
            held.integers[properties.SESSION_EXPIRY_INTERVAL] = settings.session_expiry
        if settings.receive_maximum is not None:
            held.integers[properties.RECEIVE_MAXIMUM] = settings.receive_maximum
        if settings.maximum_packet_size is not None:
            held.integers[properties.MAXIMUM_PACKET_SIZE] = settings.maximum_packet_size
    user_name, password = plan.credentials(group, number)
    packet = Connect(
        plan.client_id(group, number),
        level,
        settings.clean_start,
        settings.keep_alive,
        _will(plan, group, number, will_sequence),
        user_name,
        None if password is None else password.encode(),
        held,
    )
    return encoder.encode(packet, level)


def _will(plan: Plan, group: int, number: int, sequence: int) -> Will | None:
    will = plan.groups[group].will
    if will is None:
        return None
    stream = plan.wills[group].stream(number, 0)
    payload = pack(plan.mark_run, 0, stream, sequence) + filler(will.size)
    return Will(plan.topic(stream), payload, will.qos, will.retain, will.delay)


def refusal(code: int, level: int) -> str:
    """Return the name of a CONNACK's return code (3.1.1) or reason code (5.0)."""
    if level < packets.V5:
        return reason_name(V3_REASONS[code]) if code < len(V3_REASONS) else str(code)
    return reason_name(code)

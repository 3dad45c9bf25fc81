"""Blocking clients of MQTT 3.1.1 beside those of `benchmarks.network`: sessions that stay, and publishes in a window.

They are for filling a broker, not for measuring it: everything is acknowledged when a function returns.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from benchmarks.network import links
from benchmarks.network.links import LoadError
from canopy_load.brokers import frames
from canopy_load.brokers.process import HOST

BEGIN: Final = "bench/begin"
"""The topic of `wait_linked`."""
LINKED: Final = 20.0
"""Seconds until a message passes from one broker to another."""
QUIET: Final = 0.5
WINDOW: Final = 64
"""Clients that connect, or publishes that wait for their PUBACK, at a time."""


def opened(stack: ExitStack, port: int, *names: str) -> list[socket.socket]:
    """Connect clients, which leave when the stack is closed."""
    socks = links.open_clients(HOST, port, names)
    stack.callback(links.close_all, socks)
    return socks


def sessions(port: int, client_ids: Sequence[str], filters: Callable[[int], Sequence[tuple[str, int]]]) -> None:
    """Connect clients that subscribe and leave; their sessions stay. LoadError: the broker refused."""
    for begin in range(0, len(client_ids), WINDOW):
        with ExitStack() as stack:
            opened = []
            for number, client_id in enumerate(client_ids[begin : begin + WINDOW], begin):
                sock = stack.enter_context(socket.create_connection((HOST, port), links.ANSWER_TIMEOUT))
                sock.sendall(frames.connect(client_id, clean=False) + frames.subscribe(1, filters(number)))
                opened.append(sock)
            for sock in opened:
                codes = [links.expect(sock, frames.CONNACK)[3], *links.expect(sock, frames.SUBACK)[4:]]
                if max(codes) >= 0x80 or codes[0]:
                    raise LoadError(f"the broker refused with code 0x{max(codes):02x}")
                sock.sendall(frames.DISCONNECT)


def stay(port: int, client_ids: Sequence[str]) -> list[socket.socket]:
    """Connect clients whose sessions stay when they leave."""
    opened = []
    for client_id in client_ids:
        sock = socket.create_connection((HOST, port), links.ANSWER_TIMEOUT)
        opened.append(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(frames.connect(client_id, clean=False))
        if links.expect(sock, frames.CONNACK)[3]:
            links.close_all(opened)
            raise LoadError("the broker refused CONNECT")
    return opened


def publish_all(
    sock: socket.socket, messages: Iterator[tuple[str, bytes]], window: int = WINDOW, retain: bool = False
) -> None:
    """Publish at QoS 1 (topics and payloads), so many at a time; each is acknowledged when this returns."""
    sock.settimeout(links.ANSWER_TIMEOUT)
    more = True
    while more:
        pieces = [
            frames.publish(topic, payload, 1, number, retain=retain)
            for number, (topic, payload) in zip(range(1, window + 1), messages, strict=False)
        ]
        more = len(pieces) == window
        sock.sendall(b"".join(pieces))
        for _ in pieces:
            links.expect(sock, frames.PUBACK)


def waiting(sock: socket.socket, seconds: float) -> bool:
    """Return whether something comes within this time."""
    return ready(sock, select.POLLIN, seconds) != 0


def ready(sock: socket.socket, events: int, seconds: float) -> int:
    """Wait so long for events of a socket (those of `select.poll`), and return those that came; 0: none."""
    # Unlike select, poll takes descriptors above 1,023.
    watched = select.poll()
    watched.register(sock, events)
    return next((found for _, found in watched.poll(seconds * 1_000)), 0)


def wait_linked(sender: socket.socket, hearing: Sequence[socket.socket]) -> None:
    """Wait until a message comes to all, who have subscribed to `BEGIN`; LoadError: none does."""
    until = time.monotonic() + LINKED
    while time.monotonic() < until:
        sender.sendall(frames.publish(BEGIN, b""))
        if waiting(hearing[0], QUIET):
            # Those that were sent before it come, too.
            for each in hearing:
                while waiting(each, QUIET if each is hearing[0] else 0.0):
                    links.read_packet(each)
            return
    raise LoadError("no message came from the other broker")


def heard(sock: socket.socket, quiet: float) -> Iterator[tuple[str, bytes]]:
    """Yield topic and payload of each PUBLISH at QoS 0, until none comes for so many seconds."""
    while waiting(sock, quiet):
        packet = links.read_packet(sock)
        if packet[0] & 0xF6 != frames.PUBLISH:
            raise LoadError(f"the broker sent {frames.packet_name(packet[0])} where a PUBLISH was expected")
        at = 1 + frames.read_variable_byte_integer(packet, 1)[1]
        end = at + 2 + int.from_bytes(packet[at : at + 2], "big")
        yield packet[at + 2 : end].decode(), packet[end:]

"""The network between nodes loses packets, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import select
import socket
import subprocess
from pathlib import Path

import pytest

from canopy_load.prove.brokers.network import Namespaces, namespaces_missing


def interfaces() -> set[str]:
    return {each.name for each in Path("/sys/class/net").iterdir()}


def test_packets_of_one_direction_are_lost_and_nothing_is_left() -> None:
    if why := namespaces_missing():
        pytest.skip(why)
    before = interfaces()
    network = Namespaces(2)
    asyncio.run(network.open())
    try:
        receiver, sender = socket_in(network, 0), socket_in(network, 1)
        with receiver, sender:
            receiver.bind((network.address(0)[0], 7))
            sender.bind((network.address(1)[0], 7))
            # Interfaces that have come up pass packets a moment later.
            while not select.select([receiver], [], [], 0.1)[0]:
                sender.sendto(b"first", (network.address(0)[0], 7))
            network.lose(1, 0, True)
            sender.sendto(b"lost", (network.address(0)[0], 7))
            # The other direction is as before.
            receiver.sendto(b"back", (network.address(1)[0], 7))
            assert sender.recv(9) == b"back"
            network.lose(1, 0, False)
            sender.sendto(b"last", (network.address(0)[0], 7))
            received = iter(lambda: receiver.recv(9), b"last")
            assert set(received) == {b"first"}
        assert interfaces() == before
    finally:
        asyncio.run(network.close())
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert names == ""


def socket_in(network: Namespaces, node: int) -> socket.socket:
    """A socket for datagrams in the namespace of a node."""
    made = network.socket(node, socket.SOCK_DGRAM)
    made.settimeout(30)
    return made

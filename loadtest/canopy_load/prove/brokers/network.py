"""The network between the nodes of a broker: in one, packets get lost.

Owns: `Network` and its two kinds. `Namespaces` gives each node a network namespace with one address on a common
bridge; packets are lost silently, because the neighbour table of the sender has a hardware address that no node has. It
needs root and `ip`. `Loopback` puts a proxy between each two nodes; what is lost waits there, as it does in TCP.

Promises: clients reach every node whatever is lost between nodes. The namespaces have no names: when the process ends,
however it does, the kernel removes them with all that is in them. The machine's own network is not touched.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack
from typing import Final, TypeAlias

from canopy_load.brokers.process import HOST, BrokerFailed, free_port
from canopy_load.prove.brokers.proxy import Proxy

CLONE_NEWNET: Final = 0x40000000  # sched.h
SUBNET: Final = "198.18.0"
"""Of the range for tests of networks (RFC 2544)."""
NOBODY: Final = "02:00:00:00:ff:ff"
"""A hardware address that no node has."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def namespaces_missing() -> str:
    """Return why there can be no namespaces; empty: there can be."""
    if os.geteuid() != 0:
        return "it needs root"
    for name, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(name) is None:
            return f"{name} is not installed (Debian: apt-get install {package})"
    try:
        _new_namespace().close()
    except OSError as error:
        return f"a network namespace cannot be made here: {error}"
    return ""


def _new_namespace() -> _Namespace:
    """Raises OSError."""
    made: list[int] = []
    failed: list[OSError] = []

    def run() -> None:
        # A namespace is of a thread; the thread ends, and the descriptor keeps the namespace.
        if _libc.unshare(CLONE_NEWNET):
            number = ctypes.get_errno()
            failed.append(OSError(number, os.strerror(number)))
        else:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return _Namespace(made[0])


class _Namespace:
    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.number}"

    def within(self, command: list[str]) -> list[str]:
        return ["nsenter", f"--net={self.path}", *command]

    def ip(self, *lines: str) -> None:
        """Run `ip` with these lines. Raises BrokerFailed."""
        done = subprocess.run(
            self.within(["ip", "-batch", "-"]), input="\n".join(lines), text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise BrokerFailed(f"the network between the nodes cannot be made: {done.stderr.strip()}")

    def socket(self, kind: int) -> socket.socket:
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._enter(self.number)
            try:
                return socket.socket(socket.AF_INET, kind)
            finally:
                self._enter(here)
        finally:
            os.close(here)

    def _enter(self, number: int) -> None:
        if _libc.setns(number, CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def close(self) -> None:
        os.close(self.number)


class Namespaces:
    """A network of namespaces. Nodes have numbers from 0."""

    PORT: Final = 7_000

    def __init__(self, nodes: int) -> None:
        self._count = nodes
        self._nodes: list[_Namespace] = []
        self._stack = ExitStack()

    async def open(self) -> None:
        """Make it. Raises BrokerFailed."""
        try:
            switch = self._made()
            switch.ip("link add bridge type bridge", "link set bridge up")
            for number in range(self._count):
                node = self._made()
                self._nodes.append(node)
                switch.ip(
                    f"link add port{number} type veth peer name eth0 address {_hardware(number)} netns {node.path}",
                    f"link set port{number} master bridge up",
                )
                others = [each for each in range(self._count) if each != number]
                node.ip(
                    "link set lo up",
                    "link set eth0 up",
                    f"address add {SUBNET}.{number + 1}/24 dev eth0",
                    *(_neighbour(each, _hardware(each)) for each in others),
                )
        except OSError as error:
            raise BrokerFailed(f"the network between the nodes cannot be made: {error}") from error

    def _made(self) -> _Namespace:
        made = _new_namespace()
        self._stack.callback(made.close)
        return made

    def address(self, node: int) -> tuple[str, int]:
        """Return where a node listens for other nodes."""
        return f"{SUBNET}.{node + 1}", self.PORT

    def way(self, _: int, to: int) -> tuple[str, int]:
        """Return where a node reaches another one."""
        return self.address(to)

    def within(self, node: int, command: list[str]) -> list[str]:
        """Return the command that runs a command where the node is."""
        return self._nodes[node].within(command)

    def socket(self, node: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """Return a socket that is where the node is; 127.0.0.1 is the node's own."""
        return self._nodes[node].socket(kind)

    def lose(self, sender: int, receiver: int, on: bool) -> None:
        """Lose all packets from one node to another, or no longer."""
        self._nodes[sender].ip(_neighbour(receiver, NOBODY if on else _hardware(receiver)))

    async def close(self) -> None:
        self._stack.close()


def _hardware(node: int) -> str:
    return f"02:00:00:00:00:{node + 1:02x}"


def _neighbour(node: int, hardware: str) -> str:
    return f"neighbour replace {SUBNET}.{node + 1} lladdr {hardware} nud permanent dev eth0"


class Loopback:
    """The same on 127.0.0.1. Where a node dials the others at the addresses that it was told, these are proxies."""

    def __init__(self, nodes: int) -> None:
        self._ports = [free_port() for _ in range(nodes)]
        self._proxies = {
            (node, to): Proxy(lambda: socket.socket(), self._ports[to])
            for node in range(nodes)
            for to in range(nodes)
            if node != to
        }
        self._lost: set[tuple[int, int]] = set()

    async def open(self) -> None:
        for proxy in self._proxies.values():
            proxy.open()

    def address(self, node: int) -> tuple[str, int]:
        return HOST, self._ports[node]

    def way(self, node: int, to: int) -> tuple[str, int]:
        return HOST, self._proxies[node, to].port

    def within(self, _: int, command: list[str]) -> list[str]:
        return command

    def socket(self, _: int) -> socket.socket:
        return socket.socket()

    def lose(self, sender: int, receiver: int, on: bool) -> None:
        (self._lost.add if on else self._lost.discard)((sender, receiver))
        for dialler, dialled in ((sender, receiver), (receiver, sender)):
            up, down = (dialler, dialled) in self._lost, (dialled, dialler) in self._lost
            self._proxies[dialler, dialled].hold(up, down)

    async def close(self) -> None:
        await asyncio.gather(*(proxy.close() for proxy in self._proxies.values()))


Network: TypeAlias = Namespaces | Loopback

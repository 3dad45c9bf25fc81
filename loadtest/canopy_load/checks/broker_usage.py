"""The broker from outside, when it runs on this machine: which process it is, and what it uses.

Owns: finding the process behind a local TCP port, its CPU time and its memory, and the description of this machine that
stands in every result.

Promises: nothing here raises. What cannot be known (another machine, another user's process, a process that has ended)
is None. A process identifier that was given away anew is not taken for the broker.

It does not speak to the broker, nor count children of the process. A forwarder is taken for no broker: what a proxy of
ports uses says nothing of what is behind it.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil

from canopy_load.brokers.process import core_count, cpu_time

FORWARDERS: Final = frozenset({"docker-proxy", "rootlessport", "slirp4netns", "pasta", "ssh", "sshd", "kubectl"})
PACKAGE: Final = "canopy-mqtt"

_Address: TypeAlias = IPv4Address | IPv6Address


def find(host: str, port: int) -> int | None:
    """Return the process that listens on this TCP port of this machine; None if it is not here, or not visible.

    A host that is a name is looked up, which may take as long as the resolver takes. Of several processes that share
    the socket it is the one that the others come from."""
    for address in _addresses(host, port):
        if not _is_local(address):
            continue
        try:
            found = _listener(address, port)
            if found is not None and psutil.Process(found).name() not in FORWARDERS:
                return found
        except (psutil.Error, OSError):
            continue
    return None


class ProcessUsage:
    """The CPU time and memory that one process has used since its start."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._process = psutil.Process(pid)
        except psutil.Error:
            self._process = None

    def cpu_seconds(self) -> float | None:
        """User + system time of the whole process, threads that have ended included; None once it is gone."""
        try:
            # psutil counts in ticks of the kernel's.
            return cpu_time(self.pid) / 1e9 if self._there() else None
        except OSError:
            return None

    def memory(self) -> int | None:
        """Bytes resident, as exact as the kernel's cheap counter (it may lag by some pages); None once it is gone."""
        try:
            return int(self._process.memory_info().rss) if self._there() else None
        except psutil.Error:
            return None

    def _there(self) -> bool:
        try:
            return bool(self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE)
        except (psutil.Error, AttributeError):
            return False


def environment() -> dict[str, str]:
    """Describe this machine and the generator's Python for people, without names of hosts or users."""
    return {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "event loop": _event_loop(),
        "canopy": _version(PACKAGE) or "not installed",
        "load average": _load_average(),
    }


def _addresses(host: str, port: int) -> list[_Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError):
        return []
    addresses: list[_Address] = []
    for _, _, _, _, where in found:
        try:
            addresses.append(_plain(ip_address(str(where[0]).partition("%")[0])))
        except ValueError:
            continue
    return addresses


def _is_local(address: _Address) -> bool:
    """Return True if this machine has the address: the kernel binds to no other. This sends nothing."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _listener(address: _Address, port: int) -> int | None:
    """Return the process that takes connections to this address: the most specific listener, as the kernel chooses."""
    any_address = [IPv4Address(0), IPv6Address(0)] if address.version == 4 else [IPv6Address(0)]
    found: dict[_Address, int] = {}
    for each in psutil.net_connections("tcp"):
        if _takes(each, port) and each.pid is not None:
            found.setdefault(_plain(ip_address(each.laddr.ip)), each.pid)
    pid = next((found[where] for where in (address, *any_address) if where in found), None)
    while pid is not None:
        parent = psutil.Process(pid).ppid()
        # The first process holds the sockets that it hands over.
        if parent <= 1 or not any(_takes(each, port) for each in psutil.Process(parent).net_connections("tcp")):
            break
        pid = parent
    return pid


def _takes(connection: Any, port: int) -> bool:
    return bool(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port)


def _plain(address: _Address) -> _Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return platform.machine() or "unknown"


def _cores() -> str:
    there = os.cpu_count() or 1
    allowed = core_count()
    return str(there) if allowed == there else f"{allowed} of {there}"


def _event_loop() -> str:
    """Return the kind of event loop that runs here, or else the kind that would run with the installed packages."""
    try:
        kind = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    except RuntimeError:
        kind = "uvloop" if _version("uvloop") else "asyncio"
    version = _version(kind)
    return f"{kind} {version}" if version else kind


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _load_average() -> str:
    try:
        return " ".join(f"{value:.2f}" for value in os.getloadavg())
    except OSError:
        return "unknown"

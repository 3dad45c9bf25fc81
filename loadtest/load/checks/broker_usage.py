"""The broker from outside, when it runs on this machine: which process it is, and what it uses.

Owns: finding the process behind a local TCP port, its CPU time and its memory, and the description of this machine that
stands in every result.

Promises: nothing here raises. What cannot be known (another machine, another user's process, a process that has ended,
no `/proc`) is None. A process identifier that was given away anew is not taken for the broker.

It does not speak to the broker, nor count children of the process. A forwarder is taken for no broker: what a proxy of
ports uses says nothing of what is behind it.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, TypeAlias

from loadtest.brokers.cores import core_count
from loadtest.brokers.process import cpu_time

PROC: Final = Path("/proc")
LISTENING: Final = "0A"  # of the states in /proc/net/tcp
FORWARDERS: Final = frozenset({"docker-proxy", "rootlessport", "slirp4netns", "pasta", "ssh", "sshd", "kubectl"})
PACKAGE: Final = "canopy-mqtt"

_Address: TypeAlias = IPv4Address | IPv6Address


def find(host: str, port: int) -> int | None:
    """The process that listens on this TCP port of this machine; None where it is not here, or not to be seen.

    A host that is a name is looked up, which may take as long as the resolver takes. Of several processes that share
    the socket it is the one that the others come from."""
    for address in _addresses(host, port):
        if not _is_local(address):
            continue
        for inode in _listening(address, port):
            found = _holder(inode)
            if found is not None and _command(found) not in FORWARDERS:
                return found
    return None


class Watch:
    """What one process uses, from its start."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._began = _began(pid)

    def cpu_seconds(self) -> float | None:
        """User + system time of the whole process, threads that have ended included; None once it is gone."""
        if not self._there():
            return None
        try:
            return cpu_time(self.pid) / 1e9
        except OSError:
            return None

    def memory(self) -> int | None:
        """Bytes resident, as exact as the kernel's cheap counter (it may lag by some pages); None once it is gone."""
        if not self._there():
            return None
        fields = _text(PROC / str(self.pid) / "statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None

    def _there(self) -> bool:
        return self._began is not None and _began(self.pid) == self._began


def environment() -> dict[str, str]:
    """What this machine is and what the generator runs on: for people, without names of hosts or users."""
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
    """Whether this machine has the address: the kernel binds to no other. Nothing is sent."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _listening(address: _Address, port: int) -> list[str]:
    """Inodes of the sockets that take connections to this address, the most particular first, as the kernel does."""
    exact: list[str] = []
    same_family: list[str] = []
    both_families: list[str] = []
    for name in ("tcp", "tcp6"):
        for line in _text(PROC / "net" / name).splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != LISTENING:
                continue
            where, _, number = fields[1].partition(":")
            if int(number, 16) != port:
                continue
            bound = _decoded(where)
            if bound == address:
                exact.append(fields[9])
            elif bound.is_unspecified and bound.version == address.version:
                same_family.append(fields[9])
            elif bound.is_unspecified and bound.version == 6:
                both_families.append(fields[9])
    return exact + same_family + both_families


def _decoded(text: str) -> _Address:
    """An address of /proc/net/tcp: words of 32 bits in hexadecimal, each in this machine's order of bytes."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    # By bytes given, an IPv6 address of all zeros stays "::"; a mapped one is the IPv4 address that it means.
    return IPv4Address(packed) if len(packed) == 4 else _plain(IPv6Address(packed))


def _plain(address: _Address) -> _Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _holder(inode: str) -> int | None:
    """The process with this socket open; of several, the one whose parent is none of them (and not the first process,
    which holds the sockets it hands over)."""
    link = f"socket:[{inode}]"
    holders: set[int] = set()
    try:
        processes = [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]
    except OSError:
        return None
    for pid in processes:
        folder = PROC / str(pid) / "fd"
        try:
            descriptors = os.listdir(folder)
        except OSError:  # another user's, or gone by now
            continue
        if any(_points_to(folder / each, link) for each in descriptors):
            holders.add(pid)
    if len(holders) > 1:
        holders.discard(1)
    first = [pid for pid in sorted(holders) if _parent(pid) not in holders]
    return first[0] if first else None


def _points_to(path: Path, link: str) -> bool:
    try:
        return os.readlink(path) == link
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second, the command, may hold blanks and brackets."""
    return _text(PROC / str(pid) / "stat").rpartition(")")[2].split()


def _began(pid: int) -> str | None:
    """When the process was started, in ticks since the machine was; None where there is none, or only its remains."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else None


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else None


def _command(pid: int) -> str:
    return _text(PROC / str(pid) / "comm").strip()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _cpu_model() -> str:
    for line in _text(PROC / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return platform.machine() or "unknown"


def _cores() -> str:
    there = os.cpu_count() or 1
    allowed = core_count()
    return str(there) if allowed == there else f"{allowed} of {there}"


def _event_loop() -> str:
    """The kind that runs here; else the kind that would, by what is installed."""
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

"""Socket options for MQTT connections.

Owns the list of options and their values. Promises: on Linux a listening socket is tuned once and its connections
inherit all of it, so a CONNECT costs no system call for it; elsewhere each connection is tuned.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import socket
import struct
import sys
import termios
from typing import Any, Final

from broker.settings import Settings

PROBE_AFTER: Final = 60
"""Seconds of silence after which TCP asks whether the peer is still there."""

PROBE_EVERY: Final = 20
"""Seconds between two such probes."""

PROBES: Final = 3
"""Unanswered probes after which the system gives a connection up."""

LONGEST_USER_TIMEOUT: Final = 2_000_000_000
"""Milliseconds that fit the option."""

LATER_THAN_OURS: Final = 1.5
LATER_BY: Final = 5_000
"""The system's patience with a peer that takes nothing (TCP_USER_TIMEOUT): so many times `queue.stall_timeout`, and so
many milliseconds more. The broker finds a stalled client within 1.25 times (`stream.STALL_LOOKS`), and knows why it
ends; the system only says that a connection was lost, and is for peers that vanish while little waits for them."""

TCP_INFO_PROBES: Final = 3
TCP_INFO_UNACKED: Final = 24
TCP_INFO_LAST_ACK: Final = 56
"""Where they stand in Linux's `tcp_info`: questions for room without an answer (a byte), segments on their way, and
milliseconds since the peer acknowledged anything."""

OWN_DESCRIPTORS: Final = 192
"""File descriptors kept for all that is not a client's connection: listeners, logs, the event loop, stores, links; and
for connections beyond the limit that wait to be told so."""

FRESH_BYTES: Final = 16_384
"""Bytes that the system is asked to hold unsent for a peer whose messages lose their worth while they wait."""

ESTABLISHED: Final = 1
"""The state of a whole connection in Linux's `tcp_info`."""

INHERITED: Final = sys.platform.startswith("linux")
"""Whether an accepted socket has the options of the one that listens."""


def connections_that_fit() -> int:
    """Connections for which the process may have file descriptors now; 0 where the system sets no limit.

    A process that may have very few keeps half of them.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 0
    return max(soft - OWN_DESCRIPTORS, soft // 2, 1)


def too_many(connections: int) -> str:
    """Why a process that runs cannot have so many connections; empty: it can, or 0, no number, is wanted."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not connections or soft == resource.RLIM_INFINITY or connections + OWN_DESCRIPTORS <= soft:
        return ""
    return too_few_descriptors(connections, soft)


def too_few_descriptors(connections: int, most: int) -> str:
    """What is told of a limit on connections for which a process, which may have `most`, lacks file descriptors."""
    return (
        f"limits.max_connections = {connections} needs {connections + OWN_DESCRIPTORS} file descriptors, and this "
        f"process may have {most}: raise the limit (ulimit -n, LimitNOFILE= of systemd) or lower the setting"
    )


def tune(sock: Any, settings: Settings) -> None:
    """Have the system send small packets at once, and look after a peer that says nothing: it may be gone.

    MQTT alone does not notice when keep alive is off, nor when little enough waits that no write ever stalls.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = [("TCP_KEEPIDLE", PROBE_AFTER), ("TCP_KEEPINTVL", PROBE_EVERY), ("TCP_KEEPCNT", PROBES)]
    stall_timeout = settings.queue.stall_timeout
    # Without one (0) the system's own time-out holds, about a quarter of an hour.
    later = int(stall_timeout * 1000 * LATER_THAN_OURS) + LATER_BY
    milliseconds = min(later, LONGEST_USER_TIMEOUT) if stall_timeout > 0 else 0
    options.append(("TCP_USER_TIMEOUT", milliseconds))
    for name, value in options:
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


REMEDY: Final = "(--listen, or its url in the settings)"


def why_not_listening(where: str, host: str, error: OSError) -> str:
    """One line that says what is wrong with an address and what to do. `where`: what the listener is called."""
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use; stop the other program or choose another port {REMEDY}"
    if error.errno == errno.EACCES:
        return f"cannot listen on {where}: ports below 1024 need a privilege; choose a higher port {REMEDY}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {where}: this machine does not have that address"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"cannot listen on {where}: too few file descriptors (ulimit -n)"
    if error.errno is None or error.errno < 0 or type(error).__name__ == "gaierror":
        return f"cannot listen on {where}: unknown host {host!r}"
    return f"cannot listen on {where}: {os.strerror(error.errno)}"


def keep_fresh(sock: Any, fresh: bool) -> None:
    """Have the system take no more from us than it can soon send: what it holds, nobody can replace or shed.

    With `fresh` False it takes as much as it does by itself.

    Linux alone can (`TCP_NOTSENT_LOWAT`); it otherwise takes megabytes for a peer that reads slowly, which at 10 kB/s
    are minutes.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if sock is not None and option is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, option, FRESH_BYTES if fresh else 0)


def is_gone(sock: Any) -> bool:
    """Whether the peer has closed the connection, or reset it, though nobody has read from it since. Linux can tell."""
    option = getattr(socket, "TCP_INFO", None)
    if not INHERITED or sock is None or option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        state: int = sock.getsockopt(socket.IPPROTO_TCP, option, 1)[0]
    except (OSError, ValueError):
        return True
    return state != ESTABLISHED


def answers_nothing(sock: Any, seconds: float) -> bool:
    """Whether the peer's system has acknowledged nothing for so long, though it was to. Linux can tell.

    The system of a peer that does not read has acknowledged all that was sent, and answers when it is asked for room.
    """
    option = getattr(socket, "TCP_INFO", None)
    if not INHERITED or sock is None or option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    size = TCP_INFO_LAST_ACK + 4
    try:
        told: bytes = sock.getsockopt(socket.IPPROTO_TCP, option, size)
    except (OSError, ValueError):
        return False
    if len(told) < size:
        return False
    (unacked,) = struct.unpack_from("I", told, TCP_INFO_UNACKED)
    (silent,) = struct.unpack_from("I", told, TCP_INFO_LAST_ACK)
    return (unacked > 0 or told[TCP_INFO_PROBES] > 1) and silent >= seconds * 1000


def unsent(transport: asyncio.BaseTransport) -> int:
    """Bytes in the kernel's send buffer that the peer has not acknowledged; 0 where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, ValueError):
        return 0
    return int(struct.unpack("i", answer)[0])

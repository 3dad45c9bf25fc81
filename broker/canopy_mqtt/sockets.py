"""Sockets as the system gives them: their options, how many there can be, and the files of Unix sockets.

Owns the list of options and their values. Promises: on Linux a listening socket is tuned once and its connections
inherit all of it, so a CONNECT costs no system call for it; elsewhere each connection is tuned. The file of a Unix
socket is created with the configured mode and group, and removed at the end.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import socket
import stat
import struct
import sys
import termios
from typing import Any, Final

from canopy_mqtt.settings import Settings

KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
"""TCP probes a peer after a minute of silence and then every 20 seconds; after 3 probes without an answer the system
gives the connection up."""

MAX_USER_TIMEOUT_MS: Final = 2_000_000_000
"""Milliseconds that fit the option."""

LATER_THAN_OURS: Final = 1.5
LATER_BY: Final = 5_000
"""The system's patience with a peer that takes nothing (TCP_USER_TIMEOUT): `queue.stall_timeout` times the first, and
this many milliseconds more. The broker finds a stalled client within 1.25 times (`stream.STALL_LOOKS`), and knows the
cause; the system only reports a lost connection, and is for peers that vanish while little waits for them."""

TCP_INFO_PROBES: Final = 3
TCP_INFO_UNACKED: Final = 24
TCP_INFO_LAST_ACK: Final = 56
"""Their offsets in Linux's `tcp_info`: window probes without an answer (a byte), segments on their way, and
milliseconds since the peer acknowledged anything."""

PATIENCE: Final = 2.0
"""Seconds that a server on an existing Unix socket has to answer."""

OWN_DESCRIPTORS: Final = 192
"""File descriptors kept for all that is not a client's connection: listeners, logs, the event loop, stores, links; and
for connections beyond the limit that wait for their refusal."""

FRESH_BYTES: Final = 16_384
"""Bytes that the system may hold unsent for a peer whose messages lose their worth while they wait."""

ESTABLISHED: Final = 1
"""The state of a whole connection in Linux's `tcp_info`."""

INHERITED: Final = sys.platform.startswith("linux")
"""True if an accepted socket has the options of the listening one."""


def of_http(settings: Settings) -> int:
    """Return the file descriptors that connections of HTTP may take beside those of clients."""
    return settings.http.max_connections if settings.http.listen else 0


def connections_that_fit(beside: int = 0) -> int:
    """Connections for which the process may have file descriptors now; 0 where the system sets no limit.

    `beside`: descriptors for connections that are not those of clients. A process that may have very few keeps half of
    them.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 0
    return max(soft - OWN_DESCRIPTORS - beside, soft // 2, 1)


def too_many(connections: int, beside: int = 0) -> str:
    """Say why a running process cannot have this many connections (0: no limit); empty: it can."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not connections or soft == resource.RLIM_INFINITY or connections + OWN_DESCRIPTORS + beside <= soft:
        return ""
    return too_few_descriptors(connections, soft, beside)


def too_few_descriptors(connections: int, most: int, beside: int = 0, setting: int = 0) -> str:
    """Return the warning about a limit on connections for which a process, which may have `most`, lacks file
    descriptors. `setting`: the limit, where this process serves a part of it alone."""
    needed = connections + OWN_DESCRIPTORS + beside
    return (
        f"limits.max_connections = {setting or connections} needs {needed} file descriptors, and this "
        f"process may have {most}: raise the limit (ulimit -n, LimitNOFILE= of systemd) or lower the setting"
    )


def tune(sock: Any, settings: Settings) -> None:
    """Set the options of a socket: small packets are sent at once, and a silent peer is probed, since it may be gone.

    MQTT alone does not notice when keep alive is off, nor when little enough waits that no write ever stalls.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stall_timeout = settings.queue.stall_timeout
    # Without one (0) the system's own time-out holds, about a quarter of an hour.
    later = int(stall_timeout * 1000 * LATER_THAN_OURS) + LATER_BY
    milliseconds = min(later, MAX_USER_TIMEOUT_MS) if stall_timeout > 0 else 0
    for name, value in (*KEEP_ALIVE, ("TCP_USER_TIMEOUT", milliseconds)):
        _set(sock, name, value)


def _set(sock: Any, name: str, value: int) -> None:
    """Set an option of TCP, where the system has it."""
    option = getattr(socket, name, None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


REMEDY: Final = "(--listen, or its url in the settings)"


async def stop_listening(server: asyncio.AbstractServer) -> None:
    """Close the sockets of a server. Connections stay, also those that have just been accepted.

    asyncio's loop forgets such connections while it closes, and their clients are never told
    (https://github.com/python/cpython/issues/109564): so they begin first, and no other is accepted meanwhile.
    """
    loop = asyncio.get_running_loop()
    for sock in server.sockets if isinstance(server, asyncio.Server) else ():
        loop.remove_reader(sock.fileno())
    await asyncio.sleep(0)
    server.close()


def why_not_listening(where: str, host: str, error: OSError, remedy: str = REMEDY) -> str:
    """Say in one line what is wrong with an address and what to do. `where`: the name of the listener; `remedy`: what
    sets its port."""
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use; stop the other program or choose another port {remedy}"
    if error.errno == errno.EACCES:
        return f"cannot listen on {where}: ports below 1024 need a privilege; choose a higher port {remedy}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {where}: this machine does not have that address"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"cannot listen on {where}: too few file descriptors (ulimit -n)"
    if error.errno is None or error.errno < 0 or type(error).__name__ == "gaierror":
        return f"cannot listen on {where}: unknown host {host!r}"
    return f"cannot listen on {where}: {os.strerror(error.errno)}"


def low_latency(sock: Any, fresh: bool) -> None:
    """Limit what the system accepts to what it can soon send: the broker can no longer replace or drop what the system
    holds.

    With `fresh` False it accepts as much as it does by itself. Only Linux has the limit; without it the system accepts
    megabytes for a peer that reads slowly, which at 10 kB/s are minutes.
    """
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        _set(sock, "TCP_NOTSENT_LOWAT", FRESH_BYTES if fresh else 0)


def is_gone(sock: Any) -> bool:
    """Return whether the peer has closed or reset the connection, even if nothing was read from it since. Only Linux
    tells."""
    info = _tcp_info(sock, 1)
    return info is not None and (not info or info[0] != ESTABLISHED)


def answers_nothing(sock: Any, seconds: float) -> bool:
    """Return whether the peer's system has owed an acknowledgement for this many seconds. Only Linux tells.

    The system of a peer that does not read has acknowledged everything, and answers window probes.
    """
    size = TCP_INFO_LAST_ACK + 4
    info = _tcp_info(sock, size)
    if info is None or len(info) < size:
        return False
    (unacked,) = struct.unpack_from("I", info, TCP_INFO_UNACKED)
    (silent,) = struct.unpack_from("I", info, TCP_INFO_LAST_ACK)
    return (unacked > 0 or info[TCP_INFO_PROBES] > 1) and silent >= seconds * 1000


def _tcp_info(sock: Any, size: int) -> bytes | None:
    """Return the first bytes of Linux's `tcp_info`, empty if the socket is closed. None: there is none."""
    option = getattr(socket, "TCP_INFO", None)
    if not INHERITED or sock is None or option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        return bytes(sock.getsockopt(socket.IPPROTO_TCP, option, size))
    except (OSError, ValueError):
        return b""


def unsent(transport: asyncio.BaseTransport) -> int:
    """Return the bytes in the kernel's send buffer that the peer has not acknowledged; 0 where the system does not
    tell."""
    sock = transport.get_extra_info("socket")
    if not INHERITED or sock is None:
        return 0
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, ValueError):
        return 0
    return int(struct.unpack("i", answer)[0])


# -- files of Unix sockets ---------------------------------------------------------------------------------------------


class SocketFileError(Exception):
    """A Unix socket cannot be bound; the message follows its name."""


class SocketFile:
    """The file of a bound socket. `remove` blocks, and removes only this file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._made = _identity(path)

    def remove(self) -> None:
        """Remove the socket file, unless another process's stands in its place."""
        try:
            if _identity(self.path) == self._made:
                os.unlink(self.path)
        except OSError:
            # The file or its folder does not exist any more.
            pass


async def bind_tcp(host: str | None, port: int) -> list[socket.socket]:
    """Bind a socket to a port at each address of a host (None: all of this machine's); none listens yet.

    Raises OSError: one cannot be bound; then none is.
    """
    loop, made = asyncio.get_running_loop(), list[socket.socket]()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            made.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            # A free port is the same at each address.
            port = sock.getsockname()[1]
    except BaseException:
        for sock in made:
            sock.close()
        raise
    return made


def bind_unix(path: str, mode: int, group: str) -> tuple[socket.socket, SocketFile]:
    """Bind a Unix socket that does not listen yet, so that no client can connect before it has its mode.

    A file that a killed broker left behind is replaced; one on which a program answers is not, nor is a file that is
    not a socket. It blocks: call it in a thread.

    Raises:
        SocketFileError: why not.
    """
    owner = _group(group) if group else -1
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(path)
        except OSError as error:
            raise SocketFileError(_why(path, error)) from error
        file = SocketFile(path)
        try:
            if owner >= 0:
                os.chown(path, -1, owner)
            os.chmod(path, mode)
        except OSError as error:
            file.remove()
            raise SocketFileError(f"its group cannot be set to {group!r}: {os.strerror(error.errno or 0)}") from error
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock, file


def check_files(settings: Settings) -> list[str]:
    """Return the faults in the groups of all Unix sockets, and in the files that stand in their places, one line each.

    A folder may be made by the start of the service, so that a missing one is no fault.
    """
    places = [(f'listener "{each.label}"', each.endpoint.path, each.group) for each in settings.listeners]
    places += [(f'http.listen "{each.url()}"', each.path, "") for each in settings.http.endpoints]
    faults: list[str] = []
    for name, path, group in places:
        try:
            if group:
                _group(group)
            if path and os.path.lexists(path):
                _check_socket(path)
        except SocketFileError as error:
            faults.append(f"{name}: {error}")
    return faults


def _check_socket(path: str) -> None:
    """Raise SocketFileError if a file is no socket."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise SocketFileError("the file exists and is not a socket; remove it or choose another path")


def _clear(path: str) -> None:
    """Remove the file of a broker that did not end in order."""
    try:
        _check_socket(path)
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PATIENCE)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            pass
        except OSError as error:
            raise SocketFileError(_why(path, error)) from error
        else:
            raise SocketFileError("another program listens there; stop it or choose another path")
    try:
        os.unlink(path)
    except OSError as error:
        raise SocketFileError(f"the file of one that has ended cannot be removed: {_words(error)}") from error


def _why(path: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"there is no folder {os.path.dirname(path)}"
    if error.errno == errno.EACCES:
        return f"the broker may not make files in {os.path.dirname(path)}"
    return _words(error)


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _group(group: str) -> int:
    if group.isdecimal():
        return int(group)
    import grp

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SocketFileError(f"there is no group {group!r}") from None


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino

"""The files of Unix sockets: created with the configured mode and group, and removed at the end.

A file that a killed broker left behind is replaced; one on which a program answers is not, nor is a file that is not a
socket. Everything blocks: call it in a thread.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Final

from broker.settings import Settings

PATIENCE: Final = 2.0
"""Seconds to find out whether somebody answers on a socket that is there."""


class SocketFileError(Exception):
    """Why a socket cannot be had, in words that follow its name."""


class SocketFile:
    """The file of a socket that was bound: it is removed only as long as it is that file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._made = _identity(path)

    def remove(self) -> None:
        """Take it away, unless somebody else's stands in its place."""
        try:
            if _identity(self.path) == self._made:
                os.unlink(self.path)
        except OSError:
            # It is gone, or its folder is.
            pass


def bind(path: str, mode: int, group: str) -> tuple[socket.socket, SocketFile]:
    """A socket that is bound to a path and does not listen yet: nobody can connect before it has its mode.

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


def check(settings: Settings) -> list[str]:
    """What is wrong with the groups of all Unix sockets, one line each."""
    faults: list[str] = []
    for listener in settings.listeners:
        if listener.group:
            try:
                _group(listener.group)
            except SocketFileError as error:
                faults.append(f'listener "{listener.called}": {error}')
    return faults


def _clear(path: str) -> None:
    """Remove what a broker has left behind that did not end in order."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketFileError("the file exists and is not a socket; remove it or choose another path")
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

"""A file of user names and hashed passwords in mosquitto's format: a line is `USER:HASH`.

Owns the format. Blank lines and lines that begin with `#` are ignored. Any other line is an error that names file and
line, where mosquitto ignores the line: half of a file would lock out the users of the other half. `edit` changes a file
for `canopy passwd`: whole or not at all, readable by its owner alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from canopy_mqtt.security.errors import SecurityError, read_text
from canopy_mqtt.security.passwords.hashes import PasswordHash, parse

MAX_USER_BYTES: Final = 65_535
"""Bytes of a user name in a CONNECT (MQTT 5.0, section 1.5.4)."""

MODE: Final = 0o600


class PasswordFile:
    """Users and their hashed passwords, as they were when the file was read."""

    def __init__(self, users: Mapping[str, PasswordHash]) -> None:
        self.users = users
        self.dearest = max(users.values(), key=lambda each: each.cost) if users else None
        """The hash with the most expensive check. None: the file has no user."""

    def check(self, user: str, password: bytes) -> bool:
        """Return True for the user's password. Run it in a thread of `hashing_pool`: it costs as much as the most
        expensive hash.

        It also costs that for unknown users, and for users with a cheaper hash unless the password is right: the time
        of a refusal must not tell whether a user exists.
        """
        known = self.users.get(user)
        if known is not None and known.check(password):
            return True
        if self.dearest is not None and (known is None or known.cost < self.dearest.cost):
            self.dearest.check(password)
        return False


def read_password_file(path: Path) -> PasswordFile:
    """Read a file. Raises SecurityError if it cannot be read, or has a wrong line."""
    users: dict[str, PasswordHash] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        try:
            entry = _entry(line)
            if entry is None:
                continue
            user, text = entry
            if user in users:
                raise ValueError(f"the user has a line already, {lines[user]}; leave one of both")
            users[user] = parse(text)
            lines[user] = number
        except ValueError as error:
            raise SecurityError(f"{path}: line {number}: {error}") from None
    return PasswordFile(users)


def check_user_name(user: str) -> None:
    """Raise ValueError if a user name cannot stand in such a file."""
    if not user or ":" in user or user.startswith("#") or user != user.strip() or not user.isprintable():
        raise ValueError('a user name has no ":", no "#" at its beginning, no blanks around it, and is printable')
    if len(user.encode()) > MAX_USER_BYTES:
        raise ValueError(f"a user name has at most {MAX_USER_BYTES} bytes")


def edit(path: Path, user: str, entry: str | None, *, create: bool = False) -> bool:
    """Replace or append a user's line, `USER:entry`; None deletes it. Returns True if the user had a line.

    `create`: the file may be missing. A new file belongs to the caller, with mode 0600; an existing one keeps its
    owner, where that is allowed, and its mode. Comments stay.

    Raises:
        SecurityError: it cannot be read or written; it is unchanged.
    """
    try:
        check_user_name(user)
    except ValueError as error:
        raise SecurityError(str(error)) from None
    if create and not path.exists():
        before: list[str] = []
    else:
        before = read_text(path).removesuffix("\n").split("\n")
    new = [] if entry is None else [f"{user}:{entry}"]
    after: list[str] = []
    there = False
    for line in before:
        if line.partition(":")[0].strip() == user and not line.startswith("#") and ":" in line:
            if not there:
                after += new
            there = True
        else:
            after.append(line)
    if not there:
        after += new
    _replace(path, "".join(f"{line}\n" for line in after))
    return there


def _entry(line: str) -> tuple[str, str] | None:
    """Return user and hash of a line; None: it has none."""
    if not line.strip() or line.startswith("#"):
        return None
    user, colon, text = line.partition(":")
    user, text = user.strip(), text.strip()
    if not colon:
        raise ValueError("not USER:HASH; a comment begins with #")
    if not user:
        raise ValueError("the user name before the colon is missing")
    if len(user.encode()) > MAX_USER_BYTES:
        raise ValueError(f"the user name has more than {MAX_USER_BYTES} bytes")
    return user, text


def _replace(path: Path, text: str) -> None:
    """Write a new file, sync it to disk, and rename it over the old one."""
    # A link stays one: what it points to is replaced.
    target = Path(os.path.realpath(path))
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            if target.exists():
                there = target.stat()
                os.fchmod(handle, there.st_mode & 0o777)
                if (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, there.st_uid, there.st_gid)
            else:
                os.fchmod(handle, MODE)
            file.write(text.encode())
            file.flush()
            os.fsync(handle)
        os.replace(name, target)
        name = ""
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        why = f"there is no folder {target.parent}" if not target.parent.is_dir() else error.strerror or str(error)
        raise SecurityError(f"{path}: cannot be written: {why}") from None
    finally:
        if name:
            Path(name).unlink(missing_ok=True)

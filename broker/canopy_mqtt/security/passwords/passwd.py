"""The work of `canopy passwd`: adds, changes or deletes a user in a password file or a SCRAM file.

The two kinds of file are not mixed: with a line of the other kind the broker could not read the file.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Final

from canopy_mqtt.files import read_file
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.hashes import Kind, make
from canopy_mqtt.security.passwords.password_file import edit
from canopy_mqtt.security.scram.key_file import credential_line, secret_line

SCRAM_LINE: Final = b":SCRAM-SHA-256$"

MAX_PASSWORD_BYTES: Final = 65_535
"""Bytes of a password in a CONNECT (MQTT 5.0, section 3.1.3.6)."""


def set_password(path: Path, user: str, password: str, kind: Kind | None, *, create: bool) -> bool:
    """Set the password of a user. Returns True if the user had one. `kind` None: SCRAM-SHA-256. `create`: make a
    missing file. Bytes that are no UTF-8, which Python marks as half surrogate pairs, are hashed as they are.

    Raises:
        SecurityError: the file, user name or password cannot be used; the file is unchanged.
    """
    secret = password.encode("utf-8", "surrogateescape")
    if not 1 <= len(secret) <= MAX_PASSWORD_BYTES:
        raise SecurityError(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes")
    new = create and not path.exists()
    if not new:
        _check_kind(path, scram=kind is None)
    if kind is not None:
        return edit(path, user, make(secret, kind), create=create)
    if secret != password.encode("utf-8", "replace"):
        raise SecurityError("a password of SCRAM-SHA-256 is text in UTF-8")
    try:
        name, _, entry = credential_line(user, password).partition(":")
    except ValueError as error:
        raise SecurityError(str(error)) from None
    there = edit(path, name, entry, create=create)
    if new:
        # What the salts of unknown users are made of has to outlive a restart.
        mark, _, key = secret_line().partition(":")
        edit(path, mark, key)
    return there


def delete_user(path: Path, user: str) -> None:
    """Delete a user. Raises SecurityError if the user does not exist, or the file cannot be written."""
    if not edit(path, user, None):
        raise SecurityError(f'{path}: there is no user "{user}"')


def _check_kind(path: Path, *, scram: bool) -> None:
    try:
        text = read_file(path).removeprefix(BOM_UTF8)
    except OSError as error:
        remedy = "; --create makes it" if isinstance(error, FileNotFoundError) else ""
        raise SecurityError(f"{path}: cannot be read: {error.strerror or error}{remedy}") from None
    lines = [line for line in text.split(b"\n") if b":" in line and not line.startswith((b"#", b"$"))]
    if lines and scram is not any(SCRAM_LINE in line for line in lines):
        held = "hashed passwords; leave out --scram" if scram else "keys of SCRAM; say --scram"
        raise SecurityError(f"{path}: holds {held}, or name another file")

"""The file of SCRAM-SHA-256: users with their salted keys, from which no password can be computed.

Owns its format. A line is `USER:SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY`, with the last three in base64, as
PostgreSQL keeps them. `#` begins a comment. The line `$secret:BASE64` is the seed of the salts of unknown users;
without it these salts change with each start, which reveals over time that the users are unknown.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from canopy_mqtt.security.errors import SecurityError, read_text
from canopy_mqtt.security.scram.saslprep import saslprep

MIN_ITERATIONS: Final = 4_096
"""The minimum of RFC 7677."""

MAX_ITERATIONS: Final = 10_000_000
"""A larger number is a typing error that would make each client compute for minutes."""

DEFAULT_ITERATIONS: Final = 10_000
"""The client pays for them at each connection: some milliseconds on a PC, a second on a small device."""

SALT_BYTES: Final = 16

SECRET: Final = "$secret"
"""Stands in place of a user name: the seed of the salts of unknown users."""

_ENTRY: Final = re.compile(r"SCRAM-SHA-256\$(\d{1,9}):([^$:]+)\$([^$:]+):([^$:]+)")


class ScramCredential(NamedTuple):
    """The server's keys of one user (RFC 5802, section 3)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class ScramFile:
    """Users and their keys, as they were when the file was read."""

    def __init__(self, users: Mapping[str, ScramCredential], secret: bytes = b"") -> None:
        self.users = dict(users)
        self._secret = secret or secrets.token_bytes(32)
        # An unknown user has what most have.
        self._iterations = DEFAULT_ITERATIONS
        self._salt_bytes = SALT_BYTES
        if self.users:
            common = Counter((each.iterations, len(each.salt)) for each in self.users.values())
            self._iterations, self._salt_bytes = common.most_common(1)[0][0]

    def find(self, user: str) -> tuple[ScramCredential, bool]:
        """Return the user's keys, and whether the user is known. An unknown user gets keys that no password matches."""
        name = user.encode()
        made_up = ScramCredential(
            self._iterations,
            hashlib.shake_256(hmac.digest(self._secret, b"salt:" + name, "sha256")).digest(self._salt_bytes),
            hmac.digest(self._secret, b"stored:" + name, "sha256"),
            hmac.digest(self._secret, b"server:" + name, "sha256"),
        )
        found = self.users.get(user)
        return (made_up, False) if found is None else (found, True)


def derive(password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Derive the keys of a password. Computes for milliseconds: never in an event loop.

    Raises:
        ValueError: the password is empty or holds what RFC 4013 prohibits; the error does not repeat it.
    """
    prepared = saslprep(password).encode()
    if not prepared:
        raise ValueError("the password is empty")
    salted = hashlib.pbkdf2_hmac("sha256", prepared, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return ScramCredential(iterations, salt, hashlib.sha256(client_key).digest(), server_key)


def credential_line(user: str, password: str, iterations: int = DEFAULT_ITERATIONS, salt: bytes = b"") -> str:
    """Make the line of a user, without its end. An empty salt: a random one.

    Raises:
        ValueError: the user name, the password or the number of iterations cannot be used; the error repeats neither.
    """
    name = saslprep(user)
    if not name or ":" in name or name.startswith(("#", SECRET)) or name != name.strip():
        raise ValueError('a user name without ":", "#" at its beginning, or blanks around it')
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"iterations from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    made = derive(password, salt or secrets.token_bytes(SALT_BYTES), iterations)
    keys = ":".join(base64.b64encode(key).decode() for key in (made.stored_key, made.server_key))
    return f"{name}:SCRAM-SHA-256${iterations}:{base64.b64encode(made.salt).decode()}${keys}"


def secret_line() -> str:
    """Make a new `$secret` line, for a new file."""
    return f"{SECRET}:{base64.b64encode(secrets.token_bytes(32)).decode()}"


def read_scram_file(path: Path) -> ScramFile:
    """Read the users of a file.

    Raises:
        SecurityError: it cannot be read, or a line is not right.
    """
    users: dict[str, ScramCredential] = {}
    secret = b""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, _, entry = line.rstrip().partition(":")
            if name == SECRET:
                secret = _key(entry, 16, "the secret")
                continue
            name, credential = _user(name, entry)
            if name in users:
                raise ValueError("the user stands in the file already; leave one of both lines")
        except ValueError as error:
            raise SecurityError(f"{path}: line {number}: {error}") from None
        users[name] = credential
    return ScramFile(users, secret)


def _user(name: str, entry: str) -> tuple[str, ScramCredential]:
    parts = _ENTRY.fullmatch(entry)
    if parts is None:
        raise ValueError("not USER:SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY; canopy passwd --scram writes it")
    iterations = int(parts[1])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"iterations have to be from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    prepared = saslprep(name)
    if not prepared:
        raise ValueError("the user name is missing")
    salt = _key(parts[2], 1, "the salt")
    stored_key, server_key = _key(parts[3], 32, "the stored key"), _key(parts[4], 32, "the server key")
    if len(stored_key) != 32 or len(server_key) != 32:
        raise ValueError("a key has to have 32 bytes")
    return prepared, ScramCredential(iterations, salt, stored_key, server_key)


def _key(text: str, least: int, what: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{what} is not base64") from None
    if len(key) < least:
        raise ValueError(f"{what} has to have at least {least} bytes")
    return key

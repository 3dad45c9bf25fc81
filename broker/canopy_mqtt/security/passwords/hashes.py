"""Hashed passwords in the formats of files: mosquitto's `$7$` and `$6$`, and argon2id.

Owns parsing, checking and making a hash. A check costs from microseconds to a second of a processor, as the hash
demands, so it runs in the threads of `hashing_pool`. hashlib and argon2 release the interpreter's lock meanwhile.

Promises: no error repeats a hash or a password; a wrong password takes as long as the right one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final, Literal, TypeAlias

import argon2

Kind: TypeAlias = Literal["argon2id", "pbkdf2-sha512", "sha512"]

PBKDF2_ITERATIONS: Final = 210_000
"""OWASP's number for SHA-512: a tenth of a second. mosquitto accepts it too, and checks it in its event loop."""

MAX_ITERATIONS: Final = 10_000_000
"""Some seconds: a larger number is a typing error, and no user could log in."""

MAX_MEMORY: Final = 1_048_576
"""KiB that one check with argon2 may use, a gigabyte; each hashing thread uses as much."""

MAX_PASSES: Final = 100
SALT_BYTES: Final = 12
DIGEST_BYTES: Final = 64
MIN_DIGEST_BYTES: Final = 16

ARGON2: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""OWASP's choice for argon2id, 19 MiB: about 40 ms, and little enough that several fit beside the broker."""

ARGON2_COST: Final = 1.3
"""Iterations of PBKDF2 that cost as much as one pass over a KiB."""

REMEDY: Final = "canopy passwd writes such lines; mosquitto_passwd -U hashes a file of plain passwords"


class PasswordHash:
    """One hashed password. `text`: its form in the file; `cost`: the cost of a check in iterations of PBKDF2."""

    __slots__ = ("_digest", "_iterations", "_salt", "cost", "text")

    def __init__(self, text: str, cost: float, iterations: int = 0, salt: bytes = b"", digest: bytes = b"") -> None:
        self.text = text
        self.cost = cost
        self._iterations = iterations
        self._salt = salt
        self._digest = digest

    def check(self, password: bytes) -> bool:
        if not self._digest:
            try:
                return ARGON2.verify(self.text, password)
            except argon2.exceptions.VerificationError:
                return False
        if self._iterations == 0:
            made = hashlib.sha512(password + self._salt).digest()
        else:
            made = hashlib.pbkdf2_hmac("sha512", password, self._salt, self._iterations, len(self._digest))
        return hmac.compare_digest(made, self._digest)


def parse(text: str) -> PasswordHash:
    """Parse a hash. Raises ValueError with the fault and the remedy."""
    if text.startswith("$argon2"):
        return _argon2(text)
    fields = text.split("$")
    if text.startswith("$7$") and len(fields) == 5:
        if not fields[2].isascii() or not fields[2].isdigit() or not 1 <= int(fields[2]) <= MAX_ITERATIONS:
            raise ValueError(f"the number of iterations has to be from 1 to {MAX_ITERATIONS}")
        digest = _base64(fields[4], "hash")
        if not MIN_DIGEST_BYTES <= len(digest) <= DIGEST_BYTES:
            raise ValueError(f"the hash has to have {MIN_DIGEST_BYTES} to {DIGEST_BYTES} bytes; {REMEDY}")
        return PasswordHash(text, float(fields[2]), int(fields[2]), _base64(fields[3], "salt"), digest)
    if text.startswith("$6$") and len(fields) == 4:
        digest = _base64(fields[3], "hash")
        if len(digest) != DIGEST_BYTES:
            raise ValueError(f"the hash has to have {DIGEST_BYTES} bytes; {REMEDY}")
        return PasswordHash(text, 1.0, 0, _base64(fields[2], "salt"), digest)
    raise ValueError(f"not a hashed password ($7$, $6$ or $argon2id$); {REMEDY}")


def _argon2(text: str) -> PasswordHash:
    try:
        found = argon2.extract_parameters(text)
    except (argon2.exceptions.InvalidHashError, ValueError):
        raise ValueError(f"not a hash of argon2; {REMEDY}") from None
    if found.type is not argon2.Type.ID:
        raise ValueError("of argon2, only argon2id is read")
    if not 1 <= found.time_cost <= MAX_PASSES or not 8 <= found.memory_cost <= MAX_MEMORY:
        raise ValueError(f"argon2 with more than {MAX_MEMORY} KiB or {MAX_PASSES} passes is not read")
    return PasswordHash(text, found.time_cost * found.memory_cost * ARGON2_COST)


def _base64(text: str, what: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise ValueError(f"the {what} is not base64; {REMEDY}")
    return decoded


def make(password: bytes, kind: Kind = "argon2id", iterations: int = PBKDF2_ITERATIONS) -> str:
    """Hash a password with a random salt, in the format of the file. `iterations`: of pbkdf2-sha512."""
    if kind == "argon2id":
        return ARGON2.hash(password)
    salt = secrets.token_bytes(SALT_BYTES)
    if kind == "sha512":
        return f"$6${_text(salt)}${_text(hashlib.sha512(password + salt).digest())}"
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, iterations, DIGEST_BYTES)
    return f"$7${iterations}${_text(salt)}${_text(digest)}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

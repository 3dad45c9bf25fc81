"""Records that a client of TLS makes itself, for what no library asks of a server a thousand times.

Made from the secrets that the client's own library writes down (`SSLContext.keylog_filename`). A request for a new
handshake (TLS 1.2) or new keys (1.3) are a few bytes, and much more work.
"""

from __future__ import annotations

import hmac
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CIPHERS: Final = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"
"""The argument of `SSLContext.set_ciphers` for `asked_handshakes`."""

KEYS_CIPHER: Final = "TLS_AES_256_GCM_SHA384"
"""The cipher that client and server must have agreed on for `NewKeys`; OpenSSL prefers it."""


def asked_handshakes(keys: str, answers: bytes, first: int, count: int) -> bytes:
    """Forge records of TLS 1.2, each with an invalid ClientHello (RFC 5246, RFC 5288).

    `keys`: what was written down; `answers`: what the server has sent, from its first byte on. `first`: how many
    records the client has sent under its keys; its Finished was one.
    """
    client_random, master = _secrets(keys, "CLIENT_RANDOM")
    server_random = answers[11:43]  # behind the headers of record and ServerHello
    block = _expanded(master, b"key expansion" + server_random + client_random, 40)
    records = []
    for number in range(first, first + count):
        at = number.to_bytes(8, "big")
        sealed = at + AESGCM(block[:16]).encrypt(block[32:36] + at, b"\x01\0\0\0", at + b"\x16\x03\x03\0\x04")
        records.append(b"\x16\x03\x03" + len(sealed).to_bytes(2, "big") + sealed)
    return b"".join(records)


class NewKeys:
    """KeyUpdates of TLS 1.3 (RFC 8446, sections 4.6.3 and 7.2), of a client that has sent nothing else."""

    def __init__(self, keys: str, *, asking: bool) -> None:
        """`keys`: what was written down. `asking`: each asks for one."""
        self._message = b"\x18\0\0\x01" + bytes([asking]) + b"\x16"
        _, self._secret = _secrets(keys, "CLIENT_TRAFFIC_SECRET_0")

    def records(self, count: int) -> bytes:
        """Return so many further records."""
        records = []
        for _ in range(count):
            head = b"\x17\x03\x03" + (6 + 16).to_bytes(2, "big")
            # Each is the first record with its keys.
            key, nonce = _derived(self._secret, b"key", 32), _derived(self._secret, b"iv", 12)
            records.append(head + AESGCM(key).encrypt(nonce, self._message, head))
            self._secret = _derived(self._secret, b"traffic upd", 48)
        return b"".join(records)


def _secrets(keys: str, label: str) -> tuple[bytes, bytes]:
    line = next(line for line in keys.splitlines() if line.startswith(label))
    client_random, secret = (bytes.fromhex(word) for word in line.split()[1:])
    return client_random, secret


def _derived(secret: bytes, label: bytes, size: int) -> bytes:
    """RFC 8446, section 7.1; no more than one hash long."""
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    return hmac.digest(secret, info + b"\x01", "sha384")[:size]


def _expanded(secret: bytes, seed: bytes, size: int) -> bytes:
    """RFC 5246, section 5."""
    out, at = b"", seed
    while len(out) < size:
        at = hmac.digest(secret, at, "sha256")
        out += hmac.digest(secret, at + seed, "sha256")
    return out[:size]

"""The client's side of SCRAM-SHA-256, written from RFC 5802 alone; it shares nothing with the broker's."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

VECTOR_USER: Final = "user"
VECTOR_PASSWORD: Final = "pencil"
VECTOR_SALT: Final = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE: Final = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE: Final = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST: Final = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL: Final = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL: Final = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""The exchange of RFC 7677, section 3."""


class ScramClient:
    """One exchange."""

    def __init__(self, user: str, password: str, nonce: str = CLIENT_NONCE, header: str = "n,,") -> None:
        self._password = password
        self._header = header
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.signature = b""

    def first(self) -> bytes:
        return (self._header + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        values = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), base64.b64decode(values["s"]), int(values["i"]))
        client_key = hmac.new(salted, b"Client Key", hashlib.sha256).digest()
        without_proof = f"c={base64.b64encode(self._header.encode()).decode()},r={values['r']}"
        signed = ",".join((self._bare, server_first.decode(), without_proof)).encode()
        signature = hmac.new(hashlib.sha256(client_key).digest(), signed, hashlib.sha256).digest()
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        server_key = hmac.new(salted, b"Server Key", hashlib.sha256).digest()
        self.signature = b"v=" + base64.b64encode(hmac.new(server_key, signed, hashlib.sha256).digest())
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

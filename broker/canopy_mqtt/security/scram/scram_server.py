"""The server's side of SCRAM-SHA-256 in MQTT 5.0 (RFC 5802, RFC 7677; section 4.12).

Owns the messages: `ScramServer` takes the two of the client and makes the two of the server. It holds only salted keys
(`key_file`), no password, and costs a few microseconds, so it runs in the event loop.

Promises: an unknown user is answered like a known one, with a salt that stays the same, and fails where a wrong
password fails. It refuses channel binding (`p=`): the methods with `-PLUS` are not offered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final

from canopy_mqtt.security.scram.key_file import ScramFile
from canopy_mqtt.security.scram.saslprep import saslprep

METHOD: Final = "SCRAM-SHA-256"

MAX_MESSAGE_BYTES: Final = 4_096
"""Bytes of a client's message. An exchange keeps user name and nonce until it ends; no client needs more."""

MAX_NONCE_LENGTH: Final = 512
"""Characters of a client's nonce. RFC 5802 demands no length; clients use 18 to 64."""

_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_ESCAPE: Final = re.compile("=(2C|3D)?")


class ScramError(Exception):
    """The reason of a failed exchange, without proof or key."""

    def __init__(self, text: str, wrong_credentials: bool = False) -> None:
        super().__init__(text)
        self.wrong_credentials = wrong_credentials
        """True: the user is unknown, or the proof does not match the password. False: the message is not valid
        SCRAM."""


def server_nonce() -> str:
    return secrets.token_urlsafe(18)


class ScramServer:
    """One exchange. Call `first`, then `final`, each once.

    `user`: the client's claim, from `first` on; proven when `final` has returned.
    """

    def __init__(self, file: ScramFile, nonce: str = "") -> None:
        """`nonce`: the server's part; empty: a random one."""
        self.user = ""
        self._file = file
        self._nonce = nonce or server_nonce()
        self._header = b""
        self._said = b""

    def first(self, message: bytes) -> bytes:
        """Take client-first-message, return server-first-message.

        Raises:
            ScramError: it is malformed, asks for channel binding or an extension, or for the identity of another user.
        """
        text = _text(message)
        binding, comma, rest = text.partition(",")
        authorization, comma2, bare = rest.partition(",")
        if not comma or not comma2:
            raise ScramError("the first message has no GS2 header")
        if binding.startswith("p="):
            raise ScramError("channel binding is not offered")
        if binding not in ("n", "y"):
            raise ScramError("the GS2 header is malformed")
        attributes = bare.split(",")
        if attributes[0].startswith("m="):
            raise ScramError("extensions that have to be understood are not")
        if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
            raise ScramError("the first message needs n= and r=, in this order")
        self.user = _name(attributes[0][2:])
        if authorization and (not authorization.startswith("a=") or _name(authorization[2:]) != self.user):
            raise ScramError("a client may act for itself only", wrong_credentials=True)
        theirs = attributes[1][2:]
        if not _NONCE.fullmatch(theirs) or len(theirs) > MAX_NONCE_LENGTH:
            raise ScramError("the nonce is malformed")
        self._header = f"{binding},{authorization},".encode()
        self._nonce = theirs + self._nonce
        self._credential, self._known = self._file.find(self.user)
        answer = b"r=%s,s=%s,i=%d" % (
            self._nonce.encode(),
            base64.b64encode(self._credential.salt),
            self._credential.iterations,
        )
        self._said = bare.encode() + b"," + answer
        return answer

    def final(self, message: bytes) -> bytes:
        """Take client-final-message, return server-final-message: the client has proven its identity.

        Raises:
            ScramError: it is malformed, belongs to another exchange, or proves another password.
        """
        without_proof, comma, proof = _text(message).rpartition(",p=")
        if not comma:
            raise ScramError("the final message has no proof")
        attributes = without_proof.split(",")
        if len(attributes) < 2 or not attributes[0].startswith("c=") or not attributes[1].startswith("r="):
            raise ScramError("the final message needs c= and r=, in this order")
        if _decoded(attributes[0][2:]) != self._header:
            raise ScramError("the channel binding is not that of the first message")
        if not hmac.compare_digest(attributes[1][2:].encode(), self._nonce.encode()):
            raise ScramError("the nonce is not that of this exchange")
        given = _decoded(proof)
        credential = self._credential
        signed = self._said + b"," + without_proof.encode()
        signature = hmac.digest(credential.stored_key, signed, "sha256")
        if len(given) != len(signature):
            raise ScramError("the proof is malformed")
        client_key = bytes(a ^ b for a, b in zip(given, signature, strict=True))
        right = hmac.compare_digest(hashlib.sha256(client_key).digest(), credential.stored_key)
        if not (right and self._known):
            raise ScramError("wrong user name or password", wrong_credentials=True)
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, "sha256"))


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE_BYTES:
        raise ScramError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message that is not UTF-8") from None


def _name(written: str) -> str:
    """Decode a saslname: `=2C` and `=3D` are unescaped, and the result is prepared (RFC 4013)."""
    if any(found.group(1) is None for found in _ESCAPE.finditer(written)):
        raise ScramError("the user name is malformed")
    try:
        name = saslprep(written.replace("=2C", ",").replace("=3D", "="))
    except ValueError:
        raise ScramError("the user name has characters that are not allowed", wrong_credentials=True) from None
    if not name:
        raise ScramError("the user name is empty", wrong_credentials=True)
    return name


def _decoded(text: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("base64 is expected") from None
    if base64.b64encode(decoded).decode() != text:
        raise ScramError("base64 is expected, in its one form")  # the last digit may hold bits that mean nothing
    return decoded

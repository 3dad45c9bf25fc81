"""The HTTP request that opens a WebSocket, and its answer: RFC 6455 section 4.

Owns `Upgrade`, which reads one request and makes its answer. Sans-IO. An invalid request gets the right HTTP status and
one line of text, for a person who opens the port with a browser.

Refuses: requests larger than the listener's limit, bodies, HTTP/1.0, and headers that are folded or malformed.
Compression is never agreed on. `X-Forwarded-For` is ignored: any client can send it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""Sub-protocols that are spoken [MQTT-6.0.0-3]; the first in the client's own order is agreed on [MQTT-6.0.0-4]."""

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_METHOD: Final = 8
_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_STATUS: Final = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}

PAGE: Final = "This is an MQTT broker. Connect to it with an MQTT client over WebSocket, sub-protocol mqtt."
"""The page that a browser shows if it opens the port."""


def response(status: int, text: str) -> bytes:
    """Return an answer that ends the connection, with a line of text."""
    more = ""
    if status == 405:
        more = "Allow: GET\r\n"
    elif status == 426:
        more = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    connection = "Upgrade, close" if status == 426 else "close"
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\n{more}Connection: {connection}\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class UpgradeTerms:
    """The requirements of a listener on an upgrade."""

    def __init__(self, path: str, origins: tuple[str, ...], most_bytes: int) -> None:
        """`path`: "" any. `origins`: those that a browser's page may have, as "https://example.org"; empty: any.

        `most_bytes`: of a request, with all of its headers.
        """
        self.path = path
        self.origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self.most_bytes = most_bytes


class Upgrade:
    """One request, read from bytes as they come. After `feed` answered True, see `response` and `status`."""

    def __init__(self, terms: UpgradeTerms) -> None:
        self._terms = terms
        self._held = b""
        # 101: the connection is a WebSocket, and `rest` are the bytes behind the request. Else the status of the answer
        # to the client, and `reason`, a clause for the log. 0: there is no answer yet.
        self.status = 0
        self.reason = ""
        self.response = b""
        self.rest = b""
        # Bytes of a request that is answered.
        self.size = 0

    @property
    def held_size(self) -> int:
        """Bytes of an incomplete request."""
        return len(self._held)

    def feed(self, data: bytes) -> bool:
        """Take more bytes. True when the request is answered."""
        before = len(self._held)
        held = self._held + data
        end = held.find(b"\r\n\r\n", max(0, before - 3), self._terms.most_bytes)
        if end >= 0:
            self._held = b""
            self.size = end + 4
            self.rest = held[self.size :]
            self._request(held[:end])
            return True
        if len(held) >= self._terms.most_bytes:
            self._refuse(431, f"a request larger than {self._terms.most_bytes} bytes")
        elif not _may_be_http(held):
            self._refuse(400, _what_it_is(held))
        else:
            self._held = held
            return False
        self._held = b""
        return True

    def _refuse(self, status: int, reason: str, text: str = "") -> None:
        self.status = status
        self.reason = reason
        self.response = response(status, text or reason[:1].upper() + reason[1:] + ".")

    def _request(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        words = lines[0].split(b" ")
        if len(words) != 3 or words[2] != b"HTTP/1.1" or not _is_token(words[0]):
            self._refuse(400, "not an HTTP/1.1 request")
            return
        headers = _headers(lines[1:])
        if headers is None:
            self._refuse(400, "a malformed HTTP header")
        elif words[0] != b"GET":
            self._refuse(405, "an HTTP method other than GET")
        elif headers.get("transfer-encoding", "") or headers.get("content-length", "0") != "0":
            self._refuse(400, "a request with a body")
        else:
            self._upgrade(words[1].decode("latin-1"), headers)

    def _upgrade(self, target: str, headers: dict[str, str]) -> None:
        """Check the request (section 4.2.1), in the order in which the answers help most."""
        terms = self._terms
        path = target.partition("?")[0]
        origin = headers.get("origin", "")
        offered = _tokens(headers.get("sec-websocket-protocol", ""), lower=False)
        spoken = [name for name in offered if name in SUBPROTOCOLS]
        if terms.path and path.removesuffix("/") != terms.path.removesuffix("/"):
            self._refuse(404, "a request for another path", f"Nothing is here. {PAGE}")
        elif "websocket" not in _tokens(headers.get("upgrade", "")):
            self._refuse(426, "an HTTP request that does not ask for a WebSocket", PAGE)
        elif "upgrade" not in _tokens(headers.get("connection", "")):
            self._refuse(400, "no Connection: Upgrade; a proxy in between has to pass it on")
        elif headers.get("sec-websocket-version", "") != "13":
            self._refuse(426, "a version of WebSocket other than 13")
        elif not _is_key(headers.get("sec-websocket-key", "")):
            self._refuse(400, "no valid Sec-WebSocket-Key")
        elif origin and terms.origins and origin.lower() not in terms.origins:
            self._refuse(403, "an Origin that this listener does not take")
        elif not spoken:
            self._refuse(400, "the sub-protocol mqtt was not offered")
        else:
            self._accept(spoken[0], headers["sec-websocket-key"])

    def _accept(self, subprotocol: str, key: str) -> None:
        self.status = 101
        accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest())
        self.response = (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept.decode()}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
        ).encode()


def _headers(lines: list[bytes]) -> dict[str, str] | None:
    """Return the values by name in lower case; several of one name are joined. None: malformed."""
    headers: dict[str, str] = {}
    for line in lines:
        raw_name, colon, raw_value = line.partition(b":")
        if not colon or not _is_token(raw_name) or b"\n" in raw_value or b"\r" in raw_value or b"\0" in raw_value:
            return None
        name = raw_name.decode("ascii").lower()
        value = raw_value.decode("latin-1").strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _tokens(value: str, *, lower: bool = True) -> list[str]:
    return [token.strip(" \t") for token in (value.lower() if lower else value).split(",")]


def _is_token(name: bytes) -> bool:
    return len(name) > 0 and not name.translate(None, _TOKEN)


def _is_key(key: str) -> bool:
    """Return whether a key is 16 bytes in base64 (section 4.1)."""
    try:
        return len(key) == 24 and len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _may_be_http(held: bytes) -> bool:
    """Return whether a request may begin so: with a method in capitals and a blank."""
    if held.startswith(b"PROXY "):
        return False
    method, blank, _ = held[: _MAX_METHOD + 1].partition(b" ")
    return method.isalpha() and method.isupper() and (blank != b"" or len(held) <= _MAX_METHOD)


def _what_it_is(held: bytes) -> str:
    if held[:2] == b"\x16\x03":
        return "looks like TLS; this listener is plain"
    if held[:1] == b"\x10":
        return "looks like MQTT without WebSocket"
    if held.startswith((b"PROXY ", b"\r\n\r\n\x00\r\n")):
        return "looks like the PROXY protocol; this listener does not take it"
    return "not an HTTP request"

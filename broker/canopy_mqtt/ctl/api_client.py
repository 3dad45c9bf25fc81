"""The HTTP client of the commands for a broker's API: one connection for each request, over TCP, TLS or a Unix socket.

Promises: every foreseen failure is a `CtlError` of one line; no output and no error contains a password or a token.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from canopy_mqtt.files import check_files

BASE: Final = "/api/v5"
NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons when the other side does not speak TLS."""

TIMEOUT: Final = 30.0
"""Seconds that a broker has for each part of an answer."""

PIECE: Final = 65_536

NODE: Final = "Canopy-Node"
MISSING: Final = "Canopy-Missing-Workers"
"""The header that names the workers that have not answered (docs/workers.md)."""


class CtlError(Exception):
    """The broker cannot be reached, or refuses the request."""


class Answer(dict[str, Any]):
    """An object of an answer. A name that it lacks is a `CtlError`: what answers is older or newer, or no broker."""

    def __missing__(self, name: str) -> Any:
        raise CtlError(f"the answer has no {name!r}; is it Canopy, and of this version?")


ESCAPE: Final = "surrogateescape"
"""The error handler by which Python keeps bytes of a command line that are no UTF-8. They are sent as they are."""


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ApiClient:
    def __init__(self, url: str, token: str = "", user: str = "", password: str = "", ca: Path | None = None) -> None:
        """`url`: http://, https:// or http+unix:///PATH. `ca`: the authority (PEM) for an https:// broker.

        Raises:
            CtlError: the URL is malformed, or the file cannot be read.
        """
        self.url = url
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise CtlError(f"{url}: {error}") from None
        if parts.scheme not in ("http", "https", "http+unix"):
            raise CtlError(f"{url}: not http://HOST[:PORT], https://HOST[:PORT] or http+unix:///PATH")
        if not (parts.path if parts.scheme == "http+unix" else parts.hostname):
            raise CtlError(f"{url}: names nothing to connect to")
        if "@" in parts.netloc:
            raise CtlError(f"{parts.scheme}://***: a URL takes no user and no password: see --user")
        self._scheme, self._host, self._path = parts.scheme, parts.hostname or "", parts.path
        self._port = port or (8443 if parts.scheme == "https" else 8080)
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                check_files(ca or "")
                self._context = ssl.create_default_context(cafile=None if ca is None else str(ca))
                if ca is not None:
                    # Its certificates are trusted as they stand: it may be that of the broker, of an authority.
                    self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            except (OSError, ssl.SSLError) as error:
                raise CtlError(f"{ca}: {error}") from None
        self._told: set[str] = set()
        """Nodes that were named."""
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        elif user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(as_bytes(f"{user}:{password}")).decode()

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send a request. Returns the answer, an `Answer`, or None without one. Raises CtlError."""
        data = b"".join(self.pieces(method, path, body, **query))
        if not data and method != "GET":
            return None
        try:
            answer = json.loads(data, object_hook=Answer)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, Answer):
            raise CtlError(f"{self.url}: the answer is not a JSON object; is it Canopy?")
        return answer

    def pieces(self, method: str, path: str, body: Any = None, **query: Any) -> Iterator[bytes]:
        """Yield an answer in pieces. `path` is below the API's; its parts have to be escaped by `named`.

        Raises:
            CtlError: the broker cannot be reached or refuses, or the answer is cut off.
        """
        connection = self._connection()
        try:
            yield from self._exchange(connection, method, path, body, query)
        except TimeoutError:
            raise CtlError(f"{self.url}: no answer within {TIMEOUT:g} s") from None
        except (ConnectionRefusedError, FileNotFoundError):
            raise CtlError(f"{self.url}: no broker listens there. {self._how_to_listen()}") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # Of a host name: the last.
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if isinstance(error, http.client.RemoteDisconnected):
                why = "whoever listens there closed the connection without an answer; is it the address of [http]?"
            elif isinstance(error, http.client.BadStatusLine):
                why = "the answer is not HTTP; is it Canopy?"
            elif isinstance(error, ssl.SSLError) and error.reason in NO_TLS:
                why = "whoever listens there speaks no TLS; is it http://?"
            raise CtlError(f"{self.url}: {why}") from None
        finally:
            connection.close()

    def _how_to_listen(self) -> str:
        wanted = self.url if self._scheme == "http+unix" else f"{self._scheme}://{self._host}:{self._port}"
        return (
            f"Is it running, with HTTP switched on? canopy serve --set http.listen={wanted}, or in its settings: "
            f'[http] listen = ["{wanted}"]. Another address: --url, --config, or CANOPY_URL'
        )

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> Iterator[bytes]:
        asked = {name: value for name, value in query.items() if value is not None}
        target = BASE + path + (f"{'&' if '?' in path else '?'}{urlencode(asked, errors=ESCAPE)}" if asked else "")
        headers = dict(self._headers)
        sent: bytes | None = None
        if body is not None:
            sent = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, target, sent, headers)
        answer = connection.getresponse()
        if answer.status >= 300:
            raise self._refusal(answer)
        if (node := answer.headers.get(NODE)) and node not in self._told:
            self._told.add(node)
            print(f"canopy: of the node {node} alone (the nodes: canopy ctl cluster)", file=sys.stderr)
        if missing := answer.headers.get(MISSING):
            print(f"{missing} does not answer: what it has is missing here", file=sys.stderr)
        if "follow" in path and connection.sock is not None:
            # Nothing may happen for as long as it likes.
            connection.sock.settimeout(None)
        while piece := answer.read1(PIECE):
            yield piece

    def _refusal(self, answer: http.client.HTTPResponse) -> CtlError:
        try:
            known = json.loads(answer.read(PIECE))
            return CtlError(str(known["message"]))
        except (ValueError, KeyError, TypeError):
            return CtlError(f"{self.url}: HTTP {answer.status} {answer.reason}; is it Canopy?")

    def lines(self, method: str, path: str, body: Any = None, **query: Any) -> Iterator[bytes]:
        """Yield an answer line by line, each as soon as it arrives. Raises CtlError."""
        rest = b""
        for piece in self.pieces(method, path, body, **query):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def _connection(self) -> http.client.HTTPConnection:
        if self._scheme == "http+unix":
            return _UnixConnection(self._path)
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)


def named(part: str) -> str:
    """Return a part of a path. %1B is for names that a proxy would take for steps of it: the API leaves one out."""
    return ("%1B" if part in (".", "..") or part.startswith("\x1b") else "") + quote(part, safe="", errors=ESCAPE)


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", ESCAPE)

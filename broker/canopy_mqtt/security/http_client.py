"""The HTTP client of authenticators, with bounds.

Owns one `aiohttp` session for each service. Promises: it reads an answer only up to a number of bytes, and never
decompresses it; it follows no redirect, so that credentials go only to the URL of the settings. A failure is one line
without headers or body.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, Final

import aiohttp

from canopy_mqtt.files import check_files
from canopy_mqtt.security.errors import SecurityError

CHUNK: Final = 16_384
"""Bytes that are taken of an answer at a time."""


class FetchError(Exception):
    """The reason in one line why there is no usable answer."""


def tls_context(ca_file: str = "", cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Make the TLS context for a service: its authority, and the client's certificate. Reads files: never call it in an
    event loop.

    Raises:
        SecurityError: a file cannot be used.
    """
    try:
        check_files(ca_file)
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:
        raise SecurityError(f"{ca_file}: cannot be used as certificates of authorities: {_why(error)}") from None
    if cert_file:
        try:
            check_files(cert_file, key_file)
            # An empty password: one who is asked for it would keep the broker waiting.
            context.load_cert_chain(cert_file, key_file or None, password="")
        except (OSError, ValueError) as error:
            raise SecurityError(f"{cert_file}: cannot be used as a certificate: {_why(error)}") from None
    return context


class HttpClient:
    """A client of one service. It can be made without a running loop; close it in the loop in which it was used."""

    def __init__(
        self,
        timeout: float,
        max_bytes: int,
        tls: ssl.SSLContext | None = None,
        headers: Sequence[str] = (),
        max_connections: int = 2,
    ) -> None:
        """`timeout`: seconds for a whole request; `max_bytes`: the longest answer."""
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._tls = tls
        self._max_connections = max_connections
        self._headers = {"Accept-Encoding": "identity", "Accept": "application/json", "User-Agent": "canopy"}
        for header in headers:
            name, _, text = header.partition(":")
            self._headers[name] = text.strip()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def ask(self, method: str, url: str, body: Any = None) -> tuple[int, bytes]:
        """Send one request, with `body` as JSON. Returns status and content of the answer.

        Raises:
            FetchError: the answer is late or too large, or the service is unreachable.
        """
        if self._closed:
            raise FetchError("it is not asked any more")
        if self._session is None:
            self._session = self._open()
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.request(method, url, json=body, allow_redirects=False) as response,
            ):
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise FetchError("the answer is packed, though that was not asked for")
                content = b""
                while chunk := await response.content.read(CHUNK):
                    content += chunk
                    if len(content) > self._max_bytes:
                        raise FetchError(f"the answer has more than {self._max_bytes} bytes")
                return response.status, content
        except TimeoutError:
            raise FetchError(f"no answer within {self._timeout:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchError(_why(error)) from None

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=self._max_connections, ssl=True if self._tls is None else self._tls)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_line_size=8_190,
            max_field_size=8_190,
        )


def _why(error: Exception) -> str:
    """Describe an error of a library. The texts of `aiohttp` may quote the answer, so only their kind is named."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.os_error.strerror or type(error.os_error).__name__}"
    if isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError):
        return str(error.strerror or type(error).__name__)
    return f"the answer cannot be understood ({type(error).__name__})"

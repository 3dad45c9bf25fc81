"""Shows the broker's page in Home Assistant: passes the requests of its ingress to the broker's Unix socket.

Home Assistant has checked who asks, so that everybody who comes from it is an operator; everybody else is refused. The
broker does not let pages of other sites show its own: here Home Assistant, which has the same origin, may.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector, web
from yarl import URL

FROM: Final = "172.30.32.2"
"""The address of Home Assistant's ingress."""

PORT: Final = 8099
SOCKET: Final = "/run/canopy.sock"

MAX_LINE_BYTES: Final = 262_144
"""Bytes of a request's first line, as many as the broker takes."""

MAX_REQUEST_BYTES: Final = 2_097_152
"""Bytes of a request's body, as many as the broker takes."""

NOT_PASSED_ON: Final = frozenset({
    "connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    # It names Home Assistant, whose session protects from pages of other sites.
    "origin",
})  # fmt: skip
"""Headers that concern one connection only, or are not for the other side."""

BROKER: Final = web.AppKey("broker", ClientSession)


async def pass_on(request: web.Request) -> web.StreamResponse:
    """Answer a request as the broker does."""
    if request.remote != FROM:
        return web.Response(status=403, text="only through Home Assistant\n")
    headers = [each for each in request.headers.items() if each[0].lower() not in NOT_PASSED_ON]
    url = URL(f"http://localhost{request.raw_path}", encoded=True)
    body = await request.read()
    try:
        async with request.app[BROKER].request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in NOT_PASSED_ON - {"content-length"}:
                    response.headers.add(name, value)
            response.headers["X-Frame-Options"] = "SAMEORIGIN"
            policy = answer.headers.get("Content-Security-Policy", "")
            response.headers["Content-Security-Policy"] = policy.replace(
                "frame-ancestors 'none'", "frame-ancestors 'self'"
            )
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                # The visitor may leave in the middle of an answer.
                async for part in answer.content.iter_any():
                    await response.write(part)
            return response
    except ClientError:
        return web.Response(status=502, text="the broker does not answer\n")


async def serve() -> None:
    """Serve until the process is ended."""
    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app.router.add_route("*", "/{path:.*}", pass_on)
    # The page keeps an answer open for as long as it is shown.
    lasting = ClientTimeout(total=None, sock_connect=10.0)
    async with ClientSession(connector=UnixConnector(SOCKET), timeout=lasting, auto_decompress=False) as broker:
        app[BROKER] = broker
        runner = web.AppRunner(app, access_log=None, max_line_size=MAX_LINE_BYTES)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", PORT).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())

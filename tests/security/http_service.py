"""A service over HTTP on a free port of this machine, which notes what it was asked and answers what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """What stands behind the URL. `answer` makes each answer; `asked` is what was posted, `requests` what came."""

    def __init__(self) -> None:
        self.answer: Answer = self._nothing
        self.requests: list[web.BaseRequest] = []
        self.asked: list[Any] = []
        self.open = asyncio.Event()
        """A test clears it to have answers wait."""
        self.open.set()
        self.waiting = 0
        self.most_waiting = 0
        self.url = ""

    def says(self, status: int = 200, body: Any = None, **more: Any) -> None:
        """Answer everything with this from now on; `body` as JSON, unless it is bytes."""

        async def answer(request: web.Request) -> web.StreamResponse:
            del request
            if isinstance(body, bytes) or body is None:
                return web.Response(status=status, body=body, **more)
            return web.json_response(body, status=status, **more)

        self.answer = answer

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        self.requests.append(request)
        if request.can_read_body:
            self.asked.append(await request.json())
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await self.open.wait()
            return await self.answer(request)
        finally:
            self.waiting -= 1

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=500)


@asynccontextmanager
async def service(tls: SSLContext | None = None) -> AsyncIterator[Service]:
    """One that runs until the block is left."""
    made = Service()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"{'https' if tls else 'http'}://{host}:{port}/x"
    try:
        yield made
    finally:
        made.open.set()
        await runner.cleanup()

"""Asks workers over HTTP, each on its own Unix socket in the run folder.

Owns the connections. Whoever asks has been let in by the supervisor: a worker takes what comes on its socket for an
operator's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector, hdrs, web
from yarl import URL

from broker.admin.errors import ApiError
from broker.admin.routing import secured

WORKER = "worker"
"""The parameter of a query that names the worker that is meant."""

PASSED_ON = (hdrs.ACCEPT, hdrs.CONTENT_TYPE)
"""What a worker is told of a request's headers."""

PIECE = 65_536


class Answer(NamedTuple):
    """What a worker has answered."""

    worker: str
    status: int
    body: bytes
    content_type: str

    def json(self) -> Any:
        """The body as plain values."""
        return json.loads(self.body)

    def response(self) -> web.StreamResponse:
        """The same as a response."""
        return secured(web.Response(status=self.status, body=self.body, headers={hdrs.CONTENT_TYPE: self.content_type}))


class Question(NamedTuple):
    """A request that workers are asked, without who asks."""

    method: str
    url: URL
    headers: dict[str, str]
    body: bytes | None

    @classmethod
    async def of(cls, request: web.Request) -> Question:
        """The one that has come in."""
        body = await request.read() if request.can_read_body else None
        headers = {str(name): request.headers[name] for name in PASSED_ON if name in request.headers}
        return cls(request.method, request.rel_url.without_query_params(WORKER), headers, body)

    @classmethod
    def to(cls, path: str) -> Question:
        """One of our own, to look at something."""
        return cls("GET", URL(path), {}, None)


class Workers:
    """The workers that can be asked. To be closed."""

    def __init__(self, paths: dict[str, str], timeout: float) -> None:
        """`paths`: of their sockets, by their names. `timeout` in seconds, for each answer."""
        limits = ClientTimeout(total=timeout)
        self._sessions = {
            name: ClientSession(
                URL("http://worker"), connector=UnixConnector(path), timeout=limits, auto_decompress=False
            )
            for name, path in paths.items()
        }

    async def ask(self, worker: str, question: Question) -> Answer:
        """One worker's answer. Raises ApiError: there is none."""
        method, url, headers, body = question
        try:
            async with self._sessions[worker].request(method, url, headers=headers, data=body) as answer:
                content_type = answer.headers.get(hdrs.CONTENT_TYPE, "")
                return Answer(worker, answer.status, await answer.read(), content_type)
        except (ClientError, OSError, TimeoutError) as error:
            raise _unreachable(worker) from error

    async def ask_all(self, workers: Sequence[str], question: Question) -> list[Answer]:
        """The answers of these, in their order. Raises ApiError: one of them gives none, or there are no workers."""
        if not workers:
            raise ApiError(503, "SERVICE_UNAVAILABLE", "no worker is there")
        return await asyncio.gather(*(self.ask(worker, question) for worker in workers))

    async def pass_on(self, worker: str, request: web.Request) -> web.StreamResponse:
        """One worker's answer to a request, piece by piece as it comes. Raises ApiError: there is none."""
        method, url, headers, body = await Question.of(request)
        endless = ClientTimeout(total=None, sock_connect=self._sessions[worker].timeout.total)
        try:
            async with self._sessions[worker].request(
                method, url, headers=headers, data=body, timeout=endless
            ) as answer:
                response = web.StreamResponse(status=answer.status)
                for name in (hdrs.CONTENT_TYPE, hdrs.CONTENT_DISPOSITION):
                    if name in answer.headers:
                        response.headers[name] = answer.headers[name]
                await secured(response).prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except (ClientError, OSError, TimeoutError) as error:
            raise _unreachable(worker) from error

    async def close(self) -> None:
        """Close the connections."""
        for session in self._sessions.values():
            await session.close()


def _unreachable(worker: str) -> ApiError:
    return ApiError(503, "SERVICE_UNAVAILABLE", f"worker {worker} does not answer")

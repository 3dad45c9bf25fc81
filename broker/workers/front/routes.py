"""What the supervisor serves: the routes of a broker, each answered by the workers that know, and some of its own.

Owns the table of who is asked. Promises: what a broker's own API has is there too; what is not available for all
workers together yet is refused by 501, which says how to ask one of them (`?worker=w0`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from aiohttp import hdrs, web
from prometheus_client import exposition
from prometheus_client.registry import CollectorRegistry
from pydantic import BaseModel

from broker.admin.api.operating import Drained, Reloaded
from broker.admin.api.status import Status
from broker.admin.api.subscriptions import SEPARATOR
from broker.admin.errors import ApiError
from broker.admin.paging import PageQuery
from broker.admin.routes import all_routes, with_document
from broker.admin.routing import BASE, Call, Route, secured
from broker.configuration.reading import SettingsError
from broker.settings import Settings
from broker.workers.front.asking import WORKER, Question, Workers
from broker.workers.front.combining import WorkersCollector, figures, levels, nodes, page
from broker.workers.plan import LINKS

Made: TypeAlias = BaseModel | web.StreamResponse | None
Way: TypeAlias = Callable[[Call, Question], Awaitable[Made]]


class Kept(Protocol):
    """One worker, as its supervisor knows it."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def restarts(self) -> int:
        """How often it was started again after it had ended by itself."""

    @property
    def pid(self) -> int:
        """Its process; 0: there is none that serves."""


class Host(Protocol):
    """The supervisor, as far as its HTTP needs it."""

    log: Any
    read: Callable[[], Settings] | None
    settings: Settings

    @property
    def kept(self) -> Sequence[Kept]:
        """All workers that there should be."""

    @property
    def uptime(self) -> float:
        """Seconds since all served."""

    @property
    def listening(self) -> list[str]:
        """URLs that the workers share."""

    @property
    def stopping(self) -> bool:
        """Whether all end."""

    async def reload(self, new: Settings) -> list[str]:
        """Have all workers take up other settings; a line for each that takes a restart."""

    def restart(self) -> bool:
        """Begin to restart one worker after the other. Whether none was under way."""


class OneWorker(BaseModel):
    """One of the processes that are the broker."""

    name: str
    pid: int | None
    """Null: it is not there, and about to be started."""
    restarts: int
    """How often it was started again after it had ended by itself."""


class WorkerList(BaseModel):
    """All of them."""

    data: list[OneWorker]


class Front:
    """Answers for all workers of one supervisor."""

    def __init__(self, host: Host, workers: Workers) -> None:
        self._host = host
        self._workers = workers
        own: dict[tuple[str, str], Callable[[Call], Awaitable[Made]]] = {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._metrics,
            ("GET", f"{BASE}/status"): self._status,
            ("POST", f"{BASE}/reload"): self._reload,
        }
        ways: dict[tuple[str, str], Way] = {
            ("GET", f"{BASE}/clients"): self._clients,
            ("GET", f"{BASE}/subscriptions"): self._subscriptions,
            ("GET", f"{BASE}/filters"): self._filters,
            ("GET", f"{BASE}/stats"): self._figures,
            ("GET", f"{BASE}/metrics"): self._figures,
            ("GET", f"{BASE}/alarms"): self._alarms,
            ("GET", f"{BASE}/mesh"): self._mesh,
            ("GET", f"{BASE}/drain"): self._drained,
            ("POST", f"{BASE}/drain"): self._drained,
            **dict.fromkeys(OF_ONE, self._whoever_has_it),
            **dict.fromkeys(OF_ALL, self._all),
            **dict.fromkeys(ALIKE, self._any),
            **dict.fromkeys(OF_LINKS, self._links),
        }
        self._own = own
        self._ways = ways

    def routes(self) -> tuple[Route, ...]:
        """All routes."""
        made = [self._route(route) for route in all_routes() if not route.path.endswith("/openapi.json")]
        made += [
            Route("GET", f"{BASE}/workers", self._list, "The processes", answer=WorkerList, tag="workers"),
            Route(
                "POST",
                f"{BASE}/restart",
                self._restart,
                "Restart one worker after the other",
                role="operator",
                status=202,
                tag="workers",
            ),
        ]
        documented = [route for route in all_routes() if (route.method, route.path) in {*self._own, *self._ways}]
        return (*made, self._route(with_document([*documented, *made[-2:]]), as_it_is=True))

    def _route(self, route: Route, as_it_is: bool = False) -> Route:
        """A broker's route, as it is answered here. Workers look at query and body. `as_it_is`: unless a worker is
        named, by its own handler."""
        key = (route.method, route.path)
        own, way = self._own.get(key), self._ways.get(key)
        page = route.path == "/" or route.path.startswith("/page/")
        if as_it_is or page:
            own = route.handler

        async def answer(call: Call) -> Made:
            if route.role == "operator":
                self._host.log.warning(
                    "asked by an operator", method=route.method, path=call.request.path[:256], by=call.who.name
                )
            named = call.request.query.get(WORKER)
            if named is None and route.path == "/":
                return self._page_of_one()
            # The files of the page are the same everywhere.
            if named is not None and not page:
                if named not in self._there():
                    raise ApiError(404, "NOT_FOUND", f"there is no worker {named[:64]!r} now")
                return await self._workers.pass_on(named, call.request)
            if own is not None:
                return await own(call)
            if way is None:
                raise ApiError(501, "NOT_IMPLEMENTED", MISSING)
            return await way(call, await Question.of(call.request))

        return replace(route, handler=answer, query=None, body=None)

    def _there(self) -> list[str]:
        """The workers that can be asked."""
        return [each.name for each in self._host.kept if each.pid]

    # -- of its own ----------------------------------------------------------------------------------------------------

    async def _healthz(self, call: Call) -> Made:
        """200 as long as the supervisor's event loop goes round."""
        del call
        return web.Response(text="ok\n")

    async def _reasons(self) -> tuple[bool, list[str]]:
        """Whether clients can come, and why some workers take none."""
        if self._host.stopping:
            return False, ["the broker is stopping"]
        there = self._there()
        reasons = [f"worker {each.name} is not there" for each in self._host.kept if not each.pid]
        answers = await asyncio.gather(
            *(self._workers.ask(name, Question.to("/readyz")) for name in there), return_exceptions=True
        )
        ready = False
        for name, answer in zip(there, answers, strict=True):
            if isinstance(answer, BaseException):
                reasons.append(f"worker {name} does not answer")
            elif answer.status == 200:
                ready = True
            else:
                reasons += [f"worker {name}: {line}" for line in answer.body.decode().splitlines()]
        return ready, reasons

    def _page_of_one(self) -> Made:
        """The page is about one worker: the first that is there, where none is named."""
        there = self._there()
        if not there:
            raise ApiError(503, "SERVICE_UNAVAILABLE", "no worker is there")
        return secured(web.Response(status=302, headers={hdrs.LOCATION: f"/?{WORKER}={there[0]}"}))

    async def _readyz(self, call: Call) -> Made:
        """200 where clients should come here: one worker takes them; and why others take none."""
        del call
        ready, reasons = await self._reasons()
        return web.Response(text="".join(f"{line}\n" for line in reasons) or "ok\n", status=200 if ready else 503)

    async def _metrics(self, call: Call) -> Made:
        """All figures of all workers, in Prometheus' text format."""
        del call
        answers = await self._workers.ask_all(self._there(), Question.to("/metrics"))
        texts = {answer.worker: answer.body.decode() for answer in answers}
        restarts = {each.name: each.restarts for each in self._host.kept}
        registry = CollectorRegistry(auto_describe=False)
        registry.register(WorkersCollector(texts, restarts))
        return web.Response(
            body=exposition.generate_latest(registry), headers={hdrs.CONTENT_TYPE: exposition.CONTENT_TYPE_PLAIN_0_0_4}
        )

    async def _status(self, call: Call) -> Made:
        """The broker in a few words."""
        del call
        (first, *_) = await self._workers.ask_all(self._there(), Question.to(f"{BASE}/status"))
        ready, reasons = await self._reasons()
        told = Status.model_validate(first.json())
        return told.model_copy(
            update={
                "uptime": int(self._host.uptime),
                "listening": self._host.listening,
                "ready": ready,
                "reasons": reasons,
            }
        )

    async def _reload(self, call: Call) -> Made:
        """Read the settings again, and have all workers take them up."""
        del call
        host = self._host
        try:
            new = host.settings if host.read is None else await asyncio.to_thread(host.read)
            return Reloaded(restart=await host.reload(new))
        except SettingsError as error:
            raise ApiError(400, "BAD_REQUEST", "; ".join(error.problems)) from None

    async def _list(self, call: Call) -> WorkerList:
        """The processes."""
        del call
        return WorkerList(
            data=[OneWorker(name=each.name, pid=each.pid or None, restarts=each.restarts) for each in self._host.kept]
        )

    async def _restart(self, call: Call) -> Made:
        """Begin a rolling restart."""
        self._host.log.warning("asked by an operator", method="POST", path=call.request.path[:256], by=call.who.name)
        if not self._host.restart():
            raise ApiError(409, "CONFLICT", "a rolling restart is under way")
        return secured(web.Response(status=202))

    # -- of the workers ------------------------------------------------------------------------------------------------

    async def _whoever_has_it(self, call: Call, question: Question) -> Made:
        """What one of them has: the first answer that is not 404."""
        del call
        answers = await self._workers.ask_all(self._there(), question)
        return next((each for each in answers if each.status != 404), answers[0]).response()

    async def _all(self, call: Call, question: Question) -> Made:
        """What all have to do: the first answer, or the first that says why not."""
        del call
        answers = await self._workers.ask_all(self._there(), question)
        return next((each for each in answers if each.status >= 400), answers[0]).response()

    async def _any(self, call: Call, question: Question) -> Made:
        """What all have alike, or one does for all."""
        del call
        there = self._there()
        (answer,) = await self._workers.ask_all(there[:1], question)
        return answer.response()

    async def _links(self, call: Call, question: Question) -> Made:
        """What the worker with the links has."""
        del call
        kept = self._host.kept[LINKS]
        if not kept.pid:
            raise ApiError(503, "SERVICE_UNAVAILABLE", f"worker {kept.name}, which has the links, is being started")
        return (await self._workers.ask(kept.name, question)).response()

    async def _clients(self, call: Call, question: Question) -> Made:
        return await self._page(call, question, lambda each: (each["clientid"],))

    async def _subscriptions(self, call: Call, question: Question) -> Made:
        return await self._page(call, question, lambda each: (each["clientid"], each["topic"]))

    async def _filters(self, call: Call, question: Question) -> Made:
        """Levels of topic filters, with the subscriptions of all."""
        answers = await self._workers.ask_all(self._there(), question)
        for answer in answers:
            if answer.status != 200:
                return answer.response()
        limit = int(call.request.query.get("limit", PageQuery().limit))
        return secured(web.json_response(levels([each.json() for each in answers], limit)))

    async def _page(self, call: Call, question: Question, key: Callable[[Mapping[str, Any]], tuple[str, ...]]) -> Made:
        answers = await self._workers.ask_all(self._there(), question)
        for answer in answers:
            if answer.status != 200:
                return answer.response()
        limit = int(call.request.query.get("limit", PageQuery().limit))
        return secured(web.json_response(page([each.json() for each in answers], limit, key, SEPARATOR)))

    async def _figures(self, call: Call, question: Question) -> Made:
        """Figures added up."""
        del call
        answers = await self._workers.ask_all(self._there(), question)
        return secured(web.json_response(figures(each.json() for each in answers)))

    async def _alarms(self, call: Call, question: Question) -> Made:
        """All alarms; each says of which worker."""
        del call
        answers = await self._workers.ask_all(self._there(), question)
        for answer in answers:
            if answer.status != 200:
                return answer.response()
        data = [{**alarm, "worker": answer.worker} for answer in answers for alarm in answer.json()["data"]]
        return secured(web.json_response({"data": data}))

    async def _mesh(self, call: Call, question: Question) -> Made:
        """The mesh of the workers: each node as they see it."""
        del call
        answers = await self._workers.ask_all(self._there(), question)
        for answer in answers:
            if answer.status != 200:
                return answer.response()
        return secured(web.json_response(nodes([each.json() for each in answers])))

    async def _drained(self, call: Call, question: Question) -> Made:
        """How far draining is, of all together."""
        del call
        answers = await self._workers.ask_all(self._there(), question)
        for answer in answers:
            if answer.status != 200:
                return answer.response()
        found = [Drained.model_validate(each.json()) for each in answers]
        return Drained(
            active=any(each.active for each in found),
            moved=sum(each.moved for each in found),
            left=sum(each.left for each in found),
        )


OF_ONE: Final = (
    ("GET", f"{BASE}/clients/{{client_id}}"),
    ("DELETE", f"{BASE}/clients/{{client_id}}"),
    ("GET", f"{BASE}/clients/{{client_id}}/subscriptions"),
    ("DELETE", f"{BASE}/sessions/{{client_id}}"),
)
"""Of a client, which is a client of one worker."""

OF_ALL: Final = (
    ("POST", f"{BASE}/banned"),
    ("DELETE", f"{BASE}/banned/{{as}}/{{who}}"),
    ("PUT", f"{BASE}/log-level"),
    ("DELETE", f"{BASE}/alarms"),
    ("DELETE", f"{BASE}/drain"),
)
"""What every worker has to do."""

ALIKE: Final = (
    ("GET", f"{BASE}/banned"),
    ("GET", f"{BASE}/mqtt/retainer/messages"),
    ("GET", f"{BASE}/mqtt/retainer/message/{{topic}}"),
    ("DELETE", f"{BASE}/mqtt/retainer/message/{{topic}}"),
    ("GET", f"{BASE}/topics"),
    ("POST", f"{BASE}/publish"),
)
"""What all workers have alike, or any of them does for all: what it publishes or clears, the others hear of."""

OF_LINKS: Final = (("GET", f"{BASE}/upstreams"), ("POST", f"{BASE}/upstreams/{{name}}/reset"))
"""Of the links, which one worker has for all."""

MISSING: Final = (
    "this is not available for all workers together: name one, in the query (?worker=w0) or by canopy ctl --worker w0 "
    "(canopy ctl workers lists them)"
)

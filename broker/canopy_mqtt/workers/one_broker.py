"""Answers the requests of `[http]` for all workers: asks those that have a part of the answer, and puts it together.

Each route has a way (`ways`, `inquiries`), or is refused. Promises: a list has the order and the pages of one process,
and holds one page of each worker in memory; what a worker that does not answer would have said is missing, and the
header `MISSING` names that worker; an action that only a part of the workers did is an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from aiohttp import web
from pydantic import BaseModel

from canopy_mqtt.admin.authentication import Caller
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host
from canopy_mqtt.admin.paging import BUILT, PAGE_CHARACTERS, Meta, Page, cursor_of, in_turns, name_of
from canopy_mqtt.admin.routes import all_routes
from canopy_mqtt.admin.routing import AT_ONCE, MISSING, Call, Handled, Handler, Route
from canopy_mqtt.observe.figures.catalogue import Found, read
from canopy_mqtt.workers import placing
from canopy_mqtt.workers.asking import Away, Heard, Siblings
from canopy_mqtt.workers.figures import FiguresOfAll, of_all

AWAY: Final = "AWAY"
"""The code in place of an answer that did not come."""

Json: TypeAlias = dict[str, Any]


class Reply(NamedTuple):
    """The answer of one worker to a request: `body` as JSON, or why there is none."""

    status: int
    body: Any = None
    code: str = ""
    message: str = ""

    def value(self) -> Any:
        """Return the body. Raises ApiError."""
        if self.code:
            raise ApiError(self.status, self.code, self.message)
        return self.body


Way: TypeAlias = Callable[["OneBroker", Route, Call], Awaitable[Handled]]


class OneBroker:
    """The broker that all workers are, as one of them answers for it."""

    def __init__(self, broker: Host, siblings: Siblings, ways: Mapping[Handler, Way]) -> None:
        """`ways`: how each route is answered, by its handler."""
        self._broker = broker
        self._ways = ways
        self._looking = asyncio.Semaphore(AT_ONCE)
        # What is being asked of all, by the question.
        self._shared: dict[str, asyncio.Task[Any]] = {}
        self.siblings = siblings
        self._handlers: dict[tuple[str, str], Handler] = {
            (each.method, each.path): each.handler for each in all_routes()
        }
        siblings.answers["request"] = self._reply
        siblings.answers["figures"] = self._figures

    async def handle(self, route: Route, call: Call) -> Handled:
        """Answer a request. Raises ApiError."""
        way = self._ways.get(route.handler)
        if way is None:
            if route.role != "anyone":
                raise ApiError(501, "NOT_IMPLEMENTED", f"{route.method} {route.path} takes a broker of one process")
            # The page's files, health, and what the API is.
            return await route.handler(call)
        try:
            return await way(self, route, call)
        except Away as away:
            raise ApiError(503, "SERVICE_UNAVAILABLE", f"{away} does not answer") from None

    # -- what this worker answers --------------------------------------------------------------------------------------

    async def _reply(
        self, method: str, path: str, caller: Caller, given: dict[str, str], query: Any, body: Any
    ) -> Reply:
        request: Any = None
        call = Call(self._broker, request, caller, given, query, body)
        try:
            async with self._looking:
                made = await self._handlers[method, path](call)
        except ApiError as error:
            return Reply(error.status, None, error.code, error.message)
        assert made is None or isinstance(made, BaseModel)
        if isinstance(made, Page):
            data = [each.model_dump(mode="json", by_alias=True) async for each in in_turns(made.data, BUILT)]
            return Reply(200, {"data": data, "meta": made.meta.model_dump()})
        return Reply(200, None if made is None else made.model_dump(mode="json", by_alias=True))

    async def _figures(self) -> dict[str, Found]:
        """Return the figures of this worker by name."""
        return {figure.name: found for figure, found in read(self._broker.figures.read(), lambda each: each.exported)}

    # -- what it asks --------------------------------------------------------------------------------------------------

    async def ask(self, name: str, route: Route, call: Call, changed: Json | None = None) -> Reply:
        """Have a worker answer a request. `changed`: fields of its query or body. Raises Away."""
        query, body = (
            part.model_copy(update=changed) if isinstance(part, BaseModel) else part for part in (call.query, call.body)
        )
        found: Reply = await self.siblings.ask(
            name, "request", route.method, route.path, call.caller, call.path, query, body
        )
        return found

    async def health(self) -> Heard:
        """Return why clients should go elsewhere, by worker."""
        heard: Heard = await self._same("not ready", self.siblings.ask_all)
        return heard

    async def figures(self) -> FiguresOfAll:
        """Return the figures of all workers, and who did not answer."""
        found: FiguresOfAll = await self._same("figures", partial(of_all, self.siblings))
        return found

    async def _same(self, what: str, ask: Callable[[str], Coroutine[Any, Any, Any]]) -> Any:
        """Ask all workers. Callers who ask meanwhile get the same answer: health and metrics need no login."""
        asked = self._shared.get(what)
        if asked is None or asked.done():
            asked = self._shared[what] = asyncio.get_running_loop().create_task(ask(what))
        return await asyncio.shield(asked)

    async def replies(self, route: Route, call: Call, but: str = "", changed: Json | None = None) -> dict[str, Reply]:
        """Have all workers, or all but one, answer a request: who does not answer refuses."""
        names = [name for name in self.siblings.names if name != but]
        replies = await asyncio.gather(
            *(self.ask(name, route, call, changed) for name in names), return_exceptions=True
        )
        found: dict[str, Reply] = {}
        for name, reply in zip(names, replies, strict=True):
            if isinstance(reply, Away):
                found[name] = Reply(503, None, AWAY, f"{name} does not answer")
            elif isinstance(reply, BaseException):
                raise reply
            else:
                found[name] = reply
        return found

    async def ask_all(self, route: Route, call: Call, changed: Json | None = None) -> tuple[dict[str, Any], list[str]]:
        """Have all workers answer a request. Returns the bodies by worker, and who did not answer.

        Raises ApiError: one of them refuses it, as all would.
        """
        replies = await self.replies(route, call, "", changed)
        missing = [name for name, reply in replies.items() if reply.code == AWAY]
        return {name: reply.value() for name, reply in replies.items() if name not in missing}, missing


def answered(found: Any, missing: Sequence[str] = (), route: Route | None = None) -> web.Response:
    """Make the response for all workers."""
    headers = {MISSING: ", ".join(missing)} if missing else {}
    if found is None:
        return web.Response(status=204, headers=headers)
    if isinstance(found, BaseModel):
        found = found.model_dump(mode="json", by_alias=True)
    status = 200 if route is None else route.status
    return web.Response(text=json.dumps(found), content_type="application/json", status=status, headers=headers)


# -- who answers -------------------------------------------------------------------------------------------------------


async def here(one: OneBroker, route: Route, call: Call) -> Handled:
    """Answer as any worker would: all have the same."""
    del one
    return await route.handler(call)


async def owner(one: OneBroker, route: Route, call: Call) -> Handled:
    """Have the worker answer that has the client."""
    names = one.siblings.names
    name = names[placing.worker_of(call.path["client_id"].encode("utf-8", "surrogatepass"), len(names))]
    return answered((await one.ask(name, route, call)).value(), (), route)


async def everywhere(one: OneBroker, route: Route, call: Call) -> Handled:
    """Have all do it: this one first, so that what cannot be done is done nowhere."""
    own = one.siblings.name
    body = (await one.ask(own, route, call)).value()
    replies = await one.replies(route, call, but=own)
    undone = [f"{name} ({reply.message})" for name, reply in replies.items() if reply.code]
    if undone:
        done = [name for name in one.siblings.names if name == own or not replies[name].code]
        raise ApiError(503, "PARTLY_DONE", f"done at {', '.join(done)}, and not at {', '.join(undone)}")
    return answered(body, (), route)


async def wherever(one: OneBroker, route: Route, call: Call) -> Handled:
    """Have those do it that have what it is about: who that is, is not known."""
    replies = await one.replies(route, call)
    done = [name for name, reply in replies.items() if not reply.code]
    undone = [reply for reply in replies.values() if reply.code and reply.status != 404]
    if undone and done:
        raise ApiError(503, "PARTLY_DONE", f"done at {', '.join(done)}; elsewhere: {undone[0].message}")
    chosen = replies[done[0]] if done else (undone or list(replies.values()))[0]
    return answered(chosen.value(), (), route)


# -- one answer of those of all ----------------------------------------------------------------------------------------

Merge: TypeAlias = Callable[[dict[str, Json], Call], Any]
"""Makes one body of those of the workers, by their names."""


def merged(merge: Merge, asked: Callable[[Call], Json] = lambda _: {}) -> Way:
    """Return the way of an answer that is made of those of all. `asked`: fields of the question that workers get
    instead."""

    async def way(one: OneBroker, route: Route, call: Call) -> Handled:
        found, missing = await one.ask_all(route, call, asked(call))
        return answered(merge(found, call), missing)

    return way


def combined(parts: Iterable[Json], rules: Mapping[str, Callable[[list[Any]], Any]]) -> Json:
    """Return the first of these objects, with some fields made of those of all."""
    parts = list(parts)
    return parts[0] | {name: rule([part[name] for part in parts]) for name, rule in rules.items()}


def pages(name: Callable[[Json], str]) -> Way:
    """Return the way of a list in the order of `name`, which is also its cursor."""
    return merged(lambda found, call: one_page(found.values(), call.query.limit, name))


def one_page(found: Iterable[Json], limit: int, name: Callable[[Json], str]) -> Json:
    """Return the first entries of all these pages as one."""
    found = list(found)
    # Beyond the last entry of a page that is not the last one, its worker has more.
    ends = [name_of(page["meta"]["cursor"]) for page in found if page["meta"]["hasnext"]]
    end = min(ends, default=None)
    entries = {name(entry): entry for page in found for entry in page["data"]}
    keys = sorted(key for key in entries if end is None or key <= end)
    size = taken = 0
    for key in keys[:limit]:
        size += len(key)
        if taken and size > PAGE_CHARACTERS:
            break
        taken += 1
    more = bool(ends) or taken < len(keys)
    cursor = cursor_of(keys[taken - 1] if taken else str(end)) if more else None
    meta = Meta(limit=limit, hasnext=more, cursor=cursor).model_dump()
    return {"data": [entries[key] for key in keys[:taken]], "meta": meta}

"""Answers what an operator asks about messages, for all workers: the most expensive names, what would happen to a
message, and traces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Final

from canopy_mqtt.admin.api import explain, top, trace
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host
from canopy_mqtt.admin.paging import Meta
from canopy_mqtt.admin.routing import Call, Handled, Handler, Route
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.observe.trace.entries import Entry, TracedConnection
from canopy_mqtt.store.division import name_of
from canopy_mqtt.workers.asking import Away, Siblings
from canopy_mqtt.workers.one_broker import Json, OneBroker, Way, answered, combined, merged, one_page, wherever
from canopy_mqtt.workers.placing import worker_of

# -- the most expensive names ------------------------------------------------------------------------------------------

MAX_LISTED: Final = 4_096
MORE: Final = 4
"""Entries of a list, and times as many as are wanted that each worker names: the first of all may be its fourth."""


def _asked(limit: int) -> int:
    """Return how many entries each worker is asked for where this many are wanted."""
    return min(MAX_LISTED, MORE * limit)


def _top(found: dict[str, Json], call: Call) -> Json:
    limit = call.query.limit
    return one_top(list(found.values()), limit, _asked(limit))


def one_top(parts: list[Json], limit: int, asked: int) -> Json:
    """Return the lists of all workers, of which each has at most `asked` entries, as one. A client is at one."""
    everywhere = parts[0]["of"] in ("topics", "prefixes")
    together = max if parts[0]["by"] == "lag" else sum
    made = combined(parts, {"total": together, "absent": sum if everywhere else max, "gap": max})
    values: dict[str, list[float]] = {}
    for part in parts:
        for entry in part["data"]:
            sums = values.setdefault(entry["name"], [0.0, 0.0, 0.0])
            sums[0] += entry["value"]
            sums[1] += entry["error"]
            sums[2] += entry["deviation"] ** 2
    if everywhere:
        for part in parts:
            listed = {entry["name"] for entry in part["data"]}
            # What is not in a full list may be as much as the last one there.
            most = part["data"][-1]["value"] if len(part["data"]) >= asked else part["absent"]
            for name, sums in values.items():
                if name not in listed:
                    sums[0] += most
                    sums[1] += most
    first = sorted(values.items(), key=lambda each: -each[1][0])[:limit]
    made["data"] = [
        {"name": name, "value": round(value, 3), "error": round(error, 3), "deviation": round(variance**0.5, 3)}
        for name, (value, error, variance) in first
    ]
    return made


# -- what would happen to a message ------------------------------------------------------------------------------------


async def _explain(one: OneBroker, route: Route, call: Call) -> Handled:
    """Answer what the publisher's worker says of the message, and each of its own clients."""
    asked: explain.Asked = call.query
    names = one.siblings.names
    first = one.siblings.name if asked.publisher is None else _of(asked.publisher, names)
    found, missing = await one.ask_all(route, call)
    if first in missing or (asked.client and _of(asked.client, names) in missing):
        raise Away(", ".join(missing))
    made: Json = found[first]
    if made["publisher"]["accepted"]:
        found = {name: part for name, part in found.items() if not asked.client or name == _of(asked.client, names)}
        wanted = await one.siblings.ask_all("wanted by others", _filters(found.values()))
        others = [some for name, some in wanted.found.items() if name in found]
        made |= _receivers(list(found.values()), made["limit"], others)
        made["groups"] = [
            group
            for name, part in found.items()
            for group in part["groups"]
            if asked.client or name == _of(f"$share/{group['name']}/{group['topic_filter']}", names)
        ]
        made["in_turns"] = any(part["in_turns"] for part in found.values())
    return answered(made, missing)


def _of(name: str, workers: list[str]) -> str:
    """Return the worker of a client, or of a share group."""
    return name_of(worker_of(name.encode("utf-8", "surrogatepass"), len(workers)))


def _filters(parts: Iterable[Json]) -> list[str]:
    return sorted({each["topic_filter"] for part in parts for each in part["filters"]})


def _receivers(parts: list[Json], limit: int, wanted: list[dict[str, int]]) -> Json:
    """Return filters and receivers of all. `wanted`: how many of a filter's subscriptions are of other workers."""
    pages = [
        {
            "data": part["receivers"],
            "meta": {"hasnext": part["cursor"] is not None, "cursor": part["cursor"]},
        }
        for part in parts
    ]
    page = one_page(pages, limit, lambda each: str(each["client_id"]))
    filters: dict[str, Json] = {}
    for part in parts:
        for each in part["filters"]:
            known = filters.setdefault(each["topic_filter"], each | {"subscriptions": 0, "groups": 0})
            known["subscriptions"] += each["subscriptions"]
            known["groups"] = max(known["groups"], each["groups"])
    for others in wanted:
        for name, count in others.items():
            if name in filters:
                filters[name]["subscriptions"] -= count
    return {
        "receivers": page["data"],
        "cursor": page["meta"]["cursor"],
        "filters": [each for each in filters.values() if each["subscriptions"] or each["groups"]],
        "more_filters": max(part["more_filters"] for part in parts),
        "more_groups": max(part["more_groups"] for part in parts),
    }


# -- traces ------------------------------------------------------------------------------------------------------------

CHUNK: Final = 256
"""Entries of a trace that a worker hands over at a time."""

PAUSE: Final = 0.5
"""Seconds until new packets of a trace are asked for again."""


def answer_about(broker: Host, siblings: Siblings) -> None:
    """Have this worker answer what the others ask about its filters and traces."""

    async def wanted_by_others(filters: list[str]) -> dict[str, int]:
        """Return how many other workers want each of these filters here."""
        sessions = broker.router.sessions
        nodes = [found for name in siblings.names if (found := sessions.get(NODES + name)) is not None]
        return {each: sum(each in node.subscriptions for node in nodes) for each in filters}

    async def entries(name: str, at: int) -> tuple[list[Entry], bool]:
        """Return some entries from this one on, and whether more will come."""
        known = broker.traces.all.get(name)
        return ([], False) if known is None else (known.entries[at : at + CHUNK], known.running)

    siblings.answers["wanted by others"] = wanted_by_others
    siblings.answers["entries"] = entries


async def _begin(one: OneBroker, route: Route, call: Call) -> Handled:
    """Begin a trace at all workers, or at none."""
    own = one.siblings.name
    known = (await one.ask(own, route, call)).value()
    others = await one.replies(route, call, own, {"name": known["name"]})
    refused = next((reply for reply in others.values() if reply.code), None)
    if refused is not None:
        # One that refuses may have another trace of this name.
        begun = [own, *(name for name, reply in others.items() if not reply.code)]
        made = Call(call.broker, call.request, call.caller, {"name": known["name"]})
        await asyncio.gather(*(one.ask(name, _route(trace.remove), made) for name in begun), return_exceptions=True)
        raise ApiError(refused.status, refused.code, refused.message)
    return answered(one_trace([known, *(reply.body for reply in others.values())]), (), route)


def _route(handler: Handler) -> Route:
    return next(each for each in trace.ROUTES if each.handler is handler)


def one_trace(parts: list[Json]) -> Json:
    """Return a trace of several workers, of which each has its own bounds."""
    running_first = sorted(parts, key=lambda part: bool(part["status"] != "running"))
    sums = dict.fromkeys(("max_bytes", "bytes", "packets"), sum)
    # One that runs has not ended.
    end = {"ended_at": lambda ends: None if None in ends else max(ends)}
    return combined(running_first, {"started_at": min, **end, **sums})


def _every(found: dict[str, Json], _: Call) -> Json:
    traces: dict[str, list[Json]] = {}
    for page in found.values():
        for each in page["data"]:
            traces.setdefault(each["name"], []).append(each)
    data = [one_trace(parts) for parts in traces.values()]
    return {"data": data, "meta": Meta(limit=len(data), hasnext=False).model_dump()}


async def _known(one: OneBroker, call: Call) -> tuple[Json, list[str]]:
    """Return a trace, and who did not answer. Raises ApiError: no worker has it."""
    replies = await one.replies(_route(trace.one), Call(call.broker, call.request, call.caller, call.path))
    parts = [reply.body for reply in replies.values() if not reply.code]
    if not parts:
        next(iter(replies.values())).value()
    return one_trace(parts), [name for name, reply in replies.items() if reply.code and reply.status != 404]


async def _one(one: OneBroker, route: Route, call: Call) -> Handled:
    del route
    return answered(*await _known(one, call))


async def _stop(one: OneBroker, route: Route, call: Call) -> Handled:
    await wherever(one, route, call)
    return answered(*await _known(one, call))


async def _download(one: OneBroker, route: Route, call: Call) -> Handled:
    del route
    known, missing = await _known(one, call)
    found: list[Entry] = []
    async for entries in Packets(one.siblings, known["name"]).so_far():
        found += entries
    found.sort(key=lambda entry: entry.time)
    return await trace.send(call, known["name"], found, missing)


async def _follow(one: OneBroker, route: Route, call: Call) -> Handled:
    del route
    known, _ = await _known(one, call)
    return await trace.send_live(call, Packets(one.siblings, known["name"]).as_they_come(call))


class Packets:
    """The entries of one trace at all workers."""

    def __init__(self, siblings: Siblings, name: str) -> None:
        self._siblings = siblings
        self._name = name
        # How many of each worker were read, who will have more, and who of these did not answer.
        self._read = dict.fromkeys(siblings.names, 0)
        self._open = set(siblings.names)
        self._away: set[str] = set()
        # Connections are numbered by each worker; of one, each chunk has a copy.
        self._connections: dict[int, TracedConnection] = {}

    async def so_far(self) -> AsyncIterator[list[Entry]]:
        """Yield what all have now."""
        for name in self._siblings.names:
            while entries := await self._next(name):
                yield entries

    async def as_they_come(self, call: Call) -> AsyncIterator[list[Entry]]:
        """Yield what all have and get, until the trace has ended everywhere, or its reader has gone."""
        while True:
            running = set(self._open)
            found = [entry for some in await asyncio.gather(*map(self._next, sorted(running))) for entry in some]
            if found:
                yield sorted(found, key=lambda entry: entry.time)
                continue
            transport = call.request.transport
            if self._open <= self._away or transport is None or transport.is_closing():
                return
            await asyncio.sleep(PAUSE)

    async def _next(self, name: str) -> list[Entry]:
        """Return the next entries of a worker; none: it has no more now."""
        try:
            entries, running = await self._siblings.ask(name, "entries", self._name, self._read[name])
        except Away:
            # The worker may come back, as others go on.
            self._away.add(name)
            return []
        self._away.discard(name)
        if not entries and not running:
            self._open.discard(name)
        self._read[name] += len(entries)
        return [self._renumbered(name, entry) for entry in entries]

    def _renumbered(self, name: str, entry: Entry) -> Entry:
        copy, names = entry.connection, self._siblings.names
        number = (copy.number - 1) * len(names) + names.index(name) + 1
        known = self._connections.setdefault(number, replace(copy, number=number))
        known.client_id, known.version = copy.client_id, copy.version
        return replace(entry, connection=known)


WAYS: Final[dict[Handler, Way]] = {
    top.top: merged(_top, lambda call: {"limit": _asked(call.query.limit)}),
    explain.explain: _explain,
    trace.begin: _begin,
    trace.every: merged(_every),
    trace.one: _one,
    trace.stop: _stop,
    trace.remove: wherever,
    trace.download: _download,
    trace.follow: _follow,
}
"""By the handler of the route."""

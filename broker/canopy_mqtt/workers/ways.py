"""Answers each route of `[http]` for all workers. A route that is not here is refused (`one_broker`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web

from canopy_mqtt.admin import events
from canopy_mqtt.admin.api import (
    alarms,
    bans,
    clients,
    cluster,
    messages,
    metrics,
    operations,
    room,
    status,
    subscriptions,
)
from canopy_mqtt.admin.api import topics as retained_topics
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.paging import Meta
from canopy_mqtt.admin.routing import MISSING, Call, Handled, Handler, Route
from canopy_mqtt.observe.figures.figure import Kind
from canopy_mqtt.observe.figures.traffic import COPIED
from canopy_mqtt.workers.asking import SUPERVISOR, Heard
from canopy_mqtt.workers.one_broker import (
    Json,
    OneBroker,
    Way,
    answered,
    combined,
    everywhere,
    here,
    merged,
    owner,
    pages,
    wherever,
)

RELOADING: Final = 25.0
"""Seconds that a reload may take."""

MAX_HOLDERS: Final = 100
"""Accounts of a room that each worker names, of which the largest are those of all."""


def _newest(found: dict[str, Json], call: Call) -> Json:
    """Return a list without pages, the newest first."""
    data = sorted((each for page in found.values() for each in page["data"]), key=lambda each: str(each["last_at"]))
    limit = call.query.limit
    return {"data": data[: -limit - 1 : -1], "meta": Meta(limit=limit, hasnext=False).model_dump()}


# -- health and figures ------------------------------------------------------------------------------------------------


def reasons(heard: Heard) -> list[str]:
    """Return what the workers say of why clients should go elsewhere as that of one broker."""
    lines = [f"{name} does not answer" for name in heard.missing]
    said: dict[str, list[str]] = {}
    for name, some in heard.found.items():
        for line in some:
            said.setdefault(line, []).append(name)
    whole = len(heard.found) + len(heard.missing)
    return lines + [line if len(names) == whole else f"{', '.join(names)}: {line}" for line, names in said.items()]


async def _readyz(one: OneBroker, route: Route, call: Call) -> Handled:
    del route, call
    lines = reasons(await one.health())
    return web.Response(text="".join(f"{line}\n" for line in lines) or "ok\n", status=503 if lines else 200)


async def _status(one: OneBroker, route: Route, call: Call) -> Handled:
    found, missing = await one.ask_all(route, call)
    lines = reasons(Heard({name: each["reasons"] for name, each in found.items()}, missing))
    made: Json = dict(found[one.siblings.name])
    made["name"] = made["name"].removesuffix(f"-{one.siblings.name}")
    made["uptime"] = max(each["uptime"] for each in found.values())
    return answered(made | {"ready": not lines, "reasons": lines}, missing)


async def _metrics(one: OneBroker, route: Route, call: Call) -> Handled:
    del route
    figures, missing = await one.figures()
    made = metrics.as_text(figures, call.request.headers.get(hdrs.ACCEPT, ""))
    if missing:
        made.headers[MISSING] = ", ".join(missing)
    return made


def _json_of(kinds: tuple[Kind, ...]) -> Way:
    async def way(one: OneBroker, route: Route, call: Call) -> Handled:
        del route, call
        figures, missing = await one.figures()
        return answered(metrics.as_figures(figures, kinds), missing)

    return way


# -- lists and totals --------------------------------------------------------------------------------------------------


def _alarms(found: dict[str, Json], call: Call) -> Json:
    alarms_by_worker = {name: some["data"] for name, some in found.items()}
    if call.query.activated:
        data = raised(alarms_by_worker, "activate_at")
    else:
        data = [_of_worker(name, each) for name, some in alarms_by_worker.items() for each in some]
        data.sort(key=lambda each: str(each["deactivate_at"]), reverse=True)
    return {"data": data}


def raised(found: Mapping[str, list[Json]], since: str) -> list[Json]:
    """Return the raised alarms of the workers, the oldest first: what all raise is one alarm. `since`: its field."""
    same: dict[tuple[str, str], dict[str, Json]] = {}
    for name, some in found.items():
        for each in some:
            same.setdefault((each["name"], each["message"]), {})[name] = each
    made = [
        first if len(those) == len(found) else _of_worker(", ".join(those), first)
        for those in same.values()
        for first in [min(those.values(), key=lambda each: each[since])]
    ]
    return sorted(made, key=lambda each: each[since])


def _of_worker(name: str, alarm: Json) -> Json:
    return alarm | {"message": f"{name}: {alarm['message']}"}


def _rooms(found: dict[str, Json], call: Call) -> Json:
    rooms = zip(*(answer["data"] for answer in found.values()), strict=True)
    return {"data": [_one_room(list(each), call.query.limit) for each in rooms]}


def _one_room(parts: list[Json], limit: int) -> Json:
    """Return a room of all workers. An account that has something at several of them counts at each."""
    if parts[0]["room"] in COPIED:
        most = max(parts, key=lambda each: int(each["held"]))
        return most | {"largest": most["largest"][:limit]}
    made = combined(parts, dict.fromkeys(("held", "bound", "accounts", "refused", "gave_way"), sum))
    made["share"] = made["bound"] // max(1, made["accounts"])
    held: dict[str, int] = {}
    for each in parts:
        for holder in each["largest"]:
            held[holder["account"]] = held.get(holder["account"], 0) + holder["held"]
    largest = sorted(held.items(), key=lambda each: -each[1])[:limit]
    return made | {"largest": [{"account": account, "held": some} for account, some in largest]}


# -- operating ---------------------------------------------------------------------------------------------------------


_drained: Final = merged(lambda found, _: combined(found.values(), {"active": any, "moved": sum, "left": sum}))


async def _drain(one: OneBroker, route: Route, call: Call) -> Handled:
    await everywhere(one, route, call)
    progress = next(each for each in operations.ROUTES if each.handler is operations.drained)
    return await _drained(one, progress, Call(call.broker, call.request, call.caller, {}))


async def _reload(one: OneBroker, route: Route, call: Call) -> Handled:
    del route, call
    problems, lines = await one.siblings.ask(SUPERVISOR, "reload", patience=RELOADING)
    if problems:
        raise ApiError(400, "BAD_REQUEST", "; ".join(problems))
    return answered({"restart": lines})


async def _cluster(one: OneBroker, route: Route, call: Call) -> Handled:
    """Refuse: workers are nodes to each other, and one broker to an operator."""
    del one, route, call
    raise ApiError(404, "NOT_FOUND", "this broker is no node of a cluster")


def _listed(found: dict[str, Json], _: Call) -> Json:
    return {"data": [each for some in found.values() for each in some["data"]]}


WAYS: Final[dict[Handler, Way]] = {
    # Its feed is of all workers (`feed`).
    events.events: here,
    status.readyz: _readyz,
    status.status: _status,
    metrics.metrics: _metrics,
    metrics.stats: _json_of(metrics.GAUGES),
    metrics.counters: _json_of(metrics.COUNTERS),
    clients.clients: pages(lambda each: str(each["clientid"])),
    clients.client: owner,
    clients.kick: owner,
    clients.client_subscriptions: owner,
    clients.end_session: owner,
    clients.losers: merged(_newest),
    clients.refused: merged(_newest),
    subscriptions.subscriptions: pages(lambda each: f"{each['clientid']}{subscriptions.SEPARATOR}{each['topic']}"),
    # Each worker has all that is retained, and routes what is published to the others.
    messages.retained: here,
    messages.one_retained: here,
    messages.clear: here,
    messages.publish: here,
    retained_topics.topics: here,
    # They hold at all workers (`shared_bans`).
    bans.bans: here,
    bans.ban: here,
    bans.lift: here,
    alarms.alarms: merged(_alarms),
    alarms.forget: everywhere,
    room.room: merged(_rooms, lambda _: {"limit": MAX_HOLDERS}),
    operations.reload: _reload,
    operations.log_level: everywhere,
    operations.drain: _drain,
    operations.drained: _drained,
    operations.undrain: everywhere,
    operations.upstreams: merged(_listed),
    cluster.cluster: _cluster,
    # No store of a worker is shared.
    cluster.session: here,
    cluster.sessions: here,
    operations.reset: wherever,
}
"""By the handler of the route."""

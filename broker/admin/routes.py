"""Everything that is served: the routes of all modules of `api`, and the document about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from aiohttp import web

from broker.admin import events, page
from broker.admin.api import (
    alarms,
    bans,
    clients,
    explain,
    messages,
    metrics,
    operating,
    recent,
    room,
    status,
    subscriptions,
    top,
    topics,
    trace,
)
from broker.admin.openapi import document
from broker.admin.routing import BASE, Call, Route

MODULES = (
    alarms,
    bans,
    clients,
    explain,
    messages,
    metrics,
    operating,
    recent,
    room,
    status,
    subscriptions,
    top,
    topics,
    trace,
    events,
    page,
)


@cache
def all_routes() -> tuple[Route, ...]:
    """In the order in which paths are tried."""
    routes = [route for module in MODULES for route in module.ROUTES]
    return (*routes, with_document(routes))


def with_document(routes: Sequence[Route]) -> Route:
    """The route of the document about those of these routes that are the API's."""
    made = document(route for route in routes if route.path.startswith(BASE))
    # Once: whoever reaches the port may ask for it, again and again.
    body = json.dumps(made).encode()

    async def openapi(call: Call) -> web.Response:
        """The document."""
        del call
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    return Route("GET", f"{BASE}/openapi.json", openapi, "What the API is", role="anyone")

"""The routes of the broker's health: it runs, and clients should connect to it."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Final

from aiohttp import web
from pydantic import BaseModel

from canopy_mqtt.admin.host import node_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.buildinfo import core_state
from canopy_mqtt.version import __version__

ROUTES: Final = Routes("status")


class Status(BaseModel):
    """Name, version and state of the broker."""

    name: str
    node: str | None
    """Which node of a cluster this is; null: of none."""
    version: str
    core: str
    """`compiled` or `interpreted`."""
    uptime: int
    """Seconds."""
    listening: list[str]
    """URLs, with the actual ports."""
    ready: bool
    reasons: list[str]
    """The reasons why clients should not connect now."""


@ROUTES.add("GET", "/healthz", role="anyone")
async def healthz(call: Call) -> web.Response:
    """200 while the event loop runs: for a supervisor that restarts a broker that hangs."""
    del call
    return web.Response(text="ok\n")


@ROUTES.add("GET", "/readyz", role="anyone")
async def readyz(call: Call) -> web.Response:
    """200 while clients should connect here, otherwise 503 and the reason: for a load balancer."""
    reasons = call.broker.not_ready()
    return web.Response(text="".join(f"{line}\n" for line in reasons) or "ok\n", status=503 if reasons else 200)


@cache
def _core() -> str:
    """Return how the core runs. Reads files: run it in a thread."""
    return core_state()


@ROUTES.add("GET", f"{BASE}/status")
async def status(call: Call) -> Status:
    """Name, version and state of the broker."""
    broker = call.broker
    reasons = broker.not_ready()
    return Status(
        name=broker.router.broker_id,
        node=node_of(broker),
        version=__version__,
        core=await asyncio.to_thread(_core),
        uptime=int(broker.uptime),
        listening=broker.listening,
        ready=not reasons,
        reasons=reasons,
    )

"""The routes that operate a running broker: reload, log level, draining, links."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.links.status import status
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.sections import LogLevel as LogLevelName

ROUTES: Final = Routes("operating")


class Reloaded(BaseModel):
    """The result of a reload."""

    restart: list[str]
    """Changed settings that need a restart, one line each."""


class LogLevel(BaseModel):
    """A log level for a time."""

    model_config = ConfigDict(extra="forbid")

    level: LogLevelName
    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 600.0
    """Seconds after which the level of the settings applies again."""


class Level(BaseModel):
    """The current log level."""

    level: str


class Drain(BaseModel):
    """How to move clients to other brokers."""

    model_config = ConfigDict(extra="forbid")

    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 60.0
    """Seconds over which the broker asks them to leave, evenly."""
    for_good: bool = False
    """True if they should not come back: 0x9D instead of 0x9C."""
    server_reference: Annotated[str, Field(max_length=1_024, pattern=r"^[^\x00]*$")] = ""
    """The servers that 5.0 clients should use, in the format of section 4.11: `host:port host:port`."""


class Drained(BaseModel):
    """The progress of draining."""

    active: bool
    """True while the broker refuses new clients."""
    moved: int
    """Clients that the broker has asked to leave."""
    left: int
    """Current connections of clients."""


class Upstream(BaseModel):
    """A link to an upstream broker; `figures` are those of `$SYS/broker/upstream/<name>/` (docs/federation.md)."""

    name: str
    state: str
    trouble: str
    """The reason why it is down."""
    figures: dict[str, str]


class Upstreams(BaseModel):
    """All links."""

    data: list[Upstream]


@ROUTES.add("POST", f"{BASE}/reload", role="operator")
async def reload(call: Call) -> Reloaded:
    """Reload the settings and all files that they name, like SIGHUP."""
    broker = call.broker
    read = broker.process.read
    try:
        new = broker.settings if read is None else await asyncio.to_thread(read)
        return Reloaded(restart=await broker.reload(new))
    except SettingsError as error:
        raise ApiError(400, "BAD_REQUEST", "; ".join(error.problems)) from None


@ROUTES.add("PUT", f"{BASE}/log-level", role="operator", body=LogLevel)
async def log_level(call: Call) -> Level:
    """Change the log level for a time."""
    body: LogLevel = call.body
    broker = call.broker
    if not broker.process.logs:
        raise ApiError(400, "BAD_REQUEST", "the log is that of the program that the broker is embedded in")
    broker.log.warning("log level changed by an operator", level=body.level, seconds=body.seconds, by=call.caller.name)
    broker.process.log_at(body.level, body.seconds, lambda: broker.settings.log.level)
    return Level(level=body.level)


@ROUTES.add("POST", f"{BASE}/drain", role="operator", body=Drain)
async def drain(call: Call) -> Drained:
    """Accept no new clients, and move connected ones to other brokers. `/readyz` answers 503 until this ends."""
    body: Drain = call.body
    call.broker.draining.start(body.seconds, body.for_good, body.server_reference, call.caller.name)
    return _drained(call)


@ROUTES.add("GET", f"{BASE}/drain")
async def drained(call: Call) -> Drained:
    """The progress of draining."""
    return _drained(call)


@ROUTES.add("DELETE", f"{BASE}/drain", role="operator")
async def undrain(call: Call) -> None:
    """End draining: accept clients again."""
    call.broker.draining.stop()


def _drained(call: Call) -> Drained:
    draining = call.broker.draining
    return Drained(active=draining.active, moved=draining.moved, left=draining.left)


@ROUTES.add("GET", f"{BASE}/upstreams")
async def upstreams(call: Call) -> Upstreams:
    """The links to upstream brokers."""
    return Upstreams(
        data=[
            Upstream(
                name=link.name,
                state=link.state,
                trouble=link.trouble,
                figures={name: str(value) for name, value in status(link)},
            )
            for link in call.broker.figures.upstreams.values()
        ]
    )


@ROUTES.add("POST", f"{BASE}/upstreams/{{name}}/reset", role="operator", status=204)
async def reset(call: Call) -> None:
    """Make a link connect again at once."""
    name = call.path["name"]
    links = call.broker.links
    link = None if links is None else links.links.get(name)
    if link is None:
        raise ApiError(404, "NOT_FOUND", "there is no such link")
    call.broker.log.warning("upstream reset by an operator", upstream=name, by=call.caller.name)
    link.reset()

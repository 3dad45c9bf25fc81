"""The routes of bans: those of operators, and those for guessing passwords.

An operator's ban holds until its time, until it is lifted, or until the broker ends: the store does not keep it. A
banned client is disconnected; its CONNECT gets 0x8A.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from canopy_mqtt.admin.api.clients import moment
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host
from canopy_mqtt.admin.paging import BUILT, TURN, Page, PageQuery, cut, first_names, in_turns, name_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.core.causes import ADMINISTRATIVE_ACTION
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.security.bans import ADDRESS, KINDS, Ban
from canopy_mqtt.security.brute_force import BruteForceGuard

ROUTES: Final = Routes("bans")

BROKER = "guessing"
"""The `by` of bans for guessing passwords."""

TEXT = "banned"


class NewBan(BaseModel):
    """A new ban."""

    model_config = ConfigDict(extra="forbid")

    as_: Annotated[Literal["clientid", "username", "peerhost", "peerhost_net"], Field(alias="as")]
    who: Annotated[str, Field(min_length=1, max_length=65_535)]
    """A client identifier, a user name, an IP address (for IPv6 its /64 is banned), or a network."""
    reason: Annotated[str, Field(max_length=256)] = ""
    until: datetime | None = None
    """The end, with a time zone; null: until the ban is lifted."""


class KnownBan(BaseModel):
    """A current ban."""

    as_: Annotated[str, Field(serialization_alias="as")]
    who: str
    by: str
    """The operator; `guessing`: the broker itself (`security.ban_after`)."""
    reason: str
    at: str | None
    until: str
    """`infinity`: until it is lifted."""


def _known(broker: Host, ban: Ban) -> KnownBan:
    return KnownBan(
        as_=ban.kind,
        who=ban.who,
        by=ban.by,
        reason=ban.reason,
        at=moment(broker, ban.since),
        until=moment(broker, ban.until) if ban.until else "infinity",
    )


def _guessing(broker: Host) -> BruteForceGuard | None:
    return None if broker.securing is None else broker.securing.access.chain.brute_force


def _guessed(broker: Host, key: str, left: float) -> KnownBan:
    return KnownBan(
        as_=ADDRESS,
        who=key.partition(" ")[2],
        by=BROKER,
        reason="wrong passwords",
        at=None,
        until=moment(broker, broker.loop.time() + left),
    )


@ROUTES.add("GET", f"{BASE}/banned", query=PageQuery)
async def bans(call: Call) -> Page[KnownBan]:
    """Current bans, by kind and name."""
    broker, query = call.broker, call.query
    now = broker.loop.time()
    found: dict[str, Callable[[], KnownBan]] = {}
    async for held in in_turns(broker.bans.all(), TURN):
        if held.until == 0.0 or held.until > now:
            found[f"{held.kind}\0{held.who}"] = partial(_known, broker, held)
    guessing = _guessing(broker)
    # Its clock is the process's own.
    async for key, left in in_turns([] if guessing is None else guessing.current(time.monotonic()), TURN):
        found[f"{ADDRESS}\0{key.partition(' ')[2]}\0{BROKER}"] = partial(_guessed, broker, key, left)
    after = name_of(query.cursor) if query.cursor else None
    names, meta = cut(await first_names(found, after, query.limit + 1, lambda _: True), query.limit, str)
    return Page(data=[found[name]() async for name in in_turns(names, BUILT)], meta=meta)


@ROUTES.add("POST", f"{BASE}/banned", role="operator", body=NewBan)
async def ban(call: Call) -> KnownBan:
    """Ban a client, user, address or network, and end its connections."""
    broker, body = call.broker, call.body
    now = broker.loop.time()
    until = 0.0
    if body.until is not None:
        if body.until.tzinfo is None:
            raise ApiError(400, "BAD_REQUEST", "until: a zone is missing, as in 2026-11-23T12:00:00Z")
        until = now + (body.until - datetime.now(UTC)).total_seconds()
        if until <= now:
            raise ApiError(400, "BAD_REQUEST", "until: it is over already")
    made = Ban(body.as_, body.who, until, now, call.caller.name, body.reason)
    broker.bans.max_bans = broker.settings.security.max_bans
    try:
        added = broker.bans.add(made, now)
    except ValueError:
        raise ApiError(400, "BAD_REQUEST", f"who: {body.who} is not an IP address or network") from None
    if not added:
        raise ApiError(409, "QUOTA_EXCEEDED", "there are as many bans as security.max_bans allows, or 1,000 networks")
    broker.router.ban_hook = broker.bans
    broker.log.warning("banned by an operator", kind=body.as_, who=body.who, reason=body.reason, by=call.caller.name)
    async for connection in in_turns(list(broker.connections)):
        protocol = connection.protocol
        if protocol.accepted and connection in broker.connections:
            held = broker.bans.find(protocol.client_id, protocol.user_name, connection.host, now)
            if held is made:
                connection.end(CLOSE, ADMINISTRATIVE_ACTION, reason_codes.ADMINISTRATIVE_ACTION, TEXT)
    return _known(broker, made)


@ROUTES.add("DELETE", f"{BASE}/banned/{{as}}/{{who}}", role="operator")
async def lift(call: Call) -> None:
    """Lift a ban, also one for guessing."""
    broker = call.broker
    kind, who = call.path["as"], call.path["who"]
    if kind not in KINDS:
        raise ApiError(404, "NOT_FOUND", f"there is {', '.join(KINDS)}")
    try:
        there = broker.bans.lift(kind, who)
    except ValueError:
        raise ApiError(400, "BAD_REQUEST", f"{who} is not an IP address or network") from None
    if not broker.bans:
        broker.router.ban_hook = None
    guessing = _guessing(broker)
    if guessing is not None and kind == ADDRESS:
        there = guessing.lift(who) or there
    if not there:
        raise ApiError(404, "NOT_FOUND", "there is no such ban")
    broker.log.warning("ban lifted by an operator", kind=kind, who=who, by=call.caller.name)

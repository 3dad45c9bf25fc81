"""The clients that lost messages last, and those that were refused something last, also after they have left."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from broker.admin.api.clients import moment
from broker.admin.host import Host
from broker.admin.paging import Meta, Page, PageQuery
from broker.admin.routing import BASE, Call, Routes
from broker.net.recent_clients import KEPT, RecentClient, RecentClients

ROUTES: Final = Routes("clients")

MOST: Final = KEPT


class Recent(BaseModel):
    """A client, connected or gone."""

    clientid: str
    """Cut to 512 bytes, as are the other texts."""
    username: str | None
    ip_address: str
    first_at: str
    """When it was first remembered: the counts begin there."""
    last_at: str
    counts: dict[str, int]
    """Messages that it lost, by cause; or what was refused, by action."""
    here: bool
    """Whether it has a session now."""


class RecentRefusal(Recent):
    """A client that was refused something."""

    topic: str
    """Of the last refusal: a topic name, or the filter of a subscription."""
    reason: str
    """What decided: a rule with its file and line, a setting, a plug-in."""


def recent(broker: Host, client: RecentClient) -> Recent:
    """A client as lists show it."""
    return Recent(
        clientid=client.client_id,
        username=client.user_name,
        ip_address=client.address,
        first_at=moment(broker, client.first),
        last_at=moment(broker, client.last),
        counts=dict(client.counts),
        here=client.client_id in broker.router.sessions,
    )


def refusal(broker: Host, client: RecentClient) -> RecentRefusal:
    """A client as the list of refusals shows it."""
    return RecentRefusal(**recent(broker, client).model_dump(), topic=client.topic, reason=client.reason)


def _some(clients: RecentClients, query: PageQuery) -> tuple[list[RecentClient], Meta]:
    found = clients.newest()
    return found[: query.limit], Meta(limit=query.limit, hasnext=False)


@ROUTES.add("GET", f"{BASE}/losers", query=PageQuery)
async def losers(call: Call) -> Page[Recent]:
    """The clients that lost messages last, the newest first."""
    found, meta = _some(call.broker.monitor.losers, call.query)
    return Page(data=[recent(call.broker, each) for each in found], meta=meta)


@ROUTES.add("GET", f"{BASE}/refused", query=PageQuery)
async def refused(call: Call) -> Page[RecentRefusal]:
    """The clients that were refused something last, the newest first."""
    found, meta = _some(call.broker.refusal_log.recent, call.query)
    return Page(data=[refusal(call.broker, each) for each in found], meta=meta)

"""The route of all subscriptions: by client, by topic filter, or those that match a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import Field

from canopy_mqtt.admin.api.clients import Subscription, subscriptions_of
from canopy_mqtt.admin.paging import BUILT, Page, PageQuery, cut, first_names, name_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.core.session.session import Session

ROUTES: Final = Routes("subscriptions")

CLIENTS: Final = 4_000
"""Clients that one walk collects: a page of rare subscriptions costs one walk for each part of the clients."""

SEPARATOR: Final = "\0"
"""Separates client identifier and topic filter in a cursor: neither can contain it [MQTT-1.5.4-2]."""


class SubscriptionQuery(PageQuery):
    """Selects subscriptions."""

    clientid: Annotated[str, Field(max_length=65_535)] | None = None
    topic: Annotated[str, Field(max_length=65_535)] | None = None
    """The exact topic filter, with `$share/name/` if it is shared."""
    share_group: Annotated[str, Field(max_length=65_535)] | None = None
    qos: Annotated[int, Field(ge=0, le=2)] | None = None


@ROUTES.add("GET", f"{BASE}/subscriptions", query=SubscriptionQuery)
async def subscriptions(call: Call) -> Page[Subscription]:
    """Subscriptions, by client identifier and topic filter."""
    query: SubscriptionQuery = call.query
    sessions = call.broker.router.sessions
    client, _, topic = name_of(query.cursor).partition(SEPARATOR) if query.cursor else ("", "", "")
    fits = _Wanted(query, sessions)
    found: list[Subscription] = []
    # The client on which the page before ended comes first: it may have more.
    begun = sessions.get(client) if query.cursor else None
    if begun is not None and fits.client(begun):
        found += await subscriptions_of(begun, topic, query.limit + 1, fits.of(begun))
    after = client if query.cursor else None
    more = True
    while more and len(found) <= query.limit:
        names = await first_names(sessions, after, CLIENTS, fits.name)
        for number, name in enumerate(names, 1):
            if (session := sessions.get(name)) is not None:
                found += await subscriptions_of(session, None, query.limit + 1 - len(found), fits.of(session))
            if len(found) > query.limit:
                break
            if number % BUILT == 0:
                await asyncio.sleep(0)
        more = len(names) == CLIENTS
        after = names[-1] if names else None
    data, meta = cut(found, query.limit, lambda each: f"{each.clientid}{SEPARATOR}{each.topic}")
    return Page(data=data, meta=meta)


class _Wanted:
    """Matches sessions and topic filters against a query."""

    def __init__(self, query: SubscriptionQuery, sessions: dict[str, Session]) -> None:
        self._query = query
        self._sessions = sessions
        self._group = None if query.share_group is None else f"$share/{query.share_group}/"

    def name(self, client_id: str) -> bool:
        session = self._sessions.get(client_id)
        return session is not None and self.client(session)

    def client(self, session: Session) -> bool:
        query = self._query
        if session.upstream or not session.subscriptions or query.clientid not in (None, session.client_id):
            return False
        return query.topic is None or query.topic in session.subscriptions

    def of(self, session: Session) -> Callable[[str], bool]:
        """Return the function that matches one of the session's topic filters against the query."""
        query, group = self._query, self._group

        def wanted(name: str) -> bool:
            found = session.subscriptions.get(name)
            return (
                found is not None
                and query.topic in (None, name)
                and query.qos in (None, found.qos)
                and (group is None or name.startswith(group))
            )

        return wanted

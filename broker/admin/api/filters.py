"""The topic filters that clients subscribe to, as a tree that is opened level by level.

Each page goes over all subscriptions once, in turns, and keeps the levels that come first behind the cursor with what
is counted for them: nothing is remembered between two pages.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from pydantic import BaseModel, Field

from broker.admin.paging import Page, PageQuery, cut, name_of
from broker.admin.routing import BASE, Call, Routes

ROUTES: Final = Routes("subscriptions")

TURN: Final = 1_000
"""Clients, and subscriptions, that are looked at in one turn of the event loop: about a millisecond."""


class FilterLevel(BaseModel):
    """One level of topic filters: a filter with subscriptions, a parent of such filters, or both."""

    level: str
    """The text between two slashes, which may be a wildcard."""
    topic_filter: str
    """The filter from the beginning to this level, without `$share/name/`."""
    subscriptions: int
    """Subscriptions to exactly this filter."""
    shared: int
    """Those of them that are shared."""
    below: int
    """Subscriptions to filters below this level."""


class FilterQuery(PageQuery):
    """The level to list."""

    prefix: Annotated[str, Field(max_length=65_535)] | None = None
    """The parent levels, without a slash at the end; none: the first levels."""


@ROUTES.add("GET", f"{BASE}/filters", query=FilterQuery)
async def filters(call: Call) -> Page[FilterLevel]:
    """The topic filters of subscriptions, level by level: those directly below others, by name."""
    query: FilterQuery = call.query
    # The cursor begins with a character of its own: a level may be empty.
    behind = name_of(query.cursor)[1:] if query.cursor else None
    first = Levels("" if query.prefix is None else f"{query.prefix}/", behind, query.limit + 1)
    sessions = call.broker.router.sessions
    looked_at = 0
    # Copies: the event loop has turns, and clients and subscriptions come and go in them.
    for name in list(sessions):
        session = sessions.get(name)
        looked_at += 1
        if session is not None and not session.own and not session.uplink:
            for subscription in list(session.subscriptions.values()):
                entry = subscription.entry
                if entry is not None:
                    first.see(entry.topic_filter, subscription.group is not None)
                looked_at += 1
                if looked_at % TURN == 0:
                    await asyncio.sleep(0)
        if looked_at % TURN == 0:
            await asyncio.sleep(0)
    data, meta = cut(first.found(), query.limit, lambda each: f"/{each.level}")
    return Page(data=data, meta=meta)


class Levels:
    """Keeps the first `most` levels right below `start`, by name: those behind `after`, if that is given."""

    def __init__(self, start: str, after: str | None, most: int) -> None:
        self._start = start
        self._after = after
        self._most = most
        self._found: dict[str, FilterLevel] = {}
        # What comes behind it is none of the first.
        self._last: str | None = None

    def see(self, topic_filter: str, shared: bool) -> None:
        """Another subscription."""
        start = self._start
        if not topic_filter.startswith(start):
            return
        end = topic_filter.find("/", len(start))
        level = topic_filter[len(start) :] if end < 0 else topic_filter[len(start) : end]
        if (self._after is not None and level <= self._after) or (self._last is not None and level > self._last):
            return
        found = self._found.get(level)
        if found is None:
            found = self._found[level] = FilterLevel(
                level=level, topic_filter=start + level, subscriptions=0, shared=0, below=0
            )
            if len(self._found) >= 2 * self._most:
                self._prune()
        if end < 0:
            found.subscriptions += 1
            found.shared += shared
        else:
            found.below += 1

    def found(self) -> list[FilterLevel]:
        """What they are."""
        return [self._found[name] for name in sorted(self._found)[: self._most]]

    def _prune(self) -> None:
        """Forget those that are not among the first, whatever comes."""
        kept = sorted(self._found)[: self._most]
        self._last = kept[-1]
        self._found = {name: self._found[name] for name in kept}

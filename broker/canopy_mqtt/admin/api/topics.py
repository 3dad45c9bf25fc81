"""The route of topics with retained messages, as a tree that is opened level by level."""

from __future__ import annotations

import asyncio
import heapq
from typing import Annotated, Final, cast

from pydantic import BaseModel, Field

from canopy_mqtt.admin.paging import Page, PageQuery, cut, name_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.topic_tree import TopicNode

ROUTES: Final = Routes("topics")

SEARCHED: Final = 2_000
"""Levels that are compared in one turn of the event loop: about a millisecond."""


class Level(BaseModel):
    """One level of topic names: a topic with a retained message, a parent of such topics, or both."""

    level: str
    """The text between two slashes."""
    topic: str
    """The name from the beginning to this level."""
    retained: bool
    """True if there is a retained message for exactly this topic."""
    size: int
    """Bytes of its payload."""
    below: int
    """The number of levels directly below."""


class TopicQuery(PageQuery):
    """The level to list."""

    prefix: Annotated[str, Field(max_length=65_535)] | None = None
    """The parent topic, without a slash at the end; none: the first levels."""


@ROUTES.add("GET", f"{BASE}/topics", query=TopicQuery)
async def topics(call: Call) -> Page[Level]:
    """The topics with retained messages, level by level: those directly below a topic, by name."""
    query: TopicQuery = call.query
    # The cursor begins with a character of its own: a level may be empty.
    behind = name_of(query.cursor)[1:] if query.cursor else None
    found = await smallest(call.broker.router.retained.below(query.prefix), behind, query.limit + 1)
    start = "" if query.prefix is None else query.prefix + "/"
    nodes, meta = cut(found, query.limit, lambda node: "/" + node.level)
    return Page(data=[_level(node, start) for node in nodes], meta=meta)


async def smallest(nodes: list[TopicNode], behind: str | None, limit: int) -> list[TopicNode]:
    """Return the first `limit` nodes behind a name, in order. The search takes turns."""
    best: list[TopicNode] = []
    for start in range(0, len(nodes), SEARCHED):
        if start:
            await asyncio.sleep(0)
        some = [node for node in nodes[start : start + SEARCHED] if behind is None or node.level > behind]
        # A node that was taken out meanwhile is bare.
        best = heapq.nsmallest(limit, [node for node in (*best, *some) if not node.is_bare()], key=_name)
    return best


def _name(node: TopicNode) -> str:
    return node.level


def _level(node: TopicNode, start: str) -> Level:
    message = cast("Message | None", node.value)
    return Level(
        level=node.level,
        topic=start + node.level,
        retained=message is not None,
        size=0 if message is None else len(message.payload()),
        below=node.child_count(),
    )

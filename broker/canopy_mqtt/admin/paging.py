"""Pages of long lists: `limit` entries, and a cursor at which the next page begins.

A cursor is the name of the last entry of a page. The next page begins behind that name, whatever has come and gone
meanwhile: an entry that exists all the time is on exactly one page.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from pydantic import BaseModel, Field

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host
from canopy_mqtt.core.session.session import Session

Item = TypeVar("Item")

MAX_ENTRIES: Final = 1_000
"""Entries of a page: a thousand clients are 400 kB of JSON."""

BUILT: Final = 100
"""Entries that are made, or written as JSON, in one turn of the event loop: clients, the largest, take 0.8 ms."""

PAGE_CHARACTERS: Final = 1_048_576
"""Characters of the names on a page, beyond the first name: 16 client identifiers or topics of the greatest length."""

TURN: Final = 500
"""Entries that one turn of the event loop visits: about a millisecond."""

MAX_CURSOR_LENGTH: Final = 400_000
"""Characters of a cursor: a client identifier and a topic filter of 65,535 bytes each, and some more."""


class PageQuery(BaseModel):
    """The parameters of every list."""

    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES)] = 100
    """Entries of a page."""
    cursor: Annotated[str, Field(max_length=MAX_CURSOR_LENGTH)] = ""
    """The `cursor` of the page before; empty: the first page."""


class Meta(BaseModel):
    """Describes a page."""

    limit: int
    hasnext: bool
    cursor: str | None = None
    """The cursor of the next page; null: there is none."""
    node: str | None = None
    """The node of a cluster whose own entries alone these are; null: they are those of the broker, or of all nodes."""


class Page(BaseModel, Generic[Item]):
    """Some entries of a list."""

    of_all_nodes: ClassVar[bool] = False
    data: list[Item]
    meta: Meta


class PageOfAll(Page[Item]):
    """Some entries of a list that is the same at all nodes of a cluster."""

    of_all_nodes: ClassVar[bool] = True


def cut(found: list[Item], limit: int, name: Callable[[Item], str]) -> tuple[list[Item], Meta]:
    """Return the first `limit` entries, or fewer if their names exceed `PAGE_CHARACTERS`, and the description of the
    page.

    `found` has one more than `limit` where there are more.
    """
    end = size = 0
    for item in found[:limit]:
        size += len(name(item))
        if end and size > PAGE_CHARACTERS:
            break
        end += 1
    more = end < len(found)
    data = found[:end]
    return data, Meta(limit=limit, hasnext=more, cursor=cursor_of(name(data[-1])) if more else None)


async def as_json(page: Page[Any]) -> bytes:
    parts = [item.model_dump_json(by_alias=True) async for item in in_turns(page.data, BUILT)]
    return f'{{"data":[{",".join(parts)}],"meta":{page.meta.model_dump_json()}}}'.encode()


def cursor_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode("utf-8", "surrogatepass")).decode()


def name_of(cursor: str) -> str:
    """Return the name in a cursor; "": the list's beginning. Raises ApiError."""
    try:
        return base64.b64decode(cursor, b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise ApiError(400, "BAD_REQUEST", "cursor: not one of this list") from None


async def in_turns(items: Iterable[Item], turn: int = TURN) -> AsyncIterator[Item]:
    """Yield all items, with a turn of the event loop after each `turn` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % turn == 0:
            await asyncio.sleep(0)


NAMES: Final = 1_000
"""Names that one turn visits: about half a millisecond."""


class FirstNames:
    """Keeps the first `limit` of the names that it sees, in order: those behind `after`, if that is given."""

    def __init__(self, after: str | None, limit: int) -> None:
        self._after = after
        self._limit = limit
        self._found: list[str] = []
        self._last: str | None = None

    def wants(self, name: str) -> bool:
        return (self._after is None or name > self._after) and (self._last is None or name < self._last)

    def add(self, name: str) -> None:
        """Take another name; the caller passes each once."""
        if self.wants(name):
            found = self._found
            found.append(name)
            if len(found) == 2 * self._limit:
                found.sort()
                del found[self._limit :]
                self._last = found[-1]

    def names(self) -> list[str]:
        return sorted(self._found)[: self._limit]


async def first_names(names: Iterable[str], after: str | None, limit: int, wanted: Callable[[str], bool]) -> list[str]:
    """Return the first `limit` `wanted` names behind `after`, in order. `after` None: from the beginning."""
    first = FirstNames(after, limit)
    # A copy: the event loop has turns, and names come and go in them.
    async for name in in_turns(list(names), NAMES):
        if first.wants(name) and wanted(name):
            first.add(name)
    return first.names()


async def first_sessions(
    broker: Host, query: PageQuery, wanted: Callable[[Session], bool]
) -> tuple[list[Session], Meta]:
    """Return the first `query.limit` `wanted` sessions behind the cursor, and the description of the page. Raises
    ApiError.
    """
    sessions = broker.router.sessions

    def fits(name: str) -> bool:
        session = sessions.get(name)
        return session is not None and not session.internal and wanted(session)

    after = name_of(query.cursor) if query.cursor else None
    found = await first_names(sessions, after, query.limit + 1, fits)
    names, meta = cut(found, query.limit, str)
    # Some may have gone since they were looked at.
    return [each for name in names if (each := sessions.get(name)) is not None], meta

"""Long lists, a page at a time: `limit` entries, and a cursor that says where the next page begins.

A cursor is the name of the last entry of a page. The next page begins behind it, whatever has come and gone meanwhile:
an entry that was there all the time is on one page, and on no two.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, Field

from broker.admin.errors import ApiError
from broker.admin.host import Host
from broker.core.session.session import Session

Item = TypeVar("Item")

MOST: Final = 1_000
"""Entries of a page: a thousand clients are 400 kB of JSON."""

BUILT: Final = 100
"""Entries that are made ready, or written as JSON, in one turn of the event loop: clients, which have most to tell,
take 0.8 ms."""

PAGE_CHARACTERS: Final = 1_048_576
"""Characters of the names on a page, beyond the first: 16 client identifiers or topics of the longest there can be."""

TURN: Final = 500
"""Entries that are looked at in one turn of the event loop: about a millisecond."""

LONGEST_CURSOR: Final = 400_000
"""Characters of a cursor: a client identifier and a topic filter of 65,535 bytes each, and room."""


class PageQuery(BaseModel):
    """What every list takes."""

    limit: Annotated[int, Field(ge=1, le=MOST)] = 100
    """Entries of a page."""
    cursor: Annotated[str, Field(max_length=LONGEST_CURSOR)] = ""
    """The `cursor` of the page before; empty: the first page."""


class Meta(BaseModel):
    """Which page it is."""

    limit: int
    hasnext: bool
    cursor: str | None = None
    """Where the next page begins; null: there is none."""


class Page(BaseModel, Generic[Item]):
    """Some entries of a list."""

    data: list[Item]
    meta: Meta


def cut(found: list[Item], limit: int, name: Callable[[Item], str]) -> tuple[list[Item], Meta]:
    """The first `limit` of the entries, as far as their names take no more than `PAGE_CHARACTERS`, and their page.

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
    """The entry that a cursor stands behind; "": the list's beginning. Raises ApiError."""
    try:
        return base64.b64decode(cursor, b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        raise ApiError(400, "BAD_REQUEST", "cursor: not one of this list") from None


async def in_turns(items: Iterable[Item], turn: int = TURN) -> AsyncIterator[Item]:
    """All of them; the event loop has a turn after each `turn`."""
    for number, item in enumerate(items, 1):
        yield item
        if number % turn == 0:
            await asyncio.sleep(0)


NAMES: Final = 1_000
"""Names that are looked at in one turn: about half a millisecond."""


class First:
    """Keeps the first `most` of the names that it sees, in order: those behind `after`, if that is given."""

    def __init__(self, after: str | None, most: int) -> None:
        self._after = after
        self._most = most
        self._found: list[str] = []
        self._last: str | None = None

    def may_have(self, name: str) -> bool:
        return (self._after is None or name > self._after) and (self._last is None or name < self._last)

    def see(self, name: str) -> None:
        """Another name; none is seen twice."""
        if self.may_have(name):
            found = self._found
            found.append(name)
            if len(found) == 2 * self._most:
                found.sort()
                del found[self._most :]
                self._last = found[-1]

    def names(self) -> list[str]:
        return sorted(self._found)[: self._most]


async def first_names(names: Iterable[str], after: str | None, most: int, wanted: Callable[[str], bool]) -> list[str]:
    """The first `most` names behind `after` that are `wanted`, in order. `after` None: from the beginning."""
    first = First(after, most)
    # A copy: the event loop has turns, and names come and go in them.
    async for name in in_turns(list(names), NAMES):
        if first.may_have(name) and wanted(name):
            first.see(name)
    return first.names()


async def first_sessions(
    broker: Host, query: PageQuery, wanted: Callable[[Session], bool]
) -> tuple[list[Session], Meta]:
    """The first `query.limit` sessions behind the cursor that are `wanted`, and what the page is. Raises ApiError."""
    sessions = broker.router.sessions

    def fits(name: str) -> bool:
        session = sessions.get(name)
        return session is not None and not session.own and wanted(session)

    after = name_of(query.cursor) if query.cursor else None
    found = await first_names(sessions, after, query.limit + 1, fits)
    names, meta = cut(found, query.limit, str)
    # Some may have gone since they were looked at.
    return [each for name in names if (each := sessions.get(name)) is not None], meta

"""What waits on disk alone of sessions that come out of another schema, copied into this broker's before they come.

Owns the transaction in which that is done, over a connection of its own, and the numbers of what it copies. Promises:
nobody sees anything of it before the group in which the sessions come, which ends the transaction (`writing.write`);
what the broker writes meanwhile need not wait for it; a statement copies `COPIED` messages or `COPIED_BYTES` at most,
or one page. Of what is not used nothing is left: the group copies anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.pages import Page
from broker.store.adoptions import in_order
from broker.store.groups.journal import GroupJournal
from broker.store.postgresql.database import Database
from broker.store.postgresql.reading import keep

COPIED: Final = 4_096
COPIED_BYTES: Final = 4_194_304
"""Messages that one statement copies, and the bytes that they count for: some hundred milliseconds."""

ATTEMPTS: Final = 2
"""Times that what waits is copied before a group where the sessions here are others when it is there."""

COPY: Final = (
    "INSERT INTO delivery SELECT $5 - 1 + row_number() OVER (ORDER BY number), $2, NULL, 0, 0, 0, delivery.qos,"
    " delivery.retain, identifiers, share,"
    " CASE WHEN message IS NULL THEN delivery.topic ELSE message.topic END,"
    " CASE WHEN message IS NULL THEN delivery.payload ELSE message.payload END,"
    " CASE WHEN message IS NULL THEN publish_qos ELSE message.qos END,"
    " CASE WHEN message IS NULL THEN publish_retain ELSE message.retain END,"
    " CASE WHEN message IS NULL THEN delivery.properties ELSE message.properties END,"
    " CASE WHEN message IS NULL THEN delivery.publisher ELSE message.publisher END,"
    " CASE WHEN message IS NULL THEN delivery.expires_at ELSE message.expires_at END, size"
    " FROM {0}.delivery LEFT JOIN {0}.message ON message.id = delivery.message"
    " WHERE size IS NOT NULL AND state = 0 AND session = $1 AND number BETWEEN $3 AND $4"
).replace("WHEN message IS NULL", "WHEN delivery.message IS NULL")
"""The session there, the session here, the first and the last number there, and the first number here."""

Range = tuple[int, int, int, int, int]


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


async def copy(connection: Any, source: str, ranges: Iterable[Range]) -> None:
    """Copy pages from another schema, within a transaction."""
    statement = COPY.format(quoted(source))
    for each in ranges:
        await connection.execute(statement, *each)


class Copied:
    """What was copied of one session. `session`: its number here."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.pages = 0
        """Those that have not come yet."""
        # By the first number of a page there: the first number here of what is before it in memory, and how many.
        self.places: dict[int, tuple[int, int]] = {}
        self.sound: bool | None = None
        """Whether it can be used; None: that is not known yet."""


class Copies:
    """What is copied for the sessions that come in one turn."""

    def __init__(self, own: Database, source: Database, journal: GroupJournal) -> None:
        self._database = own.other(own.name)
        self._source = source
        self._journal = journal
        self._copied: dict[int, Copied] = {}
        self._clients: dict[int, str] = {}

    async def make(self, sessions: list[tuple[int, SessionRecord]]) -> None:
        """Copy what these have, by their numbers there. Raises what the database does to us."""
        paged = [(number, record) for number, record in sessions if record.pages]
        for _ in range(ATTEMPTS if paged else 0):
            self.drop()
            ranges = [each for number, record in paged for each in self._expect(number, record)]
            try:
                connection = await self._database.connection()
                await connection.execute("BEGIN")
                for each in ranges:
                    await keep(self._source)
                    async with asyncio.timeout(self._database.timeout):
                        await copy(connection, self._source.name, [each])
            except BaseException:
                self.drop()
                raise
            if all(self._is_sound(number) for number in self._copied):
                return

    def _expect(self, number: int, record: SessionRecord) -> list[Range]:
        """Keep numbers for all that comes before the end of the last page: what is to be copied, in their order."""
        runs = in_order(record.deliveries, record.pages)[:-1]
        count = sum(len(run) + int(page.messages) for run, page in runs if page is not None)
        session, first = self._journal.expect(record.client_id, count)
        copied = self._copied[number] = Copied(session)
        self._clients[number] = record.client_id
        ranges: list[Range] = []
        messages = size = 0
        for run, page in runs:
            assert page is not None
            copied.pages += 1
            copied.places[page.first] = (first, len(run))
            first += len(run)
            messages, size = messages + page.messages, size + page.bytes
            if ranges and not run and messages <= COPIED and size <= COPIED_BYTES:
                ranges[-1] = (*ranges[-1][:3], page.last, ranges[-1][4])
            else:
                ranges.append((number, session, page.first, page.last, first))
                messages, size = page.messages, page.bytes
            first += page.messages
        return ranges

    def _is_sound(self, number: int) -> bool:
        """Whether the session here is, or will be, the one for which it was copied, with nothing on disk behind it."""
        client_id = self._clients[number]
        kept = self._journal.kept.get(client_id)
        expected = self._journal.adoptions.expected.get(client_id)
        if kept is None:
            return expected == self._copied[number].session
        return expected is not None and kept.id == self._copied[number].session

    def of(self, number: int) -> Copied | None:
        """What was copied of a session, which is here by now, where that can be used."""
        copied = self._copied.get(number)
        if copied is None:
            return None
        if copied.sound is None:
            copied.sound = self._is_sound(number)
        return copied if copied.sound else None

    def place(self, number: int, page: Page | None) -> None:
        """The next deliveries get the numbers that were kept for them."""
        notes, copied = self._journal.adoptions, self.of(number)
        notes.place, notes.places = (0, 0) if copied is None or page is None else copied.places[page.first]

    def take(self) -> object:
        """The connection with the transaction, where all of it has come; None: none, or it is rolled back."""
        begun: object = None
        if self._copied and all(each.sound and not each.pages for each in self._copied.values()):
            begun = self._database.detach()
        self.drop()
        return begun

    def drop(self) -> None:
        """What was copied is not used; nothing is expected any more."""
        if self._copied:
            self._database.drop()
        for client_id in self._clients.values():
            self._journal.adoptions.unexpect(client_id)
        self._copied.clear()
        self._clients.clear()

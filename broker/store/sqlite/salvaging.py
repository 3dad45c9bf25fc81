"""Reads the rows of a damaged file without SQLite, which refuses a page as a whole, and often the file.

Owns the reading of pages and cells (https://www.sqlite.org/fileformat.html). Promises: what it finds is what a broker
wrote, in the state of the last transaction: a row counts only if its checksums are right, and a page only if two of
three say that it is in use: the tables' trees, the map of pages (`auto_vacuum` keeps one), and the list of free pages.
So one damaged page costs the rows in it whose own bytes changed, whether it is a leaf, the root of a tree, or the first
page of the file. It changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.store.groups import checksums
from broker.store.groups.group import (
    BROADCAST_COLUMNS,
    DELIVERY_COLUMNS,
    MESSAGE_COLUMNS,
    RETAINED_COLUMNS,
    SESSION_COLUMNS,
    SUBSCRIPTION_COLUMNS,
)
from broker.store.times import Note

PAGE: Final = 4096
"""Bytes of a page, in every store."""

LARGEST_ROW: Final = 1 << 29
"""Bytes of a row at most, with the largest packet."""

DEEPEST: Final = 20
"""Levels of a tree."""

TABLE_LEAF: Final = 0x0D
TABLE_INTERIOR: Final = 0x05
INDEX_LEAF: Final = 0x0A
INDEX_INTERIOR: Final = 0x02

IN_TREE: Final = (1, 5)
"""In the map of pages: of none; a root, or another page of a tree."""

MAPPED: Final = PAGE // 5
"""Pages of which a page of the map tells, which stands before them."""

COLUMNS: Final[dict[int, dict[int, tuple[str, ...]]]] = {
    TABLE_LEAF: {
        SESSION_COLUMNS: ("session",),
        MESSAGE_COLUMNS: ("message",),
        DELIVERY_COLUMNS: ("delivery",),
        RETAINED_COLUMNS: ("retained",),
        BROADCAST_COLUMNS: ("broadcast",),
        2: ("gone_session",),
        3: ("read_back",),
        5: ("clock",),
    },
    INDEX_LEAF: {SUBSCRIPTION_COLUMNS: ("subscription",), 3: ("received", "passed")},
}
"""By kind of page and number of columns: the tables that a row may be of. Its checksum says which it is."""

KEYLESS: Final = frozenset({"retained", "clock"})
"""Tables whose first column is not the number of the row."""


class Row(NamedTuple):
    """A row with its checksums, which are right but for those of a will."""

    table: str
    values: tuple[Any, ...]


class _Cell(NamedTuple):
    start: int
    end: int
    row: Row | None


class Salvage:
    """What can be read of a file and its log, and what cannot."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._data = path.read_bytes()
        self._log = _log(path.with_name(path.name + "-wal"))
        size = len(self._data) // PAGE
        self._pages = max(size, max(self._log, default=0))
        self.lost: dict[str, int] = {}
        """Rows that cannot be read, by table."""
        self._roots = self._find_roots()

    def rows(self) -> Iterator[Row]:
        """All that is whole."""
        tree, free = self._walk(), self._free()
        for number in range(1, self._pages + 1):
            if number == 1 or (number - 2) % (MAPPED + 1) == 0:
                continue
            kind, _ = self._mapped(number)
            if (number in tree) + (kind in IN_TREE) + (number not in free) >= 2:
                yield from self._of_page(number, tree.get(number) or self._table_of(number))

    def page(self, number: int) -> bytes:
        """A page, from 1, as the last transaction left it."""
        found = self._log.get(number)
        return found if found is not None else self._data[(number - 1) * PAGE : number * PAGE]

    # -- which pages are in use ----------------------------------------------------------------------------------------

    def _mapped(self, number: int) -> tuple[int, int]:
        """What the map says of a page: its kind, and the page above it."""
        first = (number - 2) // (MAPPED + 1) * (MAPPED + 1) + 2
        at = 5 * (number - first - 1)
        entry = self.page(first)[at : at + 5]
        return (entry[0], int.from_bytes(entry[1:], "big")) if len(entry) == 5 else (0, 0)

    def _free(self) -> set[int]:
        free: set[int] = set()
        trunk = int.from_bytes(self.page(1)[32:36], "big")
        while 1 < trunk <= self._pages and trunk not in free:
            free.add(trunk)
            page = self.page(trunk)
            count = min(int.from_bytes(page[4:8], "big"), PAGE // 4 - 2)
            free.update(int.from_bytes(page[8 + 4 * at : 12 + 4 * at], "big") for at in range(count))
            trunk = int.from_bytes(page[:4], "big")
        return free

    def _find_roots(self) -> dict[int, str]:
        """By root, what the first table of the file calls a tree; "": an index."""
        roots: dict[int, str] = {}
        for number in self._below(1):
            for cell in self._cells(self.page(number), TABLE_LEAF, _schema, 100 if number == 1 else 0):
                if cell.row is not None:
                    kind, name, _, root, _ = cell.row.values
                    roots[root] = name if kind == "table" else ""
        return roots

    def _walk(self) -> dict[int, str]:
        """The pages that the trees lead to."""
        found: dict[int, str] = {}
        for root, name in self._roots.items():
            for number in self._below(root):
                found.setdefault(number, name)
        return found

    def _below(self, root: int) -> Iterator[int]:
        seen: set[int] = set()
        ahead = [(root, 0)]
        while ahead:
            number, depth = ahead.pop()
            if not 1 <= number <= self._pages or number in seen or depth > DEEPEST:
                continue
            seen.add(number)
            yield number
            page, start = self.page(number), 100 if number == 1 else 0
            if page[start : start + 1] not in (b"\x05", b"\x02"):
                continue
            ahead.append((int.from_bytes(page[start + 8 : start + 12], "big"), depth + 1))
            for at in _pointers(page, start, 12):
                ahead.append((int.from_bytes(page[at : at + 4], "big"), depth + 1))

    def _table_of(self, number: int) -> str | None:
        """The table of a page that no tree leads to, by the pages above it; None: not known."""
        for _ in range(DEEPEST):
            if number in self._roots:
                return self._roots[number]
            kind, number = self._mapped(number)
            if kind not in IN_TREE or not 1 < number <= self._pages:
                break
        return None

    # -- what is in a page ---------------------------------------------------------------------------------------------

    def _of_page(self, number: int, table: str | None) -> Iterator[Row]:
        page = self.page(number)
        if table == "" or (page[0] == TABLE_INTERIOR and table not in ("subscription", "received", "passed")):
            return
        kinds = [page[0]] if page[0] in (TABLE_LEAF, INDEX_LEAF, INDEX_INTERIOR) else []
        best: list[_Cell] = []
        for kind in (*kinds, TABLE_LEAF, INDEX_LEAF, INDEX_INTERIOR):
            cells = self._cells(page, kind, _row)
            if sum(cell.row is not None for cell in cells) > sum(cell.row is not None for cell in best):
                best = cells
            if best:
                break
        rows = [cell.row for cell in best if cell.row is not None]
        there = min(int.from_bytes(page[3:5], "big"), PAGE // 4)
        if rows or table is not None:
            name = rows[0].table if rows else str(table)
            lost = max(there, len(best)) - len(rows)
            if lost > 0 and name in checksums.OF:
                self.lost[name] = self.lost.get(name, 0) + lost
        yield from rows

    def _cells(
        self, page: bytes, kind: int, row_of: Callable[[int, int | None, tuple[Any, ...]], Row | None], start: int = 0
    ) -> list[_Cell]:
        """The cells of a page, taken for one of that kind. Where what it says of itself does not add up, cells are
        looked for in all that is not covered by one."""
        pointers = _pointers(page, start, 12 if kind == INDEX_INTERIOR else 8)
        content = int.from_bytes(page[start + 5 : start + 7], "big")
        if sum(at < content for at in pointers) * 2 > len(pointers):
            content = min(pointers)
        cells = {at: self._cell(page, kind, at, row_of) for at in pointers if at >= content}
        covered = sorted((cell.start, cell.end) for cell in cells.values() if cell.row is not None)
        blocks = _free_blocks(page, start)
        used = sum(end - at for at, end in (*covered, *blocks)) + page[start + 7]
        if used == PAGE - content and len(covered) == int.from_bytes(page[start + 3 : start + 5], "big"):
            return list(cells.values())
        for first, last in _between(sorted((*covered, *blocks)), content):
            at = first
            while at + 4 <= last:
                cell = self._cell(page, kind, at, row_of)
                if cell.row is not None and cell.end <= last:
                    cells[at] = cell
                    at = cell.end
                else:
                    at += 1
        return list(cells.values())

    def _cell(
        self, page: bytes, kind: int, at: int, row_of: Callable[[int, int | None, tuple[Any, ...]], Row | None]
    ) -> _Cell:
        try:
            begin = at
            if kind == INDEX_INTERIOR:
                at += 4
            size, at = _varint(page, at)
            key: int | None = None
            if kind == TABLE_LEAF:
                key, at = _varint(page, at)
            most = PAGE - 35 if kind == TABLE_LEAF else (PAGE - 12) * 64 // 255 - 23
            local = size
            if size > most:
                least = (PAGE - 12) * 32 // 255 - 23
                local = least + (size - least) % (PAGE - 4)
                if local > most:
                    local = least
            end = at + local + (4 if size > most else 0)
            if end > PAGE or size > LARGEST_ROW:
                return _Cell(begin, begin + 4, None)
            data = page[at : at + local]
            if size > most:
                data = self._overflowing(data, int.from_bytes(page[end - 4 : end], "big"), size)
            row = row_of(TABLE_LEAF if kind == TABLE_LEAF else INDEX_LEAF, key, _record(data))
            return _Cell(begin, max(end, begin + 4), row)
        except (IndexError, ValueError, struct.error):
            return _Cell(at, at + 4, None)

    def _overflowing(self, data: bytes, number: int, size: int) -> bytes:
        parts, left = [data], size - len(data)
        while left > 0 and 1 < number <= self._pages:
            page = self.page(number)
            parts.append(page[4 : 4 + min(left, PAGE - 4)])
            left -= PAGE - 4
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)


def _pointers(page: bytes, start: int, head: int) -> list[int]:
    """Where the cells of a page are, as it says."""
    count = min(int.from_bytes(page[start + 3 : start + 5], "big"), PAGE // 4)
    found = (int.from_bytes(page[start + head + 2 * at : start + head + 2 * at + 2], "big") for at in range(count))
    return [at for at in found if start + head <= at < len(page)]


def _free_blocks(page: bytes, start: int) -> list[tuple[int, int]]:
    blocks: list[tuple[int, int]] = []
    at = int.from_bytes(page[start + 1 : start + 3], "big")
    while at and at + 4 <= PAGE and (not blocks or at >= blocks[-1][1]):
        size = int.from_bytes(page[at + 2 : at + 4], "big")
        if size < 4 or at + size > PAGE:
            break
        blocks.append((at, at + size))
        at = int.from_bytes(page[at : at + 2], "big")
    return blocks


def _between(covered: list[tuple[int, int]], first: int) -> Iterator[tuple[int, int]]:
    """What is not covered of a page from `first` on."""
    at = first
    for start, end in covered:
        if start > at:
            yield at, start
        at = max(at, end)
    if at < PAGE:
        yield at, PAGE


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    value = value << 8 | data[at]
    return value - (1 << 64) if value >> 63 else value, at + 1


def _record(data: bytes) -> tuple[Any, ...]:
    """The values of a record. Raises ValueError and IndexError: it is none."""
    end, at = _varint(data, 0)
    kinds: list[int] = []
    while at < end:
        kind, at = _varint(data, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        if kind >= 12:
            length = (kind - 12) // 2
            value: Any = data[at : at + length]
            if len(value) < length:
                raise ValueError("it ends too early")
            values.append(value.decode() if kind % 2 else value)
        elif kind == 0:
            length = 0
            values.append(None)
        elif kind in (8, 9):
            length = 0
            values.append(kind - 8)
        elif kind == 7:
            length = 8
            values.append(struct.unpack(">d", data[at : at + 8])[0])
        else:
            length = (0, 1, 2, 3, 4, 6, 8)[kind]
            values.append(int.from_bytes(data[at : at + length], "big", signed=True))
        at += length
    if at != len(data):
        raise ValueError("it has another length")
    return tuple(values)


def _schema(kind: int, key: int | None, values: tuple[Any, ...]) -> Row | None:
    """A row of the first table of a file, which says what the others are."""
    right = kind == TABLE_LEAF and key is not None and len(values) == 5 and isinstance(values[3], int)
    return Row("sqlite_schema", values) if right else None


def _row(kind: int, key: int | None, values: tuple[Any, ...]) -> Row | None:
    """A row of one of our tables; None: no broker wrote it."""
    for table in COLUMNS[kind].get(len(values), ()):
        found = (key, *values[1:]) if kind == TABLE_LEAF and table not in KEYLESS else values
        if _is_right(table, found):
            return Row(table, found)
    return None


def _is_right(table: str, values: tuple[Any, ...]) -> bool:
    try:
        if table == "gone_session":
            return bool(checksums.of_gone(values[0]) == values[1])
        if table == "read_back":
            return bool(checksums.of_read_back(values[0], values[1]) == values[2])
        if table == "clock":
            return Note.of(values) is not None
        return not checksums.fault(table, values)
    except (TypeError, struct.error):
        return False


def _log(path: Path) -> dict[int, bytes]:
    """The pages in the log of a file, as the last transaction in it left them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    order = {0x377F0682: "<", 0x377F0683: ">"}.get(int.from_bytes(data[:4], "big"))
    if order is None:
        return {}
    sums = _add(order, data[:24], (0, 0))
    pages: dict[int, bytes] = {}
    waiting: dict[int, bytes] = {}
    for at in range(32, len(data) - 24 - PAGE + 1, 24 + PAGE):
        head, page = data[at : at + 24], data[at + 24 : at + 24 + PAGE]
        sums = _add(order, page, _add(order, head[:8], sums))
        if head[8:16] != data[16:24] or struct.unpack(">II", head[16:24]) != sums:
            break
        waiting[int.from_bytes(head[:4], "big")] = page
        if int.from_bytes(head[4:8], "big"):
            pages |= waiting
            waiting = {}
    return pages


def _add(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of the log, continued."""
    first, second = sums
    for one, other in struct.iter_unpack(order + "II", data):
        first = first + one + second & 0xFFFF_FFFF
        second = second + other + first & 0xFFFF_FFFF
    return first, second

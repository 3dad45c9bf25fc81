"""User names and passwords from a file: CSV, a client each line.

Owns: reading such a file. Which client takes which line is the plan's.

Promises: bounded (`MAX_BYTES`, `MAX_ROWS`); a message names the line of what is wrong, and nothing that stands there.
"""

from __future__ import annotations

import csv
from io import StringIO
from typing import Final

from canopy_load.scenario.contents import bounded

MAX_ROWS: Final = 1_000_000

HEADINGS: Final = ("user_name", "username", "user")
"""If the first line begins with one of these, it names the columns and is no user."""

Credentials = tuple[str | None, str | None]
"""User name and password."""


def read(file: str) -> list[Credentials]:
    """The users of a file, `USER_NAME,PASSWORD` each line; without a password, none is sent.

    Raises:
        ValueError: it cannot be read, is too large, or a line is no user; a line for people.
    """
    try:
        lines = StringIO(bounded(file).decode("utf-8-sig"), newline="")
        found = [
            _user(file, number, row)
            for number, row in enumerate(csv.reader(lines), 1)
            if row and not (number == 1 and row[0].strip().lower() in HEADINGS)
        ]
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text (byte {error.start})") from None
    except csv.Error as error:
        raise ValueError(f"{file}: not CSV: {error}") from None
    if not 0 < len(found) <= MAX_ROWS:
        raise ValueError(f"{file}: {len(found):,} users, from 1 to {MAX_ROWS:,} are taken")
    return found


def _user(file: str, number: int, row: list[str]) -> Credentials:
    if len(row) > 2 or not row[0]:
        raise ValueError(f"{file}, line {number}: write USER_NAME,PASSWORD; a comma in one of them stands in quotes")
    return row[0], row[1] if len(row) == 2 else None

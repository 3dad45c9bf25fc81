"""What outlives the broker, and where that is kept."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator

from broker.settings.values import (
    LONGEST_COMMIT_WINDOW,
    LONGEST_TIME,
    CountOrUnlimited,
    SecondsOrOff,
    Section,
    Size,
    SizeOrUnlimited,
    wrong,
)

SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
"""A name that PostgreSQL takes without quotes, and does not change."""

DATABASES: Final = ("postgresql://", "postgres://")
"""How the URL of a database begins."""


def _database(value: str) -> str:
    if not value:
        return value
    form = "postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?sslmode=…]"
    try:
        parts = urlsplit(value)
        options = parse_qs(parts.query, keep_blank_values=True)
    except ValueError:
        raise wrong(form) from None
    if not value.startswith(DATABASES) or any(char.isspace() for char in value) or parts.fragment:
        raise wrong(form)
    if "@" in parts.path or "@" in parts.query:
        raise wrong(f"{form}, with what is special in user and password as %XX")
    if "password" in options or "user" in options:
        raise wrong(f"{form}, with user and password before the host")
    return value


def _schema(value: str) -> str:
    if not SCHEMA.fullmatch(value) or value.startswith("pg_"):
        raise wrong("1 to 63 small letters, digits and _, no digit first, and not pg_ at the beginning")
    return value


class Store(Section):
    """What is kept on disk: sessions with all that waits for them, wills, and retained messages."""

    # An error that repeats what it was given would repeat passwords.
    model_config = ConfigDict(hide_input_in_errors=True)

    path: str = ""
    """The folder of the store; it is made where it is not there. Empty: everything is kept in memory, and ends with the
    process."""
    url: Annotated[str, AfterValidator(_database), Field(repr=False)] = ""
    """The PostgreSQL database of the store, in place of `path`. Needs the extra `postgresql`."""
    name: Annotated[str, AfterValidator(_schema)] = "canopy"
    """The schema in that database which is this broker's alone; it is made where it is not there."""
    lease_timeout: Annotated[float, Field(ge=1, le=LONGEST_TIME, allow_inf_nan=False)] = 15.0
    """Seconds after which another broker may take the schema of one that was killed, or that cannot be heard of."""
    synchronous: Literal["full", "normal", "off"] = "full"
    """What a commit waits for: the disk (`full`), or the system alone, so that a power cut loses the last commits
    (`normal`) or may damage the file (`off`)."""
    commit_window: Annotated[float, Field(ge=0, le=LONGEST_COMMIT_WINDOW, allow_inf_nan=False)] = 0.002
    """Seconds from the first change of a group to its commit. 0: no longer than the present round of the event loop and
    the group before it take."""
    commit_bytes: Size = 4_194_304
    """Bytes of changes at which a group is committed before its window is over, at least 1."""
    on_failure: Literal["hold", "refuse"] = "hold"
    """What happens to QoS 1 and 2 publishes while the disk cannot be written: nobody gets an acknowledgement until it
    can (`hold`), or they are refused (`refuse`)."""
    on_damage: Literal["refuse", "set-aside"] = "refuse"
    """What a start does with a file whose pages are damaged: it ends with a line that says so (`refuse`), or puts the
    file aside under another name, begins with what is whole in it, and raises an alarm (`set-aside`)."""
    memory_messages: CountOrUnlimited = 1_000
    """Messages that wait for one session in memory, about a page; what comes beyond waits on disk alone, and is read
    back in pages as the client takes it. 0 here or in `memory_bytes`: all of it is in memory as well, and the two
    bounds behind that do nothing."""
    memory_bytes: SizeOrUnlimited = 1_048_576
    """The same in bytes, as queues count them."""
    memory_total_bytes: SizeOrUnlimited = 268_435_456
    """Bytes in all queues in memory, beyond which whatever has to wait for a session waits on disk alone. 0: no
    limit."""
    disk_bytes: SizeOrUnlimited = 8_589_934_592
    """Bytes that wait on disk alone, of all sessions, as queues count them: some four times what they take there. 0: no
    limit."""
    stall_timeout: SecondsOrOff = 10.0
    """Seconds that a write may take before the disk counts as one that cannot be written. 0: any, and nothing is
    told."""
    will_grace: Annotated[float, Field(ge=0, le=LONGEST_TIME, allow_inf_nan=False)] = 30.0
    """Seconds that a client has to come back after a start, if it was connected when the broker was killed, before its
    will is published; a longer Will Delay Interval counts instead. 0: the will's own delay alone."""

    @field_validator("url")
    @classmethod
    def _one_place(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("path"):
            raise wrong("only without path")
        return value

    @property
    def kept(self) -> bool:
        """Whether anything outlives the process."""
        return bool(self.path or self.url)

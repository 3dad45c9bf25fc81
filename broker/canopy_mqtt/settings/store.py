"""`[store]`: the state that outlives the broker, and its place."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, ConfigDict, Field

from canopy_mqtt.settings.values import (
    MAX_COMMIT_WINDOW,
    MAX_TIME,
    CountOrUnlimited,
    SecondsOrOff,
    Section,
    Size,
    SizeOrUnlimited,
    only,
    wrong,
)

SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
"""A name that PostgreSQL takes unchanged without quotes."""

DATABASES: Final = ("postgresql://", "postgres://")
"""The schemes of a database's URL."""


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
    """Durable state: sessions with their queues, wills, and retained messages."""

    # An error that repeats what it was given would repeat passwords.
    model_config = ConfigDict(hide_input_in_errors=True)

    path: str = ""
    url: Annotated[str, AfterValidator(_database), Field(repr=False)] = ""
    name: Annotated[str, AfterValidator(_schema)] = "canopy"
    lease_timeout: Annotated[float, Field(ge=1, le=MAX_TIME, allow_inf_nan=False)] = 15.0
    synchronous: Literal["full", "normal", "off"] = "full"
    commit_window: Annotated[float, Field(ge=0, le=MAX_COMMIT_WINDOW, allow_inf_nan=False)] = 0.002
    commit_bytes: Size = 4_194_304
    on_failure: Literal["hold", "refuse"] = "hold"
    on_damage: Literal["refuse", "set-aside"] = "refuse"
    memory_messages: CountOrUnlimited = 1_000
    memory_bytes: SizeOrUnlimited = 1_048_576
    memory_total_bytes: SizeOrUnlimited = 268_435_456
    disk_bytes: SizeOrUnlimited = 8_589_934_592
    stall_timeout: SecondsOrOff = 10.0
    will_grace: Annotated[float, Field(ge=0, le=MAX_TIME, allow_inf_nan=False)] = 30.0

    _one_place = only("only without path", "url", where=lambda given: not given.get("path"))

    @property
    def kept(self) -> bool:
        return bool(self.path or self.url)

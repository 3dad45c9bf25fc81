"""The most expensive topics, prefixes, publishers and subscribers."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.observe.top import By, NoSuchList, Of

ROUTES: Final = Routes("top")


class Wanted(BaseModel):
    """Selects a list."""

    of: Of = "topics"
    by: By = "messages"
    """`drops` and `lag` only for subscribers."""
    window: float | None = None
    """Seconds, 60 or 3600; null: the first of them. Not for subscribers."""
    limit: Annotated[int, Field(ge=1, le=4_096)] = 10


class Placed(BaseModel):
    """One entry of the list."""

    name: str
    """A topic, a prefix as a filter, or a client identifier; names longer than 256 bytes are cut."""
    value: float
    """A rate per second; lag in seconds."""
    error: float
    """The value is at most this much too high."""
    deviation: float
    """The standard deviation due to sampling; 0: every message was counted."""


class Places(BaseModel):
    """A list, the most expensive first."""

    of: Of
    by: By
    seconds: float
    """The period of the values: the fading window, or the time between two passes over the subscribers."""
    total: float
    """The total, including names that are not in the list; for lag, the longest."""
    absent: float
    """The highest possible value of a name that is not in the list."""
    gap: int
    """The bytes in which one message is sampled, with 256 added for each message; 1: every message is counted."""
    data: list[Placed]


@ROUTES.add("GET", f"{BASE}/top", query=Wanted)
async def top(call: Call) -> Places:
    """The most expensive topics and clients."""
    wanted: Wanted = call.query
    try:
        found = call.broker.top.list(wanted.of, wanted.by, wanted.window, wanted.limit)
    except NoSuchList as error:
        raise ApiError(400, "BAD_REQUEST", str(error)) from None
    return Places(
        of=wanted.of,
        by=wanted.by,
        seconds=round(found.seconds, 3),
        total=round(found.total, 3),
        absent=round(found.absent, 3),
        gap=found.gap,
        data=[
            Placed(
                name=place.name,
                value=round(place.value, 3),
                error=round(place.error, 3),
                deviation=round(place.deviation, 3),
            )
            for place in found.places
        ],
    )

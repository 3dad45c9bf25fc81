"""What costs most: topics, prefixes, publishers, subscribers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from broker.admin.errors import ApiError
from broker.admin.routing import BASE, Call, Route
from broker.observe.top import By, NoSuchList, Of


class Wanted(BaseModel):
    """Which list."""

    of: Of = "topics"
    by: By = "messages"
    """`drops` and `lag`: of subscribers alone."""
    window: float | None = None
    """Seconds, one of `top.windows`; null: the first of them. Subscribers have none."""
    limit: Annotated[int, Field(ge=1, le=4_096)] = 10


class Placed(BaseModel):
    """One place of the list."""

    name: str
    """A topic, a prefix as a filter, or a client identifier; longer ones than 256 bytes are cut."""
    value: float
    """A second; lag in seconds."""
    error: float
    """By what the value may be too high."""
    deviation: float
    """Standard deviation that comes of the sampling; 0: nothing was sampled."""


class Places(BaseModel):
    """A list, the heaviest first."""

    of: Of
    by: By
    seconds: float
    """What the values are about: the window, which fades, or the time between two walks over the subscribers."""
    total: float
    """Of all, those that are not in the list among them; of lag, the longest."""
    absent: float
    """What one that is not counted has at most."""
    gap: int
    """Bytes, and 256 for each message, for one that is looked at; 1: all is counted."""
    data: list[Placed]


async def top(call: Call) -> Places:
    """The list that is asked for."""
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


ROUTES = (Route("GET", f"{BASE}/top", top, "What costs most", query=Wanted, answer=Places, tag="top"),)

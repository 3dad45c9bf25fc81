"""The route of room: the used part of each bound, and the users and addresses that hold most."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.observe.room import rooms

ROUTES: Final = Routes("metrics")


class RoomQuery(BaseModel):
    """Bounds the answer."""

    limit: Annotated[int, Field(ge=0, le=100)] = 5
    """Accounts of each room."""


class Holder(BaseModel):
    """An account."""

    account: str
    """`user NAME`, or `address ADDRESS` (for IPv6 its /64)."""
    held: int


class RoomInfo(BaseModel):
    """One room. Bytes, but for `sessions` and `retained-messages`, which are counted."""

    room: str
    setting: str
    """The setting of its bound."""
    held: int
    bound: int
    """0: no bound."""
    accounts: int
    """Users and addresses that hold something."""
    share: int
    """The fair share of an account: what it may always have."""
    refused: int
    """The number of refusals to accounts since the start."""
    gave_way: int
    """The number of times that an account lost something for another, since the start."""
    largest: list[Holder]
    """The accounts that hold most."""


class Rooms(BaseModel):
    """The rooms of all bounds."""

    data: list[RoomInfo]


@ROUTES.add("GET", f"{BASE}/room", query=RoomQuery)
async def room(call: Call) -> Rooms:
    """The used part of each bound, and the accounts that hold most."""
    return Rooms(
        data=[
            RoomInfo(
                room=each.name,
                setting=each.setting,
                held=each.held,
                bound=each.bound,
                accounts=each.accounts,
                share=each.share,
                refused=each.refused,
                gave_way=each.gave_way,
                largest=[Holder(account=name, held=held) for name, held in each.largest],
            )
            for each in rooms(call.broker.router, call.query.limit)
        ]
    )

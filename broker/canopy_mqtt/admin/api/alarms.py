"""The routes of alarms: current and past ones."""

from __future__ import annotations

import datetime
import time
from typing import Final

from pydantic import BaseModel

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.observe.alarms.alarms import Alarm, Alarms

ROUTES: Final = Routes("alarms")


class AlarmQuery(BaseModel):
    """Selects alarms."""

    activated: bool = True
    """true: current alarms; false: past ones, the latest first."""


class AlarmInfo(BaseModel):
    """One alarm."""

    name: str
    """Its kind, and after a `/` its instance."""
    message: str
    value: float
    """The worst value so far."""
    bound: float
    """The threshold at which it is raised."""
    unit: str
    activate_at: str
    deactivate_at: str | None = None
    """Null: it is still raised."""
    duration: int
    """Milliseconds."""


class AlarmList(BaseModel):
    """All alarms: there are few."""

    data: list[AlarmInfo]


def _info(alarm: Alarm) -> AlarmInfo:
    end = time.time() if alarm.until is None else alarm.until
    return AlarmInfo(
        name=alarm.name,
        message=alarm.message,
        value=alarm.value,
        bound=alarm.bound,
        unit=alarm.unit,
        activate_at=_date(alarm.since),
        deactivate_at=None if alarm.until is None else _date(alarm.until),
        duration=round((end - alarm.since) * 1_000),
    )


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def _alarms(call: Call) -> Alarms:
    alarms = call.broker.alarms
    if alarms is None:
        raise ApiError(503, "SERVICE_UNAVAILABLE", "the broker does not run")
    return alarms


@ROUTES.add("GET", f"{BASE}/alarms", query=AlarmQuery)
async def alarms(call: Call) -> AlarmList:
    """Current alarms, or past ones."""
    known = _alarms(call)
    found = list(known.active.values()) if call.query.activated else list(reversed(known.history))
    return AlarmList(data=[_info(alarm) for alarm in found])


@ROUTES.add("DELETE", f"{BASE}/alarms", role="operator")
async def forget(call: Call) -> None:
    """Delete the history of alarms."""
    _alarms(call).history.clear()

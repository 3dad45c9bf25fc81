"""`[alarms]`: when operators are told that something is wrong, and where."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from broker.settings.values import MOST_MESSAGES, SecondsOrOff, Section, web_url

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=MOST_MESSAGES, allow_inf_nan=False)]

URLS: Final = "an http:// or https:// URL without user, password and fragment"


class Alarms(Section):
    """Alarms. A bound of 0: there is no such alarm."""

    interval: SecondsOrOff = 5.0
    """Seconds between two looks. 0: no alarms."""
    raise_after: SecondsOrOff = 10.0
    """Seconds for which a value has to be at its bound or above until the alarm is raised. What does not come and go
    by itself (the store, the recorder, a disk, a certificate) is told at once. Six times as long it has to be below
    0.8 of its bound until the alarm is cleared."""
    loop_lag: SecondsOrOff = 0.2
    """Seconds by which the event loop is late, on average between two looks."""
    room: Share = 0.9
    """The share that is used of a bound on all filters, sessions, retained or waiting messages."""
    disk_used: Share = 0.9
    """The share of the disk that is used where the store or the recorder writes."""
    certificate_days: Annotated[int, Field(ge=0, le=3_650)] = 14
    """Days before a certificate expires: of a listener, of HTTP."""
    upstream_down: SecondsOrOff = 60.0
    """Seconds for which an upstream broker cannot be reached."""
    drop_rate: Rate = 100.0
    """Messages dropped in a second, over all clients, but for those that expired, grew too old, or were replaced."""
    authentication_failures: Rate = 10.0
    """Wrong credentials in a second."""
    history: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Alarms that were cleared and are remembered, and as many that wait to be posted; the oldest are left out."""
    webhook: Annotated[str, AfterValidator(web_url(URLS))] = ""
    """Where alarms are posted as JSON when they are raised and cleared. Empty: nowhere."""
    webhook_timeout: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] = 5.0
    """Seconds for one attempt."""

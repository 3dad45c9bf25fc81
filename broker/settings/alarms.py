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
    raise_after: SecondsOrOff = 10.0
    loop_lag: SecondsOrOff = 0.2
    room: Share = 0.9
    disk_used: Share = 0.9
    certificate_days: Annotated[int, Field(ge=0, le=3_650)] = 14
    upstream_down: SecondsOrOff = 60.0
    drop_rate: Rate = 100.0
    authentication_failures: Rate = 10.0
    history: Annotated[int, Field(ge=1, le=100_000)] = 200
    webhook: Annotated[str, AfterValidator(web_url(URLS))] = ""
    webhook_timeout: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] = 5.0

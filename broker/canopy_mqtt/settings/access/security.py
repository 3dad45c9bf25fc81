"""`[security]`: the settings of all authenticators together: guessing, hashing, client identifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from canopy_mqtt.settings.values import MAX_MESSAGES, CountOrUnlimited, Pattern, Section, networks


class Security(Section):
    """Bounds on authentication, whatever the authenticators."""

    client_ids: Annotated[Sequence[Pattern], AfterValidator(tuple)] = ()
    authentication_timeout: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] = 5.0
    max_authentications: Annotated[int, Field(ge=1, le=MAX_MESSAGES)] = 10_000
    failure_delay: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 1.0
    ban_after: Annotated[int, Field(ge=0, le=1_000)] = 20
    ban_time: Annotated[float, Field(gt=0, le=2_592_000, allow_inf_nan=False)] = 600.0
    ban_exempt: Annotated[Sequence[str], AfterValidator(networks)] = ("127.0.0.0/8", "::1/128")
    max_bans: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    hashing_threads: Annotated[int, Field(ge=1, le=64)] = 2
    max_hashings: Annotated[int, Field(ge=1, le=MAX_MESSAGES)] = 1_000
    max_password_length: Annotated[int, Field(ge=1, le=65_535)] = 1_024
    watch_files: bool = True
    verified_cache: CountOrUnlimited = 100_000

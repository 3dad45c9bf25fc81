"""`[otel]`: traces of messages for OpenTelemetry."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from broker.settings.values import Section, web_url

URLS: Final = "http://HOST[:PORT]/v1/traces or https://…, without a user"


class Otel(Section):
    """Whom messages that carry a trace context are told to."""

    endpoint: Annotated[str, AfterValidator(web_url(URLS))] = ""
    sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.1
    max_rate: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000

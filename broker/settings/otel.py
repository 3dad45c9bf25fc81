"""`[otel]`: traces of messages for OpenTelemetry."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from broker.settings.values import Section, web_url

URLS: Final = "http://HOST[:PORT]/v1/traces or https://…, without a user"


class Otel(Section):
    """Whom messages that carry a trace context are told to."""

    endpoint: Annotated[str, AfterValidator(web_url(URLS))] = ""
    """Where a collector takes spans by OTLP over HTTP, as http://127.0.0.1:4318/v1/traces. Empty: none are made."""
    sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.1
    """The part of the traces, of those that their publisher samples, of which spans are made."""
    max_rate: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000
    """Spans made in one second; the others are counted. Those of four seconds may wait for the collector."""

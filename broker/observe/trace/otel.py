"""Spans for a broker whose settings want them; what makes them is loaded only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.net.listening.listeners import StartupError
from broker.settings import Otel

if TYPE_CHECKING:
    from broker.observe.spans import Spans


def spans(settings: Otel, broker_id: str, log: Any) -> Spans:
    """Who makes spans of messages. Raises StartupError without OpenTelemetry."""
    try:
        from broker.observe.spans import Spans
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise StartupError(
            "otel.endpoint needs opentelemetry: in a clone of Canopy run `make setup` or pip install '.[otel]'"
        ) from error
    return Spans(settings, broker_id, log)

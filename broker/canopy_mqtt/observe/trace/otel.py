"""Makes the spans of a broker whose settings ask for them; the module that exports them is loaded only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Otel

if TYPE_CHECKING:
    from canopy_mqtt.observe.spans import Spans


def spans(settings: Otel, broker_id: str, log: Any) -> Spans:
    """Make the spans of a broker. Raises StartupError without OpenTelemetry."""
    try:
        from canopy_mqtt.observe.spans import Spans
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise StartupError(
            "otel.endpoint needs opentelemetry: in a clone of Canopy run `make setup` or pip install '.[otel]'"
        ) from error
    return Spans(settings, broker_id, log)

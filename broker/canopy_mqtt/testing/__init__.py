"""A broker for the tests of programs that speak MQTT, with faults on command and a clock that the test moves.

pytest finds the fixtures `canopy_broker`, `canopy_broker_factory`, `canopy_session_broker` and `canopy_client` by
itself (`canopy_mqtt.testing.plugin`); other test runners use `RunningBroker` as a context manager. docs/testing.md has
all.

Promises: importing this package imports nothing of the broker. A name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from canopy_mqtt.testing.client import RawClient
    from canopy_mqtt.testing.control import Fault, RunningBroker
    from canopy_mqtt.testing.record import Message

__all__ = ["Fault", "Message", "RawClient", "RunningBroker"]

_HOMES = {
    "Fault": "canopy_mqtt.testing.control",
    "Message": "canopy_mqtt.testing.record",
    "RawClient": "canopy_mqtt.testing.client",
    "RunningBroker": "canopy_mqtt.testing.control",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

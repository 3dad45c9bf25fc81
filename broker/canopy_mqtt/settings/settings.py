"""`Settings`, the class that programs and the loader use.

Owns its keyword arguments, for people and type checkers; each mistake in them is a line of a `SettingsError`. The
sections stand in `root`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.root import AllSettings
from canopy_mqtt.settings.validation import faults

if TYPE_CHECKING:
    from canopy_mqtt.settings.access.authenticator_table import AuthenticatorTable
    from canopy_mqtt.settings.access.rules import Access, Rule
    from canopy_mqtt.settings.access.security import Security
    from canopy_mqtt.settings.brokers.cluster import Cluster
    from canopy_mqtt.settings.brokers.upstream import Federation, Presence, Upstream
    from canopy_mqtt.settings.brokers.workers import Workers
    from canopy_mqtt.settings.http import Http
    from canopy_mqtt.settings.listeners import Listener
    from canopy_mqtt.settings.sections import (
        Alarms,
        Limits,
        Log,
        Mqtt,
        Otel,
        Queue,
        Recorder,
        Retained,
        Routing,
        Session,
        Shutdown,
        Sys,
        Top,
        Tracing,
    )
    from canopy_mqtt.settings.store import Store


class Settings(AllSettings):
    """All settings of one broker.

    Sections are given as mappings: ``Settings(limits={"max_packet_size": 1000})``.

    Raises:
        SettingsError: a value is out of bounds or of the wrong type, or a name is unknown; one line for each.
    """

    if TYPE_CHECKING:
        # What the validation takes: sections and tables may be mappings. A test holds the names against the model.
        def __init__(
            self,
            *,
            listen: Sequence[str] = ...,
            upstream: Sequence[Upstream | Mapping[str, Any]] = ...,
            authenticator: Sequence[AuthenticatorTable | Mapping[str, Any]] = ...,
            listener: Sequence[Listener | Mapping[str, Any]] = ...,
            rule: Sequence[Rule | Mapping[str, Any]] = ...,
            hooks: Sequence[str] = ...,
            limits: Limits | Mapping[str, Any] = ...,
            mqtt: Mqtt | Mapping[str, Any] = ...,
            access: Access | Mapping[str, Any] = ...,
            security: Security | Mapping[str, Any] = ...,
            session: Session | Mapping[str, Any] = ...,
            queue: Queue | Mapping[str, Any] = ...,
            retained: Retained | Mapping[str, Any] = ...,
            store: Store | Mapping[str, Any] = ...,
            routing: Routing | Mapping[str, Any] = ...,
            federation: Federation | Mapping[str, Any] = ...,
            cluster: Cluster | Mapping[str, Any] = ...,
            workers: Workers | Mapping[str, Any] = ...,
            presence: Presence | Mapping[str, Any] = ...,
            sys: Sys | Mapping[str, Any] = ...,
            http: Http | Mapping[str, Any] = ...,
            alarms: Alarms | Mapping[str, Any] = ...,
            top: Top | Mapping[str, Any] = ...,
            tracing: Tracing | Mapping[str, Any] = ...,
            otel: Otel | Mapping[str, Any] = ...,
            recorder: Recorder | Mapping[str, Any] = ...,
            log: Log | Mapping[str, Any] = ...,
            shutdown: Shutdown | Mapping[str, Any] = ...,
        ) -> None: ...

    else:

        def __init__(self, /, **given):  # noqa: ANN003, ANN204
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise SettingsError(faults(given, Settings) or [str(error)]) from None

        # `model_validate` raises the errors of pydantic, for the code that reads files.
        __init__.__pydantic_base_init__ = True

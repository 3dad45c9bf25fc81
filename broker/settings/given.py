"""`Settings`: what programs, and the code that reads files, make of settings.

Owns what a program may pass in, for people and for type checkers, and that each mistake in it is a line of a
`SettingsError`. The settings themselves stand in `root`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from broker.settings.errors import SettingsError
from broker.settings.judging import faults
from broker.settings.root import AllSettings

if TYPE_CHECKING:
    from broker.settings.access.authenticator_table import AuthenticatorTable
    from broker.settings.access.rules import Access, Rule
    from broker.settings.access.security import Security
    from broker.settings.brokers.upstream import Federation, Presence, Upstream
    from broker.settings.http import Http
    from broker.settings.listeners import Listener
    from broker.settings.sections import (
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
    from broker.settings.store import Store


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

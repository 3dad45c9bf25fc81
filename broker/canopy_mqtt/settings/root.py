"""All settings of one broker, and access to each by its full name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from canopy_mqtt.settings.access.authenticators import AuthenticatorList
from canopy_mqtt.settings.access.rules import Access, Rules
from canopy_mqtt.settings.access.security import Security
from canopy_mqtt.settings.brokers.cluster import Cluster
from canopy_mqtt.settings.brokers.upstream import Federation, Presence, Upstream
from canopy_mqtt.settings.brokers.workers import Workers
from canopy_mqtt.settings.http import Http
from canopy_mqtt.settings.listeners import Endpoint, Listener, parse_listen
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
from canopy_mqtt.settings.values import MAX_STORED_NAME, Section, distinct, wrong

PLUGIN: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""A module, and the name of an object in it."""


def _listeners(urls: Sequence[str]) -> tuple[str, ...]:
    if not urls:
        raise wrong("at least one listener")
    seen: list[Endpoint] = []
    for url in urls:
        try:
            address = parse_listen(url)
        except ValueError as error:
            raise PydanticCustomError("listen", '"{url}": {why}', {"url": url, "why": str(error)}) from None
        for other in seen:
            if address.overlaps(other):
                found = {"url": url, "other": other.url()}
                raise PydanticCustomError("listen", '"{url}" takes the port of "{other}", which is listed, too', found)
        seen.append(address)
    return tuple(urls)


def _tables(listeners: Sequence[Listener]) -> tuple[Listener, ...]:
    names: set[str] = set()
    places: list[Endpoint] = []
    for at, listener in enumerate(listeners):
        if listener.label in names:
            raise wrong("a name that no other listener has", f"[{at}].name", listener.label)
        if any(listener.endpoint.overlaps(place) for place in places):
            raise wrong("an address that no other listener has", f"[{at}].url", listener.url)
        names.add(listener.label)
        places.append(listener.endpoint)
    return tuple(listeners)


def _plugins(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not PLUGIN.fullmatch(name):
            raise ValueError(f"{name!r} is not of the form module:attribute, such as my_company.mqtt:Hooks")
    return tuple(names)


class AllSettings(BaseModel):
    """All settings of one broker, as a model. Other code uses `Settings`."""

    # An error that repeats what it was given would repeat passwords.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    listen: Annotated[Sequence[str], AfterValidator(_listeners)] = ("mqtt://127.0.0.1:1883",)
    """Addresses to listen on, as mqtt://HOST:PORT or ws://HOST:PORT. Port 0: any free port. Always a tuple after
    validation. The default does not apply if there are `listener` tables."""
    upstream: Annotated[Sequence[Upstream], AfterValidator(distinct("upstream"))] = ()
    """Links to other brokers. Always a tuple after validation."""
    authenticator: AuthenticatorList = ()
    """The authenticators, in the order in which they are asked. Always a tuple after validation."""
    listener: Annotated[Sequence[Listener], AfterValidator(_tables)] = ()
    """Further addresses, each with its own settings. Always a tuple after validation."""
    rule: Rules = ()
    """Access rules: the first match decides. Always a tuple after validation."""
    hooks: Annotated[Sequence[str], AfterValidator(_plugins)] = ()
    """Plug-ins, each as module:attribute, in the order in which they are asked (docs/hooks.md). Always a tuple after
    validation."""
    limits: Limits = Limits()
    mqtt: Mqtt = Mqtt()
    access: Access = Access()
    security: Security = Security()
    session: Session = Session()
    queue: Queue = Queue()
    retained: Retained = Retained()
    store: Store = Store()
    routing: Routing = Routing()
    federation: Federation = Federation()
    cluster: Cluster = Cluster()
    workers: Workers = Workers()
    presence: Presence = Presence()
    sys: Sys = Sys()
    http: Http = Http()
    alarms: Alarms = Alarms()
    top: Top = Top()
    tracing: Tracing = Tracing()
    otel: Otel = Otel()
    recorder: Recorder = Recorder()
    log: Log = Log()
    shutdown: Shutdown = Shutdown()

    @model_validator(mode="after")
    def _apart(self) -> AllSettings:
        """Check that no `listener` table uses an address of `listen`, and HTTP and the cluster none of a listener."""
        taken = [listener.endpoint for listener in self.listeners]
        of_listen = taken[: len(taken) - len(self.listener)]
        for at, listener in enumerate(self.listener):
            if any(listener.endpoint.overlaps(place) for place in of_listen):
                raise wrong(
                    "an address that is not in listen; leave one of both out", f"listener[{at}].url", listener.url
                )
        for at, endpoint in enumerate(self.http.endpoints):
            if any(endpoint.overlaps(place) for place in taken):
                raise wrong("an address that nothing else listens on", f"http.listen[{at}]", self.http.listen[at])
            taken.append(endpoint)
        if self.cluster.listen and any(self.cluster.endpoint.overlaps(place) for place in taken):
            raise wrong("an address that nothing else listens on", "cluster.listen", self.cluster.listen)
        return self

    @model_validator(mode="after")
    def _kept(self) -> AllSettings:
        """Check that a database can keep each client identifier that is accepted."""
        longest = self.limits.max_client_id_length
        if self.store.url and not 0 < longest <= MAX_STORED_NAME:
            raise wrong(f"23 to {MAX_STORED_NAME} with store.url", "limits.max_client_id_length", longest)
        return self

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """All listeners: those of `listen`, unless it is the default beside `listener` tables, and the tables."""
        if self.listener and "listen" not in self.model_fields_set:
            return tuple(self.listener)
        return (*(Listener(url=url) for url in self.listen), *self.listener)

    @property
    def shares_sessions(self) -> bool:
        """True if the nodes of a cluster have their durable sessions in one database."""
        return bool(self.cluster.name and self.store.url)


def section_models() -> dict[str, type[Section]]:
    """Return section name → model, in the order of the file."""
    found: dict[str, type[Section]] = {}
    for name, field in AllSettings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found[name] = field.annotation
    return found


def defaults() -> dict[str, Any]:
    """Return every setting by its full name (``limits.max_packet_size``) with its default, in the order of the file."""
    return flatten(AllSettings())


def flatten(settings: AllSettings) -> dict[str, Any]:
    """Return every setting by its full name with its value, in the order of the file."""
    flat: dict[str, Any] = {}
    for name, value in settings:
        if isinstance(value, Section):
            flat.update({f"{name}.{key}": item for key, item in value})
        else:
            flat[name] = value
    return flat

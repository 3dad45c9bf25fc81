"""The schema of a scenario: its clients, their work, and its stages.

Owns: the names, bounds and defaults of everything that a scenario file (TOML) may say. `docs/load.md` has the meaning
and the unit of each key, once; a test holds its tables against this schema.

Promises: a scenario that validates can be played: patterns expand to well-formed client identifiers, topics and topic
filters, every stage that is named exists, and what contradicts itself is refused with the key it stands under.

``library`` reads files, ``patterns`` expands patterns.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from canopy_load.scenario import thresholds, units

MAX_CLIENTS: Final = 1_000_000
MAX_STREAMS: Final = 1 << 32
MAX_IN_FLIGHT: Final = 65_535
MIN_PAYLOAD: Final = 16
"""Bytes of a payload that its mark takes (see ``mark``)."""

RESERVED_STAGES: Final = ("", "connect", "drain")
"""The stage names of seconds that belong to no stage."""

PAYLOADS: Final = ("size", "between", "sizes", "template", "file", "lines")
"""The keys that describe a payload."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Quality = Annotated[int, Field(ge=0, le=2)]
Duration = BeforeValidator(units.seconds_of)
"""Seconds as a number, or with a unit as text."""
Bytes = BeforeValidator(units.bytes_of)
"""Bytes as a number, or with a unit as text."""
Lasting = Annotated[float, Field(gt=0), Duration]
Waiting = Annotated[float, Field(ge=0), Duration]
WholeSeconds = Annotated[int, Field(ge=0, le=0xFFFFFFFF), Duration]
Size = Annotated[int, Field(ge=MIN_PAYLOAD, le=268_000_000), Bytes]


class Part(BaseModel):
    """Base of everything in a scenario: unknown keys are errors, and nothing changes after it was read.

    Patterns, in `client_id`, `topic`, `filter` and templates:

        %c  the client's number in its group, from 0     %n  the number of the topic (or filter), from 0
        %g  the group's name                             %r  the run's identifier, 8 hexadecimal digits
        %{c%N}, %{c/N}, %{n%N}, %{n/N}  that number modulo N, or divided by N and rounded down
        %{c+N}, %{n+N}  that number and N
        %%  a percent sign
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Stage(Part):
    """A part of the run; stages follow each other. The load goes from `load` to `to` in even steps (`to` absent: it
    stays)."""

    name: str
    seconds: Lasting
    load: NotNegative = 1.0
    to: NotNegative | None = None
    measured: bool = True


class Payload(Part):
    """The size of payloads, or their contents. At most one of `PAYLOADS`."""

    size: Size | None = None
    between: tuple[Size, Size] | None = None
    sizes: Annotated[dict[str, Positive], Field(min_length=1)] | None = None
    template: str | None = None
    file: str | None = None
    lines: str | None = None
    fill: bool = False

    @field_validator("sizes", mode="before")
    @classmethod
    def _comparable(cls, sizes: Any) -> Any:
        """Keys with a unit as numbers of bytes, so that they are compared as such."""
        if not isinstance(sizes, dict):
            return sizes
        made = {_in_bytes(key): weight for key, weight in sizes.items()}
        if len(made) != len(sizes):
            raise ValueError("two of the sizes are the same number of bytes")
        return made

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in PAYLOADS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        if self.fill and self.file is None and self.lines is None:
            raise ValueError("fill: is for file and lines")
        if self.between and self.between[0] > self.between[1]:
            raise ValueError("between: the first size is above the second")
        for key in self.sizes or ():
            if not key.isascii() or not key.isdigit() or not MIN_PAYLOAD <= int(key) <= 268_000_000:
                raise ValueError(f"sizes: {key!r} is not a number of bytes from {MIN_PAYLOAD} to 268000000")
        if self.template is not None and self.template.count("%m") != 1:
            raise ValueError("template: needs %m once: without its mark, a message cannot be checked")
        return self


class Properties(Part):
    """MQTT 5.0 properties of a PUBLISH or a will; with 3.1.1 they are an error."""

    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = None
    text: bool = False
    message_expiry: WholeSeconds | None = None
    user: dict[str, str] = {}
    topic_alias: bool = False


class Publish(Part):
    """The messages that each client of a group publishes. Open loop with `rate` or `total_rate`, closed loop with
    `in_flight`."""

    topic: str
    topics: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    choose: Literal["in-turn", "random", "zipf"] = "in-turn"
    zipf: Positive = 1.1
    qos: Quality = 0
    retain: bool = False
    payload: Payload = Payload(size=64)
    properties: Properties = Properties()
    rate: NotNegative | None = None
    total_rate: NotNegative | None = None
    in_flight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    arrival: Literal["constant", "poisson", "bursts"] = "constant"
    burst: Count = 10
    reply_to: str | None = None
    messages: Count | None = None
    stages: list[str] | None = None

    @model_validator(mode="after")
    def _one_loop(self) -> Self:
        given = [name for name in ("rate", "total_rate", "in_flight") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs one of rate, total_rate and in_flight, has {' and '.join(given) or 'none'}")
        if self.in_flight is not None and self.qos and self.in_flight > MAX_IN_FLIGHT:
            raise ValueError(
                f"in_flight: at most {MAX_IN_FLIGHT} with QoS 1 and 2, which have so many packet identifiers"
            )
        if self.properties.topic_alias and (self.payload.file or self.payload.lines):
            raise ValueError("properties.topic_alias: not together with payloads from a file")
        fixed = self.properties.topic_alias, self.properties.response_topic, self.properties.correlation_data
        if self.reply_to is not None and any(fixed):
            raise ValueError("reply_to: excludes properties.topic_alias, response_topic and correlation_data")
        return self


class Subscribe(Part):
    """A subscription of each client of a group. A filter that begins with `$share/NAME/` is a shared one."""

    filter: str
    filters: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    qos: Quality = 0
    no_local: bool = False
    retain_handling: Annotated[int, Field(ge=0, le=2)] = 0
    user: dict[str, str] = {}


class Reply(Part):
    """Each client answers the requests that come to it: PUBLISH packets with a response topic (MQTT 5.0)."""

    size: Annotated[int, Field(ge=0, le=1_000_000), Bytes] = 16
    qos: Annotated[int, Field(ge=0, le=1)] = 0


class Will(Part):
    """The will of each client of a group; it counts as sent when the client was cut off."""

    topic: str
    qos: Quality = 0
    retain: bool = False
    delay: WholeSeconds = 0
    size: Size = MIN_PAYLOAD


class Churn(Part):
    """Each client subscribes to a new filter and leaves the one before, by the clock, beside its own subscriptions."""

    filter: str
    filters: Annotated[int, Field(ge=2, le=1_000_000)] = 1000
    rate: Positive
    qos: Quality = 0


class Cycle(Part):
    """Each client leaves and comes back, again and again, once the stages have begun."""

    up: Lasting
    down: Waiting = 1.0
    spread: Annotated[float, Field(ge=0, le=1)] = 0.5
    goodbye: Literal["disconnect", "cut"] = "disconnect"


class Reading(Part):
    """A client's reading, if it is not as fast as it can."""

    rate: Positive | None = None
    freeze_after: Waiting | None = None
    receive_buffer: Annotated[int, Field(ge=1024, le=1 << 24), Bytes] = 4096

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.rate is None) == (self.freeze_after is None):
            raise ValueError("needs one of rate and freeze_after")
        return self


class Group(Part):
    """Clients that do the same."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
    scaled: bool = True
    client_id: str = "load-%r-%g-%c"
    version: Literal["3.1.1", "5.0"] = "5.0"
    clean_start: bool = True
    session_expiry: WholeSeconds = 0
    keep_alive: Annotated[int, Field(ge=0, le=65_535), Duration] = 60
    receive_maximum: Annotated[int, Field(ge=1, le=65_535)] | None = None
    maximum_packet_size: Annotated[int, Field(ge=64, le=268_435_460), Bytes] | None = None
    user_name: str | None = None
    password: str | None = None
    users: str | None = None
    connect_rate: NotNegative = 0
    joins: str | None = None
    publish: list[Publish] = []
    subscribe: list[Subscribe] = []
    reply: Reply | None = None
    will: Will | None = None
    churn: Churn | None = None
    cycle: Cycle | None = None
    reading: Reading | None = None
    reconnect: bool = True
    reconnect_delay: Lasting = 1.0

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.version == "3.1.1":
            self._refuse_version_5()
        if self.users is not None and (self.user_name is not None or self.password is not None):
            raise ValueError("users: excludes user_name and password")
        shared = [each.filter.startswith("$share/") for each in self.subscribe]
        if any(shared) and not all(shared):
            raise ValueError("subscribe: shared and other filters need groups of their own, or nobody can tell copies")
        if self.reply is not None and not self.subscribe:
            raise ValueError("reply: needs a subscription to what it answers")
        if any(shared) and (self.cycle or self.churn):
            raise ValueError("shared filters together with cycle or churn cannot be judged")
        return self

    def _refuse_version_5(self) -> None:
        wishes = {
            "session_expiry": bool(self.session_expiry),
            "receive_maximum": self.receive_maximum is not None,
            "maximum_packet_size": self.maximum_packet_size is not None,
            "will.delay": self.will is not None and self.will.delay > 0,
            "publish.properties": any(each.properties != Properties() for each in self.publish),
            "publish.reply_to": any(each.reply_to is not None for each in self.publish),
            "reply": self.reply is not None,
            "subscribe.user": any(each.user for each in self.subscribe),
            "subscribe.no_local": any(each.no_local for each in self.subscribe),
            "subscribe.retain_handling": any(each.retain_handling for each in self.subscribe),
        }
        for key, given in wishes.items():
            if given:
                raise ValueError(f'{key}: exists in MQTT 5.0 only, this group has version = "3.1.1"')


Named = TypeVar("Named", Stage, Group)


class Scenario(Part):
    """A whole scenario."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    description: str = ""
    scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    seed: int = 1
    drain: Lasting = 15.0
    quiet: Lasting = 1.0
    thresholds: dict[str, str] = {}
    stages: Annotated[list[Stage], Field(min_length=1)]
    groups: Annotated[list[Group], Field(min_length=1)]

    @field_validator("stages")
    @classmethod
    def _stage_names(cls, stages: list[Stage]) -> list[Stage]:
        for stage in stages:
            if stage.name in RESERVED_STAGES:
                raise ValueError(f"{stage.name!r} is what comes before or after all stages: another name, please")
        return _distinct(stages)

    @field_validator("groups")
    @classmethod
    def _group_names(cls, groups: list[Group]) -> list[Group]:
        return _distinct(groups)

    @model_validator(mode="after")
    def _thresholds_mean_something(self) -> Self:
        groups = [group.name for group in self.groups]
        for name, rest in self.thresholds.items():
            try:
                thresholds.parse(f"{name} {rest}", groups)
            except ValueError as error:
                raise ValueError(f"thresholds.{name}: {error}") from error
        return self

    @model_validator(mode="after")
    def _stages_exist(self) -> Self:
        names = {stage.name for stage in self.stages}
        for group in self.groups:
            named = {name for publish in group.publish for name in publish.stages or ()}
            for name in sorted(named | ({group.joins} if group.joins else set())):
                if name not in names:
                    raise ValueError(
                        f"groups.{group.name}: there is no stage {name!r}, only {', '.join(sorted(names))}"
                    )
        if not any(stage.measured for stage in self.stages):
            raise ValueError("stages: none is measured")
        return self


def _in_bytes(key: Any) -> Any:
    """Return a size as a table's key in bytes; leave a wrong one for the check of all keys."""
    try:
        return str(units.size(key))
    except (TypeError, AttributeError, ValueError):
        return key


def _distinct(parts: list[Named]) -> list[Named]:
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} stands there twice")
    return parts

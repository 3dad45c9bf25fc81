"""The schema of a scenario: which clients there are, what they do, and when.

Owns: the names, units, bounds and defaults of everything that a scenario file (TOML) may say. `docs/load.md` explains
them to people.

Promises: a scenario that validates can be played: patterns expand to well-formed client identifiers, topics and topic
filters, every stage that is named exists, and what contradicts itself is refused with the key it stands under.

``library`` reads files, ``patterns`` expands patterns.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from loadtest.load.scenario import thresholds, units

MAX_CLIENTS: Final = 1_000_000
MAX_STREAMS: Final = 1 << 32
MAX_IN_FLIGHT: Final = 65_535
MIN_PAYLOAD: Final = 16
"""Bytes of a payload that its mark takes (see ``mark``)."""

RESERVED_STAGES: Final = ("", "connect", "drain")
"""What a second is called that belongs to no stage."""

PAYLOADS: Final = ("size", "between", "sizes", "template", "file", "lines")
"""Ways to say what a payload is."""

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
    """A stretch of the run, in order. The load goes from `load` to `to` in even steps (`to` absent: it stays)."""

    name: str
    seconds: Lasting
    load: NotNegative = 1.0
    """By what the rates of all publishers are multiplied."""
    to: NotNegative | None = None
    measured: bool = True
    """Whether its seconds count in the summary; a warm-up does not."""


class Payload(Part):
    """How large payloads are, or what stands in them. At most one of `PAYLOADS`."""

    size: Size | None = None
    between: tuple[Size, Size] | None = None
    """Evenly distributed from the first to the second, both included."""
    sizes: Annotated[dict[str, Positive], Field(min_length=1)] | None = None
    """Size in bytes (as a TOML key) to weight: `sizes = { 64 = 9, 1024 = 1 }`."""
    template: str | None = None
    """Text with patterns; %m stands once, for the message's mark (32 hexadecimal digits after "mark:")."""
    file: str | None = None
    """A file whose bytes stand in every payload; `{mark}` says where its mark stands."""
    lines: str | None = None
    """A file of which each line is a payload, one after the other in each stream."""
    fill: bool = False
    """Whether `{n}` (the number in its stream) and `{time}` (milliseconds since 1970) are filled in, for `file` and
    `lines`."""

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
    """Payload format indicator 1: the payload is UTF-8."""
    message_expiry: WholeSeconds | None = None
    """Seconds."""
    user: dict[str, str] = {}
    topic_alias: bool = False
    """Send the topic once and an alias after that, where the broker allows aliases (as many as it allows)."""


class Publish(Part):
    """What each client of a group publishes. Open loop with `rate` or `total_rate`, closed loop with `in_flight`."""

    topic: str
    topics: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    """How many topics the pattern stands for (%n from 0)."""
    choose: Literal["in-turn", "random", "zipf"] = "in-turn"
    zipf: Positive = 1.1
    """Exponent of the distribution, for `choose = "zipf"`."""
    qos: Quality = 0
    retain: bool = False
    payload: Payload = Payload(size=64)
    properties: Properties = Properties()
    rate: NotNegative | None = None
    """Messages a second of each client."""
    total_rate: NotNegative | None = None
    """Messages a second of the whole group."""
    in_flight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Closed loop: so many messages of each client are under way at most. With QoS 0, until they were delivered to the
    subscribers that are simulated in the same process; with QoS 1 and 2, until they were acknowledged."""
    arrival: Literal["constant", "poisson", "bursts"] = "constant"
    burst: Count = 10
    """Messages of one burst, for `arrival = "bursts"`."""
    reply_to: str | None = None
    """Pattern of the client's response topic (MQTT 5.0): each message is a request, whose round trip is measured. The
    client subscribes to it by itself."""
    messages: Count | None = None
    """Each client stops after so many."""
    stages: list[str] | None = None
    """In which stages it publishes; absent: in all."""

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
    """How many filters the pattern stands for (%n from 0)."""
    qos: Quality = 0
    no_local: bool = False
    retain_handling: Annotated[int, Field(ge=0, le=2)] = 0
    user: dict[str, str] = {}
    """User properties of the SUBSCRIBE (MQTT 5.0), as Canopy's `canopy-queue`."""


class Reply(Part):
    """Each client answers the requests that come to it: PUBLISH packets with a response topic (MQTT 5.0)."""

    size: Annotated[int, Field(ge=0, le=1_000_000), Bytes] = 16
    """Bytes of an answer's payload."""
    qos: Annotated[int, Field(ge=0, le=1)] = 0


class Will(Part):
    """The will of each client of a group; it counts as sent when the client was cut off."""

    topic: str
    qos: Quality = 0
    retain: bool = False
    delay: WholeSeconds = 0
    """Seconds (MQTT 5.0)."""
    size: Size = MIN_PAYLOAD


class Churn(Part):
    """Each client subscribes to a new filter and leaves the one before, by the clock, beside its own subscriptions."""

    filter: str
    filters: Annotated[int, Field(ge=2, le=1_000_000)] = 1000
    """%n goes round from 0 to one below this."""
    rate: Positive
    """SUBSCRIBE packets a second of each client."""
    qos: Quality = 0


class Cycle(Part):
    """Each client leaves and comes back, again and again, once the stages have begun."""

    up: Lasting
    """Seconds it stays connected, on the average."""
    down: Waiting = 1.0
    """Seconds it stays away, on the average."""
    spread: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Both times vary evenly by this share around their average."""
    goodbye: Literal["disconnect", "cut"] = "disconnect"
    """`cut` closes the socket without a DISCONNECT: the will is published."""


class Reading(Part):
    """How a client reads, when not as fast as it can."""

    rate: Positive | None = None
    """PUBLISH packets a second, about."""
    freeze_after: Waiting | None = None
    """It stops to read so many seconds after the stages have begun. When the stages are over, everybody reads."""
    receive_buffer: Annotated[int, Field(ge=1024, le=1 << 24), Bytes] = 4096
    """Bytes asked of the kernel for the socket: what a device with little memory would have."""

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
    """Whether the scenario's scale multiplies the number of clients (and with it `total_rate`)."""
    client_id: str = "load-%r-%g-%c"
    version: Literal["3.1.1", "5.0"] = "5.0"
    clean_start: bool = True
    session_expiry: WholeSeconds = 0
    """Seconds (MQTT 5.0)."""
    keep_alive: Annotated[int, Field(ge=0, le=65_535), Duration] = 60
    """Seconds; 0: none."""
    receive_maximum: Annotated[int, Field(ge=1, le=65_535)] | None = None
    maximum_packet_size: Annotated[int, Field(ge=64, le=268_435_460), Bytes] | None = None
    user_name: str | None = None
    """A pattern; absent: not sent."""
    password: str | None = None
    """A pattern; absent: not sent."""
    users: str | None = None
    """A CSV file of user names and passwords, whose lines the clients take in turn."""
    connect_rate: NotNegative = 0
    """CONNECT packets a second of the whole group, in the order of its clients; 0: as fast as it goes."""
    joins: str | None = None
    """The stage at whose beginning the group connects; absent: before the first one."""
    publish: list[Publish] = []
    subscribe: list[Subscribe] = []
    reply: Reply | None = None
    will: Will | None = None
    churn: Churn | None = None
    cycle: Cycle | None = None
    reading: Reading | None = None
    reconnect: bool = True
    """Whether a client that lost its connection comes back."""
    reconnect_delay: Lasting = 1.0
    """Seconds before it does, twice as long after each failure up to 30."""

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
    """What the numbers of clients of scaled groups are multiplied by (at least one client stays)."""
    seed: int = 1
    """Everything that is random follows from this and the client's number."""
    drain: Lasting = 15.0
    """Seconds at most to wait for what is under way when the last stage is over."""
    quiet: Lasting = 1.0
    """Seconds without a delivery after which what is missing counts as lost."""
    thresholds: dict[str, str] = {}
    """What must hold of the result: the name of a figure to a comparison with a value, `p99 = "< 50ms"`."""
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
    """A size as a table's key; what is none is left for the check of all keys."""
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

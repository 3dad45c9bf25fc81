"""Every setting: its name, unit, bounds and default.

Owns: the models, and what makes a single value good or bad. How values are found in files, environment and flags is
`broker.configuration`'s business.

Promises: settings never change once built (the models are frozen), a value of the wrong type is refused rather than
converted, and an unknown name is refused. `Settings()` reads no file and no environment variable: a program that embeds
the broker gets exactly what it passes in.

Refuses: to do anything. A setting is data; the code that obeys it lives with its subject.

A limit of 0 means unlimited; where 0 switches something off (an interval, a cache, topic aliases), its text says so.
Sizes are bytes, times are seconds, rates are per second. `config/default.toml` explains each setting to the people who
run a broker; a test holds it to these models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

DEFAULT_PORT: Final = 1883

MAX_REMAINING_LENGTH: Final = 268_435_455
"""The largest remaining length four bytes can tell (section 2.1.4 of the MQTT 5.0 specification)."""

LARGEST_PACKET: Final = MAX_REMAINING_LENGTH + 5 - 1_048_576
"""The largest packet that can be accepted: the protocol's largest, less what forwarding may add to a message (the
property section of 5.0 with its subscription identifiers)."""

NEVER: Final = 0xFFFF_FFFF
"""The session expiry interval that means "does not expire" (MQTT 5.0, section 3.1.2.11.2)."""

# Not limits anybody is meant to reach: they keep a slip of the keyboard from passing as a number.
MOST_MESSAGES: Final = 2_000_000_000
MOST_BYTES: Final = 1 << 40
LONGEST_TIME: Final = 86_400.0
MOST_SLOW_CLIENTS: Final = 1000

LONGEST_FILTER: Final = 65_535
"""Bytes of UTF-8 in a topic filter (MQTT 5.0, section 1.5.4)."""

Policy: TypeAlias = Literal["drop-newest", "drop-oldest", "disconnect", "latest"]
"""What a full queue does. The order is that of the core, which counts them."""

NOT_YET: Final = ("mqtts", "ssl", "tls", "ws", "wss", "unix")


class Address(NamedTuple):
    """Where a listener binds. Port 0 lets the system choose a free one."""

    host: str
    port: int

    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mqtt://{host}:{self.port}"


def parse_listen(url: str) -> Address:
    """Read ``mqtt://HOST[:PORT]``; an IPv6 address stands in brackets.

    Raises:
        ValueError: the text says what is wrong and what would be right, without repeating the URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL of the form mqtt://HOST:PORT ({error})") from None
    if parts.scheme in NOT_YET:
        raise ValueError(f'the scheme "{parts.scheme}" is not supported by this version; mqtt://HOST:PORT is')
    if parts.scheme != "mqtt" or not parts.netloc:
        raise ValueError("not a URL of the form mqtt://HOST:PORT")
    if not parts.hostname:
        raise ValueError("the host is missing; mqtt://0.0.0.0:PORT or mqtt://[::]:PORT listens on every interface")
    if "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("a listener takes no user, path, query or fragment: only mqtt://HOST:PORT")
    return Address(parts.hostname, DEFAULT_PORT if port is None else port)


def _listeners(urls: Sequence[str]) -> tuple[str, ...]:
    if not urls:
        raise PydanticCustomError("listen", "at least one listener is needed")
    seen: set[Address] = set()
    for url in urls:
        try:
            address = parse_listen(url)
        except ValueError as error:
            raise PydanticCustomError("listen", '"{url}": {why}', {"url": url, "why": str(error)}) from None
        if address in seen and address.port:
            raise PydanticCustomError("listen", '"{url}" is listed twice', {"url": url})
        seen.add(address)
    return tuple(urls)


def _client_id_length(value: int) -> int:
    # [MQTT-3.1.3-5] A server has to accept client identifiers of up to 23 bytes.
    if 0 < value < 23:
        raise PydanticCustomError("client_id_length", "below 23 bytes, which every server has to accept")
    return value


def _packet_size(value: int) -> int:
    # No packet is smaller than its fixed header.
    if value == 1:
        raise PydanticCustomError("packet_size", "below 2 bytes, the smallest packet there is")
    return value


def _topic_filter(value: str) -> str:
    """Hold a topic filter against section 4.7, as the core does with those of clients; a test compares the two."""
    levels = value.split("/")
    if value.startswith("$share/"):
        wanted = "without $share/name/ before it; the rule holds for shared subscriptions too"
    elif not 0 < len(value.encode()) <= LONGEST_FILTER:
        wanted = f"of 1 to {LONGEST_FILTER} bytes"
    elif "\0" in value:
        wanted = "without U+0000"
    elif "#" in value and (levels[-1] != "#" or value.count("#") > 1):
        wanted = "in which # is only the last level"
    elif any("+" in level and level != "+" for level in levels):
        wanted = "in which + has its level to itself"
    else:
        return value
    raise PydanticCustomError("rule", "a topic filter {wanted}", {"wanted": wanted})


# The numbers that occur again and again, each with its bounds.
CountOrUnlimited: TypeAlias = Annotated[int, Field(ge=0, le=MOST_MESSAGES)]
Size: TypeAlias = Annotated[int, Field(ge=1, le=MOST_BYTES)]
SizeOrUnlimited: TypeAlias = Annotated[int, Field(ge=0, le=MOST_BYTES)]
SecondsOrOff: TypeAlias = Annotated[float, Field(ge=0, le=LONGEST_TIME, allow_inf_nan=False)]
RateOrUnlimited: TypeAlias = Annotated[float, Field(ge=0, le=MOST_MESSAGES, allow_inf_nan=False)]
SixteenBits: TypeAlias = Annotated[int, Field(ge=0, le=65_535)]
Pattern: TypeAlias = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """What all groups of settings have in common: strict types, no unknown names, no changes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)


class Limits(Section):
    """What one connection, or all of them, may take."""

    max_connections: CountOrUnlimited = 0
    """Open network connections in all. 0: no limit but that of the system."""
    max_connections_per_address: CountOrUnlimited = 0
    """Open network connections from one IP address; one more is refused with 0x97. 0: no limit."""
    max_connect_rate: RateOrUnlimited = 0.0
    """New connections a second, all together; a burst of one second's worth, at least 1, passes. One more is refused
    with 0x9F. 0: no limit."""
    max_packet_size: Annotated[int, Field(ge=0, le=LARGEST_PACKET), AfterValidator(_packet_size)] = 1_048_576
    """Bytes of the largest packet accepted, fixed header included, at least 2. MQTT 5.0 clients are told. 0: no limit
    but what can be forwarded, 267,386,884."""
    connect_timeout: SecondsOrOff = 10.0
    """Seconds from accepting a connection to the end of its CONNECT (and of an AUTH exchange). 0: no limit."""
    max_client_id_length: Annotated[SixteenBits, AfterValidator(_client_id_length)] = 256
    """Bytes of UTF-8 in a client identifier, at least 23. 0: what the protocol allows, 65,535."""
    max_topic_levels: SixteenBits = 128
    """Levels in a topic or topic filter. 0: no limit."""
    max_subscriptions_per_client: CountOrUnlimited = 0
    """Subscriptions one session may hold. 0: no limit, so that one client can fill the table of topic filters."""
    max_publish_rate: RateOrUnlimited = 0.0
    """PUBLISH packets a second from one client; a burst of one second's worth, at least 1, passes. Over it the broker
    reads nothing more from the client for as long as it takes. 0: no limit."""
    max_publish_bytes: SizeOrUnlimited = 0
    """Bytes of PUBLISH packets a second from one client, in the same way. 0: no limit."""
    publish_patience: SecondsOrOff = 60.0
    """Seconds a client may be held back by these two without a break; then it is disconnected with 0x96 (packets) or
    0x97 (bytes). 0: for ever."""
    max_loop_lag: SecondsOrOff = 5.0
    """Seconds the event loop may be late; above it a new CONNECT is refused with 0x89, while those who are connected go
    on. 0: never."""


class Mqtt(Section):
    """What the broker offers to clients. MQTT 5.0 clients are told in CONNACK."""

    max_qos: Literal[0, 1, 2] = 2
    """The highest quality of service accepted and granted."""
    receive_maximum: SixteenBits = 1024
    """QoS 1 and 2 publishes a client may have unacknowledged towards the broker. 0: all the protocol allows, 65,535."""
    max_inflight: SixteenBits = 1024
    """QoS 1 and 2 publishes unacknowledged towards one client. The client's receive maximum may lower it. 0: all the
    protocol allows, 65,535."""
    topic_alias_maximum: SixteenBits = 64
    """Topic aliases a client may set on its connection. 0: none."""
    topic_alias_outbound: SixteenBits = 0
    """Topic aliases used towards a client, within what the client allows. 0: none."""
    max_keep_alive: SixteenBits = 0
    """Seconds. A client that asks for more, or for none, is given this. 0: what the client asks for."""
    retain_available: bool = True
    """Whether messages are retained."""
    wildcard_subscriptions: bool = True
    """Whether filters may hold wildcards."""
    shared_subscriptions: bool = True
    """Whether `$share/group/filter` is served."""
    subscription_identifiers: bool = True
    """Whether subscriptions may carry an identifier."""
    allow_anonymous: bool = True
    """Whether a connection may come without a user name."""
    allow_empty_client_id: bool = True
    """Whether a client may leave its identifier to the broker."""


class Session(Section):
    """What is kept for clients that are away."""

    max_expiry: Annotated[int, Field(ge=0, le=NEVER)] = 604_800
    """Seconds a session is kept after its connection ended, at most. 0: no limit, it is what the client asks for, and
    for ever where 3.1.1 asks for a session that stays. 4294967295: the same."""
    persistent: bool = True
    """Whether a session may outlive its connection. Off: none does, whatever the client asks for."""
    queue_qos0: bool = False
    """Whether QoS 0 messages too wait for a client that is away."""
    max_sessions: CountOrUnlimited = 0
    """Sessions kept in all, connected or not. 0: no limit."""


class QueueRuleSettings(Section):
    """What is different for some clients or subscriptions. All patterns that are given must match; None says nothing.

    A rule with `topic_filter` is about single subscriptions, any other about all queues of a client.
    """

    client_id: Pattern | None = None
    """Shell pattern (`fnmatch`, case-sensitive) over the whole client identifier."""
    user: Pattern | None = None
    """Shell pattern (`fnmatch`, case-sensitive) over the whole user name. A client without one never matches."""
    topic_filter: Annotated[str, AfterValidator(_topic_filter)] | None = None
    """Subscriptions whose topic filter matches nothing that this one does not match."""
    policy: Policy | None = None
    """What happens when it is full."""
    max_age: SecondsOrOff | None = None
    """Seconds a message may wait. 0: no limit."""
    depth: CountOrUnlimited | None = None
    """Messages of one subscription that wait; only beside `topic_filter`. 0: no limit of its own."""
    live_messages: CountOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""
    live_bytes: SizeOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""
    session_messages: CountOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""
    session_bytes: SizeOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""

    @field_validator("depth")
    @classmethod
    def _of_a_subscription(cls, value: int | None, info: ValidationInfo) -> int | None:
        # A topic filter that is wrong is missing here, and said already.
        if value is not None and info.data.get("topic_filter", "") is None:
            raise PydanticCustomError("rule", "only beside topic_filter")
        return value

    @field_validator("live_messages", "live_bytes", "session_messages", "session_bytes")
    @classmethod
    def _of_a_client(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("topic_filter") is not None:
            raise PydanticCustomError("rule", "only without topic_filter; depth bounds a subscription")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> QueueRuleSettings:
        lacks: list[str] = []
        if self.client_id is None and self.user is None and self.topic_filter is None:
            lacks.append("client_id, user or topic_filter")
        if all(getattr(self, name) is None for name in EFFECTS):
            lacks.append(f"something to set ({', '.join(EFFECTS)})")
        if lacks:
            raise PydanticCustomError("rule", "a rule with {lacks}", {"lacks": " and with ".join(lacks)})
        return self


EFFECTS: Final = tuple(
    name for name in QueueRuleSettings.model_fields if name not in ("client_id", "user", "topic_filter")
)
"""What a rule can set."""


class Queue(Section):
    """The bounds of every queue, and what happens at them. All bounds of a queue hold at once."""

    policy: Policy = "drop-newest"
    """What a full queue does: drops what comes (`drop-newest`), drops what waited longest (`drop-oldest`), disconnects
    the client with 0x97 (`disconnect`), or keeps of each topic only the newest message (`latest`)."""
    max_age: SecondsOrOff = 0.0
    """Seconds a message may wait; then it is dropped, however full the queue is. 0: no limit."""
    live_messages: CountOrUnlimited = 10_000
    """Messages waiting for one connected client to read. 0: no limit."""
    live_bytes: SizeOrUnlimited = 8_388_608
    """Bytes waiting for one connected client to read. 0: no limit."""
    session_messages: CountOrUnlimited = 10_000
    """QoS 1 and 2 messages waiting in one session, for the client's return or for its window. 0: no limit."""
    session_bytes: SizeOrUnlimited = 33_554_432
    """Bytes waiting in one session. 0: no limit."""
    total_messages: CountOrUnlimited = 0
    """Messages waiting in all queues together; over it the fullest queues drop first. 0: no limit."""
    total_bytes: SizeOrUnlimited = 1_073_741_824
    """Bytes waiting in all queues together, in the same way. 0: no limit."""
    on_full: Literal["acknowledge", "tell-publisher"] = "acknowledge"
    """Whether a 5.0 publisher of QoS 1 or 2 whose message every matching queue refused is told, by 0x97 in PUBACK or
    PUBREC."""
    tell_loss: bool = True
    """Whether a 5.0 subscriber is told of its losses, by the user property `canopy-lost` of the next message."""
    subscriber_policies: Annotated[Sequence[Policy], AfterValidator(tuple)] = (
        "drop-newest",
        "drop-oldest",
        "disconnect",
        "latest",
    )
    """What a 5.0 subscriber may choose, by the user property `canopy-queue`. Empty: nothing. Always a tuple after
    validation."""
    slow_after: SecondsOrOff = 1.0
    """Seconds in the queue from which on a subscriber counts as slow. 0: nobody does."""
    report_interval: SecondsOrOff = 10.0
    """Seconds between two log lines about the losses of one client. 0: no lines."""
    write_batch_bytes: Size = 262_144
    """Bytes joined to one write, at least 1."""
    stall_timeout: SecondsOrOff = 30.0
    """Seconds a client may take nothing, with messages waiting, before it is disconnected. 0: no limit."""
    rules: Annotated[Sequence[QueueRuleSettings], AfterValidator(tuple)] = ()
    """What is different for some clients or subscriptions. All rules that match apply, in their order; a later one wins
    for what it sets. Always a tuple after validation."""


class Retained(Section):
    """What retained messages may take."""

    max_messages: CountOrUnlimited = 1_000_000
    """Retained messages in all. 0: no limit."""
    max_bytes: SizeOrUnlimited = 268_435_456
    """Bytes of topics and payloads retained in all, with 256 for each topic level not shared. 0: no limit."""


class Routing(Section):
    """How topics are matched."""

    trie: Literal["nodes", "compact"] = "nodes"
    """The layout of the filter trie."""
    match_cache: CountOrUnlimited = 16_384
    """Topics whose matching filters are remembered. 0: none."""


class Sys(Section):
    """The `$SYS` topics."""

    interval: SecondsOrOff = 10.0
    """Seconds between updates. 0: no `$SYS` topics."""
    slow_clients: Annotated[int, Field(ge=0, le=MOST_SLOW_CLIENTS)] = 10
    """Slow subscribers that are listed, the slowest first. 0: none."""


class Recorder(Section):
    """What is recorded of everything that goes through the broker. Needs pyarrow (the extra `record`)."""

    directory: str = ""
    """The folder that segments are written to; it is made where it is not there. Empty: nothing is recorded."""
    filters: Annotated[Sequence[Annotated[str, AfterValidator(_topic_filter)]], AfterValidator(tuple)] = ("#",)
    """The messages whose topics these match are recorded; who comes, goes, subscribes and loses something always is.
    Always a tuple after validation."""
    payloads: bool = True
    """Whether payloads are kept, or their sizes alone."""
    deliveries: bool = False
    """Whether it is recorded for each message to whom it went: an event for each receiver."""
    segment_bytes: Annotated[int, Field(ge=65_536, le=MOST_BYTES)] = 134_217_728
    """Bytes at which a segment is finished and the next one begun, from 64 KiB."""
    segment_seconds: Annotated[float, Field(gt=0, le=LONGEST_TIME, allow_inf_nan=False)] = 60.0
    """Seconds after which a segment is finished, above 0. What is not in a finished one is lost with the process."""
    queue_events: CountOrUnlimited = 200_000
    """Events that wait to be written. 0: no limit. What does not fit is lost to the record, and named in it."""
    queue_bytes: SizeOrUnlimited = 67_108_864
    """Bytes that wait to be written. 0: no limit."""


class Log(Section):
    """What is logged, and how it looks. Obeyed by the `canopy` command; a program that embeds the broker decides."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""
    format: Literal["auto", "console", "json"] = "auto"
    """`auto`: for people on a terminal, JSON elsewhere."""


class Shutdown(Section):
    """How the broker stops."""

    flush_timeout: SecondsOrOff = 5.0
    """Seconds that queues are given to drain. 0: none."""


class Runtime(Section):
    """The event loop and the process."""

    uvloop: bool = True
    """Whether uvloop is used where it is installed. Obeyed by the `canopy` command."""
    gc_freeze: bool = True
    """Whether objects of the start are taken out of garbage collection. Obeyed by the `canopy` command."""
    tcp_backlog: Annotated[int, Field(ge=1, le=65_535)] = 1024
    """Connections the system holds ready for acceptance, on each listener."""
    tcp_nodelay: bool = True
    """Whether small packets are sent at once."""


class Settings(BaseModel):
    """All settings of one broker.

    Sections are given as models or as plain mappings: ``Settings(limits=Limits(max_packet_size=1000))``.

    Raises:
        pydantic.ValidationError: a value is out of bounds or of the wrong type, or a name is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    listen: Annotated[Sequence[str], AfterValidator(_listeners)] = ("mqtt://127.0.0.1:1883",)
    """Where to listen, as mqtt://HOST:PORT. Port 0: any free port. Always a tuple after validation."""
    limits: Limits = Limits()
    mqtt: Mqtt = Mqtt()
    session: Session = Session()
    queue: Queue = Queue()
    retained: Retained = Retained()
    routing: Routing = Routing()
    sys: Sys = Sys()
    recorder: Recorder = Recorder()
    log: Log = Log()
    shutdown: Shutdown = Shutdown()
    runtime: Runtime = Runtime()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """`listen`, taken apart."""
        return tuple(parse_listen(url) for url in self.listen)


def section_models() -> dict[str, type[Section]]:
    """Section name → its model, in the order of the file."""
    found: dict[str, type[Section]] = {}
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found[name] = field.annotation
    return found


def defaults() -> dict[str, Any]:
    """Every setting by its full name (``limits.max_packet_size``) with its default, in the order of the file."""
    return flatten(Settings())


def flatten(settings: Settings) -> dict[str, Any]:
    """Every setting by its full name with its value, in the order of the file."""
    flat: dict[str, Any] = {}
    for name, value in settings:
        if isinstance(value, Section):
            flat.update({f"{name}.{key}": item for key, item in value})
        else:
            flat[name] = value
    return flat

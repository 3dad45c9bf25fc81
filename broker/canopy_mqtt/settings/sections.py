"""The sections about this broker by itself, in the order of `config/default.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from canopy_mqtt.settings.values import (
    MAX_BYTES,
    MAX_ID_PREFIX_BYTES,
    MAX_MESSAGES,
    MAX_PACKET,
    MAX_TIME,
    NEVER,
    CountOrUnlimited,
    Delay,
    Pattern,
    PlainFilter,
    Policy,
    RateOrUnlimited,
    RuleFilter,
    SecondsOrOff,
    Section,
    SixteenBits,
    Size,
    SizeOrUnlimited,
    String,
    only,
    web_url,
    wrong,
)


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


def _connect_size(value: int) -> int:
    # A CONNECT with an identifier of 23 bytes, which every server has to accept, fits.
    if 0 < value < 64:
        raise PydanticCustomError("connect_size", "below 64 bytes, which the shortest useful CONNECT may take")
    return value


def _id_prefix(value: str) -> str:
    if len(value.encode()) > MAX_ID_PREFIX_BYTES or value.startswith(("$upstream/", "$node/")):
        raise wrong(f"text of at most {MAX_ID_PREFIX_BYTES} bytes that does not begin with $upstream/ or $node/")
    if not value.isprintable():
        raise wrong("printable text")
    return value


def _versions(value: Sequence[str]) -> tuple[str, ...]:
    if not value:
        raise wrong("at least one version of MQTT")
    return tuple(value)


class Limits(Section):
    """Bounds on one connection, and on all of them."""

    max_connections: CountOrUnlimited = 0
    max_connections_per_address: CountOrUnlimited = 0
    max_connect_rate: RateOrUnlimited = 0.0
    max_handshakes: CountOrUnlimited = 512
    max_packet_size: Annotated[int, Field(ge=0, le=MAX_PACKET), AfterValidator(_packet_size)] = 8_388_608
    max_connect_size: Annotated[int, Field(ge=0, le=MAX_PACKET), AfterValidator(_connect_size)] = 100_000
    max_partial_bytes: SizeOrUnlimited = 268_435_456
    packet_timeout: SecondsOrOff = 60.0
    connect_timeout: SecondsOrOff = 10.0
    max_payload_size: SizeOrUnlimited = 0
    max_client_id_length: Annotated[SixteenBits, AfterValidator(_client_id_length)] = 256
    max_topic_levels: SixteenBits = 128
    max_subscriptions_per_client: CountOrUnlimited = 0
    max_shared_subscriptions_per_client: CountOrUnlimited = 100
    max_client_bytes: SizeOrUnlimited = 35_651_584
    max_user_bytes: SizeOrUnlimited = 0
    max_filter_bytes: SizeOrUnlimited = 1_610_612_736
    max_alias_bytes: SizeOrUnlimited = 67_108_864
    max_user_properties: CountOrUnlimited = 1_000
    max_publish_rate: RateOrUnlimited = 0.0
    max_publish_bytes: SizeOrUnlimited = 0
    publish_patience: SecondsOrOff = 60.0
    max_loop_lag: SecondsOrOff = 5.0
    max_waiting_hooks: Annotated[int, Field(ge=1, le=MAX_MESSAGES)] = 1_000


class Mqtt(Section):
    """The protocol features for clients. CONNACK tells them to MQTT 5.0 clients."""

    max_qos: Literal[0, 1, 2] = 2
    receive_maximum: SixteenBits = 1024
    max_inflight: SixteenBits = 1024
    max_inflight_bytes: SizeOrUnlimited = 16_777_216
    upgrade_outgoing_qos: bool = False
    topic_alias_maximum: SixteenBits = 64
    topic_alias_outbound: SixteenBits = 0
    max_keep_alive: SixteenBits = 0
    retain_available: bool = True
    allow_anonymous: bool = True
    allow_empty_client_id: bool = True
    auto_id_prefix: Annotated[String, AfterValidator(_id_prefix)] = "canopy-"
    versions: Annotated[Sequence[Literal["3.1", "3.1.1", "5.0"]], AfterValidator(_versions)] = ("3.1", "3.1.1", "5.0")
    control_characters: bool = False


class Session(Section):
    """Sessions of clients that are away."""

    max_expiry: Annotated[int, Field(ge=0, le=NEVER)] = 604_800
    queue_qos0: bool = False
    max_sessions: CountOrUnlimited = 250_000
    max_bytes: SizeOrUnlimited = 402_653_184
    takeover: Literal["same-user", "any-user"] = "same-user"


class QueueRuleSettings(Section):
    """Exceptions for some clients or subscriptions. All patterns that are given must match; None says nothing.

    A rule with `topic_filter` applies to single subscriptions, any other to all queues of a client.
    """

    client_id: Pattern | None = None
    """Shell pattern (`fnmatch`, case-sensitive) over the whole client identifier."""
    user: Pattern | None = None
    """Shell pattern (`fnmatch`, case-sensitive) over the whole user name. A client without one never matches."""
    topic_filter: RuleFilter | None = None
    """A filter: the rule applies to subscriptions whose topic filters match only topics of this one."""
    policy: Policy | None = None
    """The policy for a full queue."""
    max_age: SecondsOrOff | None = None
    """Seconds for which a message may wait. 0: no limit."""
    depth: CountOrUnlimited | None = None
    """Queued messages of one subscription; only beside `topic_filter`. 0: no limit of its own."""
    live_messages: CountOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""
    live_bytes: SizeOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""
    session_messages: CountOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""
    session_bytes: SizeOrUnlimited | None = None
    """As in `Queue`; not beside `topic_filter`. 0: no limit."""
    max_delay: Delay | None = None
    """As in `Queue`; not beside `topic_filter`. 0: none."""

    _of_a_subscription = only(
        "only with topic_filter", "depth", where=lambda given: given.get("topic_filter", "") is not None
    )
    _of_a_client = only(
        "only without topic_filter; depth bounds a subscription",
        "live_messages",
        "live_bytes",
        "session_messages",
        "session_bytes",
        "max_delay",
        where=lambda given: given.get("topic_filter") is None,
    )

    @model_validator(mode="after")
    def _says_something(self) -> QueueRuleSettings:
        lacks: list[str] = []
        if self.client_id is None and self.user is None and self.topic_filter is None:
            lacks.append("client_id, user or topic_filter")
        if all(getattr(self, name) is None for name in EFFECTS):
            lacks.append(f"something to set ({', '.join(EFFECTS)})")
        if lacks:
            raise wrong(f"a rule with {' and with '.join(lacks)}")
        return self


EFFECTS: Final = tuple(
    name for name in QueueRuleSettings.model_fields if name not in ("client_id", "user", "topic_filter")
)
"""The settings that a rule changes."""


class Queue(Section):
    """The bounds of every queue, and the policy at them. All bounds of a queue apply together."""

    policy: Policy = "drop-newest"
    max_age: SecondsOrOff = 0.0
    max_delay: Delay = 0.0
    live_messages: CountOrUnlimited = 10_000
    live_bytes: SizeOrUnlimited = 8_388_608
    session_messages: CountOrUnlimited = 10_000
    session_bytes: SizeOrUnlimited = 33_554_432
    total_messages: CountOrUnlimited = 0
    total_bytes: SizeOrUnlimited = 1_073_741_824
    hold_publishers: SecondsOrOff = 5.0
    on_full: Literal["acknowledge", "tell-publisher"] = "acknowledge"
    tell_loss: bool = True
    subscriber_policies: Annotated[Sequence[Policy], AfterValidator(tuple)] = (
        "drop-newest",
        "drop-oldest",
        "disconnect",
        "latest",
    )
    slow_after: SecondsOrOff = 1.0
    report_interval: SecondsOrOff = 10.0
    write_batch_bytes: Size = 262_144
    stall_timeout: SecondsOrOff = 30.0
    rules: Annotated[Sequence[QueueRuleSettings], AfterValidator(tuple)] = ()
    """Exceptions for some clients or subscriptions. All matching rules apply, in their order; a later one overrides
    earlier ones. Always a tuple after validation."""


class Retained(Section):
    """Bounds on retained messages."""

    max_messages: CountOrUnlimited = 1_000_000
    max_bytes: SizeOrUnlimited = 268_435_456
    check_publisher: bool = False


class Routing(Section):
    """Matching of topics."""

    trie: Literal["nodes", "compact", "uncompacted"] = "nodes"
    match_cache: CountOrUnlimited = 16_384


class Sys(Section):
    """The `$SYS` topics."""

    interval: SecondsOrOff = 10.0


def _folder(value: str) -> str:
    if "://" in value:
        raise wrong("a folder of this machine: record there, and copy finished segments to an object store")
    return value


class Recorder(Section):
    """The recorder of all messages and connections. Needs pyarrow (the extra `record`)."""

    directory: Annotated[str, AfterValidator(_folder)] = ""
    required: bool = False
    filters: Annotated[Sequence[PlainFilter], AfterValidator(tuple)] = ("#",)
    payloads: bool = True
    deliveries: bool = False
    segment_bytes: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = 134_217_728
    segment_seconds: Annotated[float, Field(gt=0, le=MAX_TIME, allow_inf_nan=False)] = 60.0
    queue_events: CountOrUnlimited = 200_000
    queue_bytes: SizeOrUnlimited = 67_108_864
    when_full: Literal["drop", "hold"] = "drop"
    hold_timeout: SecondsOrOff = 10.0
    snapshot_seconds: Annotated[float, Field(ge=0, le=MAX_TIME, allow_inf_nan=False)] = 3_600.0
    draft_seconds: Annotated[float, Field(ge=0, le=MAX_TIME, allow_inf_nan=False)] = 1.0
    table: Literal["files", "delta"] = "files"


def _counters(value: int) -> int:
    if 0 < value < 16:
        raise wrong("0, or an integer from 16 to 4096")
    return value


class Top(Section):
    """The most expensive topics, prefixes, publishers and subscribers."""

    counters: Annotated[int, Field(ge=0, le=4_096), AfterValidator(_counters)] = 256


class Tracing(Section):
    """Bounds on traces (`canopy ctl trace`)."""

    max_bytes: Annotated[int, Field(ge=65_536, le=MAX_BYTES)] = 8_388_608
    max_seconds: Annotated[float, Field(gt=0, le=MAX_TIME, allow_inf_nan=False)] = 3_600.0
    directory: str = ""


LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class Log(Section):
    """The log. The `canopy` command uses `level` and `format`; an embedding program chooses its own."""

    level: LogLevel = "info"
    format: Literal["auto", "console", "json"] = "auto"
    client_bytes: CountOrUnlimited = 1_000_000
    client_warnings: CountOrUnlimited = 100


class Shutdown(Section):
    """The end of the broker."""

    flush_timeout: SecondsOrOff = 5.0


URLS: Final = "http://HOST[:PORT]/v1/traces or https://…, without a user"


class Otel(Section):
    """The OpenTelemetry collector for messages with a trace context."""

    endpoint: Annotated[str, AfterValidator(web_url(URLS))] = ""
    sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.1
    max_rate: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=MAX_MESSAGES, allow_inf_nan=False)]

WEBHOOKS: Final = "an http:// or https:// URL without user, password and fragment"


class Alarms(Section):
    """Alarms. A bound of 0 switches an alarm off."""

    interval: SecondsOrOff = 5.0
    raise_after: SecondsOrOff = 10.0
    loop_lag: SecondsOrOff = 0.2
    room: Share = 0.9
    disk_used: Share = 0.9
    certificate_days: Annotated[int, Field(ge=0, le=3_650)] = 14
    upstream_down: SecondsOrOff = 60.0
    drop_rate: Rate = 100.0
    authentication_failures: Rate = 10.0
    history: Annotated[int, Field(ge=1, le=100_000)] = 200
    webhook: Annotated[str, AfterValidator(web_url(WEBHOOKS))] = ""

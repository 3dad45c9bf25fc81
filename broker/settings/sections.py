"""The sections of the settings that are about this broker by itself, in the order of `config/default.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from broker.settings.values import (
    LARGEST_PACKET,
    LONGEST_ID_PREFIX,
    LONGEST_TIME,
    MOST_BYTES,
    MOST_MESSAGES,
    NEVER,
    CountOrUnlimited,
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
    if len(value.encode()) > LONGEST_ID_PREFIX or value.startswith("$upstream/"):
        raise wrong(f"text of at most {LONGEST_ID_PREFIX} bytes that does not begin with $upstream/")
    if not value.isprintable():
        raise wrong("printable text")
    return value


def _versions(value: Sequence[str]) -> tuple[str, ...]:
    if not value:
        raise wrong("at least one version of MQTT")
    return tuple(value)


class Limits(Section):
    """What one connection, or all of them, may take."""

    max_connections: CountOrUnlimited = 0
    """Open network connections in all. 0: as many as the process may have file descriptors for, less 192."""
    max_connections_per_address: CountOrUnlimited = 0
    """Open network connections from one IP address, or one /64 of IPv6; one more is refused with 0x97. 0: no limit."""
    max_connect_rate: RateOrUnlimited = 0.0
    """New connections a second, all together; a burst of one second's worth, at least 1, passes. One more is refused
    with 0x9F. 0: no limit."""
    max_handshakes: CountOrUnlimited = 512
    """TLS handshakes under way on all listeners; over it the one that has been under way for longest is closed. 0: no
    limit."""
    max_packet_size: Annotated[int, Field(ge=0, le=LARGEST_PACKET), AfterValidator(_packet_size)] = 8_388_608
    """Bytes of the largest packet accepted, fixed header included, at least 2. MQTT 5.0 clients are told. 0: no limit
    but what can be forwarded, 267,386,884."""
    max_connect_size: Annotated[int, Field(ge=0, le=LARGEST_PACKET), AfterValidator(_connect_size)] = 100_000
    """Bytes of the largest packet accepted before the client is: its CONNECT, and AUTH, at least 64; and of the HTTP
    request for a WebSocket, there from 512 to 65,536. 0: max_packet_size alone bounds them."""
    max_partial_bytes: SizeOrUnlimited = 268_435_456
    """Bytes that were read of all clients together and are not whole packets yet, or not acted on; above it the
    connection whose packet is incomplete for longest is ended with 0x97. 0: no limit."""
    packet_timeout: SecondsOrOff = 60.0
    """Seconds within which the next 1,024 bytes of an incomplete packet, or its rest, must come. 0: no limit."""
    connect_timeout: SecondsOrOff = 10.0
    """Seconds from accepting a connection to the end of its CONNECT (and of an AUTH exchange). 0: no limit."""
    max_payload_size: SizeOrUnlimited = 0
    """Bytes of the payload of a message or will. A publish beyond it goes nowhere and is answered 0x97, where QoS and
    version have an answer; a CONNECT with such a will is refused. 0: no limit but the packet's."""
    max_client_id_length: Annotated[SixteenBits, AfterValidator(_client_id_length)] = 256
    """Bytes of UTF-8 in a client identifier, at least 23. 0: what the protocol allows, 65,535."""
    max_topic_levels: SixteenBits = 128
    """Levels in a topic or topic filter. 0: no limit."""
    max_subscriptions_per_client: CountOrUnlimited = 0
    """Subscriptions one session may hold; one more is refused with 0x97. 0: no limit but that of their bytes."""
    max_shared_subscriptions_per_client: CountOrUnlimited = 100
    """Shared subscriptions one session may hold: a message is delivered once for each share group that it matches, also
    to one client. 0: no limit."""
    max_client_bytes: SizeOrUnlimited = 35_651_584
    """Bytes that the broker keeps for one client in all: subscriptions, retained messages, session, and messages that
    wait in it or are in flight. Beyond it these are refused or dropped, but for 1 MiB each of what waits and what is in
    flight. Where `queue.session_bytes` is higher, that bounds the sum, and this one subscriptions and retained
    messages, each by themselves. 0: no limit, so that one client can fill the memory."""
    max_user_bytes: SizeOrUnlimited = 0
    """Bytes that all clients of one user, or of one address where they have no user, may hold together: subscriptions,
    retained messages, sessions, and messages that wait in them. Beyond it the first three are refused. 0: no limit but
    what is fair."""
    max_filter_bytes: SizeOrUnlimited = 1_610_612_736
    """Bytes that all subscriptions and topic filters together may take; one more is refused with 0x97. 0: no limit."""
    max_alias_bytes: SizeOrUnlimited = 67_108_864
    """Bytes that the topic aliases of all clients may take: their topic names, and 160 for each; a 256th of it for one
    client, at least 66,000. One that sets more is disconnected with 0x97. From three quarters of it on, whoever
    connects is told that it may set none. 0: no limit but `mqtt.topic_alias_maximum` of the longest names for each."""
    max_user_properties: CountOrUnlimited = 1_000
    """User properties in one packet of a client, and in its will; a packet with more ends the connection with 0x97. 0:
    no limit but the packet's size."""
    max_publish_rate: RateOrUnlimited = 0.0
    """PUBLISH packets a second from one client; a burst of one second's worth, at least 1, passes. Over it the broker
    reads nothing more from the client for as long as it takes. 0: no limit."""
    max_publish_bytes: SizeOrUnlimited = 0
    """Bytes of PUBLISH packets a second from one client, in the same way. 0: no limit."""
    publish_patience: SecondsOrOff = 60.0
    """Seconds that these two may hold a client back without a break; then the broker disconnects it with 0x96 (packets)
    or 0x97 (bytes). 0: for ever."""
    max_loop_lag: SecondsOrOff = 5.0
    """Seconds the event loop may be late; above it the broker refuses new clients with 0x89 and goes on serving
    connected ones. 0: never."""
    max_waiting_hooks: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 1_000
    """Calls of `async` plug-ins that wait for their turn; the next ones are left out, counted and logged."""


class Mqtt(Section):
    """What the broker offers to clients. MQTT 5.0 clients are told in CONNACK."""

    max_qos: Literal[0, 1, 2] = 2
    """The highest quality of service accepted and granted."""
    receive_maximum: SixteenBits = 1024
    """QoS 1 and 2 publishes a client may have unacknowledged towards the broker. 0: all the protocol allows, 65,535."""
    max_inflight: SixteenBits = 1024
    """QoS 1 and 2 publishes unacknowledged towards one client. The client's receive maximum may lower it. 0: all the
    protocol allows, 65,535."""
    max_inflight_bytes: SizeOrUnlimited = 16_777_216
    """Bytes of QoS 1 and 2 publishes unacknowledged towards one client; one message may always be. 0: no limit but that
    of the session, `queue.session_bytes`."""
    upgrade_outgoing_qos: bool = False
    """Whether a message goes to each subscriber with the QoS that was granted to it, also where it was published with a
    lower one. The specification wants the lower of both [MQTT-3.8.4-8]."""
    topic_alias_maximum: SixteenBits = 64
    """Topic aliases a client may set on its connection. 0: none."""
    topic_alias_outbound: SixteenBits = 0
    """Topic aliases used towards a client, within what the client allows. 0: none."""
    max_keep_alive: SixteenBits = 0
    """Seconds. A 5.0 client that asks for more, or for none, is given this; one of 3.1.1 or 3.1, which cannot be told,
    is refused with return code 5. 0: what the client asks for."""
    retain_available: bool = True
    """Whether messages are retained."""
    allow_anonymous: bool = True
    """Whether a connection may come without a user name."""
    allow_empty_client_id: bool = True
    """Whether a client may leave its identifier to the broker."""
    auto_id_prefix: Annotated[String, AfterValidator(_id_prefix)] = "canopy-"
    """What the client identifiers that the broker makes begin with; 22 random characters follow. At most 200 bytes."""
    versions: Annotated[Sequence[Literal["3.1", "3.1.1", "5.0"]], AfterValidator(_versions)] = ("3.1", "3.1.1", "5.0")
    """The versions of MQTT that clients may speak, at least one; others are refused with 0x84. Always a tuple after
    validation."""
    control_characters: bool = False
    """Whether topic names, topic filters, client identifiers and user names may hold control characters, U+0001 to
    U+001F and U+007F to U+009F. Off: a packet with one in a topic is malformed, 0x81."""


class Session(Section):
    """What is kept for clients that are away."""

    max_expiry: Annotated[int, Field(ge=0, le=NEVER)] = 604_800
    """Seconds a session is kept after its connection ended, at most, and what waits for a link after the link was
    removed from the settings. 0: no limit, it is what the client asks for, and
    for ever where 3.1.1 asks for a session that stays. 4294967295: the same."""
    queue_qos0: bool = False
    """Whether QoS 0 messages too wait for a client that is away."""
    max_sessions: CountOrUnlimited = 250_000
    """Sessions kept in all, connected or not; a fifth of them may be of clients that are away and hold nothing: no
    subscription, message, or will. Over it a client that has none is refused with 0x97, unless such a session can end
    for it. 0: no limit."""
    max_bytes: SizeOrUnlimited = 402_653_184
    """Bytes that all sessions may take by themselves: identifiers, user names and wills, without subscriptions and
    queues. Over it as with `max_sessions`. 0: no limit."""
    takeover: Literal["same-user", "any-user"] = "same-user"
    """Who may take up a session with its client identifier: who has the user name of the client that made it (or, like
    that one, none), or anybody. Others are refused with 0x85."""


class QueueRuleSettings(Section):
    """What is different for some clients or subscriptions. All patterns that are given must match; None says nothing.

    A rule with `topic_filter` is about single subscriptions, any other about all queues of a client.
    """

    client_id: Pattern | None = None
    """Shell pattern (`fnmatch`, case-sensitive) over the whole client identifier."""
    user: Pattern | None = None
    """Shell pattern (`fnmatch`, case-sensitive) over the whole user name. A client without one never matches."""
    topic_filter: RuleFilter | None = None
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
            raise wrong("only with topic_filter")
        return value

    @field_validator("live_messages", "live_bytes", "session_messages", "session_bytes")
    @classmethod
    def _of_a_client(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("topic_filter") is not None:
            raise wrong("only without topic_filter; depth bounds a subscription")
        return value

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
    hold_publishers: SecondsOrOff = 5.0
    """Seconds for which a publisher in full flight is held back while a subscriber that reads has more than half of a
    full queue before it; a tenth of the time that passes is given back. 0: nobody is held back."""
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
    """A subscriber counts as slow when its messages wait longer than these seconds. 0: nobody does."""
    report_interval: SecondsOrOff = 10.0
    """Seconds between two log lines about the losses of one client. 0: no lines."""
    write_batch_bytes: Size = 262_144
    """Bytes joined to one write, at least 1."""
    stall_timeout: SecondsOrOff = 30.0
    """Seconds that a client may read nothing while messages wait for it, before the broker disconnects it. 0: no
    limit."""
    rules: Annotated[Sequence[QueueRuleSettings], AfterValidator(tuple)] = ()
    """What is different for some clients or subscriptions. All rules that match apply, in their order; a later one wins
    for what it sets. Always a tuple after validation."""


class Retained(Section):
    """What retained messages may take."""

    max_messages: CountOrUnlimited = 1_000_000
    """Retained messages in all. 0: no limit."""
    max_bytes: SizeOrUnlimited = 268_435_456
    """Bytes of topics and payloads retained in all, with 256 for each topic level not shared. 0: no limit."""
    check_publisher: bool = False
    """Whether a retained message is sent only while its publisher may publish to its topic (mosquitto's
    `check_retain_source`). Of a publisher without a session, client identifier and user name alone are known."""


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


def _folder(value: str) -> str:
    if "://" in value:
        raise wrong("a folder of this machine: record there, and copy finished segments to an object store")
    return value


class Recorder(Section):
    """What is recorded of everything that goes through the broker. Needs pyarrow (the extra `record`)."""

    directory: Annotated[str, AfterValidator(_folder)] = ""
    """The folder of this machine that segments are written to; it is made where it is not there. Empty: nothing is
    recorded."""
    required: bool = False
    """Whether the broker serves only while it records. Where the folder cannot be written to, it does not start, or it
    stops in order. Off: it goes on without a record."""
    filters: Annotated[Sequence[PlainFilter], AfterValidator(tuple)] = ("#",)
    """The recorder keeps messages whose topics these match, and always who connects, disconnects, subscribes and loses
    something. Always a tuple after validation."""
    payloads: bool = True
    """Whether payloads are kept, or their sizes alone."""
    deliveries: bool = False
    """Whether the recorder notes for each message to whom it went: one event for each receiver."""
    segment_bytes: Annotated[int, Field(ge=65_536, le=MOST_BYTES)] = 134_217_728
    """Bytes at which a segment is finished and the next one begun, from 64 KiB."""
    segment_seconds: Annotated[float, Field(gt=0, le=LONGEST_TIME, allow_inf_nan=False)] = 60.0
    """Seconds after which a segment is finished, above 0. What is not in a finished one is lost with the machine."""
    queue_events: CountOrUnlimited = 200_000
    """Events that wait to be written. 0: no limit. Those that do not fit are lost to the record, which says so."""
    queue_bytes: SizeOrUnlimited = 67_108_864
    """Bytes that wait to be written. 0: no limit."""
    when_full: Literal["drop", "hold"] = "drop"
    """What becomes of publishes that come faster than they are written. `drop`: those that do not fit are lost to the
    record. `hold`: while more than half of the queue waits, the broker reads nothing more from clients that publish."""
    hold_timeout: SecondsOrOff = 10.0
    """Seconds without anything written after which `hold` waits no more, until something is written again. 0: it does
    not wait at all."""
    snapshot_seconds: Annotated[float, Field(ge=0, le=LONGEST_TIME, allow_inf_nan=False)] = 3_600.0
    """Seconds after which all subscriptions are recorded again, so that a part of the record can be judged by itself.
    0: never."""
    draft_seconds: Annotated[float, Field(ge=0, le=LONGEST_TIME, allow_inf_nan=False)] = 1.0
    """Seconds after which events of an unfinished segment outlive the process, in a draft beside it. 0: none."""
    table: Literal["files", "delta"] = "files"
    """`delta`: the segments are a table of Delta Lake, too, one commit for each. Needs the extra `delta`."""


def _counters(value: int) -> int:
    if 0 < value < 16:
        raise wrong("0, or an integer from 16 to 4096")
    return value


class Top(Section):
    """Who and what costs most: topics, prefixes, publishers, subscribers."""

    counters: Annotated[int, Field(ge=0, le=4_096), AfterValidator(_counters)] = 256
    """Names that are kept in each list (16 to 4096): whoever has more than this part of the traffic is in it. 0:
    nothing is counted."""


class Tracing(Section):
    """What traces (`canopy ctl trace`) may take."""

    max_bytes: Annotated[int, Field(ge=65_536, le=MOST_BYTES)] = 8_388_608
    """Bytes that one trace may take in memory, from 64 KiB; then it ends. Eight traces are kept, and 32 files."""
    max_seconds: Annotated[float, Field(gt=0, le=LONGEST_TIME, allow_inf_nan=False)] = 3_600.0
    """Seconds that one trace may last, above 0."""
    directory: str = ""
    """A folder that a trace which has ended is written to, for Wireshark; it is made where it is not there. Empty:
    traces are in memory alone."""
    mask_user_properties: bool = False
    """Whether the values of user properties are made unreadable, as passwords and authentication data always are."""


class Log(Section):
    """What is logged, and how it looks. The `canopy` command obeys `level` and `format`; an embedding program decides
    them."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""
    format: Literal["auto", "console", "json"] = "auto"
    """`auto`: for people on a terminal, JSON elsewhere."""
    client_bytes: CountOrUnlimited = 1_000_000
    """Bytes of other lines about clients (connected, disconnected, taken over) that are written at once; a fifteenth of
    them more each second. One IP address, or one /64 of IPv6, may have 68 % of them. The rest is summed up in one line.
    0: no limit."""
    client_warnings: CountOrUnlimited = 100
    """Warnings about clients (refused, protocol broken, evicted) that are written at once; a tenth of them more each
    second. One IP address, or one /64 of IPv6, may have a tenth of them. The rest is summed up in one line. 0: no
    limit."""

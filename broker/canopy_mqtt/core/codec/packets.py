"""The packets of MQTT 3.1.1 and 5.0 as data: no parsing, no encoding, no rules beyond types.

Owns the packet type numbers and one class for each packet, which mypyc compiles; what `dataclass` generates it does
not. `Publish.topic` is the UTF-8 bytes as they arrived (the key of the match cache); all other texts are `str`. Fields
that 3.1.1 does not have (properties, reason codes) have their defaults there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.codec.properties import Data, Properties

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

NAMES: Final[tuple[str, ...]] = (
    "RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip

V31: Final = 3
"""Protocol level of MQTT 3.1 ("MQIsdp")."""
V311: Final = 4
"""Protocol level of MQTT 3.1.1."""
V5: Final = 5
"""Protocol level of MQTT 5.0."""

NEVER: Final = 0xFFFFFFFF
"""Session Expiry Interval that means: does not expire (section 3.1.2.11.2)."""


class Packet(Data):
    """Base of all packets. `kind` is the control packet type, section 2.1.2."""

    kind: int = 0


class Publish(Packet):
    """An application message on the wire, section 3.3.

    `topic` is UTF-8, empty only beside a topic alias. `properties` are the encoded v5 properties that a server
    forwards unaltered and in order (payload format, content type, response topic, correlation data, user properties);
    the hop-by-hop ones are apart: `topic_alias` (0: none), `message_expiry` (s, -1: none), `subscription_ids`
    (server to client only). `packet_id` is 0 with QoS 0. `request`: whether a Response Topic is among the properties;
    the decoder tells, and the encoder does not look at it.
    """

    FIELDS = (
        "topic", "payload", "qos", "retain", "dup", "packet_id",
        "properties", "topic_alias", "message_expiry", "subscription_ids",
    )  # fmt: skip

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: bytes = b"",
        topic_alias: int = 0,
        message_expiry: int = -1,
        subscription_ids: tuple[int, ...] = (),
        request: bool = False,
    ) -> None:
        self.kind = PUBLISH
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties
        self.topic_alias = topic_alias
        self.message_expiry = message_expiry
        self.subscription_ids = subscription_ids
        self.request = request


class Will(Data):
    """The Will Message of a CONNECT, section 3.1.3.2. `delay` in seconds; `message_expiry` -1: none.

    `properties` as in `Publish`: encoded, forwarded unaltered.
    """

    FIELDS = ("topic", "payload", "qos", "retain", "delay", "message_expiry", "properties")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        delay: int = 0,
        message_expiry: int = -1,
        properties: bytes = b"",
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.delay = delay
        self.message_expiry = message_expiry
        self.properties = properties


class Connect(Packet):
    """Section 3.1. `user_name` and `password` are None when absent; `keep_alive` in seconds, 0: off.

    `bridge` is set by 3.1 and 3.1.1 bridges that mark themselves with the top bit of the protocol level, which no
    specification knows but which is in wide use.
    """

    FIELDS = (
        "client_id",
        "version",
        "clean_start",
        "keep_alive",
        "will",
        "user_name",
        "password",
        "properties",
        "bridge",
    )

    def __init__(
        self,
        client_id: str = "",
        version: int = V311,
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        user_name: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
        bridge: bool = False,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.clean_start = clean_start
        self.keep_alive = keep_alive
        self.will = will
        self.user_name = user_name
        self.password = password
        self.properties = Properties() if properties is None else properties
        self.kind = CONNECT
        self.bridge = bridge


class Connack(Packet):
    """Section 3.2. `reason_code` is the return code of 3.1.1 when the version is 3 or 4."""

    FIELDS = ("session_present", "reason_code", "properties")

    def __init__(
        self,
        session_present: bool = False,
        reason_code: int = 0,
        properties: Properties | None = None,
    ) -> None:
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = Properties() if properties is None else properties
        self.kind = CONNACK


class Ack(Packet):
    """PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7): `kind` tells which."""

    FIELDS = ("kind", "packet_id", "reason_code", "properties")

    def __init__(
        self,
        kind: int = PUBACK,
        packet_id: int = 0,
        reason_code: int = 0,
        properties: Properties | None = None,
    ) -> None:
        self.kind = kind
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = Properties() if properties is None else properties


@dataclass(init=False)
@mypyc_attr(acyclic=True)
class SubscriptionRequest:
    """One topic filter of a SUBSCRIBE with its options, section 3.8.3.1."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int

    def __init__(
        self,
        topic_filter: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling


class Subscribe(Packet):
    """Section 3.8; at least one request."""

    FIELDS = ("packet_id", "requests", "properties")

    def __init__(
        self,
        packet_id: int = 0,
        requests: list[SubscriptionRequest] | None = None,
        properties: Properties | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.requests = [] if requests is None else requests
        self.properties = Properties() if properties is None else properties
        self.kind = SUBSCRIBE


class Suback(Packet):
    """Section 3.9; one reason code for each request, in order."""

    FIELDS = ("packet_id", "reason_codes", "properties")

    def __init__(
        self,
        packet_id: int = 0,
        reason_codes: list[int] | None = None,
        properties: Properties | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.reason_codes = [] if reason_codes is None else reason_codes
        self.properties = Properties() if properties is None else properties
        self.kind = SUBACK


class Unsubscribe(Packet):
    """Section 3.10; at least one filter."""

    FIELDS = ("packet_id", "topic_filters", "properties")

    def __init__(
        self,
        packet_id: int = 0,
        topic_filters: list[str] | None = None,
        properties: Properties | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.topic_filters = [] if topic_filters is None else topic_filters
        self.properties = Properties() if properties is None else properties
        self.kind = UNSUBSCRIBE


class Unsuback(Packet):
    """Section 3.11; reason codes only in 5.0."""

    FIELDS = ("packet_id", "reason_codes", "properties")

    def __init__(
        self,
        packet_id: int = 0,
        reason_codes: list[int] | None = None,
        properties: Properties | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.reason_codes = [] if reason_codes is None else reason_codes
        self.properties = Properties() if properties is None else properties
        self.kind = UNSUBACK


class Pingreq(Packet):
    """Section 3.12."""

    def __init__(self) -> None:
        self.kind = PINGREQ


class Pingresp(Packet):
    """Section 3.13."""

    def __init__(self) -> None:
        self.kind = PINGRESP


class Disconnect(Packet):
    """Section 3.14."""

    FIELDS = ("reason_code", "properties")

    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        self.reason_code = reason_code
        self.properties = Properties() if properties is None else properties
        self.kind = DISCONNECT


class Auth(Packet):
    """Section 3.15, MQTT 5.0 only."""

    FIELDS = ("reason_code", "properties")

    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        self.reason_code = reason_code
        self.properties = Properties() if properties is None else properties
        self.kind = AUTH

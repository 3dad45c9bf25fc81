"""The routes of retained messages and of publishing as an operator, to whom no access rule applies.

A message published here has no publisher, like the broker's own messages, so that No Local does not exclude any
subscriber.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host
from canopy_mqtt.admin.paging import BUILT, FirstNames, PageOfAll, PageQuery, cut, in_turns, name_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.core.codec.properties import decode_forward, encode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_filter, validate_topic
from canopy_mqtt.core.protocol.publish import topic_refusal
from canopy_mqtt.core.queues.message import MAX_EXPIRY, Message

ROUTES: Final = Routes("messages")

RETAINED: Final = f"{BASE}/mqtt/retainer/messages"

TURN: Final = 500
"""Retained messages that one turn visits: about half a millisecond."""


class Retained(BaseModel):
    """A retained message."""

    topic: str
    qos: int
    payload_size: int
    from_clientid: str
    """The publisher; empty: the broker itself."""
    expires_in: int | None
    """Seconds; null: it does not expire."""


class RetainedMessage(Retained):
    """A retained message with its payload."""

    payload: str
    """In base64."""
    content_type: str | None
    user_properties: list[tuple[str, str]]


class RetainedQuery(PageQuery):
    """Selects retained messages."""

    topic: Annotated[str, Field(max_length=65_535)] = "#"
    """A topic filter. Topics below `$SYS` match only if it begins with `$SYS`."""


class Properties(BaseModel):
    """The MQTT 5.0 properties of a message (section 3.3.2.3)."""

    model_config = ConfigDict(extra="forbid")

    payload_format_indicator: Annotated[int, Field(ge=0, le=1)] | None = None
    message_expiry_interval: Annotated[int, Field(ge=0, le=MAX_EXPIRY)] | None = None
    """Seconds."""
    response_topic: str | None = None
    correlation_data: str | None = None
    content_type: str | None = None
    user_properties: dict[str, str] | None = None


class Publish(BaseModel):
    """A message."""

    model_config = ConfigDict(extra="forbid")

    topic: Annotated[str, Field(min_length=1, max_length=65_535)]
    payload: str = ""
    payload_encoding: Literal["plain", "base64"] = "plain"
    qos: Annotated[int, Field(ge=0, le=2)] = 0
    retain: bool = False
    properties: Properties = Properties()


class Published(BaseModel):
    """The result of a publish."""

    matched: int
    """Matching sessions and share groups, including links to upstream brokers."""
    retained: bool
    """True if it is now the topic's retained message."""


@ROUTES.add("GET", RETAINED, query=RetainedQuery)
async def retained(call: Call) -> PageOfAll[Retained]:
    """Retained messages by topic."""
    broker, query = call.broker, call.query
    try:
        validate_filter(query.topic)
    except ProtocolError as error:
        raise ApiError(400, "BAD_REQUEST", f"topic: {error}") from None
    first = FirstNames(name_of(query.cursor) if query.cursor else None, query.limit + 1)
    walk = broker.router.retained.walk(query.topic)
    while not walk.done:
        for node in walk.take(TURN):
            first.add(node.topic)
        await asyncio.sleep(0)
    names, meta = cut(first.names(), query.limit, str)
    found = [each for name in names if (each := _message(broker, name)) is not None]
    return PageOfAll(
        data=[Retained.model_validate(_facts(broker, each)) async for each in in_turns(found, BUILT)], meta=meta
    )


def _message(broker: Host, topic: str) -> Message | None:
    found = broker.router.retained.get(topic)
    return found if isinstance(found, Message) else None


def _facts(broker: Host, message: Message) -> dict[str, object]:
    left = message.remaining_expiry(broker.loop.time()) if message.expires_at else None
    return {
        "topic": message.topic.decode(),
        "qos": message.qos,
        "payload_size": len(message.payload()),
        "from_clientid": message.publisher,
        "expires_in": left,
    }


def _retained_at(call: Call) -> Message:
    found = _message(call.broker, call.path["topic"])
    if found is None:
        raise ApiError(404, "NOT_FOUND", "the topic has no retained message")
    return found


@ROUTES.add("GET", f"{BASE}/mqtt/retainer/message/{{topic}}")
async def one_retained(call: Call) -> RetainedMessage:
    """The retained message of one topic, with its payload."""
    message = _retained_at(call)
    properties = decode_forward(message.properties)
    content_type = properties.strings.get(3)
    return RetainedMessage.model_validate(
        _facts(call.broker, message)
        | {
            "payload": base64.b64encode(message.payload()).decode(),
            "content_type": content_type,
            "user_properties": properties.user or [],
        }
    )


@ROUTES.add("DELETE", f"{BASE}/mqtt/retainer/message/{{topic}}", role="operator")
async def clear(call: Call) -> None:
    """Clear the retained message of a topic. Subscribers get no message about it."""
    message = _retained_at(call)
    broker = call.broker
    broker.log.warning("retained message cleared by an operator", topic=call.path["topic"], by=call.caller.name)
    broker.router.retained_store.retain(Message(message.topic, b"", 0, True, b"", 0.0, ""))
    broker.after_batch()


def _payload(body: Publish) -> bytes:
    if body.payload_encoding == "plain":
        return body.payload.encode()
    try:
        return base64.b64decode(body.payload, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "BAD_REQUEST", "payload: not base64") from None


def _made(broker: Host, body: Publish) -> Message:
    """Make the message, with the checks that messages of clients undergo. Raises ApiError."""
    limits = broker.router.limits
    topic, payload, given = body.topic.encode("utf-8", "surrogatepass"), _payload(body), body.properties
    try:
        body.topic.encode()
        validate_topic(body.topic, limits.max_topic_levels)
        properties = encode_forward(
            given.payload_format_indicator,
            given.content_type,
            given.response_topic,
            None if given.correlation_data is None else given.correlation_data.encode(),
            None if given.user_properties is None else list(given.user_properties.items()),
        )
    except (ProtocolError, ValueError) as error:
        raise ApiError(400, "BAD_REQUEST", f"not a message that a client could publish: {error}") from None
    refused, why = topic_refusal(broker.router, topic, False)
    if refused:
        raise ApiError(400, "BAD_REQUEST", f"topic: {why}")
    max_bytes = limits.max_payload_size or limits.max_packet_size
    if len(payload) > max_bytes:
        raise ApiError(
            413, "BAD_REQUEST", f"the payload is larger than the {max_bytes} bytes that a client may publish"
        )
    max_bytes = limits.max_packet_size
    if len(topic) + len(payload) + len(properties) > max_bytes:
        raise ApiError(413, "BAD_REQUEST", f"larger than the {max_bytes} bytes that a client may publish")
    expires = given.message_expiry_interval
    at = 0.0 if expires is None else broker.loop.time() + expires
    return Message(topic, payload, body.qos, body.retain, properties, at, "")


@ROUTES.add("POST", f"{BASE}/publish", role="operator", body=Publish)
async def publish(call: Call) -> Published:
    """Publish a message."""
    broker = call.broker
    message = _made(broker, call.body)
    while broker.router.fanout.broadcasting:  # noqa: ASYNC110 (each round of the event loop works some of it off)
        await asyncio.sleep(0)
    router = broker.router
    router.counters.totals.now = broker.loop.time()
    matched = router.publish(message, None)
    broker.after_batch()
    kept = message.retain and _message(broker, call.body.topic) is not None and bool(message.payload())
    return Published(matched=matched, retained=kept)

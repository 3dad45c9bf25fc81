"""Why a message does (not) reach a client: what would happen to a message now."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from broker.admin.errors import ApiError
from broker.admin.paging import PageQuery, cursor_of, name_of
from broker.admin.routing import BASE, Call, Routes
from broker.core.codec.errors import ProtocolError
from broker.core.codec.publish_layout import LONGEST_REMAINING
from broker.core.codec.topic_names import validate_filter, validate_topic
from broker.observe.explain.answer import Answer
from broker.observe.explain.asked import Question
from broker.observe.explain.explaining import MOST_RECEIVERS, Explainer
from broker.observe.explain.watches import Watch
from broker.observe.trace.kept import State
from broker.observe.trace.traces import TraceError

ROUTES: Final = Routes("explain")

LONGEST: Final = 65_535
"""Characters of a name."""


class Asked(PageQuery):
    """A hypothetical message. A page has at most 1,000 receivers."""

    topic: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    """A topic name as the broker sees it, including the mount of its publisher."""
    client: Annotated[str, Field(max_length=LONGEST)] = ""
    """The client in question; empty: all clients."""
    publisher: Annotated[str, Field(max_length=LONGEST)] | None = None
    """The client identifier of the publisher; absent: the message counts as accepted."""
    qos: Annotated[int, Field(ge=0, le=2)] = 0
    retain: bool = False
    size: Annotated[int, Field(ge=0, le=LONGEST_REMAINING)] = 1
    """Bytes of its payload."""


class Begin(BaseModel):
    """The client whose messages are watched."""

    model_config = ConfigDict(extra="forbid")

    client: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    topic_filter: Annotated[str, Field(max_length=LONGEST)] = ""
    """For deliveries, in the client's topics; empty: all. Losses are reported whatever their topic."""
    duration: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds; null: `tracing.max_seconds`."""


class Since(BaseModel):
    """Where to continue."""

    after: Annotated[int, Field(ge=0)] = 0
    """The number of the last delivery or loss that you already have."""


class Delivery(BaseModel):
    """A message that the broker wrote to the client's connection."""

    number: int
    at: float
    """Seconds since 1970."""
    topic: str
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    """0: QoS 0."""
    size: int
    """Bytes of the packet."""
    answered_at: float | None
    reason_code: int | None
    complete: bool
    """Whether the client has acknowledged it completely; at QoS 0, whether it was written."""


class Loss(BaseModel):
    """Messages for the client that were dropped at one time."""

    number: int
    at: float
    cause: str
    count: int


class Watched(BaseModel):
    """The last deliveries and losses of a watch, at most 1,000 of each."""

    name: str
    """Also the name of its trace (`/api/v5/trace`)."""
    client: str
    topic_filter: str
    status: State
    last: int
    deliveries: list[Delivery]
    losses: list[Loss]
    unknown: list[str]


UNKNOWN: Final = [
    "of which topic a lost message was: ledgers count by client and cause",
    "what was denied, is not subscribed to or came with No Local: nobody counts what was for nobody (see /explain)",
]


def _watched(watch: Watch, after: int) -> Watched:
    return Watched(
        name=watch.trace.name,
        client=watch.client_id,
        topic_filter=watch.topic_filter,
        status=watch.trace.state,
        last=watch.number,
        deliveries=[
            Delivery(
                number=one.number,
                at=one.at,
                topic=one.topic,
                qos=one.qos,
                retain=one.retain,
                dup=one.dup,
                packet_id=one.packet_id,
                size=one.size,
                answered_at=one.answered_at or None,
                reason_code=None if one.reason_code < 0 else one.reason_code,
                complete=one.complete,
            )
            for one in watch.deliveries
            if one.number > after
        ],
        losses=[
            Loss(number=one.number, at=one.at, cause=one.cause, count=one.count)
            for one in watch.losses
            if one.number > after
        ],
        unknown=UNKNOWN,
    )


def _named(call: Call) -> Watch:
    watch = call.broker.watches.get(call.path["name"])
    if watch is None:
        raise ApiError(404, "NOT_FOUND", "there is no such watch")
    return watch


@ROUTES.add("POST", f"{BASE}/explain/watch", role="operator", body=Begin, status=201)
async def watch(call: Call) -> Watched:
    """Start a watch: record a client's deliveries and losses."""
    body: Begin = call.body
    try:
        if body.topic_filter:
            validate_filter(body.topic_filter)
        return _watched(call.broker.watches.start(body.client, body.topic_filter, body.duration), 0)
    except (TraceError, ProtocolError, UnicodeEncodeError) as error:
        raise ApiError(400, "BAD_REQUEST", str(error)) from None


@ROUTES.add("GET", f"{BASE}/explain/watch/{{name}}", role="operator", query=Since)
async def watched(call: Call) -> Watched:
    """The deliveries and losses of a watch."""
    asked: Since = call.query
    found = _named(call)
    async with call.broker.watches.one_by_one:
        await found.catch_up()
    return _watched(found, asked.after)


@ROUTES.add("DELETE", f"{BASE}/explain/watch/{{name}}", role="operator")
async def unwatch(call: Call) -> None:
    """End a watch."""
    call.broker.watches.remove(_named(call).trace.name)


@ROUTES.add("GET", f"{BASE}/explain", query=Asked)
async def explain(call: Call) -> Answer:
    """What would happen to a message now, and why."""
    asked: Asked = call.query
    try:
        # A surrogate, or a name that is none.
        asked.topic.encode()
        validate_topic(asked.topic)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise ApiError(400, "BAD_REQUEST", f"topic: {error}") from None
    broker = call.broker
    question = Question(asked.topic, asked.publisher, asked.qos, asked.retain, asked.size, asked.client)
    explainer = Explainer(broker.router)
    after = name_of(asked.cursor)
    async with broker.watches.one_by_one:
        answer = await explainer.answer(question, broker.loop.time(), after, min(asked.limit, MOST_RECEIVERS))
    if answer.cursor is not None:
        answer.cursor = cursor_of(answer.cursor)
    return answer

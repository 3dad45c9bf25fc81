"""The route that explains why a message does (not) reach a client."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.paging import PageQuery, cursor_of, name_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.core.codec.primitives import MAX_VARINT
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_topic
from canopy_mqtt.observe.explain.answer import Answer
from canopy_mqtt.observe.explain.explainer import MAX_RECEIVERS, Question

ROUTES: Final = Routes("explain")

MAX_NAME_LENGTH: Final = 65_535
"""Characters of a name."""


class Asked(PageQuery):
    """A hypothetical message. A page has at most 1,000 receivers."""

    topic: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
    """A topic name as the broker sees it, including the mount of its publisher."""
    client: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] = ""
    """The client in question; empty: all clients."""
    publisher: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """The client identifier of the publisher; absent: the message counts as accepted."""
    qos: Annotated[int, Field(ge=0, le=2)] = 0
    retain: bool = False
    size: Annotated[int, Field(ge=0, le=MAX_VARINT)] = 1
    """Bytes of its payload."""


@ROUTES.add("GET", f"{BASE}/explain", query=Asked)
async def explain(call: Call) -> Answer:
    """Explain what would happen to a message now, and why."""
    asked: Asked = call.query
    try:
        # A surrogate, or a name that is none.
        asked.topic.encode()
        validate_topic(asked.topic)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise ApiError(400, "BAD_REQUEST", f"topic: {error}") from None
    broker = call.broker
    question = Question(asked.topic, asked.publisher, asked.qos, asked.retain, asked.size, asked.client)
    after = name_of(asked.cursor)
    async with broker.explainer.one_by_one:
        answer = await broker.explainer.answer(question, broker.loop.time(), after, min(asked.limit, MAX_RECEIVERS))
    if answer.cursor is not None:
        answer.cursor = cursor_of(answer.cursor)
    return answer

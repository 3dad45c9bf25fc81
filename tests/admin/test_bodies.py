"""What the API is sent: names that there are not are refused, and not passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from pydantic import BaseModel

from canopy_mqtt.admin.routes import all_routes
from canopy_mqtt.admin.routing import BASE
from tests.admin.conftest import Serve
from tests.support.runs import for_each

BODIES = {f"{route.method} {route.path}": route.body for route in all_routes() if route.body is not None}


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model, and those in it."""
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from models(field.annotation)


@for_each("body", BODIES.values(), ids=BODIES.keys())
def test_every_body_forbids_names_that_it_does_not_have(body: type[BaseModel]) -> None:
    for model in models(body):
        assert model.model_config.get("extra") == "forbid", model


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/publish", {"topic": "x", "retian": True}, "retian: there is payload, payload_encoding, properties, qos, "),
        (
            "/publish",
            {"topic": "x", "properties": {"content-type": "text/plain"}},
            "properties.content-type: there is content_type, correlation_data, message_expiry_interval, ",
        ),
        ("/banned", {"as": "clientid", "who": "c", "untill": None}, "untill: there is as, reason, until, who"),
        ("/publish", {"topic": "x", "y" * 1_000: "secret"}, f"{'y' * 64}: there is "),
    ],
)
async def test_a_name_that_there_is_not_is_told_with_those_that_there_are(
    serve: Serve, ask: aiohttp.ClientSession, path: str, body: dict[str, Any], said: str
) -> None:
    broker = await serve()
    async with ask.post(f"{broker.http[0]}{BASE}{path}", json=body) as answer:
        told = await answer.json()
        assert (answer.status, told["code"]) == (400, "BAD_REQUEST")
        assert told["message"].startswith(said)
        assert "secret" not in told["message"]

"""All routes: those of the modules of `api`, and the OpenAPI document about them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from canopy_mqtt.admin import events, page
from canopy_mqtt.admin.api import (
    alarms,
    bans,
    clients,
    cluster,
    explain,
    messages,
    metrics,
    operations,
    room,
    status,
    subscriptions,
    top,
    topics,
    trace,
)
from canopy_mqtt.admin.routing import BASE, Call, Route
from canopy_mqtt.version import __version__

PART = "`.` and `..`, which browsers and proxies leave out of a path, take %1B before them"

SCHEMAS = "#/components/schemas/{model}"


class Error(BaseModel):
    """The reason why a request failed."""

    code: str
    message: str


def document(routes: Iterable[Route]) -> dict[str, Any]:
    routes = list(routes)
    models: dict[type[BaseModel], str] = {Error: "serialization"}
    for route in routes:
        if route.body is not None:
            models[route.body] = "validation"
        if route.answer is not None:
            models[route.answer] = "serialization"
    pairs: Any = list(models.items())
    references, schemas = models_json_schema(pairs, ref_template=SCHEMAS)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Canopy", "version": __version__, "license": {"name": "MIT", "identifier": "MIT"}},
        "paths": paths,
        "security": [{"basic": []}, {"token": []}, {}],
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(route: Route, references: Any) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": PART}
        for name in re.findall(r"{(\w+)", route.path)
    ]
    if route.query is not None:
        schema = route.query.model_json_schema()
        for name, field in schema["properties"].items():
            wanted = name in schema.get("required", ())
            parameters.append({"name": name, "in": "query", "required": wanted, "schema": field})
            if "description" in field:
                parameters[-1]["description"] = field["description"]
    made: dict[str, Any] = {"description": "done"}
    if route.answer is not None:
        made["content"] = {"application/json": {"schema": references[(route.answer, "serialization")]}}
    failed = {"application/json": {"schema": references[(Error, "serialization")]}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "tags": [route.tag] if route.tag else [],
        "x-role": route.role,
        "parameters": parameters,
        "responses": {
            str(route.status if route.answer is not None else _plain_status(route)): made,
            "default": {"description": "not done", "content": failed},
        },
    }
    if route.body is not None:
        schema = references[(route.body, "validation")]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _plain_status(route: Route) -> int:
    """Return the status of an answer without JSON: nothing, or a response that the handler makes."""
    return 204 if route.method in ("DELETE", "PUT", "POST") and not route.streams else route.status


MODULES = (
    alarms,
    bans,
    clients,
    cluster,
    explain,
    messages,
    metrics,
    operations,
    room,
    status,
    subscriptions,
    top,
    topics,
    trace,
    events,
    page,
)


@cache
def all_routes() -> tuple[Route, ...]:
    routes = [route for module in MODULES for route in module.ROUTES]
    return (*routes, with_document(routes))


def with_document(routes: Sequence[Route]) -> Route:
    """Make the route of the document about the API's routes among these."""
    made = document(route for route in routes if route.path.startswith(BASE))
    # Made once: every client that reaches the port may request it, again and again.
    body = json.dumps(made).encode()

    async def openapi(call: Call) -> web.Response:
        """The OpenAPI document."""
        del call
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    return Route("GET", f"{BASE}/openapi.json", openapi, "What the API is", role="anyone")

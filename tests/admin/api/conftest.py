"""A broker that speaks HTTP, and its API, each answer of which is held against the document."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import jsonschema
import pytest

from canopy_mqtt import Broker
from tests.admin.conftest import Serve

BASE: Final = "/api/v5"


class Api:
    """Asks, and holds each answer against the document of the API."""

    def __init__(self, broker: Broker, session: aiohttp.ClientSession, document: dict[str, Any]) -> None:
        self._broker = broker
        self._session = session
        self._document = document

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        url = self._broker.http[0] + BASE + path
        async with self._session.request(method, url, params=query, json=body) as answer:
            found: Any = await answer.json() if answer.status != 204 else None
            if answer.status >= 400:
                assert found.keys() == {"code", "message"}
            return answer.status, found

    async def get(self, path: str, route: str = "", **query: Any) -> Any:
        """An answer to GET. `route`: the path as the document has it, where it is another."""
        status, found = await self.call("GET", path, **query)
        assert status == 200, found
        made = self._document["paths"][BASE + (route or path)]["get"]["responses"]["200"]
        schema = made["content"]["application/json"]["schema"] | {"components": self._document["components"]}
        jsonschema.validate(found, schema)
        return found

    async def all(self, path: str, limit: int, **query: Any) -> list[Any]:
        """All entries of a list, by as many pages as that takes."""
        entries: list[Any] = []
        cursor = ""
        while True:
            page = await self.get(path, limit=limit, **query, **({"cursor": cursor} if cursor else {}))
            assert len(page["data"]) <= limit
            entries += page["data"]
            cursor = page["meta"]["cursor"]
            if not page["meta"]["hasnext"]:
                return entries


@pytest.fixture
async def broker(serve: Serve) -> Broker:
    return await serve(shutdown={"flush_timeout": 0.0}, limits={"max_payload_size": 10_000})


@pytest.fixture
async def api(broker: Broker, ask: aiohttp.ClientSession) -> Api:
    async with ask.get(broker.http[0] + BASE + "/openapi.json") as answer:
        return Api(broker, ask, await answer.json())

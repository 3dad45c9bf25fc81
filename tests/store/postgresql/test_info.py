"""`canopy store info` of a database."""

from __future__ import annotations

import asyncio
import json

from tests.store.postgresql.place import opened
from tests.store.tools.filled import fill_in
from tests.store.tools.test_commands import canopy
from tests.support import postgresql


async def info(name: str, *arguments: str, code: int = 0) -> str:
    url = postgresql.shared().url
    return await asyncio.to_thread(canopy, "info", url, "--schema", name, *arguments, code=code)


async def test_what_is_in_a_schema_is_told_as_of_a_file(name: str) -> None:
    store = await opened(name, node="n")
    await fill_in(store)
    found = json.loads(await info(name, "--json"))
    assert (found["used_by"], found["version"]) == ("n", 2)
    assert {each: found[each] for each in ("sessions", "connected", "wills", "subscriptions", "received")} == {
        "sessions": 2,
        "connected": 1,
        "wills": 1,
        "subscriptions": 2,
        "received": 1,
    }
    assert found["deliveries"] == {"queued": 5, "sent": 1, "released": 1}
    assert found["oldest"]["client_id"] == "away"
    assert found["largest"] == [
        {"client_id": "away", "messages": 5, "bytes": 307},
        {"client_id": "da 'n\" é", "messages": 1, "bytes": 300},
    ]
    assert found["bytes"] > 8_192
    text = await info(name)
    place = f"postgresql://127.0.0.1:{postgresql.shared().port}/postgres, schema {name}"
    assert text.startswith(f"{place}: version 2, n uses it\n")
    await store.close()
    assert "no broker uses it" in await info(name)


async def test_a_schema_without_a_store(name: str) -> None:
    told = await info(name, code=1)
    assert told.endswith(f"schema {name} holds no store: name the schema of store.name (--schema)\n")


async def test_a_database_that_is_not_there() -> None:
    told = await asyncio.to_thread(canopy, "info", "postgresql://me:secret@127.0.0.1:1/x", code=1)
    assert "it cannot be reached: check that PostgreSQL runs, and store.url" in told
    assert "secret" not in told

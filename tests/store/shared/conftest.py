"""Nodes of one shared store, for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import postgresql

if TYPE_CHECKING:
    from canopy_mqtt.store.shared.database import SharedDatabase
    from tests.store.postgresql.place import Proxy
    from tests.store.shared.brokers import Broker

# Without the extra there is nothing to import.
collect_ignore_glob = [] if find_spec("asyncpg") else ["test_*.py"]


class Nodes:
    """Makes nodes of one schema, and ends them."""

    def __init__(self) -> None:
        self.url, self.name = postgresql.shared().url, postgresql.new_name()
        self.made: list[SharedDatabase] = []

    def make(self, node: str, *, url: str = "", **options: Any) -> SharedDatabase:
        """A node that has not opened its store."""
        from canopy_mqtt.store.shared.database import SharedDatabase

        terms = {"synchronous": "off", **options}
        self.made.append(SharedDatabase(url or self.url, self.name, node=node, **terms))
        return self.made[-1]

    async def open(self, node: str, **options: Any) -> SharedDatabase:
        """A node that has."""
        made = self.make(node, **options)
        await made.open()
        return made

    async def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, as psql would."""
        return await postgresql.ask(self.url, f'SET search_path = "{self.name}"', then=statement)


async def declare_dead(database: SharedDatabase, name: str) -> None:
    """Declare a node dead that may show a sign of life meanwhile."""
    while True:
        [peer] = [each for each in await database.nodes() if each.name == name]
        if await database.declare_dead(peer):
            return


@pytest.fixture
async def proxy(nodes: Nodes) -> AsyncIterator[Proxy]:
    """What loses statements and answers on their way to the database. It ends before the nodes do."""
    from tests.store.postgresql.place import Proxy

    del nodes
    made = Proxy()
    yield made
    await made.close()


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    yield made
    for each in made.made:
        await each.close()


@pytest.fixture
async def brokers(nodes: Nodes) -> AsyncIterator[list[Broker]]:
    """Two nodes of a cluster."""
    from tests.core.harness import total_ledger
    from tests.store.shared.brokers import Broker

    made: list[Broker] = []
    for name in "ab":
        await Broker(made, await nodes.open(name)).open()
    yield made
    for each in made:
        assert total_ledger(each.router.sessions.values()) == []
        each.linked = False
        await each.store.close()

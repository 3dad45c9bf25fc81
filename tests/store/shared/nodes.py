"""The nodes of one schema, each with its part of the database."""

from __future__ import annotations

from typing import Any

from canopy_mqtt.store.shared.database import SharedDatabase
from tests.support import postgresql


class Nodes:
    """Makes nodes of one schema, and ends them."""

    def __init__(self, url: str = "", *, synchronous: str = "off") -> None:
        """`url`: of a server of the test's own; `synchronous`: see `SharedDatabase`."""
        self.url, self.name, self.synchronous = url or postgresql.shared().url, postgresql.new_name(), synchronous
        self.made: list[SharedDatabase] = []

    def make(self, node: str, *, url: str = "", **options: Any) -> SharedDatabase:
        """A node that has not opened its store."""
        terms = {"synchronous": self.synchronous, **options}
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

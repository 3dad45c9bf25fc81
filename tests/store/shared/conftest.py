"""Nodes of one shared store, for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.store.postgresql.place import Proxy
    from tests.store.shared.brokers import Broker
    from tests.store.shared.nodes import Nodes

# Without the extra there is nothing to import.
collect_ignore_glob = [] if find_spec("asyncpg") else ["test_*.py"]


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
    from tests.store.shared.nodes import Nodes

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

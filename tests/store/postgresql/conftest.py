"""What the tests of the store in PostgreSQL have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.postgresql.place import Proxy
from tests.support import postgresql


@pytest.fixture
def name() -> str:
    """A schema of the test's own."""
    postgresql.shared()
    return postgresql.new_name()


@pytest.fixture
async def proxy(name: str) -> AsyncIterator[Proxy]:
    del name
    made = Proxy()
    yield made
    await made.close()

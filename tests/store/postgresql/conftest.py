"""Shared by the tests of the store in PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.support import postgresql

if TYPE_CHECKING:
    from tests.store.postgresql.place import Proxy

# Without the extra there is nothing to import; `tests/assembly/test_storing.py` and `tests/store/test_stores.py` say
# so.
collect_ignore_glob = [] if find_spec("asyncpg") else ["test_*.py"]


@pytest.fixture
def name() -> str:
    """A schema of the test's own."""
    postgresql.shared()
    return postgresql.new_name()


@pytest.fixture
async def proxy(name: str) -> AsyncIterator[Proxy]:
    del name
    from tests.store.postgresql.place import Proxy

    made = Proxy()
    yield made
    await made.close()

"""Brokers with workers for the tests, and everything that a test leaves behind ended again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What is on it is ended after the test."""
    async with AsyncExitStack() as stack:
        yield stack

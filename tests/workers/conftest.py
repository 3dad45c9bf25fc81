"""Brokers with workers for the tests, and everything that a test leaves behind ended again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.e2e import wire
from tests.support import waiting

PATIENCE = 60.0
"""Seconds that the start of several processes may take where ten others run on each core."""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What is on it is ended after the test."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits for a worker that starts again has the time for it."""
    monkeypatch.setattr(wire, "TIMEOUT", PATIENCE)
    monkeypatch.setattr(waiting, "PATIENCE", PATIENCE)

"""Socket pairs for loads. And what the tests froze stays out of the collections of garbage, though a benchmark thaws
when it has measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.benchmarks.wires import Wires


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture
def wires() -> Iterator[Wires]:
    with ExitStack() as stack:
        yield Wires(stack)

"""What the tests froze stays out of the collections of garbage, though a benchmark thaws when it has measured."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "unfreeze", lambda: None)

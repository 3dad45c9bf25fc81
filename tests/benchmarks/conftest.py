"""A benchmark that thaws what collections of garbage leave out thaws what the tests froze, too: it is frozen again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    thaw, thawed = gc.unfreeze, False

    def unfreeze() -> None:
        nonlocal thawed
        thaw()
        thawed = True

    monkeypatch.setattr(gc, "unfreeze", unfreeze)
    yield
    if thawed:
        gc.freeze()

"""Garbage is collected seldom while a process imports what it runs, and never again from what it imported.

With Python's thresholds what is imported, and stays, is looked at a hundred times: a seventh of the time until a broker
serves. What is frozen is no part of the collections that follow, nor of the one at the end of the process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_that_stay() -> Iterator[None]:
    """For the imports of a `__main__`: of a program's own process, never of one that embeds the broker."""
    thresholds = gc.get_threshold()
    # Young objects alone, 5,000 at a time: what is garbage is found while it is young.
    gc.set_threshold(5_000, -1, 30_000)
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*thresholds)

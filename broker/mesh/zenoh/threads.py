"""Zenoh's threads in this process: what Python keeps of those that call it.

Owns the states of threads that are kept. That saves part of what a message costs that comes alone; nothing depends on
it.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Final

MOST_KEPT: Final = 16
"""Threads whose state is kept. Zenoh has two that read links, and seldom ends one and starts another; the state of one
that has ended stays (some 20 KiB)."""


class _Known(threading.local):
    kept = False


class Callers:
    """The threads of others that call Python.

    Python makes a state for each call of such a thread, maps memory for its stack, and unmaps it: about as much work as
    the call itself, and all other threads of the process flush their page tables. The state of a thread that asks for
    it once more than it gives it back stays.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._known = _Known()
        self._left = most

    def keep(self) -> bool:
        """Keep the state of the calling thread until the process ends, if there is room; whether it is kept."""
        known = self._known
        if not known.kept and self._left > 0:
            self._left -= 1
            known.kept = True
            ctypes.pythonapi.PyGILState_Ensure()
        return known.kept


CALLERS: Final = Callers()
"""Those of this process."""

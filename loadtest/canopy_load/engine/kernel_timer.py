"""A timer of microseconds for an event loop, whose own timers count in milliseconds.

Owns: one timer of the kernel (timerfd_create(2)); where there is none, the loop's own timers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Final

CLOCK_MONOTONIC: Final = 1
ABSOLUTE: Final = 1


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class KernelTimer:
    """Calls `ring` once at the time last set, in microseconds of the monotonic clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._number: int = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:
            self._number = -1
        if self._number >= 0:
            loop.add_reader(self._number, self._rang)

    def set(self, at: float) -> None:
        """Ring at this time, and at no other; a time that has passed rings at once, an infinite one never."""
        if self._number >= 0:
            never = at == float("inf")
            nanoseconds = 0 if never else max(int(at * 1000), 1)
            spec = _Spec(0, 0, nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
            self._libc.timerfd_settime(self._number, ABSOLUTE, ctypes.byref(spec), None)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at == float("inf") else self._loop.call_at(at / 1e6, self._ring)

    def close(self) -> None:
        if self._number >= 0:
            self._loop.remove_reader(self._number)
            os.close(self._number)
            self._number = -1
        elif self._timer is not None:
            self._timer.cancel()

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._number, 8)
        self._ring()

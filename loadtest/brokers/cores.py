"""Which processor cores this process may run on."""

from __future__ import annotations

import os


def allowed_cores() -> list[int]:
    """The cores that this process may run on, in order. Empty where the system neither tells nor pins (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def core_count() -> int:
    """How many cores this process may run on, or all of the machine where the system does not tell."""
    return len(allowed_cores()) or os.cpu_count() or 1

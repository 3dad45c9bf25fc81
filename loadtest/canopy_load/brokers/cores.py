"""The processor cores that this process may run on."""

from __future__ import annotations

import os


def allowed_cores() -> list[int]:
    """Return the cores that this process may run on, in order; empty if the system neither tells nor pins (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def core_count() -> int:
    """Return the number of cores that this process may run on; all of the machine if the system does not tell."""
    return len(allowed_cores()) or os.cpu_count() or 1

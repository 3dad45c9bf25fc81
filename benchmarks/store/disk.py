"""What a sync of the disk takes that the stores stand on. It varies by the hour, so it stands beside every figure."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from loadtest.brokers.stats import percentile

BLOCK: Final = 4096
COUNT: Final = 300


def sync_times(directory: Path, count: int = COUNT) -> list[float]:
    """Seconds of so many ``fdatasync`` calls, each after a block was appended to a file, the shortest first."""
    path = directory / "sync-probe"
    found: list[float] = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(count):
            os.write(file, bytes(BLOCK))
            began = time.perf_counter()
            os.fdatasync(file)
            found.append(time.perf_counter() - began)
    finally:
        os.close(file)
        path.unlink()
    return sorted(found)


def about(directory: Path) -> str:
    """One line."""
    times = sync_times(directory)
    p50, p99 = (percentile(times, share) or 0.0 for share in (0.5, 0.99))
    return f"fdatasync of {BLOCK} B appended in {directory}: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms, of {COUNT}"


def bytes_on_disk(directory: Path) -> int:
    """Bytes that the files below a directory take, whole blocks."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())

"""What the supervisor does about a worker, without processes."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from broker.settings import Settings
from broker.workers.process import WorkerProcess
from broker.workers.slots import Slot
from broker.workers.supervisor import Supervisor


async def test_a_worker_is_started_again_whatever_kept_it_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the supervisor has no file descriptor left for a while."""
    monkeypatch.setattr("broker.workers.supervisor.FIRST_DELAY", 0.001)
    supervisor, slot = Supervisor(Settings(), 1, False, lambda _: None), Slot(0)
    supervisor._broken = asyncio.get_running_loop().create_future()
    tried: list[int] = []

    async def begin(slot: Slot) -> None:
        tried.append(slot.failed_starts)
        if len(tried) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        slot.over = True
        slot.process = cast(WorkerProcess, SimpleNamespace(pid=7))

    monkeypatch.setattr(supervisor, "_begin", begin)
    with structlog.testing.capture_logs() as lines:
        await supervisor._keep(slot)
    assert tried == [0, 1]
    assert supervisor.faults.counts == {"workers": 1}
    said: list[Any] = [line["event"] for line in lines]
    assert said == ["internal error", "worker did not start", "worker serves again"]

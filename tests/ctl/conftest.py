"""Brokers that `canopy ctl` is pointed at, and the command: in a thread, and as a process where it takes signals."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt import Broker, Settings
from canopy_mqtt.command.ctl import app

# A broker loads it when it is to listen for HTTP, and reads files for that.
importlib.import_module("canopy_mqtt.admin.server")

Start: TypeAlias = Callable[..., Awaitable[asyncio.subprocess.Process]]
"""Starts `canopy ctl` with these arguments."""

Ctl: TypeAlias = Callable[..., Awaitable[Result]]
"""Runs `canopy ctl` with these arguments to its end."""

ROOT = Path(__file__).resolve().parents[2]


SETTINGS: dict[str, Any] = {
    "listen": ("mqtt://127.0.0.1:0",),
    "http": {"listen": ("http://127.0.0.1:0",)},
    "shutdown": {"flush_timeout": 0.0},
    "sys": {"interval": 0.0},
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(Settings.model_validate(SETTINGS)) as started:
        yield started


@pytest.fixture
def ctl(broker: Broker) -> Ctl:
    """Runs a command in a thread, so that the broker may answer."""

    async def run(*arguments: str, stdin: bytes | None = None) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["--url", broker.http[0], *arguments], input=stdin)

    return run


@pytest.fixture
async def canopy_ctl(broker: Broker) -> AsyncIterator[Start]:
    """The command, pointed at the broker. What does not end by itself is killed."""
    begun: list[asyncio.subprocess.Process] = []

    async def start(*arguments: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "canopy_mqtt", "ctl", "--url", broker.http[0], *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH") or str(ROOT)},
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        if process.returncode is None:
            process.kill()
        await process.communicate()

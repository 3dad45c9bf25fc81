"""The fan-out send path: every delivery once, and neither an event loop, nor an await, nor a lock on the way."""

from __future__ import annotations

import ast
import asyncio
import threading
from pathlib import Path
from typing import NoReturn

import pytest

import canopy_mqtt.core
from benchmarks.routing.loops import WrongRoute
from benchmarks.routing.row import LAYOUTS
from benchmarks.routing.stage import BURST, FRAME, Stage
from tests.support.runs import for_each

SOURCES = sorted(Path(str(canopy_mqtt.core.__file__)).parent.rglob("*.py"))
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Mutex"}
WAITING = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)


@for_each("layout", LAYOUTS)
def test_routes_with_no_event_loop(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every way to an event loop, a thread or a lock closed, each message still gets to each queue."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the send path asked for an event loop, a thread or a lock")

    for name in ("get_running_loop", "get_event_loop", "new_event_loop", "create_task", "ensure_future", "run"):
        monkeypatch.setattr(asyncio, name, refuse)
    for name in ("Lock", "RLock", "Condition", "Semaphore", "Thread"):
        monkeypatch.setattr(threading, name, refuse)
    with pytest.raises(AssertionError):
        asyncio.get_running_loop()
    stage = Stage(layout, 3)
    assert stage.publish(2) == 6
    for send_buffer in stage.send_buffers:
        assert send_buffer.take_batch(1 << 20, 0.0) == [FRAME, FRAME]


def test_the_core_neither_awaits_nor_locks() -> None:
    assert SOURCES
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            assert not isinstance(node, WAITING), f"{source}:{node.lineno} waits"
            names = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
            assert not LOCKS & set(names), f"{source}:{getattr(node, 'lineno', 0)} locks"


def test_all_peers_share_one_frame() -> None:
    stage = Stage("nodes", 4)
    stage.publish(1)
    frames = {id(frame) for send_buffer in stage.send_buffers for frame in send_buffer.take_batch(1 << 20, 0.0)}
    assert frames == {id(FRAME)}


@for_each("layout", LAYOUTS)
def test_a_delivery_is_one_offer(layout: str) -> None:
    counts = Stage(layout, 5).counts()
    assert counts["offers"] == 1.0
    assert counts["wake-ups"] == 1 / BURST
    assert counts["cache look-ups a message"] == 1.0
    assert counts["trie probes a message"] == 0.0


def test_a_lost_message_is_an_error() -> None:
    stage = Stage("nodes", 3)
    routing, taking = stage.send(2)
    assert routing.operations == taking.operations == 2 * BURST * 3
    stage.send_buffers[1].max_messages = BURST - 1
    with pytest.raises(WrongRoute):
        stage.send(1)

"""The fan-out send path: every delivery once, and neither an await nor a lock on the way."""

from __future__ import annotations

import ast
from pathlib import Path

import canopy_mqtt.core
from benchmarks.routing.stage import BURST, FRAME, Stage
from canopy_mqtt.core.topics.trie import COMPACT, NODES
from tests.support.runs import for_each

SOURCES = sorted(Path(str(canopy_mqtt.core.__file__)).parent.rglob("*.py"))
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Mutex"}
WAITING = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)


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


@for_each("layout", (NODES, COMPACT))
def test_a_delivery_is_one_offer(layout: str) -> None:
    counts = Stage(layout, 5).counts()
    assert counts["offers"] == 1.0
    assert counts["wake-ups"] == 1 / BURST
    assert counts["cache look-ups a message"] == 1.0
    assert counts["trie probes a message"] == 0.0

"""Counts what nodes say to each other: an observer that is in Zenoh's network, and no node of the mesh."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import zenoh

from benchmarks.mesh.nodes import MESH, Node
from loadtest.brokers.process import HOST


class Tap:
    """Counts from when the block is entered. Each node sends what it says a second time, to here: costs CPU."""

    def __init__(self, nodes: list[Node]) -> None:
        self.frames = 0
        self.bytes = 0
        self._nodes = nodes
        self._session: Any = None

    def __enter__(self) -> Tap:
        config = zenoh.Config()
        places = [f"tcp/{HOST}:{node.bus}" for node in self._nodes]
        for name, value in (
            ("mode", "peer"),
            ("connect/endpoints", places),
            ("listen/endpoints", []),
            ("scouting/multicast/enabled", False),
            ("scouting/gossip/enabled", False),
            ("transport/unicast/qos/enabled", False),
        ):
            config.insert_json5(name, json.dumps(value))
        self._session = zenoh.open(config)
        # Zenoh's threads take turns here: one session has one that receives for each link, and they hold the GIL.
        self._session.declare_subscriber(f"canopy/{MESH}/to/*/*", zenoh.handlers.Callback(self._count, indirect=False))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._session.close()

    def _count(self, sample: zenoh.Sample) -> None:
        self.frames += 1
        self.bytes += len(sample.payload)

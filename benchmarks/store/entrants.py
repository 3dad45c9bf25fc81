"""How each broker of this benchmark is started, with queues that hold all that is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.brokers.process import HOST
from loadtest.brokers.registry import PEERS, Order, python_module

WIDE: Final = (
    "queue.session_messages=0",
    "queue.session_bytes=0",
    "queue.total_messages=0",
    "queue.total_bytes=0",
    "queue.live_messages=0",
    "queue.live_bytes=0",
    "limits.max_client_bytes=0",
    "retained.max_bytes=0",
    "session.max_bytes=0",
)
"""Bounds of Canopy that a run may meet."""


@dataclass(frozen=True)
class Entrant:
    """One broker and one way of keeping. ``share``: the part of the full counts that is enough for it."""

    name: str
    begin: Callable[[int, Path], list[str]]
    durable: bool
    share: float = 1.0


def _canopy(*settings: str) -> Callable[[int, Path], list[str]]:
    def begin(port: int, directory: Path) -> list[str]:
        sets = ["log.level=error", "sys.interval=0", *WIDE]
        sets += [each.replace("DIRECTORY", str(directory)) for each in settings]
        flags = [part for each in sets for part in ("--set", each)]
        return [*python_module("broker"), "serve", "--listen", f"mqtt://{HOST}:{port}", *flags]

    return begin


def _mosquitto(*lines: str) -> Callable[[int, Path], list[str]]:
    def begin(port: int, directory: Path) -> list[str]:
        program = PEERS["mosquitto"].begin(Order(port, directory))[0]
        # Behind that, which has a configuration of its own.
        config = directory / "store.conf"
        config.write_text(
            f"listener {port} {HOST}\nallow_anonymous true\nlog_dest none\nsys_interval 0\nmax_queued_messages 0\n"
            "max_queued_bytes 0\nmax_inflight_messages 1000\nset_tcp_nodelay true\n"
            + "".join(f"{line}\n" for line in lines).replace("DIRECTORY", str(directory))
        )
        return [program, "-c", str(config)]

    return begin


_SAVING: Final = ("persistence true", "persistence_location DIRECTORY/", "autosave_on_changes true")

ENTRANTS: Final = (
    Entrant("canopy, memory", _canopy(), durable=False),
    Entrant("canopy, full", _canopy("store.path=DIRECTORY"), durable=True),
    Entrant("canopy, normal", _canopy("store.path=DIRECTORY", "store.synchronous=normal"), durable=True),
    Entrant("mosquitto, memory", _mosquitto("persistence false"), durable=False),
    # All of its database is written after so many changes, while it serves nobody; nothing waits for that.
    Entrant("mosquitto, 1800", _mosquitto(*_SAVING, "autosave_interval 1800"), durable=False),
    # The nearest it comes to what `full` promises: after each change. Its figures fall with what is kept.
    Entrant("mosquitto, each", _mosquitto(*_SAVING, "autosave_interval 1"), durable=False, share=0.005),
)
"""Who takes part. mosquitto has no way to acknowledge only what is on disk, so none of its entries is durable."""

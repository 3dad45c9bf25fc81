"""The brokers the bench knows: how each is found, configured and started.

Owns: the registry ``PEERS`` (name to ``Peer``); a new broker is one entry.

Promises: a peer listens on one port of 127.0.0.1, keeps nothing on disk, logs nothing while it is measured, and has its
queues set wide enough that the bench's bounded backlog overflows none. A peer that is not installed says so in a line.

Refuses: to install anything, or to touch a broker that runs already.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What a row may need of a peer beyond QoS 0, MQTT 3.1.1 and exact topics.
QOS: Final = "QoS 1 and 2"
V5: Final = "MQTT 5.0"
FILTERS: Final = "wildcards, UNSUBSCRIBE"


@dataclass(frozen=True)
class Peer:
    """One broker. ``command(port, directory)`` may write configuration into the (temporary, empty) directory."""

    name: str
    command: Callable[[int, Path], list[str]]
    missing: Callable[[], str | None]  # why it cannot run here, or None
    version: Callable[[], str]
    lacks: frozenset[str] = frozenset()


def _python(module: str) -> list[str]:
    """This interpreter on a module, found where this process finds its own: the installed package under ``-P``."""
    return [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", module]


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({error})"
    lines = (done.stdout + done.stderr).strip().splitlines()
    if not lines:
        return "unknown"
    return lines[0].strip() if done.stdout.strip() else f"unknown ({lines[-1].strip()})"


def _module_missing(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"the Python package {name!r} is not installed"


def _canopy(port: int, _: Path) -> list[str]:
    listen = ["--listen", f"mqtt://127.0.0.1:{port}"]
    quiet = ["--set", "log.level=error", "--set", "sys.interval=0"]
    return [*_python("broker"), "serve", *listen, *quiet]


def _mosquitto_path() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _mosquitto(port: int, directory: Path) -> list[str]:
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\n"
        "allow_anonymous true\n"
        "persistence false\n"
        "log_dest none\n"
        "log_type none\n"
        "connection_messages false\n"
        "sys_interval 0\n"
        "set_tcp_nodelay true\n"
        # Numbers, not 0: in some versions 0 drops rather than meaning no limit.
        "max_inflight_messages 1000\n"
        "max_queued_messages 1000000\n"
    )
    return [_mosquitto_path() or "mosquitto", "-c", str(config)]


def _amqtt(port: int, directory: Path) -> list[str]:
    config = directory / "amqtt.yaml"
    config.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n    max_connections: 10000\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    )
    return [str(Path(sys.executable).parent / "amqtt"), "-c", str(config)]


def _relay(port: int, _: Path) -> list[str]:
    return [*_python("loadtest.bench.relay"), str(port)]


PEERS: Final[dict[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(
            "canopy",
            _canopy,
            lambda: _module_missing("broker"),
            lambda: _first_line([*_python("broker"), "--version"]),
        ),
        Peer(
            "mosquitto",
            _mosquitto,
            lambda: None if _mosquitto_path() else "mosquitto is not installed (Debian: apt-get install mosquitto)",
            lambda: _first_line([_mosquitto_path() or "mosquitto", "-h"]),
        ),
        Peer(
            "amqtt",
            _amqtt,
            lambda: _module_missing("amqtt"),
            lambda: "amqtt " + _first_line([str(Path(sys.executable).parent / "amqtt"), "--version"]),
            frozenset({V5}),
        ),
        Peer(
            "relay",
            _relay,
            lambda: None,
            lambda: "copies bytes, parses nothing (Python)",
            frozenset({QOS, FILTERS}),
        ),
    )
}

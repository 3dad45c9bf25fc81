"""The brokers the bench knows: how each is found, configured and started.

Owns: the registry ``PEERS`` (name to ``Peer``); a new broker is one entry.

Promises: a peer listens on one port of 127.0.0.1 for MQTT, keeps nothing on disk (one that cannot do without: in the
temporary directory), logs nothing while it is measured, and has its queues set wide enough that the bench's bounded
backlog overflows none; or, for a row in which clients do not read, as narrow as the row says, the same for all that can
be told in messages. `$SYS` statistics are off unless they are asked for. A peer that is not installed says in a line
what to install.

Nothing is installed, and a broker that runs already is not touched.
"""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from canopy_load.brokers.listeners import TLS, Listener

# What a row may need of a peer beyond QoS 0, MQTT 3.1.1 and exact topics.
QOS: Final = "QoS 1"
QOS2: Final = "QoS 2"
V5: Final = "MQTT 5.0"
FILTERS: Final = "wildcards, UNSUBSCRIBE"
POLICIES: Final = "queue policies"
SHARED: Final = "shared subscriptions"
ROUTING: Final = "routing by topic, retained messages, wills"
SECURED: Final = "a listener with TLS (in this bench)"
WEB: Final = "a listener for WebSocket (in this bench)"
LISTENERS: Final = frozenset({SECURED, WEB})

NODE_FOLDERS: Final = ("/usr/local/lib/node_modules", "/usr/lib/node_modules")  # of npm install --global


@dataclass(frozen=True)
class StartOrder:
    """The order to start a broker: the port of 127.0.0.1, a temporary and empty directory for what it must write, how
    many messages may wait for one client (0: wide queues), every how many seconds it is to publish statistics below
    `$SYS` where it can (0: never), and a second listener, if there is to be one."""

    port: int
    directory: Path
    waiting: int = 0
    statistics: int = 0
    listener: Listener | None = None


@dataclass(frozen=True)
class Peer:
    """One broker; ``begin`` makes its ``command`` from an order."""

    name: str
    begin: Callable[[StartOrder], list[str]]
    missing: Callable[[], str | None]  # why it cannot run here, or None
    version: Callable[[], str]
    lacks: frozenset[str] = frozenset()

    def command(
        self,
        port: int,
        directory: Path,
        *,
        settings: Sequence[str] = (),
        waiting: int = 0,
        statistics: int = 0,
        listener: Listener | None = None,
    ) -> list[str]:
        """Return the command line that starts the broker; write its configuration into the (temporary, empty) folder.

        ``waiting``: messages that may wait for one client, who is left connected however long it does not read;
        0: wide queues. A peer whose queues have no such bound keeps its own. ``settings`` are NAME=VALUE for Canopy,
        and for others lines of the configuration file with which their command ends. ``statistics``: seconds between
        two publications below `$SYS`, for those whose drops can be read there (Canopy, mosquitto); 0: none.
        ``listener``: a second listener, for peers that do not lack it."""
        command = self.begin(StartOrder(port, directory, waiting, statistics, listener))
        if self.name.startswith("canopy"):
            return [*command, *(part for setting in settings for part in ("--set", setting))]
        if settings:
            with Path(command[-1]).open("a") as config:
                config.writelines(f"{line}\n" for line in settings)
        return command


def python_module(module: str) -> list[str]:
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


def _canopy(order: StartOrder) -> list[str]:
    listen = ["--listen", f"mqtt://127.0.0.1:{order.port}"]
    quiet = ["--set", "log.level=error", "--set", f"sys.interval={order.statistics}"]
    stall = ["--set", "queue.stall_timeout=86400"]
    narrow = ["--set", f"queue.live_messages={order.waiting}", *stall] if order.waiting else []
    return [*python_module("canopy_mqtt"), "serve", *listen, *quiet, *narrow, *_canopy_listener(order.listener)]


def _canopy_listener(listener: Listener | None) -> list[str]:
    if listener is None:
        return []
    files = f'certificate = "{listener.certificate}", key = "{listener.key}", min_version = "1.3"'
    if listener.kind == TLS:
        return ["--set", f'listener=[{{url = "mqtts://127.0.0.1:{listener.port}", tls = {{{files}}}}}]']
    return ["--set", f'listener=[{{url = "ws://127.0.0.1:{listener.port}"}}]']


def _recording(order: StartOrder) -> list[str]:
    return [*_canopy(order), "--set", f"recorder.directory={order.directory / 'record'}"]


def _deliveries(order: StartOrder) -> list[str]:
    return [*_recording(order), "--set", "recorder.deliveries=true"]


def _recorder_missing() -> str | None:
    return _module_missing("canopy_mqtt") or _module_missing("pyarrow")


def program(name: str) -> str | None:
    """Return the path of a broker that may be installed where only root looks for commands; None if there is none."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def _known(name: str) -> str:
    return program(name) or name


def _package_missing(name: str) -> str | None:
    return None if program(name) else f"{name} is not installed (Debian: apt-get install {name})"


def _mosquitto_listener(listener: Listener | None) -> str:
    if listener is None:
        return ""
    # It would give up root before it reads a key that only root may read.
    secured = (
        f"certfile {listener.certificate}\nkeyfile {listener.key}\ntls_version tlsv1.3\nuser {getpass.getuser()}\n"
    )
    return f"listener {listener.port} 127.0.0.1\n" + (secured if listener.kind == TLS else "protocol websockets\n")


def _mosquitto(order: StartOrder) -> list[str]:
    config = order.directory / "mosquitto.conf"
    config.write_text(
        f"listener {order.port} 127.0.0.1\n"
        "allow_anonymous true\n"
        "persistence false\n"
        "log_dest none\n"
        "log_type none\n"
        "connection_messages false\n"
        f"sys_interval {order.statistics}\n"
        "set_tcp_nodelay true\n"
        # Numbers, not 0: in some versions 0 drops rather than meaning no limit.
        "max_inflight_messages 1000\n"
        f"max_queued_messages {order.waiting or 1_000_000}\n" + _mosquitto_listener(order.listener)
    )
    return [_known("mosquitto"), "-c", str(config)]


def _amqtt(order: StartOrder) -> list[str]:
    config = order.directory / "amqtt.yaml"
    config.write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{order.port}\n    max_connections: 10000\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    )
    return [str(Path(sys.executable).parent / "amqtt"), "-c", str(config)]


def _aedes_folder() -> Path | None:
    """Return the folder of aedes: one of NODE_PATH, or among npm's global packages."""
    folders = [*os.environ.get("NODE_PATH", "").split(os.pathsep), *NODE_FOLDERS]
    found = (Path(folder, "aedes").absolute() for folder in folders if folder)
    return next((folder for folder in found if (folder / "package.json").is_file()), None)


def _aedes_missing() -> str | None:
    if shutil.which("node") is None:
        return "node is not installed (Debian: apt-get install nodejs npm)"
    if _aedes_folder() is None:
        return "aedes is not installed (npm install --prefix DIR aedes, then NODE_PATH=DIR/node_modules)"
    return None


def _aedes_version() -> str:
    found = json.loads(((_aedes_folder() or Path()) / "package.json").read_text())
    return f"aedes {found['version']}, node {_first_line(['node', '--version'])}"


def _aedes(order: StartOrder) -> list[str]:
    script = order.directory / "broker.mjs"
    script.write_text(
        "import { createRequire } from 'node:module'\n"
        "import { createServer } from 'node:net'\n"
        "import { pathToFileURL } from 'node:url'\n"
        f"const entry = createRequire({json.dumps(str(_aedes_folder() or order.directory) + '/')}).resolve('aedes')\n"
        "const { Aedes } = await import(pathToFileURL(entry))\n"
        "const broker = Aedes.createBroker ? await Aedes.createBroker() : new Aedes()\n"
        f"createServer({{ noDelay: true }}, broker.handle).listen({order.port}, '127.0.0.1', 1024)\n"
    )
    return ["node", str(script)]


def _nats(order: StartOrder) -> list[str]:
    config = order.directory / "nats.conf"
    # MQTT needs JetStream, and JetStream a folder. The port for NATS's own protocol is any that is free.
    config.write_text(
        'host: 127.0.0.1\nport: -1\nserver_name: "bench"\n'
        f"jetstream {{ store_dir: {json.dumps(str(order.directory))} }}\n"
        f"mqtt {{ host: 127.0.0.1, port: {order.port} }}\n"
    )
    return [_known("nats-server"), "-c", str(config)]


def _flashmq(order: StartOrder) -> list[str]:
    config = order.directory / "flashmq.conf"
    config.write_text(
        "allow_anonymous true\n"
        f"log_file {order.directory}/flashmq.log\n"
        "quiet true\n"
        "thread_count 1\n"
        "client_max_write_buffer_size 16777216\n"
        "max_qos_msg_pending_per_client 65535\n"
        "max_qos_bytes_pending_per_client 16777216\n"
        f"listen {{\n  protocol mqtt\n  inet_protocol ip4\n  inet4_bind_address 127.0.0.1\n  port {order.port}\n}}\n"
    )
    return ["flashmq", "--config-file", str(config)]


def _relay(order: StartOrder) -> list[str]:
    listener = order.listener
    second = [listener.kind, str(listener.port), listener.certificate, listener.key] if listener else []
    return [*python_module("canopy_load.brokers.relay"), str(order.port), *second]


PEERS: Final[dict[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(
            "canopy",
            _canopy,
            lambda: _module_missing("canopy_mqtt"),
            lambda: _first_line([*python_module("canopy_mqtt"), "--version"]),
        ),
        # Canopy with its recorder, and with one event for each delivery besides.
        Peer("canopy-recording", _recording, _recorder_missing, lambda: PEERS["canopy"].version()),
        Peer("canopy-deliveries", _deliveries, _recorder_missing, lambda: PEERS["canopy"].version()),
        Peer(
            "mosquitto",
            _mosquitto,
            lambda: _package_missing("mosquitto"),
            lambda: _first_line([_known("mosquitto"), "-h"]),
            frozenset({POLICIES}),
        ),
        Peer(
            "amqtt",
            _amqtt,
            lambda: _module_missing("amqtt"),
            lambda: "amqtt " + _first_line([str(Path(sys.executable).parent / "amqtt"), "--version"]),
            frozenset({V5, POLICIES, SHARED}) | LISTENERS,
        ),
        Peer(
            "aedes",
            _aedes,
            _aedes_missing,
            _aedes_version,
            frozenset({V5, POLICIES, SHARED}) | LISTENERS,
        ),
        Peer(
            "nats",
            _nats,
            lambda: _package_missing("nats-server"),
            lambda: _first_line([_known("nats-server"), "--version"]),
            frozenset({V5, QOS2, POLICIES, SHARED}) | LISTENERS,
        ),
        Peer(
            "flashmq",
            _flashmq,
            lambda: None if shutil.which("flashmq") else "no flashmq on PATH (packages: https://www.flashmq.org)",
            lambda: _first_line(["flashmq", "--version"]),
            frozenset({POLICIES}) | LISTENERS,
        ),
        Peer(
            "relay",
            _relay,
            lambda: None,
            lambda: "copies bytes, parses nothing (Python)",
            frozenset({QOS, QOS2, FILTERS, POLICIES, SHARED, ROUTING}),
        ),
    )
}

"""Makes the settings of each worker of those of the broker, and names the settings that several cannot have."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.assembly.daemon import too_few_descriptors
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Cluster, ClusterNode, Log, Settings
from canopy_mqtt.settings.values import MAX_MESSAGES
from canopy_mqtt.sockets import connections_that_fit, of_http
from canopy_mqtt.store.division import name_of, part
from canopy_mqtt.workers.asking import SUPERVISOR, socket_of
from canopy_mqtt.workers.parts import equal_part

CLUSTER: Final = "workers"
"""The name of the cluster that the workers of a broker are; its sockets are in a folder of the broker's user."""

EQUAL: Final = (
    ("limits", "max_handshakes"),
    ("limits", "max_waiting_hooks"),
    ("security", "max_authentications"),
    ("security", "max_hashings"),
    ("log", "client_bytes"),
    ("log", "client_warnings"),
)
"""Limits of which each worker has an equal part: clients and their lines come to all of them evenly."""

TLS_SHARE: Final = 3
"""File descriptors that a connection with TLS may take at a worker: its own, and two for one that is another's."""

MAX_PATH_BYTES: Final = 107
"""Bytes of the path of a Unix socket."""


def unusable(settings: Settings) -> list[str]:
    """Return why these settings are not for several workers, a line each."""
    count, recorder = settings.workers.count, settings.recorder
    lines: list[str] = []
    for name, there, why in (
        ("cluster.name", settings.cluster.name, "a node of a cluster is one process"),
        ("store.url", settings.store.url, "workers keep their state in files (store.path)"),
        (
            "recorder.table",
            recorder.directory and recorder.table == "delta",
            "the folders of workers are no table of Delta Lake",
        ),
    ):
        if there:
            lines.append(f"workers.count = {count} and {name}: {why}; leave one of both out")
    each, why = -(-settings.limits.max_connections // count), f"each of {count} workers serves its part of them"
    if _share(settings) > 1:
        each *= TLS_SHARE
        why += f", and a connection with TLS takes up to {TLS_SHARE} file descriptors"
    if line := too_few_descriptors(each, of_http(settings), settings.limits.max_connections):
        lines.append(f"{why}: {line}")
    return lines


def run_folder(workers: int) -> Path:
    """Make the folder of the workers' sockets, which only this user may enter. Raises StartupError."""
    where = tempfile.gettempdir()
    try:
        folder = Path(tempfile.mkdtemp(prefix="canopy-"))
    except OSError as error:
        raise StartupError(f"workers.count: no folder can be made in {where} (TMPDIR): {error.strerror}") from error
    longest = max((_socket(folder, workers - 1), socket_of(folder, SUPERVISOR)), key=lambda each: len(bytes(each)))
    if len(bytes(longest)) > MAX_PATH_BYTES:
        folder.rmdir()
        raise StartupError(f"workers.count: {where} (TMPDIR) is too long a path for Unix sockets; name a shorter one")
    return folder


def make_again(folder: Path) -> None:
    """Make the folder of the sockets anew if it is gone: programs that clean up remove old ones.

    Raises OSError: it cannot be made, or another user has made it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "another user's", str(folder))


def settings_of(worker: int, settings: Settings, folder: Path, people: bool) -> Settings:
    """Return the settings of a worker, made of those of the broker.

    `folder`: that of the sockets. `people`: they read the log.
    """
    nodes = tuple(
        ClusterNode(name=name_of(each), address=f"mqtt+unix://{_socket(folder, each)}")
        for each in range(settings.workers.count)
    )
    update: dict[str, Any] = {
        "cluster": Cluster(
            name=CLUSTER,
            node=name_of(worker),
            listen=nodes[worker].address,
            nodes=nodes,
            link_timeout=settings.cluster.link_timeout,
            link_bytes=settings.cluster.link_bytes,
        ),
        # A worker writes to a pipe, and knows nothing of a terminal behind it.
        "log": _log(settings.log, people),
    }
    for section, name in EQUAL:
        has = update.get(section, getattr(settings, section))
        update[section] = has.model_copy(update={name: equal_part(getattr(has, name), settings.workers.count)})
    if worker > 0:
        # The first one has them for all.
        update["upstream"] = ()
    # Connections are counted before they are passed on (`gate`). Of as many as there may be, a worker has no more
    # than its file descriptors allow.
    limits = {"max_connections": 0, "max_connections_per_address": 0, "max_connect_rate": 0.0}
    most = [settings.limits.max_connections, connections_that_fit(of_http(settings)) // _share(settings)]
    update["limits"] = update["limits"].model_copy(
        update=limits | {"max_connections": min([each for each in most if each], default=MAX_MESSAGES)}
    )
    update["listener"] = tuple(each.model_copy(update=limits) for each in settings.listener)
    if settings.store.path:
        update["store"] = settings.store.model_copy(update={"path": str(part(Path(settings.store.path), worker))})
    if settings.recorder.directory:
        own = str(part(Path(settings.recorder.directory), worker))
        update["recorder"] = settings.recorder.model_copy(update={"directory": own})
    return settings.model_copy(update=update)


def _share(settings: Settings) -> int:
    """Return how many file descriptors a connection may take."""
    return TLS_SHARE if any(each.tls for each in settings.listeners) else 1


def _socket(folder: Path, worker: int) -> Path:
    return folder / f"{name_of(worker)}.sock"


def _log(log: Log, people: bool) -> Log:
    return log.model_copy(update={"format": "console" if people else "json"})

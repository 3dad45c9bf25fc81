"""What each worker's settings are, made of those of all.

Owns what workers cannot share yet, and says so in a line each; the names of the workers' places in the run folder; and
which settings stay as they were when the supervisor started.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from broker.configuration.reading import SettingsError
from broker.net.listening.listeners import StartupError
from broker.settings import Http, Log, Mesh, Recorder, Settings, Workers
from broker.store.parts import LONGEST_SCHEMA, folder_of, schema_of
from broker.workers import addresses

LINKS: Final = 0
"""The worker that has the links to upstream brokers, for all of them."""

LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path (sun_path of Linux, less its end)."""

STAYS: Final = frozenset(
    {"store.path", "store.url", "store.name", "mesh.name", "mesh.node", "mesh.listen", "mesh.connect"}
)
"""Settings that workers have from their supervisor's start on: they would not find each other, or their stores."""


TOO_LONG: Final = f"workers.directory: {{}}: too long for Unix sockets in it ({LONGEST_PATH} bytes); name a shorter one"


def count(settings: Settings) -> int:
    """How many processes the settings ask for."""
    wanted = settings.workers.count
    return (os.cpu_count() or 1) if wanted == "auto" else wanted


def unusable(settings: Settings) -> list[str]:
    """Why these settings are not for several workers, a line each."""
    lines: list[str] = []
    if find_spec("zenoh") is None:
        lines.append("workers.count: several workers need the extra mesh: in a clone of Canopy, pip install '.[mesh]'")
    directory = settings.workers.directory
    if directory and _too_long(Path(directory, "canopy-01234567"), count(settings) - 1):
        lines.append(TOO_LONG.format(directory))
    lines += addresses.unusable(settings, count(settings))
    if settings.store.url and len(schema_of(settings.store.name, count(settings) - 1)) > LONGEST_SCHEMA:
        lines.append(
            f"store.name: workers have schemas beside {settings.store.name}, whose names are too long; shorten it"
        )
    if settings.recorder.directory and settings.recorder.deliveries:
        lines.append(
            "recorder.deliveries: a worker does not know which recorded message of another one it delivers; leave it "
            "out, or set workers.count to 1"
        )
    return lines


class Plan:
    """The workers of one supervisor. `folder`: private, and made already."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        people: bool,
        joined: bool = True,
        leavers: Sequence[int] = (),
        mesh: Mesh | None = None,
    ) -> None:
        """`people`: they read the log. `joined`: the workers are one broker, and not each by itself. `leavers`: the
        numbers of those that are there for what is left in their stores. `mesh`: as of the settings; with a name, it is
        the mesh of several machines that the workers are nodes of.

        Raises:
            SettingsError: sockets in this folder would have too long a path.
        """
        self.folder = folder
        self.workers = workers
        self._people = people
        self._joined = joined
        self._numbers = (*range(workers), *leavers)
        self._name = secrets.token_hex(8)
        self._machines = mesh if mesh is not None and mesh.name else None
        self.machine = "" if self._machines is None else self._machines.node or self._name
        """The node of the machines' mesh that the first worker is; empty: there is no mesh but that of the workers."""
        if _too_long(folder, max(self._numbers)):
            raise SettingsError([TOO_LONG.format(folder)])

    def http(self, worker: int) -> str:
        """The path of the socket on which a worker answers over HTTP."""
        return str(self.folder / f"w{worker}.http")

    def _mesh(self, worker: int) -> str:
        return str(_socket(self.folder, worker))

    def settings(self, settings: Settings, worker: int, generation: int) -> Settings:
        """A worker's settings. `generation`: how often it has been started before."""
        update: dict[str, object] = {
            # Whoever may come in there is the supervisor, which has asked who they are.
            "http": Http(listen=(f"http+unix://{self.http(worker)}",), timeout=settings.http.timeout),
            "workers": Workers(),
            "log": _log(settings.log, self._people),
            # A message that comes back from an upstream has been here, whichever worker it comes to.
            "federation": settings.federation.model_copy(
                update={"broker_id": settings.federation.broker_id or self._name}
            ),
        }
        if settings.store.kept and worker:
            update["store"] = settings.store.model_copy(
                update={"path": folder_of(settings.store.path, worker)}
                if settings.store.path
                else {"name": schema_of(settings.store.name, worker)}
            )
        if worker != LINKS:
            update["upstream"] = ()
        if settings.recorder.required:
            # The supervisor records for all.
            update["recorder"] = settings.recorder.model_copy(update={"required": False})
        if worker >= self.workers:
            update |= {"http": Http(), "recorder": Recorder()}
        if self._joined:
            place = self._place(worker, generation, settings.store.kept)
            update["mesh"] = settings.mesh.model_copy(update=place)
        made = settings.model_copy(update=update)
        if "listen" not in settings.model_fields_set:
            # Beside tables the default does not count.
            made.model_fields_set.discard("listen")
        return made

    def node(self, worker: int, generation: int, kept: bool) -> str:
        """What a worker is called in the mesh. `kept`: it has a store.

        In a mesh of their own one that comes back without a store is another node: what the others knew of it has ended
        with it. But what they have for its links waits until it is back.
        """
        if self.machine:
            return addresses.node_of(self.machine, worker)
        return f"w{worker}" if kept or worker == LINKS else f"w{worker}-{generation}"

    def owner(self, worker: int) -> str:
        """Whose a worker's store is, where that is noted: the same however often the worker is started."""
        return f"{socket.gethostname()} worker w{worker} of {self._name}"

    def _place(self, worker: int, generation: int, kept: bool) -> dict[str, object]:
        """Where a worker is in its mesh: settings of `[mesh]`."""
        machines = Mesh() if self._machines is None else self._machines
        others = [f"unixsock-stream/{self._mesh(other)}" for other in self._numbers if other != worker]
        listen = [addresses.of_worker(place, worker) for place in machines.listen]
        return {
            "name": machines.name or self._name,
            "node": self.node(worker, generation, kept),
            "listen": (f"unixsock-stream/{self._mesh(worker)}", *listen),
            # Those of this machine first, before others tell of them: two nodes have one link.
            "connect": (*others, *machines.connect),
        }


def as_they_are(has: Settings, new: Settings) -> Settings:
    """Other settings, but for what the supervisor and all workers keep from the start on (`STAYS`)."""
    update: dict[str, object] = {"workers": has.workers}
    for section in ("store", "mesh"):
        names = [name.partition(".")[2] for name in STAYS if name.startswith(f"{section}.")]
        kept = {name: getattr(getattr(has, section), name) for name in names}
        update[section] = getattr(new, section).model_copy(update=kept)
    return new.model_copy(update=update)


def _socket(folder: Path, worker: int) -> Path:
    return folder / f"w{worker}.mesh"


def _too_long(folder: Path, worker: int) -> bool:
    return len(os.fsencode(_socket(folder, worker))) > LONGEST_PATH


def _log(log: Log, people: bool) -> Log:
    # A worker writes to a pipe: whether there is a terminal behind it, the supervisor knows.
    return log.model_copy(update={"format": "console" if people else "json"})


def run_folder(directory: str) -> Path:
    """A new folder that only this user may enter. Raises StartupError."""
    try:
        return Path(tempfile.mkdtemp(prefix="canopy-", dir=directory or None))
    except OSError as error:
        where = directory or tempfile.gettempdir()
        raise StartupError(f"workers.directory: no folder can be made in {where}: {error.strerror}") from error

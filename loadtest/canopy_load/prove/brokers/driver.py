"""A broker as data: how it is started, where it keeps its data, how its nodes find each other, and what it promises.

Owns: `Driver`, and the files beside this one, one for each broker that is known by name.

Promises: a driver that cannot be used says in a line why. Whatever a file says about the way a known broker is
configured stands in ``canopy_load.brokers.registry``; the file adds what a proof needs besides: its store.

A file is TOML. All texts may have places: {port} (of MQTT, on 127.0.0.1), {folder} (the node's own, empty at first),
{store} (below it), {node} (1, 2, …), {address} and {cluster_port} (where it listens for other nodes), {peers} (all
others), {database} (the URL of PostgreSQL), {python} (this interpreter), {workers} (the number of its processes) and
{version} (which of its versions it is).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from canopy_load.brokers.registry import PEERS
from canopy_load.errors import Misuse
from canopy_load.prove.faults import MAX_NODES, MAX_TIMEOUT
from canopy_load.prove.judge import Durability
from canopy_load.shapes import shaped

FOLDER: Final = Path(__file__).parent
PLACE: Final = re.compile(r"\{([a-z_]+)\}")
PATIENCE: Final = 30.0
"""Seconds for a node to answer after a start, and to end after SIGTERM, where the file says nothing else."""
TIMEOUT: Final = 1.0
"""Seconds that count as the time-out of a broker whose file names none: clients of a proof have no keep alive."""


@dataclass(frozen=True)
class Driver:
    """One broker. The attributes are the keys of its file, but for its name, which is that of the file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = ""
    peer: str = ""
    """Its name in the registry, which then knows the command; `command` is appended to it, `lines` to the configuration
    file that the command ends with."""
    command: tuple[str, ...] = ()
    lines: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into the node's folder before its first start."""
    environment: Mapping[Annotated[str, Field(pattern="^[^=]+$")], str] = field(default_factory=dict)
    prepare: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()
    """Commands that run before the first start of a node."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Commands that must be on PATH, each with what installs it."""
    version_command: tuple[str, ...] = ()
    not_run: str = ""
    """Why nobody has tried this file yet."""
    patience: Annotated[float, Field(ge=0.1, le=3600.0)] = PATIENCE
    window: Annotated[float, Field(ge=0.0)] = 0.0
    says: str = ""
    recovery: Annotated[float, Field(ge=0.0)] = 0.0
    volatile: bool = False
    share_queue: bool = False
    """What it promises: see `Durability`."""
    store: bool = False
    """True if it writes its data to {store}."""
    database: bool = False
    timeout: Annotated[float, Field(ge=0.1, le=MAX_TIMEOUT)] = TIMEOUT
    """Seconds after which its nodes, or its clients, are given up."""
    max_nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] = 1
    peers: str = ""
    """The text for one other node, with {peer} (its number), {host} and {port}; they are joined by a comma."""
    dials: bool = True
    """True if its nodes reach each other at these hosts and ports and nowhere else."""
    one_by_one: bool = False
    """True if a node is started when the one before answers."""
    sessions_stay: bool = False
    """True if a session, and a share group, is at one node, to which its clients return."""
    shared: bool = False
    """True if durable sessions and share groups are in a database of all nodes. Nothing else outlives a node."""
    max_qos: Annotated[int, Field(ge=0, le=2)] = 2
    """The highest QoS that it takes as it is; it lowers others on its own."""
    workers: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Of a broker of several processes: their number at each of its starts, in turn."""
    versions: tuple[str, ...] = ()
    """Of a broker of which several versions are here: which one a node is at each of its starts, in turn."""

    @property
    def durability(self) -> Durability:
        relinked = 2 * self.timeout if self.sessions_stay or self.shared else 0.0
        promised = self.window, self.says, self.recovery, self.volatile, self.share_queue, relinked, self.shared
        return Durability(*promised, workers=bool(self.workers))

    @property
    def missing(self) -> str | None:
        """Why it cannot run here; None: it can."""
        if self.peer and (why := PEERS[self.peer].missing()):
            return why
        for name, hint in self.needs.items():
            if shutil.which(name) is None:
                return f"{name} is not installed ({hint})"
        return None

    @property
    def version(self) -> str:
        if not self.version_command:
            return PEERS[self.peer].version() if self.peer else self.name
        try:
            done = subprocess.run(list(self.version_command), capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"unknown ({error})"
        lines = (done.stdout or done.stderr).strip().splitlines()
        return lines[0].strip() if lines else "unknown"

    @property
    def program(self) -> str:
        """The program that becomes the broker."""
        if self.peer == "mosquitto":
            return self.peer
        return sys.executable if self.peer or self.command[0] == "{python}" else self.command[0]

    def make(self, places: Mapping[str, str]) -> list[str]:
        """Write the files of a node, and return the command that starts it."""
        folder = Path(places["folder"])
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(fill(text, places))
        own = [fill(each, places) for each in self.command]
        if not self.peer:
            return own
        lines = fill(self.lines, places).splitlines()
        return [*PEERS[self.peer].command(int(places["port"]), folder, settings=lines), *own]


def fill(text: str, places: Mapping[str, str]) -> str:
    """Return a text with its places filled. Other braces stay."""
    return PLACE.sub(lambda found: places.get(found[1], found[0]), text)


def known() -> list[str]:
    """Return the names of the brokers that have a file here."""
    return sorted(each.stem for each in FOLDER.glob("*.toml"))


def find(name: str) -> Driver:
    """Return the driver of a name, or of a file of the user.

    Raises:
        Misuse: there is none, or it is not as it should be.
    """
    file = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not file.is_file():
        if name.endswith(".toml"):
            raise Misuse(f"--broker {name}: there is no such file")
        raise Misuse(f"--broker {name}: known are {', '.join(known())}, and files that end with .toml")
    try:
        return replace(_parsed(tomllib.loads(file.read_text(encoding="utf-8"))), name=file.stem)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise Misuse(f"--broker {name}: {error}") from error


def _texts(value: object) -> Iterator[str]:
    """Yield all texts of a value, with the keys of its tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for each in pair for text in _texts(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in _texts(each))


def _parsed(given: dict[str, object]) -> Driver:
    """Raises ValueError."""
    if "name" in given:
        raise ValueError("name is unknown: a broker has the name of its file")
    driver = shaped(given, Driver)
    for key, value in given.items():
        if any("\0" in text for text in _texts(value)):
            raise ValueError(f"{key} has a text with a NUL, which nothing here can take")
    for name in driver.files:
        path = PurePath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"files.{name!r}: a file must be within the node's folder, such as conf/broker.conf")
    if driver.peer not in ("", *PEERS):
        raise ValueError(f"peer: known are {', '.join(PEERS)}")
    if not driver.peer and not driver.command:
        raise ValueError("it has neither peer nor command")
    return driver

"""Finds what other nodes have otherwise than this one: users, rules and settings, of which each node has its own, and
the clock.

Each node tells the others digests of what it has, again and again: so what changes with a reload is found, and a
message that is lost does not matter. Only what both nodes know is compared: one of a newer release has more settings.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.settings import Settings

TOPIC: Final = b"$node/own"
EVERY: Final = 10.0
"""Seconds between two times that a node tells what it has."""
APART: Final = 60.0
"""Seconds that two clocks may differ: more than a message takes."""
TABLES: Final = ("authenticator", "rule", "hooks")
SECTIONS: Final = ("limits", "mqtt", "access", "security", "session", "queue", "retained", "routing")
"""What decides which clients a node takes, what they may do, and what is kept for them."""
MAX_NAMED: Final = 5
"""Settings and files of each kind that are named."""
REMEDY: Final = "give all nodes the same users, rules and settings"
CLOCKS: Final = "set the clocks of both machines (NTP)"
DIGITS: Final = 16


class Own:
    """What this node has. Files are read again when they have changed."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[tuple[int, int, int], str]] = {}

    def files(self, paths: Iterable[Path]) -> dict[str, str]:
        """Return the digest of each file, by its name without the folder. Blocks: call it in a thread."""
        found, known = {}, {}
        for path in paths:
            try:
                status = path.stat()
                state = status.st_mtime_ns, status.st_size, status.st_ino
                before = self._files.get(path)
                known[path] = (
                    before if before is not None and before[0] == state else (state, _digest(path.read_bytes()))
                )
            except OSError:
                # What is in force was read from it.
                continue
            found[path.name] = known[path][1]
        self._files = known
        return found


def settings_of(settings: Settings) -> dict[str, str]:
    """Return the digest of each setting that is compared, by its full name. Where files are does not count."""
    dumped = settings.model_dump(mode="json", include={*TABLES, *SECTIONS})
    flat = {name: dumped[name] for name in TABLES}
    flat |= {f"{name}.{key}": value for name in SECTIONS for key, value in dumped[name].items()}
    return {
        name: _digest(json.dumps(_without_files(value), sort_keys=True).encode())
        for name, value in flat.items()
        if not _names_file(name)
    }


def _names_file(key: str) -> bool:
    return key == "path" or key.endswith("_file")


def _without_files(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_files(each) for key, each in value.items() if not _names_file(key)}
    return [_without_files(each) for each in value] if isinstance(value, list) else value


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def written(settings: Mapping[str, str], files: Mapping[str, str], now: float) -> bytes:
    """Return what a node tells; `now`: its clock, in seconds since 1970."""
    return json.dumps({"settings": settings, "files": sorted(files.values()), "clock": now}).encode()


def differences(settings: Mapping[str, str], files: Mapping[str, str], now: float, told: bytes) -> str:
    """Return what another node has otherwise, with the remedy, in a line; empty: nothing. It has `told` that."""
    try:
        other = json.loads(told)
        theirs, their_files, ahead = other["settings"], frozenset(other["files"]), float(other["clock"]) - now
        differing = [name for name, digest in settings.items() if name in theirs and theirs[name] != digest]
    except (ValueError, TypeError, KeyError):
        return ""  # a newer node may tell otherwise
    lacking = [name for name, digest in files.items() if digest not in their_files]
    more = len(their_files.difference(files.values()))
    parts = []
    if differing:
        parts.append(f"other settings: {_named(differing)}")
    if lacking:
        parts.append(f"other users or rules: {_named(lacking)}")
    elif more:
        parts.append(f"{more} more of the files with users or rules")
    parts = [f"it has {' and '.join(parts)}: {REMEDY}"] if parts else []
    if abs(ahead) > APART:
        parts.append(f"its clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} this one: {CLOCKS}")
    return "; ".join(parts)


def _named(names: list[str]) -> str:
    named = ", ".join(names[:MAX_NAMED])
    return named if len(names) <= MAX_NAMED else f"{named} and {len(names) - MAX_NAMED} more"


class Comparing:
    """Tells the other nodes what this one has, and keeps how each of them differs."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        files: Callable[[], Iterable[Path]],
        tell: Callable[[bytes, bytes], None],
        broke: Callable[[str, Exception], None],
    ) -> None:
        """`settings`, `files`: those in force, and the files behind the access control; `tell`: says something to all
        nodes, topic and payload; `broke`: told of a fault of ours, and where it was."""
        self._in_force, self._paths, self._tell, self._broke = settings, files, tell, broke
        self._own = Own()
        self._settings: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def heard(self, node: str, told: bytes) -> None:
        """Another node has told what it has."""
        if self._settings:
            self._told[node] = differences(self._settings, self._files, time.time(), told)

    def differs(self, node: str) -> str:
        """Return how a node differed when it told that last; empty: not at all, or it has not told yet."""
        return self._told.get(node, "")

    async def _run(self) -> None:
        while True:
            try:
                self._settings = settings_of(self._in_force())
                self._files = await asyncio.to_thread(self._own.files, tuple(self._paths()))
                self._tell(TOPIC, written(self._settings, self._files, time.time()))
            except Exception as error:
                self._broke("cluster", error)
            await asyncio.sleep(EVERY)

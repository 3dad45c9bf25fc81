"""A store's folder that is divided among workers: each has a store in a folder of its own, `w0`, `w1` and so on.

Owns the file that says how many they are, which is there before anything is in the first of them. So a broker of
another number of processes finds no empty store where the clients' sessions should be.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from canopy_mqtt.files import read_file
from canopy_mqtt.store.base import StoreError

FILE: Final = "workers"
"""The name of the file: it has the number; while a move to it ends, also `MOVED` or `PLACED`, and the number before."""

MOVED: Final = "moved"
PLACED: Final = "placed"

MOST: Final = 64
"""Workers at most (`workers.count`)."""


class Division(NamedTuple):
    """Of how many workers the stores in a folder are; 1: there is one store, in the folder itself."""

    workers: int
    before: int = 0
    """The new stores are complete, and replace those of so many workers; 0: there is no move."""
    placed: bool = False
    """The old ones are gone, and the new ones take their places."""


def division(folder: Path) -> Division:
    """Return how a store's folder is divided. Raises StoreError."""
    file = folder / FILE
    try:
        words = read_file(file).decode("ascii", "replace").split()
    except (FileNotFoundError, NotADirectoryError):
        return Division(1)
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}): let the broker's user read it") from error
    known = {str(number): number for number in range(1, MOST + 1)}
    match words:
        # One process needs the file only while its store takes its place.
        case [workers] if workers in known and workers != "1":
            return Division(known[workers])
        case [workers, ("moved" | "placed") as step, before] if workers in known and before in known:
            return Division(known[workers], known[before], step == PLACED)
    raise StoreError(f"{file} should have the number of workers whose stores are beside it, and has {words!r:.80}")


def divided(folder: Path) -> bool:
    """Return whether a folder has, or may have, stores of several workers, or one that takes the place of those."""
    return (folder / FILE).exists() or any(part(folder, worker).is_dir() for worker in range(MOST))


def note(folder: Path, found: Division) -> None:
    """Note how a folder is divided; it is on disk then. Raises StoreError."""
    file, made = folder / FILE, folder / f"{FILE}.new"
    try:
        if found == Division(1):
            for each in (file, made):
                each.unlink(missing_ok=True)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(made, flags, 0o600), "w", encoding="ascii") as written:
                step = f" {PLACED if found.placed else MOVED} {found.before}" if found.before else ""
                written.write(f"{found.workers}{step}\n")
                written.flush()
                os.fsync(written.fileno())
            made.rename(file)
        _sync(folder)
    except OSError as error:
        raise StoreError(f"{file} cannot be written ({error.strerror})") from error


def part(folder: Path, worker: int) -> Path:
    """Return the folder of one worker's store."""
    return folder / name_of(worker)


def name_of(worker: int) -> str:
    """Return the name of a worker: of its node, its store's folder and in the log."""
    return f"w{worker}"


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

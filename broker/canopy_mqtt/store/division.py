"""A store's folder that is divided among workers: each has a store in a folder of its own, `w0`, `w1` and so on.

Owns the file that says how many they are, which is there before the first of them. So a broker of another number of
processes finds no empty store where the clients' sessions should be.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from canopy_mqtt.store.base import StoreError

FILE: Final = "workers"
"""The name of the file: it has the number, and the word `moved` while stores of that number take their places."""

MOVED: Final = "moved"

MOST: Final = 64
"""Workers at most (`workers.count`)."""


class Division(NamedTuple):
    """Of how many workers the stores in a folder are; 1: there is one store, in the folder itself."""

    workers: int
    moved: bool = False
    """New stores are complete, and are put into the places of old ones."""


def division(folder: Path) -> Division:
    """Return how a store's folder is divided. Raises StoreError."""
    file = folder / FILE
    try:
        words = file.read_text(encoding="ascii", errors="replace").split()
    except (FileNotFoundError, NotADirectoryError):
        return Division(1)
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}): let the broker's user read it") from error
    # One process needs the file only while its store takes its place.
    known = {str(number) for number in range(1 if words[1:] else 2, MOST + 1)}
    if not words or words[0] not in known or words[1:] not in ([], [MOVED]):
        raise StoreError(f"{file} should have the number of workers whose stores are beside it, and has {words!r:.80}")
    return Division(int(words[0]), len(words) > 1)


def note(folder: Path, found: Division) -> None:
    """Note how a folder is divided; it is on disk then. Raises StoreError."""
    file, made = folder / FILE, folder / f"{FILE}.new"
    try:
        if found == Division(1):
            for each in (file, made):
                each.unlink(missing_ok=True)
        else:
            with made.open("w", encoding="ascii") as written:
                written.write(f"{found.workers} {MOVED}\n" if found.moved else f"{found.workers}\n")
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

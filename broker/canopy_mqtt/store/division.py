"""A store's folder that is divided among workers: each has a store in a folder of its own, `w0`, `w1` and so on.

Owns the file that says how many they are, which is there before the first of them. So a broker of another number of
processes is told, and finds no empty store where the clients' sessions should be.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from canopy_mqtt.store.base import StoreError

FILE: Final = "workers"
"""The name of the file: it has the number, and an end of line."""


def division(folder: Path) -> int:
    """Return among how many workers a store's folder is divided; 1: it is not. Raises StoreError."""
    file = folder / FILE
    try:
        text = file.read_text(encoding="ascii")
    except (FileNotFoundError, NotADirectoryError):
        return 1
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error
    if not text.strip().isdecimal():
        raise StoreError(f"{file} should have the number of workers whose stores are beside it, and has {text[:80]!r}")
    return int(text)


def divide(folder: Path, workers: int) -> None:
    """Divide an empty folder among so many workers. Raises StoreError."""
    made = folder / f"{FILE}.new"
    try:
        with made.open("w", encoding="ascii") as file:
            file.write(f"{workers}\n")
            file.flush()
            os.fsync(file.fileno())
        made.rename(folder / FILE)
        _sync(folder)
    except OSError as error:
        raise StoreError(f"{made} cannot be written ({error.strerror})") from error


def part(folder: Path, worker: int) -> Path:
    """Return the folder of one worker's store."""
    return folder / f"w{worker}"


def of_another_number(folder: Path, workers: int) -> str:
    """Return the line about a folder whose stores are those of another number of workers."""
    return (
        f"{folder} has the sessions of a broker with workers.count = {workers}: start it with that number, or name "
        "another folder as store.path"
    )


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""What is preloaded into a broker, so that its disk and its clock can go wrong.

Owns: `Disk` (the library of disk.c, built when it is needed) and `Clock` (libfaketime). Promises: each changes nothing
until it is told to. Neither reaches a broker that is linked statically.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from canopy_load.brokers.process import BrokerFailed
from canopy_load.prove.faults import Fault

SOURCE: Final = Path(__file__).with_name("disk.c")
STATES: Final = {Fault.STORE_PAUSED: b"\1", Fault.STORE_FULL: b"\2", Fault.STORE_READ_ONLY: b"\3"}
INTERPRETER: Final = 3
"""The type of a program header that names the dynamic linker (elf.h)."""


def static(command: str) -> bool:
    """Return True if a program is linked statically. A script is as its interpreter is, taken to be dynamic."""
    found = shutil.which(command)
    if found is None:
        return False
    data = Path(found).read_bytes()[:4096]
    if data[:5] != b"\x7fELF\x02":
        return False
    first, size, count = (int.from_bytes(data[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    headers = (data[first + size * each :][:4] for each in range(count))
    return all(int.from_bytes(each, "little") != INTERPRETER for each in headers)


def compiler_missing() -> str:
    """Return why disk.c cannot be built; empty: it can."""
    return "" if shutil.which("cc") else "no C compiler (Debian: apt-get install gcc libc6-dev)"


def clock_library() -> Path | None:
    """Return libfaketime for programs with threads."""
    folders = (Path("/usr/lib"), Path("/usr/local/lib"))
    found = (each for folder in folders for each in sorted(folder.glob("**/faketime/libfaketimeMT.so.1")))
    return next(found, None)


def clock_missing() -> str:
    """Return why there can be no other clock; empty: there can be."""
    return "" if clock_library() else "libfaketime is not installed (Debian: apt-get install faketime)"


class Disk:
    """The disk of one node: the files below `store`. `folder` is for its own files. Raises BrokerFailed."""

    def __init__(self, folder: Path, store: Path) -> None:
        self._switch = folder / "disk-switch"
        self._switch.write_bytes(b"\0")
        self.environment = {"PROVE_DISK_SWITCH": str(self._switch), "PROVE_DISK_FOLDER": str(store)}
        self.library = folder / "disk.so"
        words = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self.library), str(SOURCE), "-ldl"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerFailed(f"disk.c cannot be built: {done.stderr.strip()}")

    def turn(self, fault: Fault | None) -> None:
        """Let the disk go wrong, or be well again."""
        with self._switch.open("r+b") as switch:
            switch.write(b"\0" if fault is None else STATES[fault])


class Clock:
    """The wall clock of one node. Its monotonic clock is the machine's. Raises BrokerFailed."""

    def __init__(self, folder: Path) -> None:
        found = clock_library()
        if found is None:
            raise BrokerFailed(clock_missing())
        self.library = found
        self._file = folder / "clock"
        self.environment = {
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0.0)

    def set(self, ahead: float) -> None:
        """Set it so many seconds ahead of the machine's."""
        self._file.write_text(f"{ahead:+g}")

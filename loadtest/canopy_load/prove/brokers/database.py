"""A PostgreSQL server for the brokers of a proof.

Owns: `Database`: a server with its data in a folder, reached by a Unix socket there, from every network namespace.
Promises: it has a database `postgres` and the role `canopy`, who may do everything; it writes to the disk as PostgreSQL
does by default, but for fsync: only the machine's own crash would show that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from canopy_load.brokers.process import BrokerFailed

PATIENCE: Final = 60.0
"""Seconds for a start and a stop."""
ROLE: Final = "canopy"


def _binaries() -> Path | None:
    """Return the folder of initdb and postgres; Debian keeps them where no PATH looks."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted((each.parent for each in Path("/usr/lib/postgresql").glob("*/bin/initdb")), reverse=True)
    return next((each for each in folders if (each / "initdb").exists()), None)


def database_missing() -> str:
    """Return why there can be none; empty: there can be one."""
    return "" if _binaries() else "PostgreSQL is not installed (Debian: apt-get install postgresql)"


class Database:
    """`folder` is that of the proof. All calls block. Raises BrokerFailed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "db"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@/postgres?host={self.folder}"

    def _as_somebody(self) -> list[str]:
        """Neither program agrees to be root."""
        if os.geteuid() != 0:
            return []
        return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]

    def make(self) -> None:
        """Make its files, and start it."""
        folder = _binaries()
        if folder is None:
            raise BrokerFailed(database_missing())
        self.folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody", "nogroup")
            self.folder.parent.chmod(0o711)
        data = str(self.folder / "data")
        words = [*self._as_somebody(), str(folder / "initdb"), "--pgdata", data, "--username", ROLE, "--auth=trust"]
        words += ["--no-sync", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode:
            raise BrokerFailed(f"PostgreSQL's initdb failed: {done.stderr.strip()}")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        folder = _binaries()
        assert folder is not None
        words = [
            *self._as_somebody(),
            str(folder / "postgres"),
            "-D",
            str(self.folder / "data"),
            "-k",
            str(self.folder),
        ]
        for setting in ("listen_addresses=", "fsync=off", "shared_buffers=32MB", "max_connections=200"):
            words += ["-c", setting]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, process_group=0
            )
        deadline = time.monotonic() + PATIENCE
        while "ready" not in self._state():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BrokerFailed(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def _state(self) -> str:
        """Return the state of the server, from the last line of its lock file."""
        try:
            return (self.folder / "data" / "postmaster.pid").read_text().splitlines()[7]
        except (OSError, IndexError):
            return ""

    def stop(self) -> None:
        """End it in order, also with clients connected."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)

    def pause(self, on: bool) -> None:
        """Stop all of its processes, or let them go on."""
        process = self._process
        if process is None:
            return
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        # The first one starts the others.
        for pid in (process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

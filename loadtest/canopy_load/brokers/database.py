"""A PostgreSQL server for brokers that keep their data in one.

Owns: `Database`: a server with its data in a folder, reached by a Unix socket there, from every network namespace, and
by a port of 127.0.0.1 where it has one.

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
from functools import cache
from pathlib import Path
from typing import Final

from canopy_load.brokers.process import HOST, BrokerFailed

PATIENCE: Final = 60.0
"""Seconds for a start and a stop."""
ROLE: Final = "canopy"
SETTINGS: Final = ("fsync=off", "shared_buffers=32MB", "max_connections=200", "log_min_messages=warning")


@cache
def _binaries() -> Path | None:
    """Return the folder of initdb and postgres."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    # Debian keeps them where no PATH looks, also where its packages are unpacked elsewhere.
    for root in ("/usr", *(os.path.dirname(each) for each in os.get_exec_path())):
        folders += sorted((each.parent for each in Path(root).glob("lib/postgresql/*/bin/initdb")), reverse=True)
    return next((each for each in folders if (each / "initdb").exists()), None)


def database_missing() -> str:
    """Return why there can be none; empty: there can be one."""
    return "" if _binaries() else "PostgreSQL is not installed (Debian: apt-get install postgresql)"


class Database:
    """A server below a folder of this user, who has it alone. `port`: where it listens; None: only at its socket;
    `settings`: NAME=VALUE, the last one of a name counts. All calls block. Raises BrokerFailed."""

    def __init__(self, folder: Path, port: int | None = None, *settings: str) -> None:
        self.folder = folder / "db"
        self.port = port
        listening = ("listen_addresses=",) if port is None else (f"listen_addresses={HOST}", f"port={port}")
        self._settings = (*SETTINGS, *listening, *settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL for clients."""
        if self.port is None:
            return f"postgresql://{ROLE}@/postgres?host={self.folder}"
        return f"postgresql://{ROLE}@{HOST}:{self.port}/postgres"

    def _command(self, name: str, *words: str) -> list[str]:
        """Return the command of a program, which does not agree to be root."""
        folder = _binaries()
        if folder is None:
            raise BrokerFailed(database_missing())
        somebody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        return [*(somebody if os.geteuid() == 0 else ()), str(folder / name), "-D", str(self.folder / "data"), *words]

    def make(self) -> None:
        """Make its files, and start it."""
        words = self._command("initdb", "--username", ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C")
        self.folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody", "nogroup")
            self.folder.parent.chmod(0o711)
        words.append("--no-sync")
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode:
            raise BrokerFailed(f"PostgreSQL's initdb failed: {done.stderr.strip()}")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready, or a standby that can be read."""
        log, deadline = self.folder / "log", time.monotonic() + PATIENCE
        process = self._begin(log)
        while self._state().strip() not in ("ready", "standby"):
            ended = process.poll() is not None
            if ended and "pre-existing shared memory" in log.read_text()[-1000:] and time.monotonic() < deadline:
                # A process of a server that was killed is not gone yet.
                process, ended = self._begin(log), False
            if ended or time.monotonic() > deadline:
                raise BrokerFailed(f"PostgreSQL did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)

    def _begin(self, log: Path) -> subprocess.Popen[bytes]:
        words = self._command("postgres", "-k", str(self.folder))
        for setting in self._settings:
            words += ["-c", setting]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self.folder, process_group=0
            )
        return self._process

    @property
    def _lock(self) -> Path:
        return self.folder / "data" / "postmaster.pid"

    def _state(self) -> str:
        """Return the state of the server, from the last line of its lock file."""
        try:
            return self._lock.read_text().splitlines()[7]
        except (OSError, IndexError):
            return ""

    def stop(self) -> None:
        """End it in order, also with clients connected."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)

    def kill(self) -> None:
        """End all of its processes by SIGKILL, as the system does where memory is short."""
        self._signal(signal.SIGKILL)
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            # Another process may have the identifier that stands there by now.
            self._lock.unlink(missing_ok=True)

    def pause(self, on: bool) -> None:
        """Stop all of its processes, or let them go on."""
        self._signal(signal.SIGSTOP if on else signal.SIGCONT)

    def pids(self) -> list[int]:
        """Return its processes: the first one, which starts the others, and those; none, if it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return [process.pid, *map(int, children)]

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        for pid in self.pids()[:1]:
            # It starts no more of them.
            os.kill(pid, signal.SIGSTOP)
        for pid in reversed(self.pids()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

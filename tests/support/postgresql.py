"""A PostgreSQL of the tests' own: one for each process that runs tests, on a free port of loopback."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.process import free_port

USER = "canopy"
_NUMBERS = itertools.count(1)


@cache
def binaries() -> Path | None:
    """The folder of initdb and postgres; Debian keeps them where no PATH looks."""
    for name in ("initdb", "postgres"):
        found = shutil.which(name)
        if found is not None and Path(found).resolve().with_name("initdb").exists():
            return Path(found).resolve().parent
    folders = [*Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    # Where continuous integration unpacked it.
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        folders += Path(folder).parent.glob("lib/postgresql/*/bin/initdb")
    return max(folders).parent if folders else None


def _as_somebody() -> list[str]:
    """initdb and postgres refuse to be root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


class Server:
    """One server with a database `canopy`, and schemas in it."""

    def __init__(self, *options: str) -> None:
        """`options`: settings of the server, NAME=VALUE."""
        folder = binaries()
        assert folder is not None
        self._binaries = folder
        # Short: the path of a Unix socket has 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="canopy-pg-"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody", "nogroup")
        self.port = free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "--pgdata", str(self.folder / "data"), "--username", USER, "--auth=trust", "--no-sync",
            "--encoding=UTF8", "--locale=C", "--no-instructions",
        )  # fmt: skip
        self.start()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [*_as_somebody(), str(self._binaries / name), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Begin to serve, and wait for that."""
        options = ("fsync=off", "listen_addresses=127.0.0.1", "shared_buffers=32MB", "log_min_messages=warning")
        settings = [each for option in (*options, *self._options) for each in ("-c", option)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_as_somebody(), str(self._binaries / "postgres"), "-D", str(self.folder / "data"),
                    "-p", str(self.port), "-k", str(self.folder), *settings,
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while "ready" not in self._state():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.01)

    def _state(self) -> str:
        """The state of the server, from the last line of its lock file."""
        try:
            return (self.folder / "data" / "postmaster.pid").read_text().splitlines()[7]
        except (OSError, IndexError):
            return ""

    def kill(self) -> None:
        """SIGKILL to all of it, as the system does where memory is short."""
        process = self._process
        if process is None:
            return
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, check=False)
        process.kill()
        for pid in children.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        process.wait()
        self._process = None
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End the server in order, even with clients connected."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def pause(self, on: bool) -> None:
        """Stop all of its processes, or let them go on."""
        assert self._process is not None
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, check=False)
        for pid in (self._process.pid, *map(int, found.stdout.split())):
            os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def remove(self) -> None:
        """End it, and leave nothing."""
        self.kill()
        shutil.rmtree(self.folder)

    def ask(self, statement: str, *, then: str = "") -> list[tuple[Any, ...]]:
        """Return the rows of a statement, as psql would; not from within an event loop."""
        return asyncio.run(ask(self.url, statement, then=then))


async def ask(url: str, statement: str, *values: object, then: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of a statement, or, with `then`, of that one after it."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        if then:
            await connection.execute(statement)
            statement = then
        return [tuple(row) for row in await connection.fetch(statement, *values)]
    finally:
        await connection.close()


def missing() -> str:
    """Why there is none here; empty: there can be one."""
    try:
        import asyncpg  # noqa: F401
    except ModuleNotFoundError:
        return "asyncpg is not installed (the extra postgresql)"
    return "" if binaries() is not None else "PostgreSQL is not installed (Debian: apt install postgresql)"


_shared: Server | None = None


def shared() -> Server:
    """The one of this process: begun when it is asked for first. Skips the test where there is none."""
    global _shared
    if why := missing():
        pytest.skip(why)
    if _shared is None:
        _shared = Server()
    return _shared


def close_shared() -> None:
    """The tests are over."""
    global _shared
    if _shared is not None:
        _shared.remove()
        _shared = None


def new_name() -> str:
    """A schema that no other test has."""
    return f"{getpass.getuser()}_{os.getpid()}_{next(_NUMBERS)}".replace("-", "_").lower()


def server(*options: str) -> Iterator[Server]:
    """A server of a test's own, for a fixture."""
    if why := missing():
        pytest.skip(why)
    made = Server(*options)
    yield made
    made.remove()

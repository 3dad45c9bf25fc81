"""A PostgreSQL of the tests' own: one for each process that runs tests, on a free port of loopback."""

from __future__ import annotations

import asyncio
import getpass
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.database import Database, database_missing
from canopy_load.brokers.process import free_port

_NUMBERS = itertools.count(1)


class Server(Database):
    """One server with a database, and schemas in it."""

    def __init__(self, *settings: str, primary: Server | None = None) -> None:
        """`settings`: of the server, NAME=VALUE; `primary`: it is a standby that follows this one, which restarts."""
        # Short: the path of a Unix socket has 107 bytes.
        super().__init__(Path(tempfile.mkdtemp(prefix="canopy-pg-")), free_port(), *settings)
        if primary is None:
            self.make()
        else:
            self._follow(primary)

    def _follow(self, primary: Server) -> None:
        """Begin with the files of another server."""
        primary.stop()
        subprocess.run(["cp", "-a", primary.folder, self.folder], check=True)
        primary.start()
        self.folder.parent.chmod(0o711)
        (self.folder / "data" / "standby.signal").touch()
        self.start()

    def remove(self) -> None:
        """End it, and leave nothing."""
        self.kill()
        shutil.rmtree(self.folder.parent)

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
    return database_missing()


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


def server(*options: str, primary: Server | None = None) -> Iterator[Server]:
    """A server of a test's own, for a fixture."""
    if why := missing():
        pytest.skip(why)
    made = Server(*options, primary=primary)
    yield made
    made.remove()

"""A store in the database of the tests: made, asked, and reached through a proxy that loses what it is told to."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from canopy_mqtt.store.postgresql import PostgresStore
from tests.store.sqlite.place import Listener
from tests.support import postgresql
from tests.support.postgresql import Server

LEASE = 1.0


def make(name: str, *, url: str = "", **options: Any) -> PostgresStore:
    """A store on a schema, which is not open."""
    terms = {"name": name, "lease_timeout": LEASE, "synchronous": "off", **options}
    store = PostgresStore(url or postgresql.shared().url, **terms)
    store.listener = Listener()
    return store


async def opened(name: str, **options: Any) -> PostgresStore:
    """One that is open."""
    store = make(name, **options)
    await store.open(asyncio.get_running_loop().time)
    return store


async def ask(name: str, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement in a schema, as psql would."""
    return await postgresql.ask(postgresql.shared().url, f'SET search_path = "{name}"', then=statement)


async def count(name: str, table: str) -> int:
    """Rows of a table."""
    [[rows]] = await ask(name, f"SELECT count(*) FROM {table}")
    return int(rows)


async def kill(store: PostgresStore) -> None:
    """As if its process had died: nothing more is written, and nobody says so to the database."""
    if store._pulse is not None:
        store._pulse.cancel()
    store._committer.stop()
    task, store._task, store._loop = store._task, None, None
    assert task is not None
    task.cancel()
    await asyncio.wait((task,))
    store._database.drop()


async def standbys(server: Server, change: str) -> None:
    """SET or RESET the standbys for which a server waits, and wait until that holds."""
    await postgresql.ask(server.url, f"ALTER SYSTEM {change}")
    await postgresql.ask(server.url, "SELECT pg_reload_conf()")
    names = "nobody" if change.startswith("SET") else ""
    while await postgresql.ask(server.url, "SHOW synchronous_standby_names") != [(names,)]:
        pass


class Proxy:
    """Stands between a store and the database."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._goes = asyncio.Event()
        self._goes.set()
        self.before: bytes = b""
        """The client's statement that never arrives; the connection ends there."""
        self.after: bytes = b""
        """The client's statement that arrives, and whose answer does not; the connection ends there."""
        self.lost = 0
        self.open = True
        self.connections = 0

    async def start(self) -> str:
        """The URL of the database, through here."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        shared = urlsplit(postgresql.shared().url)
        self._port = shared.port
        return shared._replace(netloc=f"{shared.username}@127.0.0.1:{port}").geturl()

    def stand_still(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        self._goes.clear()

    def go_on(self) -> None:
        self._goes.set()

    def cut(self) -> None:
        """All connections end."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.cut()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        if not self.open:
            writer.transport.abort()
            return
        to_server, from_client = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.add(from_client)
        for task in (
            asyncio.ensure_future(self._requests(reader, from_client, writer)),
            asyncio.ensure_future(self._pass_on(to_server, writer)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._goes.wait()
                writer.write(data)
        writer.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._goes.wait()
                if self.before and self.before in data:
                    self.before = b""
                    self.lost += 1
                    break
                if self.after and self.after in data:
                    self.after = b""
                    self.lost += 1
                    # Nobody hears of it: the client's side ends first.
                    client.transport.abort()
                    server.write(data)
                    await server.drain()
                    await asyncio.sleep(0.2)
                    break
                server.write(data)
        server.transport.abort()
        client.transport.abort()

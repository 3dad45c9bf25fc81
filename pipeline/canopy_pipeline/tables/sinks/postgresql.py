"""Tables in a schema of PostgreSQL: each batch one transaction, whose rows come by COPY.

Owns the schema: its tables are those of one output folder, and its table `canopy_progress` says of which, and which
batch they have.

Promises: a batch is in the tables once. Its transaction notes its number, and one that is noted already is not made
again, also where the answer to COMMIT was lost. New columns, and a column of int32 that becomes int64, come with the
first batch that has rows of them, in its transaction. No password is in an error, and none is kept.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from canopy_pipeline.errors import AwayError, MisuseError, PipelineError, needed
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.tables.evolution import newest
from canopy_pipeline.tables.output import Output, Sink
from canopy_pipeline.tables.patterns import NAME
from canopy_pipeline.tables.plans import DATE, SEQ
from canopy_pipeline.tables.staged import Batch, among, rows
from canopy_pipeline.tables.views import Versions

PROGRESS: Final = "canopy_progress"
ANSWER: Final = 60.0
"""Seconds that the database has for a connection, and for an answer to any statement but COPY and the change of a
column."""
LONG: Final = 3_600.0
"""Seconds for the rows of one table in a batch, and for writing a table anew whose column becomes wider."""
ROWS: Final = 10_000
"""Rows that are read at a time."""

_ESCAPES: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\0", "\N{REPLACEMENT CHARACTER}"))
"""Characters of texts in COPY's text format. PostgreSQL has no U+0000: it becomes U+FFFD."""
_PASSING: Final = frozenset({"08", "25", "40", "53", "57"})
"""Classes of SQLSTATE that pass: no connection, a primary that is a standby now, a conflict, no room, a shutdown."""

T = TypeVar("T")


class PostgresSink(Sink):
    """Tables of one schema. The output folder keeps what is written aside, and the commits."""

    kinds = MappingProxyType(
        {
            "bool": "boolean", "int8": "smallint", "int32": "integer", "int64": "bigint", "double": "double precision",
            "string": "text", "binary": "bytea", "timestamp[us, tz=UTC]": "timestamp with time zone",
        }
    )  # fmt: skip
    """As information_schema has them."""
    date = "date"
    remedy = "change it back, or give another --output and --namespace"

    def __init__(self, out: Output, stream: str, url: str, schema: str) -> None:
        """Connects to nothing.

        Raises:
            MisuseError: asyncpg is not there, or the address or a name cannot be used.
        """
        asyncpg = needed("asyncpg", "--format postgresql", "pip install '.[postgresql]'")
        parts = urlsplit(url)
        if parts.scheme not in ("postgresql", "postgres"):
            raise MisuseError("--database: give postgresql://USER@HOST:PORT/DATABASE")
        if parts.password or "password=" in parts.query:
            raise MisuseError("--database: leave the password out; give it by PGPASSWORD, or in ~/.pgpass")
        if not re.fullmatch(NAME, schema):
            raise MisuseError(f"--namespace {schema}: a schema has small letters, digits and _, at most 63")
        super().__init__(out)
        if PROGRESS in self.schemas:
            raise MisuseError(f"tables.{PROGRESS}: --format postgresql has a table of that name; give another one")
        self._pg = asyncpg
        self._stream = stream
        self._url = url
        self.schema = schema
        self._where = f"postgresql://{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"

    # -- what a job asks for -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the schema if it is not there, and check that its tables are these.

        Raises:
            MisuseError: they are another output's, or have another layout.
            AwayError: the database does not answer.
            PipelineError: it refuses.
        """
        self._run(self._begin())

    def publish(self, batch: Batch) -> None:
        """Make a batch part of the tables: one transaction.

        Raises:
            AwayError: the database does not answer; a second call does the same.
            PipelineError: it refuses, or lacks a batch before.
        """
        self._run(self._publish(batch))

    def rows(self, table: str, numbers: Numbers) -> Iterator[Any]:
        """Yield the rows from the first to the last of these numbers.

        Raises:
            AwayError: the database does not answer.
        """
        with asyncio.Runner() as runner:
            connection = self._told(runner, self._connect())
            try:
                found = self._told(runner, self._columns(connection)).get(table, {})
                fields = [each for each in self.schemas[table] if each.name in found]
                if not fields:
                    return
                names = ", ".join(f'"{each.name}"' + ("::text" if each.name == DATE else "") for each in fields)
                text = f"SELECT {names} FROM {self._quoted(table)} WHERE {among(numbers.first, numbers.last)}"
                cursor = self._told(runner, self._cursor(connection, text))
                while found_rows := self._told(runner, cursor.fetch(ROWS)):
                    columns = zip(*found_rows, strict=True)
                    arrays = [pa.array(each, field.type) for each, field in zip(columns, fields, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            finally:
                connection.terminate()

    def gone(self) -> list[str]:
        return self._run(self._gone())

    def views(self) -> dict[str, str]:
        """Return nothing: the tables have their names."""
        return {}

    def versions(self) -> Versions:
        return {name: {self._quoted(name): newest(said)[1]} for name, said in self.out.kept.items()}

    def named(self, table: str, column: str) -> str:
        return f"--namespace {self.schema}: the column {column} of its table {table}"

    def forget(self, table: str) -> list[str]:
        """Vacuum a table. Raises PipelineError, AwayError."""
        self._run(self._vacuum(table))
        return [f"table {self.schema}.{table} of {self._where}: its write-ahead log, archives of it, and backups"]

    # -- how -----------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        async with self._connected() as connection, connection.transaction():
            if await connection.fetchval("SELECT to_regnamespace($1)", self.schema) is None:
                await connection.execute(f'CREATE SCHEMA "{self.schema}"')
            columns = await self._columns(connection)
            if PROGRESS not in columns:
                if taken := sorted(columns.keys() & self.schemas.keys()):
                    raise self._others(taken[0])
                await connection.execute(
                    f"CREATE TABLE {self._quoted(PROGRESS)} (stream text NOT NULL, batch bigint NOT NULL, "
                    "through bigint NOT NULL, written timestamptz NOT NULL DEFAULT clock_timestamp())"
                )
                await connection.execute(
                    f"INSERT INTO {self._quoted(PROGRESS)} (stream, batch, through) VALUES ($1, 0, 0)", self._stream
                )
            if await connection.fetchval(f"SELECT stream FROM {self._quoted(PROGRESS)}") != self._stream:
                raise self._others(PROGRESS)
            for table in self.schemas:
                if table in columns:
                    self.check(table, columns[table])

    def _others(self, table: str) -> MisuseError:
        return MisuseError(
            f"--namespace {self.schema}: its table {table} is of another output folder, or of something else; give a "
            "namespace of its own"
        )

    async def _publish(self, batch: Batch) -> None:
        progress = self._quoted(PROGRESS)
        async with self._connected() as connection, connection.transaction():
            # The row is locked until the end: of two attempts one waits, and finds the batch of the other.
            done = await connection.fetchval(f"SELECT batch FROM {progress} WHERE stream = $1 FOR UPDATE", self._stream)
            if done is None or done < batch.version - 1:
                raise PipelineError(
                    f"{self._where}, schema {self.schema}: has batches up to {done or 0}, and this output folder up "
                    f"to {batch.version}: another database, or an older copy of it; begin again with another --output "
                    "and --namespace"
                )
            if done >= batch.version:
                return
            columns = await self._columns(connection)
            for table, files in batch.of_tables():
                await self._adapt(connection, table, columns.get(table, {}))
                if batch.remade is not None:
                    first, last = batch.remade.first, batch.remade.last
                    await connection.execute(
                        f"DELETE FROM {self._quoted(table)} WHERE {among(first, last)}", timeout=LONG
                    )
                await connection.copy_to_table(
                    table,
                    schema_name=self.schema,
                    columns=self.schemas[table].names,
                    source=self._copied(files, self.schemas[table]),
                    timeout=LONG,
                )
            await connection.execute(
                f"UPDATE {progress} SET batch = $2, through = greatest(through, $3), written = clock_timestamp() "
                "WHERE stream = $1",
                *(self._stream, batch.version, int(batch.about["canopy.to_seq"])),
            )

    async def _gone(self) -> list[str]:
        async with self._connected() as connection:
            return [*(self.out.kept.keys() - await self._columns(connection))]

    async def _copied(self, files: Sequence[tuple[str, str]], schema: Any) -> AsyncIterator[bytes]:
        for batch in rows(self.place, files, schema):
            yield encoded(batch)

    async def _adapt(self, connection: Any, table: str, found: Mapping[str, str]) -> None:
        """Give a table the columns of the mapping."""
        name = self._quoted(table)
        if not found:
            columns = (
                f'"{each.name}" {self.kind(each)}{"" if each.nullable else " NOT NULL"}' for each in self.schemas[table]
            )
            made = ", ".join(columns)
            await connection.execute(f"CREATE TABLE {name} ({made})")
            # Rows come in the order of their numbers, nearly: a few pages for any number of rows.
            await connection.execute(f"CREATE INDEX ON {name} USING brin ({SEQ})")
            return
        new, wider = self.lacking(table, found)
        for each in new:
            await connection.execute(f'ALTER TABLE {name} ADD COLUMN "{each.name}" {self.kind(each)}')
        for each in wider:
            await connection.execute(f'ALTER TABLE {name} ALTER COLUMN "{each.name}" TYPE bigint', timeout=LONG)

    async def _vacuum(self, table: str) -> None:
        async with self._connected() as connection:
            if table in await self._columns(connection):
                await connection.execute(f"VACUUM {self._quoted(table)}", timeout=LONG)

    async def _columns(self, connection: Any) -> dict[str, dict[str, str]]:
        """Return the tables of the schema: the type of each column."""
        found: dict[str, dict[str, str]] = {}
        for table, column, kind in await connection.fetch(
            "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns"
            " WHERE table_schema = $1",
            self.schema,
        ):
            found.setdefault(table, {})[column] = kind
        return found

    @staticmethod
    async def _cursor(connection: Any, text: str) -> Any:
        await connection.transaction(readonly=True).start()
        return await connection.cursor(text)

    def _quoted(self, table: str) -> str:
        return f'"{self.schema}"."{table}"'

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _connect(self) -> Any:
        try:
            return await self._pg.connect(
                self._url,
                timeout=ANSWER,
                command_timeout=ANSWER,
                target_session_attrs=None if "target_session_attrs=" in self._url else "read-write",
                server_settings={
                    "application_name": "canopy pipeline tables",
                    # A process that is gone in the middle of a transaction keeps nobody waiting for long.
                    "idle_in_transaction_session_timeout": str(round(ANSWER * 1000)),
                    "tcp_keepalives_idle": str(round(ANSWER)),
                    "TimeZone": "UTC",
                },
            )
        except ValueError as error:
            # The address, or an option in it: it does not become right by waiting.
            raise MisuseError(f"--database: {str(error).partition(chr(10))[0]}") from error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        connection = await self._connect()
        try:
            yield connection
            await connection.close(timeout=ANSWER)
        finally:
            connection.terminate()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner() as runner:
            return self._told(runner, work)

    def _told(self, runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
        """Do a part of the work. Raises AwayError, PipelineError."""
        pg = self._pg
        try:
            return runner.run(work)
        except (OSError, pg.InterfaceError, pg.InternalClientError) as error:
            raise AwayError(f"{self._where}: {_line(error)}") from error
        except pg.PostgresError as error:
            # Its other lines may be the rows.
            text = f"{self._where}, schema {self.schema}: {_line(error)}"
            if (error.sqlstate or "08")[:2] in _PASSING:
                raise AwayError(text) from error
            raise PipelineError(f"{text}; what is not in the tables yet comes with the next run") from error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}" if str(error) else type(error).__name__


def encoded(batch: Any) -> bytes:
    """Return rows as COPY's text format. Its CSV format ends, before PostgreSQL 18, at a line `\\.` within a text."""
    columns = []
    for column in batch.columns:
        if pa.types.is_binary(column.type):
            column = pa.array([None if each is None else f"\\\\x{each.hex()}" for each in column.to_pylist()])
        elif pa.types.is_string(column.type):
            for character, escaped in _ESCAPES:
                column = pc.replace_substring(column, character, escaped)
        columns.append(pc.fill_null(column.cast(pa.large_string()), "\\N"))
    lines = pc.binary_join_element_wise(*columns, pa.scalar("\t", pa.large_string()))
    return b"\n".join([*lines.cast(pa.large_binary()).to_pylist(), b""])

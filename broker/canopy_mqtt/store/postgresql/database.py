"""The connection to the database of a store, and the ownership of its tables.

Owns the epoch of this broker and the number of the group that was written last. Promises: what a broker writes is
written only while its epoch is the one in the database, and a group once: both are looked at, and changed, by the first
statement of its transaction (`claim`). After any error the connection goes; the next call makes another one. If the
outcome of a commit is unknown, the number of the group tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.postgresql import lease_holder
from canopy_mqtt.store.times import Note

BEATS: Final = 3
"""Times that the lease is renewed before it would be over."""

NO_ANSWER: Final = 60.0
"""Seconds that the database has for an answer where the settings name none."""

SYNCHRONOUS: Final = {"full": "on", "normal": "local", "off": "off"}
"""By `store.synchronous`: what PostgreSQL calls it."""

TAKE: Final = (
    "UPDATE owner SET epoch = epoch + 1, node = $1, holder = $3,"
    " lease_until = clock_timestamp() + $2 * interval '1 second'"
    " WHERE lease_until < clock_timestamp() OR (holder = $4 AND holder <> '')"
    " RETURNING epoch, groups, time, wall, uptime, boot, clock_checksum"
)
TAKEN: Final = (
    "SELECT node, lease_until,"
    " extract(epoch FROM lease_until)::float8 - extract(epoch FROM clock_timestamp())::float8, holder FROM owner"
)
"""A lease that was given up is over since -infinity."""
CLAIM: Final = (
    "UPDATE owner SET groups = groups + 1, lease_until = clock_timestamp() + $3 * interval '1 second'"
    " WHERE epoch = $1 AND groups = $2 RETURNING groups"
)
STANDS: Final = "SELECT epoch, groups, node FROM owner"
RENEW: Final = (
    "UPDATE owner SET lease_until = clock_timestamp() + $2 * interval '1 second' WHERE epoch = $1 RETURNING epoch"
)
GIVE_UP: Final = "UPDATE owner SET lease_until = '-infinity' WHERE epoch = $1"


class Replaced(Exception):
    """Another broker has the tables: this one cannot write there any more."""


class Behind(Exception):
    """The database lacks changes that it had confirmed."""


FAILURES: Final = (
    OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, Replaced, Behind,
)  # fmt: skip
"""The errors of a call to the database. `InternalClientError`: for instance, the server has ended the connection while
nothing was asked."""


class Database:
    """One schema of a database, for one broker."""

    def __init__(
        self, url: str, name: str, *, node: str, synchronous: str, stall_timeout: float, lease_timeout: float
    ) -> None:
        """`name`: the schema; `node`: which broker this is, for people; `stall_timeout`: seconds that an answer may
        take, 0: no limit; `lease_timeout`: seconds for which the tables stay this broker's without a sign of it."""
        self.url = url
        self.name = name
        self.lease_timeout = lease_timeout
        self.timeout = stall_timeout if stall_timeout > 0.0 else NO_ANSWER
        self.epoch = 0
        self.group = 0
        self.renewed = 0.0
        """When the lease was renewed last, by the clock of the event loop."""
        self.node = node
        self._synchronous = synchronous
        self._connection: Any = None
        self._warning = ""

    @property
    def place(self) -> str:
        """Where this is, for people: without user and password."""
        return f"{place(self.url)}, schema {self.name}"

    # -- the connection ------------------------------------------------------------------------------------------------

    async def connection(self) -> Any:
        """An open connection; the one before, if it is open still."""
        if self._connection is None or self._connection.is_closed():
            milliseconds, self._warning = str(round(self.timeout * 1000)), ""
            self._connection = await asyncpg.connect(
                self.url,
                timeout=self.timeout,
                # Of several hosts, the one that can be written to.
                target_session_attrs=None if "target_session_attrs=" in self.url else "read-write",
                server_settings={
                    "application_name": f"canopy {self.node}",
                    "default_transaction_isolation": "read committed",
                    # A broker that is gone in the middle of a transaction keeps nobody else waiting.
                    "idle_in_transaction_session_timeout": milliseconds,
                    # What is read some at a time comes by its index, which has it in order, also where nothing is known
                    # of a table that has grown just now: each time all that is left would be sorted.
                    "enable_sort": "off",
                    "jit": "off",
                    "lock_timeout": milliseconds,
                    # Statements are about few rows, whatever the numbers of the first ones were.
                    "plan_cache_mode": "force_generic_plan",
                    "search_path": f'"{self.name}"',
                    "synchronous_commit": SYNCHRONOUS[self._synchronous],
                },
            )
            self._connection.add_log_listener(self._warned)
        return self._connection

    def _warned(self, connection: Any, message: Any) -> None:
        del connection
        if message.severity_en == "WARNING":
            self._warning = message.message

    def _check_warnings(self) -> None:
        """Raise ConnectionError if PostgreSQL has warned, as it does where a commit is on no standby: somebody has
        ended the wait for it, such as `statement_timeout`."""
        if self._warning:
            raise ConnectionError(self._warning)

    def begun(self) -> Any:
        """The connection that is in a transaction. Raises ConnectionError: it is not, and a new one would not be."""
        connection = self._connection
        if connection is None or connection.is_closed() or not connection.is_in_transaction():
            raise ConnectionError("the connection was lost in the middle of a transaction")
        return connection

    def drop(self) -> None:
        """Drop the connection, whatever became of it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=self.timeout)
            except FAILURES:
                connection.terminate()

    def told(self, error: BaseException) -> str:
        if isinstance(error, StoreError | Replaced | Behind):
            return str(error)
        text = " ".join(str(error).split())
        if not isinstance(error, FAILURES):
            return f"{self.place}: {type(error).__name__}: {text}"
        return f"{self.place}: {remedy(error)} ({type(error).__name__}{': ' if text else ''}{text})"

    # -- whose the tables are ------------------------------------------------------------------------------------------

    async def take(self) -> tuple[int, Note | None]:
        """Take the tables for this broker, and return the number of the last group, and the clocks as of the last note.

        The lease of one that was killed is waited for, unless it ran here and is certainly dead (`lease_holder`).

        Raises:
            StoreError: another broker is there.
        """
        connection = await self.connection()
        here = await asyncio.to_thread(lease_holder.this_process)
        dead = ""
        seen: Any = None
        while True:
            try:
                values = (self.node, self.lease_timeout, here, dead)
                row = await connection.fetchrow(TAKE, *values, timeout=self.timeout)
            except asyncpg.LockNotAvailableError as error:
                raise StoreError(f"{self.place} is in use: a broker is writing there, stop that one") from error
            if row is not None:
                self.epoch = row[0]
                self._renew()
                return row[1], Note.of(row[2:])
            node, until, left, process = await connection.fetchrow(TAKEN, timeout=self.timeout)
            if process != dead and await asyncio.to_thread(lease_holder.has_ended, process):
                dead = process
                continue
            if seen is not None and until != seen and left > 0:
                raise StoreError(
                    f"{self.place} is in use by {node}: stop that one, or name another schema (store.name)"
                )
            seen = until
            await asyncio.sleep(min(max(left, 0.02), self.lease_timeout / 10))

    async def claim(self) -> bool:
        """Begin the transaction of the next group. False: that group is written already.

        Raises:
            Replaced: another broker has the tables.
            Behind: groups before are missing.
        """
        connection = await self.connection()
        await connection.execute("BEGIN")
        if await connection.fetchval(CLAIM, self.epoch, self.group, self.lease_timeout) is not None:
            return True
        await connection.execute("ROLLBACK")
        epoch, groups, node = await connection.fetchrow(STANDS)
        self._hold_against(epoch, node)
        if groups != self.group + 1:
            raise Behind(
                f"{self.place} has lost what it had: it is at group {groups}, and had {self.group}: restart this "
                "broker to go on from what is there"
            )
        # Where standbys are waited for, the commit may have been heard of before they had it: this one is behind it.
        if not await self.renew():
            self._hold_against(self.epoch + 1, "another broker")
        self.group = groups
        return False

    async def commit(self) -> None:
        """Commit the transaction of a group. After an error its outcome is unknown until `claim` finds out."""
        if await self.begun().execute("COMMIT") != "COMMIT":
            raise ConnectionError("the transaction was rolled back")
        self._check_warnings()
        self.group += 1
        self._renew()

    async def hold(self) -> None:
        """Begin a transaction during which no other broker can take the tables. Raises Replaced."""
        connection = await self.connection()
        await connection.execute("BEGIN")
        epoch, _, node = await connection.fetchrow(f"{STANDS} FOR UPDATE")
        self._hold_against(epoch, node)

    async def renew(self) -> bool:
        """Renew the lease; False: the tables are another broker's."""
        connection = await self.connection()
        if await connection.fetchval(RENEW, self.epoch, self.lease_timeout, timeout=self.timeout) is None:
            return False
        self._check_warnings()
        self._renew()
        return True

    def is_due(self) -> bool:
        return asyncio.get_running_loop().time() - self.renewed >= self.lease_timeout / BEATS

    async def give_up(self) -> None:
        with suppress(*FAILURES):
            async with asyncio.timeout(self.timeout):
                connection = await self.connection()
                await connection.execute(GIVE_UP, self.epoch)

    def _renew(self) -> None:
        self.renewed = asyncio.get_running_loop().time()

    def _hold_against(self, epoch: int, node: str) -> None:
        if epoch != self.epoch:
            raise Replaced(f"{self.place} was taken over by {node}: nothing is kept here any more, this broker stops")

    # -- statements ----------------------------------------------------------------------------------------------------

    async def fetch(self, statement: str, *values: object) -> Sequence[Any]:
        """Return all rows of a short answer, for which the database has `timeout` seconds."""
        connection = await self.connection()
        rows: Sequence[Any] = await connection.fetch(statement, *values, timeout=self.timeout)
        return rows


def place(url: str) -> str:
    """Return the address of a database, without user, password and options."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or "localhost"
    return f"postgresql://{hosts}{parts.path}"


def remedy(error: BaseException) -> str:
    if isinstance(error, asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError):
        return "the login failed: check user and password of store.url, and pg_hba.conf of the database"
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return "there is no such database: create it (createdb)"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return "the user of store.url lacks a privilege: grant it CREATE on the database, or let it own the schema"
    if isinstance(error, asyncpg.DiskFullError):
        return "its disk is full: free some space"
    if isinstance(error, asyncpg.InternalServerError | asyncpg.PostgresSystemError):
        # With a full disk it may not even write the file that a new connection needs.
        return "it has a fault of its own: look into its log, and whether its disk is full"
    if isinstance(error, asyncpg.ProtocolViolationError):
        return "a pooler in between does not take what a broker asks for: name the database itself in store.url"
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError | asyncpg.TargetServerAttributeNotMatched):
        return "it cannot be written: name the primary in store.url, or all hosts"
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.PostgresConnectionError):
        return "it refuses the request: check the options of store.url, and its log"
    return "it cannot be reached: check that PostgreSQL runs, and store.url"

"""What a node asks of a shared store: one call of a function each.

Owns the node's incarnation, the number of its last group, and how far it knows the filters. Promises: a group is
written once, however often its answer is lost. A call for a group has no time-out and is never cancelled: one that was
cancelled may have been committed without a standby, and answers as if nothing had happened. After any error its
connection goes, and the same number is asked again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import asyncpg

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.postgresql import lease_holder
from canopy_mqtt.store.postgresql.database import FAILURES, SYNCHRONOUS, place, remedy
from canopy_mqtt.store.shared.calls import (
    Ask,
    ChangedFilter,
    Claimed,
    Content,
    DeliveryKey,
    DueWill,
    Foreign,
    Group,
    Hint,
    Member,
    Over,
    Owner,
    Page,
    Peer,
    Pulled,
    RetainedRow,
    Subscribe,
    Terms,
    Waiting,
    Written,
)
from canopy_mqtt.store.shared.functions import PAGE_BYTES
from canopy_mqtt.store.shared.opening import open_schema
from canopy_mqtt.version import __version__

FIRST_PAUSE: Final = 0.05
"""Seconds before a group is asked again; twice as many each time."""
JOIN: Final = "SELECT * FROM join_1($1, $2, $3, $4, $5, $6)"
WRITE: Final = f"SELECT (w).* FROM write_1({', '.join(f'${n}' for n in range(1, 17))}) w"
MAX_PAUSE: Final = 1.0
"""Seconds between two attempts at most."""
REFUSED: Final = ("21", "22", "23", "54")
"""Classes of errors (SQLSTATE) by which PostgreSQL refuses what is in a statement, whatever the state of the server is:
a row would be changed twice, a column does not take the data, a constraint, more than a row or an index may have."""
REFUSALS: Final = 3
"""Such answers one after another to the same group, after which it is not asked again as it is."""
END_BACKENDS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = left($1, 63) AND pid <> pg_backend_pid()
"""
"""PostgreSQL keeps 63 bytes of a name. A node whose name begins as another's for so long loses connections, and makes
them again."""
TOPICS: Final = 1_000
"""Topics of a node whose retained messages are read at once."""
WILLS: Final = 500
"""Wills that are read at once."""
PREDECESSOR: Final = """
SELECT b.at, n.holder, extract(epoch FROM clock_timestamp() - b.at)::float8
    FROM node n JOIN beat b ON b.node = n.id WHERE n.name = $1 AND n.alive AND n.incarnation <> $2
"""
"""The last sign of life of a node whose incarnation is not the own one, its process, and the age of that sign, s."""
HISTORY: Final = """
SELECT concat(system_identifier, '/', left(pg_walfile_name(pg_current_wal_lsn()), 8)) FROM pg_control_system()
"""
"""The server's data and its timeline, which is another one once a standby has been promoted, or a backup restored."""
SPEAKING: Final = "SELECT name, speaks FROM node WHERE alive AND name <> $1 ORDER BY name"
REPLACED: Final = "SELECT EXISTS (SELECT FROM node WHERE name = $1 AND incarnation > $2)"
LEAVE: Final = "SELECT declare_dead_1($1, $2, (SELECT at FROM beat WHERE node = $1))"
LOOK_AGAIN: Final = 0.25
"""Seconds between two looks for a sign of life, at most."""
UNREACHABLE: Final = (
    OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError, asyncpg.TooManyConnectionsError, asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TargetServerAttributeNotMatched,
)  # fmt: skip
"""Errors of a database that starts, restarts, fails over, or is not there: it may be there later."""
CONTENT: Final = """
SELECT session, o_epoch, o_subscriptions, o_received, o_flying FROM unnest($1::bigint[]) session, content_1(session)
"""


MOVED: Final = "a standby has taken over, or a backup was restored"


class Unreachable(StoreError):
    """The database cannot be reached now."""


def is_refusal(error: BaseException) -> bool:
    """Return whether PostgreSQL refuses what is in a statement (`REFUSED`)."""
    return isinstance(error, asyncpg.PostgresError) and str(error.sqlstate)[:2] in REFUSED


async def _history(connection: Any, seconds: float) -> str:
    """Return which history of the data a server has; empty: it does not tell, as PostgreSQL does."""
    try:
        return str(await connection.fetchval(HISTORY, timeout=seconds))
    except asyncpg.PostgresError as error:
        if str(error.sqlstate)[:2] in ("0A", "42"):
            return ""
        raise


def _claimed(session: int | None, epoch: int | None, present: bool, hints: Sequence[Any]) -> Claimed | Foreign:
    """Return the answer to a claim. Raises Over."""
    if epoch is None:
        raise Over
    if session is None:
        return Foreign()
    return Claimed(session, epoch, present, [Hint(each, 1, last) for each, _, last in hints])


class Line:
    """A connection, made when it is needed, for one call after another. After an error it goes."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._connect = connect
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self._warning = ""

    async def fetch(self, statement: str, *values: object, seconds: float | None = None) -> Sequence[Any]:
        """Return the rows of a statement, for which the database has `seconds` (None: no limit). A warning is an error:
        PostgreSQL warns where a commit is on no standby."""
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._warning = ""
                    self._connection = await self._connect()
                    self._connection.add_log_listener(self._warned)
                rows: Sequence[Any] = await self._connection.fetch(statement, *values, timeout=seconds)
                if self._warning:
                    raise ConnectionError(self._warning)
            except BaseException:
                self.drop()
                raise
            return rows

    def _warned(self, connection: Any, message: Any) -> None:
        del connection
        if message.severity_en == "WARNING":
            self._warning = message.message

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


class SharedDatabase:
    """A node's part of a shared store. Used on one event loop."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        node: str,
        cluster: str = "",
        synchronous: str = "full",
        timeout: float = 10.0,
        speaks: Sequence[int] = (1,),
        strangers: Callable[[str, Sequence[int], Sequence[int]], str] = lambda other, *_: other,
    ) -> None:
        """`name`: the schema; `node`: the node's name, which no other node of the `cluster` has; `synchronous`: as
        `store.synchronous`; `timeout`: seconds for a call that is not a group's; `speaks`: versions of node links that
        the node knows; `strangers`: says why a node that speaks none of them cannot be linked: its name, both's
        versions."""
        self.url, self.name, self.node_name = url, name, node
        self._cluster = cluster
        self._speaks, self._strangers = speaks, strangers
        self.identity = ""
        """Of the schema, once it is open: nodes that have the same one share their sessions."""
        self.timeout = timeout
        self.node = self.incarnation = self.grp = 0
        self._asked = 0, 0
        """The incarnation, and the number, of the group that was asked for last."""
        self.vector: dict[int, int] = {}
        """By node, the group up to which its filters are known."""
        self.seen: dict[int, int] = {}
        """By node, the group up to which its retained messages are known."""
        self.trouble = ""
        """Why the group that is being written is asked again, for people; empty: it is not."""
        self.has_moved = False
        """A connection has found another history than this incarnation began with. What this node knows of sessions,
        filters and numbers may not be there any more, and other rows may have these numbers."""
        self._history: str | None = None
        self._synchronous = SYNCHRONOUS[synchronous]
        lines = self._lines = [Line(self._connect) for _ in range(7)]
        self._groups, self._claims, self._reads, self._pulls, self._beats, self._sweeps, self._reports = lines
        self._writing: asyncio.Task[Any] | None = None

    @property
    def place(self) -> str:
        """Where this is, for people: without user and password."""
        return f"{place(self.url)}, schema {self.name}"

    async def _connect(self) -> Any:
        """Return a connection to a server that has the history of this incarnation. Raises FAILURES."""
        milliseconds = str(round(self.timeout * 1000))
        connection = await asyncpg.connect(
            self.url,
            timeout=self.timeout,
            target_session_attrs=None if "target_session_attrs=" in self.url else "read-write",
            server_settings={
                "application_name": self.backends_of(self.node_name),
                "default_transaction_isolation": "read committed",
                "jit": "off",
                # Statements are about few rows, whatever the numbers of the first ones were.
                "plan_cache_mode": "force_generic_plan",
                "search_path": f'"{self.name}"',
                "synchronous_commit": self._synchronous,
                # A node that stopped reading its answers keeps its locks no longer than this.
                "tcp_user_timeout": milliseconds,
            },
        )
        try:
            history = await _history(connection, self.timeout)
        except BaseException:
            connection.terminate()
            raise
        if self._history is None:
            self._history = history
        elif history != self._history:
            self.has_moved = True
            connection.terminate()
            raise ConnectionError(MOVED)
        return connection

    async def follow(self) -> None:
        """Before another incarnation begins: take the history that the database has now, if it is another one."""
        if self.has_moved:
            await self._stop_writing()
            for line in self._lines:
                line.drop()
            self.has_moved, self._history = False, None

    async def open(self, *, dead_after: float = 0.0, waits: Callable[[str], None] = lambda _: None) -> None:
        """Make the schema where it is not there, and begin another incarnation of the node.

        What was this node before, and is not known to have ended, is waited for until it has shown no sign of life for
        `dead_after` seconds; `waits` is told of that, for people. Raises Unreachable; StoreError: the schema cannot
        serve, or another process is this node.
        """
        try:
            async with asyncio.timeout(self.timeout):
                connection = await self._connect()
                try:
                    self.identity = await open_schema(connection, self.name, self._cluster, self.place)
                    await self._check_versions(connection)
                finally:
                    connection.terminate()
            await self._outlive(dead_after, waits)
            await self.join()
        except FAILURES as error:
            fails = isinstance(error, UNREACHABLE) and not isinstance(
                error, ssl.SSLError | asyncpg.ClientConfigurationError | asyncpg.ProtocolViolationError
            )
            raise (Unreachable if fails else StoreError)(self._told(error)) from error

    async def _check_versions(self, connection: Any) -> None:
        """Raise StoreError: another node lives that this one could not be linked with."""
        for name, theirs in await connection.fetch(SPEAKING, self.node_name):
            if not set(theirs) & set(self._speaks):
                why = self._strangers(f'the node "{name}"', theirs, self._speaks)
                raise StoreError(f"{self.place}: {why}")

    async def _outlive(self, dead_after: float, waits: Callable[[str], None]) -> None:
        """Wait until the process that was this node before is dead. Raises StoreError: it lives."""
        first = None
        while rows := await self._claims.fetch(PREDECESSOR, self.node_name, self.incarnation, seconds=self.timeout):
            [[at, holder, age]] = rows
            if age >= dead_after or await asyncio.to_thread(lease_holder.has_ended, holder):
                return
            if first is None:
                first = at
                waits(
                    f'the node "{self.node_name}" has shown a sign of life {age:.1f} s ago: it is waited for '
                    f"{dead_after:g} s without one (cluster.dead_after)"
                )
            elif at != first:
                raise StoreError(
                    f'{self.place}: the node "{self.node_name}" runs already: stop that process, or give this node '
                    "another name (cluster.node)"
                )
            await asyncio.sleep(min(dead_after - age, LOOK_AGAIN))

    def _told(self, error: BaseException) -> str:
        text = " ".join(str(error).split())
        return f"{self.place}: {remedy(error)} ({type(error).__name__}{': ' if text else ''}{text})"

    async def join(self) -> frozenset[DeliveryKey] | None:
        """Begin another incarnation: what an earlier one noted counts no more. Its group is not asked again.

        Return `Written.failed` of the group that was asked for last; None: it is not written, and never will be.
        """
        await self._stop_writing()
        holder = await asyncio.to_thread(lease_holder.this_process)
        [[self.node, self.incarnation, self.grp, failed]] = await self._claims.fetch(
            JOIN, self.node_name, holder, __version__, self._speaks, *self._asked, seconds=self.timeout
        )
        self.vector, self.seen = {}, {}
        return None if failed is None else frozenset(DeliveryKey(*each) for each in failed)

    async def is_replaced(self) -> bool:
        """Return whether another process has begun an incarnation of this node. Raises FAILURES."""
        [[replaced]] = await self._claims.fetch(REPLACED, self.node_name, self.incarnation, seconds=self.timeout)
        return bool(replaced)

    async def leave(self) -> None:
        """End this incarnation: nothing is written in it any more. Raises FAILURES."""
        await self._beats.fetch(LEAVE, self.node, self.incarnation, seconds=self.timeout)

    async def close(self) -> None:
        """End the connections. A group that is being written may be written or not."""
        await self._stop_writing()
        for line in self._lines:
            line.drop()

    async def _stop_writing(self) -> None:
        writing, self._writing = self._writing, None
        self.trouble = ""
        if writing is not None:
            writing.cancel()
            await asyncio.wait((writing,))

    # -- groups --------------------------------------------------------------------------------------------------------

    def ask_for_group(self) -> None:
        """The next group is the one that was asked for last (`join`), also if the call of `write` for it is cancelled
        before it begins: the group before it is written, and this one is not."""
        self._asked = self.incarnation, self.grp + 1

    async def write(self, group: Group, vector: dict[int, int] | None = None) -> Written:
        """Write the next group; return when it is written, however long the database is away. One at a time.

        `vector`: how far the filters were known that its messages were matched with; None: as they are known now. A
        caller that is cancelled does not cancel the call. `Written.refused`: it is not written as it is, and the next
        group has its number. Raises Over.
        """
        assert self._writing is None or self._writing.done(), "one group at a time"
        self.ask_for_group()
        self._writing = asyncio.ensure_future(self._write(group, self.vector if vector is None else vector))
        return await asyncio.shield(self._writing)

    async def _write(self, group: Group, vector: dict[int, int]) -> Written:
        grp, pause, refusals = self.grp + 1, FIRST_PAUSE, 0
        while True:
            values = (
                self.node, self.incarnation, grp, list(vector), list(vector.values()), list(self.seen),
                list(self.seen.values()), group.publishes, group.completions, group.subscribes, group.ends,
                group.changes, group.releases, group.reap, group.new_wills, group.ended_wills,
            )  # fmt: skip
            try:
                [row] = await self._groups.fetch(WRITE, *values)
            except FAILURES as error:
                # Without an answer it may have been written. A refusal says that it was not: the number is looked at
                # before what is in the group.
                refusals = refusals + 1 if is_refusal(error) else 0
                if refusals == REFUSALS:
                    self.trouble = ""
                    return Written(False, False, False, False, frozenset(), frozenset(), (), self._told(error))
                if self.has_moved:
                    raise Over from error
                self.trouble = self._told(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)
                continue
            self.trouble = ""
            result = row["result"]
            if result == "over":
                raise Over
            if result != "rematch":
                self.grp = grp
            return Written(
                result == "again",
                result == "rematch",
                row["news"],
                result == "again" or row["retained"],
                frozenset(Owner(*each) for each in row["lost"]),
                frozenset(DeliveryKey(*each) for each in row["failed"]),
                [Hint(*each) for each in row["hints"]],
            )

    async def feed(self) -> list[ChangedFilter]:
        """Return the filters that changed since the last call. One call at a time."""
        vector = dict(self.vector)
        rows = await self._reads.fetch(
            "SELECT * FROM feed_1($1, $2)", list(vector), list(vector.values()), seconds=self.timeout
        )
        for row in rows:
            node, grp = row["o_node"], row["o_grp"]
            vector[node] = max(vector.get(node, 0), grp)
        self.vector = vector
        return [ChangedFilter(row["o_id"], row["o_name"], row["o_gone"], row["o_share"]) for row in rows]

    async def retained(self) -> tuple[list[RetainedRow], bool]:
        """Return retained messages that changed since the last call, and whether there may be more. One call at a time.
        Raises FAILURES."""
        seen = dict(self.seen)
        rows = await self._reads.fetch(
            "SELECT * FROM retained_1($1, $2, $3)", list(seen), list(seen.values()), TOPICS, seconds=self.timeout
        )
        for *_, node, grp in rows:
            seen[node] = max(seen.get(node, 0), grp)
        self.seen = seen
        found = [RetainedRow(*each) for *each, _ in rows]
        size = sum(len(each.payload or b"") for each in found)
        return found, len(found) >= TOPICS or size >= PAGE_BYTES

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def claim(
        self, client_id: str, *, clean: bool, expiry: int, principal: str, any_user: bool = True, account: str = ""
    ) -> Claimed | Foreign:
        """Make a session this node's; `any_user`: also one of another user. After an error it may be this node's, or
        not. Raises Over, FAILURES."""
        [row] = await self._claims.fetch(
            "SELECT (c).* FROM claim_1($1, $2, $3, $4, $5, $6, $7, $8) c",
            self.node, self.incarnation, client_id, clean, expiry, principal, any_user, account,
            seconds=self.timeout,
        )  # fmt: skip
        return _claimed(*row)

    async def claim_free(
        self, client_ids: Sequence[str], terms: Sequence[Terms], *, any_user: bool = True
    ) -> dict[str, Claimed | Foreign]:
        """Do so with many sessions, but for those that do not exist, and those that somebody has locked; `terms`: of
        each, without a clean start. Raises Over, FAILURES."""
        _, expiry, principals, accounts = map(list, zip(*terms, strict=True))
        rows = await self._claims.fetch(
            "SELECT o_client_id, (o_claimed).* FROM claim_free_1($1, $2, $3, $4, $5, $6, $7)",
            self.node, self.incarnation, client_ids, expiry, principals, any_user, accounts,
            seconds=self.timeout,
        )  # fmt: skip
        return {client_id: _claimed(*row) for client_id, *row in rows}

    async def content(self, sessions: Sequence[int]) -> dict[int, Content]:
        """Return what claimed sessions have. Raises FAILURES."""
        rows = await self._reads.fetch(CONTENT, sessions, seconds=self.timeout)
        return {
            session: Content(
                epoch, [Subscribe(*each) for each in subscriptions], received, [Waiting(*each) for each in flying]
            )
            for session, epoch, subscriptions, received, flying in rows
        }

    async def read(self, asks: Sequence[Ask], known: Iterable[DeliveryKey] = ()) -> list[Page]:
        """Return what waits for sessions, but for what is known. Raises FAILURES."""
        rows = await self._reads.fetch(
            "SELECT * FROM read_1($1, $2, $3, $4)",
            [ask.session for ask in asks], [ask.low for ask in asks], [ask.room for ask in asks], list(known),
            seconds=self.timeout,
        )  # fmt: skip
        found: dict[int, list[Waiting]] = {ask.session: [] for ask in asks}
        heads: dict[int, tuple[int | None, int]] = {}
        more = set()
        for session, epoch, final, taken, *waiting in rows:
            heads[session] = epoch, final
            if taken:
                found[session].append(Waiting(*waiting))
            elif taken is not None:
                more.add(session)
        return [Page(session, *heads[session], session in more, waiting) for session, waiting in found.items()]

    async def pull(self, share_filter: int, members: Sequence[Member]) -> Pulled:
        """Move what waits for a share group to its members here. After an error it may be theirs. Raises FAILURES."""
        [[taken, full, left, refused]] = await self._pulls.fetch(
            "SELECT * FROM pull_1($1, $2, $3, $4)", self.node, self.incarnation, share_filter, members,
            seconds=self.timeout,
        )  # fmt: skip
        return Pulled(frozenset(taken), full, left, frozenset(refused))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def backends_of(self, node: str) -> str:
        """The name of a node's connections, as an operator sees it in pg_stat_activity."""
        return f"canopy {self.name} {node}"

    async def wills(self) -> list[DueWill]:
        """Return wills of this node that are due. Raises FAILURES."""
        rows = await self._reads.fetch(
            "SELECT * FROM wills_1($1, $2, $3)", self.node, self.incarnation, WILLS, seconds=self.timeout
        )
        return [DueWill(*row) for row in rows]

    async def beat(self) -> None:
        """Show that this node is alive. Raises Over, FAILURES."""
        alive = False
        if not self.has_moved:
            values = (self.node, self.incarnation)
            [[alive]] = await self._beats.fetch("SELECT beat_1($1, $2)", *values, seconds=self.timeout)
        if not alive:
            raise Over

    async def nodes(self) -> list[Peer]:
        """Return all nodes. Raises FAILURES."""
        return [Peer(*row) for row in await self._beats.fetch("SELECT * FROM look_1()", seconds=self.timeout)]

    async def declare_dead(self, peer: Peer) -> bool:
        """Declare a node dead, unless it was seen since. Where what it had begun stands in the way, that is ended.

        Raises FAILURES; asyncpg.LockNotAvailableError: what stood in the way has been ended just now.
        """
        try:
            [[dead]] = await self._beats.fetch(
                "SELECT declare_dead_1($1, $2, $3)", peer.id, peer.incarnation, peer.seen, seconds=self.timeout
            )
        except asyncpg.LockNotAvailableError:
            await self._beats.fetch(END_BACKENDS, self.backends_of(peer.name), seconds=self.timeout)
            raise
        return bool(dead)

    def ask_again(self) -> None:
        """End the connection on which a group is being written: its number is asked again over another one."""
        self._groups.drop()

    # -- what is over, and all nodes -----------------------------------------------------------------------------------

    async def sweep(self, statement: str, *values: object) -> Sequence[Any]:
        """Return the rows of a statement that removes or counts what nodes keep. Raises FAILURES."""
        return await self._sweeps.fetch(statement, *values, seconds=self.timeout)

    async def report(self, statement: str, *values: object) -> Sequence[Any]:
        """Return the rows of a statement that an operator waits for. Raises FAILURES."""
        return await self._reports.fetch(statement, *values, seconds=self.timeout)

"""The shipped SQL beside the model: each transaction of a history is carried out by both, statement by statement.

`-- step: NAME` in the text of the functions becomes a gate, at which a transaction waits. The mirror lets the
transaction of one connection pass its gate, waits until all transactions wait again, for a gate or for a lock, and has
the model follow. So statements of different transactions come in the order of the history, and locks are PostgreSQL's.
Held against each other are the names of the steps, who waits, what each function answers, and after each commit the
tables that were written.

A transaction of PostgreSQL may wait longer than the model needs (more than a row is locked, or others queue). It must
not go on where the model has to wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from canopy_mqtt.store.shared.database import CONTENT, JOIN, WRITE
from canopy_mqtt.store.shared.functions import FUNCTIONS
from canopy_mqtt.store.shared.schema import NEVER, PARTITIONS, TABLES, TYPES
from tests.cluster.model import functions as model
from tests.cluster.model.database import Database, Transaction
from tests.cluster.model.network import FOR_EVER
from tests.support import postgresql

GATE: Final = """
CREATE SEQUENCE test_now MINVALUE 0;
CREATE FUNCTION test_clock() RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT timestamptz 'epoch' + last_value * interval '1 second' FROM test_now $$;
CREATE FUNCTION gate(p_step text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lane integer := current_setting('test.lane');
    number integer := current_setting('test.gate')::integer + 1;
BEGIN
    PERFORM set_config('test.gate', number::text, false), set_config('application_name', p_step, false);
    PERFORM pg_advisory_lock_shared(lane, number);
    PERFORM pg_advisory_unlock_shared(lane, number);
END $$;
"""

ADOPT: Final = f"""
WITH node AS (INSERT INTO node (name, incarnation, alive, holder, version, speaks)
        VALUES ($1, 0, false, '', '', '{{}}') RETURNING id),
    beat AS (INSERT INTO beat SELECT id, test_clock() FROM node),
    session AS (INSERT INTO session VALUES ($2, $3, NULL, 0, 0, '{{}}', {NEVER}, NULL)),
    filter AS (INSERT INTO filter (name, gone, node, grp) SELECT $4, false, id, 1 FROM node RETURNING id)
INSERT INTO subscription SELECT $2, filter.id, 2, false, false, 0, 0 FROM filter RETURNING (SELECT id FROM node)
"""
WAITING: Final = """
SELECT l.pid, CASE WHEN l.locktype = 'advisory' AND l.objsubid = 2 THEN l.objid::bigint END AS gate,
        (SELECT application_name FROM pg_stat_activity a WHERE a.pid = l.pid) AS step
    FROM pg_locks l WHERE NOT l.granted AND l.pid = ANY ($1::integer[])
"""

STATE: Final = {
    "node": "SELECT name, incarnation, alive FROM node",
    "beat": "SELECT n.name, extract(epoch FROM at)::bigint FROM beat JOIN node n ON n.id = node",
    "progress": "SELECT n.name, grp, p.incarnation, last_id, lost, failed FROM progress p JOIN node n ON n.id = node",
    "session": (
        "SELECT s.id, client_id, n.name, s.incarnation, epoch, CASE WHEN expires_at = 'infinity' THEN -1"
        " ELSE extract(epoch FROM expires_at)::bigint END FROM session s LEFT JOIN node n ON n.id = s.node"
    ),
    "garbage": "SELECT session FROM garbage",
    "filter": "SELECT f.name, gone, n.name AS node, grp, share FROM filter f JOIN node n ON n.id = node",
    "subscription": "SELECT session, f.name, qos FROM subscription JOIN filter f ON f.id = filter",
    "message": "SELECT slot, id, convert_from(payload, 'UTF8') FROM message",
    "delivery": "SELECT slot, session, source, id, qos, state, packet_id FROM delivery",
    "received": "SELECT session, packet_id FROM received",
    "retained": (
        "SELECT topic, payload IS NULL, convert_from(payload, 'UTF8'), n.name AS node, grp FROM retained r"
        " JOIN node n ON n.id = r.node"
    ),
    "will": (
        "SELECT session, epoch, n.name, w.incarnation, client_id, convert_from(payload, 'UTF8'), delay,"
        " extract(epoch FROM due)::bigint FROM will w JOIN node n ON n.id = w.node"
    ),
    "slots": "SELECT current FROM slots",
}
"""All tables, as the model has them."""


def instrumented(text: str) -> str:
    """Return shipped SQL with gates, which wait as long as the history does, and with its clock."""
    text = re.sub(r"SET lock_timeout = '\w+' ", "", text)
    text = re.sub(r"-- step: ([a-z ]+)", r"PERFORM gate('\1');", text)
    return text.replace("clock_timestamp()", "test_clock()")


def payload(msg: Any) -> bytes:
    return f"{msg['pub']} {msg['n']}".encode()


class Lane:
    """A connection to the database, and the transaction that it carries out."""

    def __init__(self, number: int, connection: Any, pid: int) -> None:
        self.number, self.connection, self.pid = number, connection, pid
        self.gate = 0
        """The gate that the transaction is at, or comes to next."""
        self.call: asyncio.Future[Any] | None = None
        self.tx: Any = None
        self.passed = 0
        """The gates that the model is at, or has passed."""
        self.step: str | None = None
        """The step before which the transaction waits; None: it waits for a lock."""


class Mirror(Database):
    """A database of the model that PostgreSQL follows. Its schema goes with the server of the tests."""

    def __init__(self, without: frozenset[str] = frozenset(), *, change: Callable[[str], str] = str) -> None:
        """`change`: what is done to the text of each function before it is made."""
        super().__init__(without)
        self.loop = asyncio.new_event_loop()
        self.made: list[Lane] = []
        self.idle: list[Lane] = []
        self.lanes: dict[Transaction, Lane] = {}
        self.count = self.kills = 0
        self.written: set[str] = set()
        """Tables that transactions have written that are over."""
        self.nodes: dict[str, int] = {}
        self.loop.run_until_complete(self._open(change))

    async def _open(self, change: Callable[[str], str]) -> None:
        self.url, self.name = postgresql.shared().url, postgresql.new_name()
        self.control = await asyncpg.connect(self.url)
        await self.control.execute(f'CREATE SCHEMA "{self.name}"; SET search_path = "{self.name}"; SET jit = off')
        await self.control.execute("".join((GATE, TYPES, instrumented(TABLES), PARTITIONS)))
        for text in FUNCTIONS:
            await self.control.execute(change(instrumented(text)))

    def adopt(self) -> None:
        """Take over a session of the model that is there from the start, its subscription, and a node."""
        [(node, _)] = self.tables["node"].items()
        [(session, row)] = self.tables["session"].items()
        [topic_filter] = self.tables["filter"]
        made = self.loop.run_until_complete(self.control.fetchval(ADOPT, node, session, row["client"], topic_filter))
        self.nodes[node] = made

    def close(self) -> None:
        """End all connections."""

        async def close() -> None:
            for lane in self.lanes.values():
                await self.control.execute(f"SELECT pg_terminate_backend({lane.pid})")
                if lane.call is not None:
                    await asyncio.wait((lane.call,))
                    lane.call.exception()
            for lane in self.made:
                lane.connection.terminate()
            await self.control.close()
            await asyncio.sleep(0)

        self.loop.run_until_complete(close())
        self.loop.close()

    # -- the database of the model -------------------------------------------------------------------------------------

    def runnable(self) -> list[Transaction]:
        """Return the transactions that do not wait for a lock of PostgreSQL's."""
        return [tx for tx in self.active if (lane := self.lanes.get(tx)) is None or lane.step is not None]

    def step(self, tx: Transaction) -> None:
        if tx.name in CALLS:
            self.loop.run_until_complete(self._step(tx))
        else:
            super().step(tx)

    def abort(self, tx: Transaction) -> None:
        super().abort(tx)
        if tx in self.lanes:
            self.loop.run_until_complete(self._abort(tx))

    # -- PostgreSQL ----------------------------------------------------------------------------------------------------

    async def _step(self, tx: Transaction) -> None:
        lane = self.lanes.get(tx)
        if lane is None:
            self.lanes[tx] = lane = self.idle.pop() if self.idle else await self._connect()
            lane.tx, lane.passed = tx, lane.gate
            statement, *values = await CALLS[tx.name](self, *tx.args)
            await self._open_gate(lane)
            lane.call = asyncio.ensure_future(lane.connection.fetch(statement, *values))
        else:
            await self._open_gate(lane)
        await self._follow()

    async def _abort(self, tx: Transaction) -> None:
        """Kill the transaction, or have its statement refused, wherever it is."""
        lane = self.lanes.pop(tx)
        assert lane.call is not None
        self.kills += 1
        kill = self.kills % 2 == 0
        function = "pg_terminate_backend" if kill else "pg_cancel_backend"
        await self.control.execute(f"SELECT {function}({lane.pid})")
        await asyncio.wait((lane.call,))
        assert isinstance(lane.call.exception(), asyncpg.PostgresError | OSError), lane.call
        lane.call, lane.tx = None, None
        if kill:
            lane.connection.terminate()
            await self.control.execute(f"SELECT pg_advisory_unlock({lane.number}, {lane.gate})")
        else:
            await self._rewind(lane)
        await self._follow()

    async def _connect(self) -> Lane:
        self.count += 1
        settings = {"search_path": f'"{self.name}"', "jit": "off", "test.lane": str(self.count), "test.gate": "0"}
        connection = await asyncpg.connect(self.url, server_settings=settings)
        self.made.append(Lane(self.count, connection, connection.get_server_pid()))
        return self.made[-1]

    async def _open_gate(self, lane: Lane) -> None:
        """Close the gate that a transaction comes to next, and open the one where it is."""
        number, gate, lane.step = lane.number, lane.gate, None
        lane.gate += 1
        opened = f", pg_advisory_unlock({number}, {gate})" if lane.call is not None else ""
        clock = f"setval('test_now', {self.clock()})"
        await self.control.execute(f"SELECT {clock}, pg_advisory_lock({number}, {gate + 1}){opened}")

    async def _rewind(self, lane: Lane) -> None:
        """Make a connection ready for another transaction."""
        await self.control.execute(f"SELECT pg_advisory_unlock({lane.number}, {lane.gate})")
        await lane.connection.execute(f"SELECT set_config('test.gate', '{lane.gate}', false)")
        self.idle.append(lane)

    async def _follow(self) -> None:
        """Wait until all transactions wait, and have the model do what they have done."""
        lanes = [lane for lane in self.lanes.values() if lane.step is None]
        while True:
            # Who is through before the others are looked at has no locks by then.
            through = {lane.pid for lane in lanes if lane.call is not None and lane.call.done()}
            rows = await self.control.fetch(WAITING, [lane.pid for lane in lanes])
            waiting = {row["pid"]: row for row in rows}
            if all(lane.pid in waiting or lane.pid in through for lane in lanes):
                break
        moved = [lane for lane in lanes if lane.pid not in waiting or (waiting[lane.pid]["gate"] or 0) > lane.passed]
        while moved:
            behind = []
            for lane in moved:
                step = waiting[lane.pid]["step"] if lane.pid in waiting else "over"
                if not await self._catch_up(lane, step):
                    behind.append(lane)
            if len(behind) == len(moved):
                told = [f"{lane.tx.name} went on after {lane.tx.next}, {lane.tx.waits}" for lane in behind]
                raise AssertionError(f"PostgreSQL does not wait where the model does: {told}")
            moved = behind
        written, self.written = self.written, set()
        if written:
            await self.compare(written)

    async def _catch_up(self, lane: Lane, step: str) -> bool:
        """Have the model come to the step of a transaction; False: it has to wait for a lock."""
        tx = lane.tx
        if step == "over" and lane.call is not None:
            lane.call.result()
        while tx in self.active:
            if tx.waits is not None and not self.free(tx, tx.waits):
                return False
            super().step(tx)
            if tx in self.active and tx.waits is None:
                break
        if tx in self.active:
            assert tx.next == step, f"{tx.name}: the model is at {tx.next}, PostgreSQL at {step}"
            lane.step, lane.passed = step, lane.gate
            return True
        assert step == "over", f"{tx.name}: the model is through, PostgreSQL at {step}"
        self.written |= {table for table, _ in tx.written} | {table for table, _ in tx.truncated}
        del self.lanes[tx]
        call, lane.call, lane.tx = lane.call, None, None
        assert call is not None
        answer: Callable[..., Any] = ANSWERS.get(tx.name, _nothing)
        expected: Callable[[Transaction], Any] = EXPECTED.get(tx.name, _as_it_is)
        got = await answer(self, tx, call.result())
        assert got == expected(tx), f"{tx.name}{tx.args}: {got}, by the model {tx.result}"
        await self._rewind(lane)
        return True

    def compare_all(self) -> None:
        """Hold all tables against the model's."""
        self.loop.run_until_complete(self.compare(set(STATE)))

    async def compare(self, tables: set[str]) -> None:
        # Where a slot is being truncated, nothing reads the tables.
        shut = any(key[0] in ("delivery", "message") and "x" in modes.values() for key, modes in self._slots_locked())
        for table in tables & STATE.keys():  # what was published is in no table
            if shut and table in ("delivery", "message"):
                continue
            found = sorted(map(_plain_row, await self.control.fetch(STATE[table])), key=repr)
            expected = sorted(_rows(self, table), key=repr)
            assert found == expected, f"{table}: {set(found) ^ set(expected)}"

    def _slots_locked(self) -> list[tuple[Any, dict[Transaction, str]]]:
        return [(key, modes) for key, modes in self.locks.items() if isinstance(key, tuple)]

    async def filters(self, names: set[str]) -> list[int]:
        rows = await self.control.fetch("SELECT id FROM filter WHERE name = ANY ($1) ORDER BY id", sorted(names))
        assert len(rows) == len(names)
        return [row[0] for row in rows]


def _plain_row(row: Any) -> tuple[Any, ...]:
    return tuple(tuple(sorted(map(tuple, value))) if isinstance(value, list) else value for value in row)


def _rows(db: Mirror, table: str) -> list[tuple[Any, ...]]:
    """Return a table of the model, as `STATE` has it."""
    rows = db.tables[table]
    if table == "slots":
        return [(rows["current"],)]
    if table == "node":
        return [(name, row["incarnation"], row["alive"]) for name, row in rows.items()]
    if table == "progress":
        return [
            (*key, row["incarnation"], row["last"], *(tuple(sorted(each)) for each in row["outcome"]))
            for key, row in rows.items()
        ]
    if table == "session":
        return [
            (
                sid, row["client"], row["node"], row["incarnation"], row["epoch"],
                row["expires"] if row["expires"] is None or row["expires"] < FOR_EVER else -1,
            )
            for sid, row in rows.items()
        ]  # fmt: skip
    if table == "filter":
        return [(name, row["gone"], row["node"], row["grp"], row["share"]) for name, row in rows.items()]
    if table == "message":
        return [(*key, payload(msg).decode()) for key, msg in rows.items()]
    if table == "delivery":
        return [(*key, row["qos"], row["state"], row["pid"]) for key, row in rows.items()]
    if table == "subscription":
        return [(*key, row["qos"]) for key, row in rows.items()]
    if table == "beat":
        return list(rows.items())
    if table == "will":
        return [
            (
                *(*key, row["node"], row["incarnation"], row["client"]),
                *(payload(row["msg"]).decode(), row["delay"], row["due"]),
            )
            for key, row in rows.items()
        ]
    if table == "retained":
        return [(topic, *_retained(row["msg"]), row["node"], row["grp"]) for topic, row in rows.items()]
    return [key if isinstance(key, tuple) else (key,) for key in rows]


def _retained(msg: Any) -> tuple[bool, str | None]:
    """Whether a topic is cleared, and what is retained."""
    return msg["clear"], None if msg["clear"] else payload(msg).decode()


# -- the calls: how a function of the model is called in PostgreSQL ----------------------------------------------------


async def _join(db: Mirror, node: str, before: int, grp: int) -> tuple[Any, ...]:
    del db
    return JOIN, node, "", "", [], before, grp


async def _beat(db: Mirror, node: str, incarnation: int) -> tuple[Any, ...]:
    return "SELECT beat_1($1, $2)", db.nodes[node], incarnation


async def _declare_dead(db: Mirror, node: str, incarnation: int, seen: int) -> tuple[Any, ...]:
    return (
        f"SELECT declare_dead_1($1, $2, timestamptz 'epoch' + {seen} * interval '1 second')",
        db.nodes[node],
        incarnation,
    )


async def _feed(db: Mirror, vector: model.Vector) -> tuple[Any, ...]:
    return "SELECT * FROM feed_1($1, $2)", [db.nodes[name] for name in vector], list(vector.values())


async def _feed_retained(db: Mirror, vector: model.Vector) -> tuple[Any, ...]:
    return "SELECT * FROM retained_1($1, $2, 100)", [db.nodes[name] for name in vector], list(vector.values())


async def _write(
    db: Mirror,
    node: str,
    incarnation: int,
    grp: int,
    items: list[model.Item],
    vectors: tuple[model.Vector, model.Vector],
) -> tuple[Any, ...]:
    def of(kind: str) -> list[model.Item]:
        return [i for i in items if i["kind"] == kind]

    publishes: list[Any] = [
        (
            None if i["retain"] and not i["fence"] else i["sid"], i["epoch"], i["pid"], i["msg"]["topic"],
            payload(i["msg"]), i["qos"], False, None, i["msg"]["pub"], None, await db.filters(i["filters"]),
            not i["msg"]["clear"] if i["retain"] else None, None, None, None,
        )
        for i in of("pub")
    ]  # fmt: skip
    publishes += [
        (
            None, None, 0, i["msg"]["topic"], payload(i["msg"]), 1, False, None, i["msg"]["pub"], None,
            await db.filters(i["filters"]), None, None, None, (i["sid"], i["epoch"]),
        )
        for i in of("will")
    ]  # fmt: skip
    new_wills = [
        (i["sid"], i["epoch"], i["msg"]["topic"], payload(i["msg"]), 1, False, None, None, i["delay"])
        for i in of("set")
    ]
    ended_wills = [(i["sid"], i["epoch"], i["delay"]) for i in of("ended")]
    ended_wills += [(i["sid"], i["epoch"], None) for i in of("will")]
    subscribes = [
        (i["sid"], i["epoch"], i["filter"], i.get("qos"), False, False, 0, 0)
        for i in items
        if i["kind"] in ("sub", "unsub")
    ]
    changes = [
        (
            i["row"][1], None if i["kind"] == "done" else i["epoch"], i["row"][2], i["row"][3], i["row"][0],
            ("sent", "released", "done").index(i["kind"]) + 1, i.get("pid", 0),
        )
        for i in items
        if i["kind"] in ("done", "sent", "released")
    ]  # fmt: skip
    return (
        WRITE,
        db.nodes[node], incarnation, grp, [db.nodes[name] for name in vectors[0]], list(vectors[0].values()),
        [db.nodes[name] for name in vectors[1]], list(vectors[1].values()), publishes,
        [(i["sid"], i["epoch"], i["pid"]) for i in of("complete")], subscribes, [i["filter"] for i in of("endfilter")],
        changes, [(i["sid"], i["epoch"], None) for i in of("release")], model.BATCH if of("reap") else 0,
        new_wills, ended_wills,
    )  # fmt: skip


async def _claim(db: Mirror, node: str, incarnation: int, client: str, clean: bool, expiry: int) -> tuple[Any, ...]:
    return (
        "SELECT (c).* FROM claim_1($1, $2, $3, $4, $5, '{}', true) c",
        db.nodes[node], incarnation, client, clean, NEVER if expiry >= FOR_EVER else expiry,
    )  # fmt: skip


async def _due_wills(db: Mirror, node: str, incarnation: int) -> tuple[Any, ...]:
    return "SELECT * FROM wills_1($1, $2, 100)", db.nodes[node], incarnation


async def _claim_free(db: Mirror, node: str, incarnation: int, claims: list[tuple[str, int]]) -> tuple[Any, ...]:
    names, expiry = map(list, zip(*claims, strict=True))
    lasting = [NEVER if each >= FOR_EVER else each for each in expiry]
    empty = ["{}"] * len(names)
    return (
        "SELECT o_client_id, (o_claimed).* FROM claim_free_1($1, $2, $3, $4, $5, true, $5)",
        db.nodes[node], incarnation, names, lasting, empty,
    )  # fmt: skip


async def _content(db: Mirror, sids: list[int]) -> tuple[Any, ...]:
    del db
    return CONTENT, sids


async def _read(db: Mirror, asks: dict[int, tuple[int, frozenset[Any], int]]) -> tuple[Any, ...]:
    del db
    known = [(sid, *tag) for sid, (_, known, _) in asks.items() for tag in known]
    lows, rooms = [low for low, _, _ in asks.values()], [room for _, _, room in asks.values()]
    return "SELECT * FROM read_1($1, $2, $3, $4)", list(asks), lows, rooms, known


async def _pull(
    db: Mirror, node: str, incarnation: int, name: str, members: list[tuple[int, int, int]]
) -> tuple[Any, ...]:
    [share_filter] = await db.filters({name})
    return "SELECT * FROM pull_1($1, $2, $3, $4)", db.nodes[node], incarnation, share_filter, members


def _plain(statement: str) -> Callable[..., Any]:
    async def call(db: Mirror, *values: Any) -> tuple[Any, ...]:
        del db
        return (statement, *values)

    return call


CALLS: Final[dict[str, Callable[..., Any]]] = {
    "join": _join,
    "beat": _beat,
    "declare_dead": _declare_dead,
    "feed": _feed,
    "feed_retained": _feed_retained,
    "look": _plain("SELECT o_name, o_incarnation, o_alive, o_orphans, o_wills FROM look_1()"),
    "due_wills": _due_wills,
    "write": _write,
    "claim": _claim,
    "claim_free": _claim_free,
    "content": _content,
    "read": _read,
    "pull": _pull,
    "expire": _plain("SELECT expire_1(1)"),
    "collect": _plain(f"SELECT collect_1({model.BATCH})"),
    "trim": _plain("SELECT trim_1()"),
    "change_slot": _plain("SELECT change_slot_1(0)"),
    "move": _plain(f"SELECT move_1($1, {model.BATCH})"),
    "empty_deliveries": _plain("SELECT empty_deliveries_1($1)"),
    "empty_messages": _plain("SELECT empty_messages_1($1)"),
    "clean_long": _plain("SELECT clean_long_1()"),
}


# -- the answers: of PostgreSQL, and as the model has them -------------------------------------------------------------


async def _nothing(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, rows
    return tx.result


async def _joined(db: Mirror, tx: Transaction, rows: Any) -> Any:
    [[node, incarnation, grp, failed]] = rows
    db.nodes[tx.args[0]] = node
    lost = frozenset() if tx.result[2] is None else tx.result[2][0]  # nobody asks for it any more
    return incarnation, grp, None if failed is None else (lost, set(map(tuple, failed)))


async def _single(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    [[value]] = rows
    return value


async def _fed(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del tx
    names = {number: name for name, number in db.nodes.items()}
    return {(name, gone, names[node], grp, share) for _, name, gone, node, grp, share in rows}


async def _fed_retained(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del tx
    names = {number: name for name, number in db.nodes.items()}
    return {(row[0], row[1] and row[1].decode(), names[row[-2]], row[-1]) for row in rows}


async def _looked(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    return {tuple(row[:3]) for row in rows}, any(row[3] for row in rows), {row[0] for row in rows if row[4]}


async def _due(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    return {(row[0], row[1], row[5].decode()) for row in rows}


async def _written(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    [[result, news, retained, lost, failed, hints]] = rows
    if result == "over":
        return None
    told = result, set(map(tuple, lost)), set(map(tuple, failed))
    return told if result == "again" else (*told, news, retained, set(map(tuple, hints)))


async def _claimed(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    [row] = rows
    return _claimed_row(*row)


def _claimed_row(session: Any, epoch: Any, present: Any, hints: Any) -> Any:
    return None if session is None else (session, epoch, present, {(key[0], key[2]) for key in hints})


async def _claimed_free(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    return {client_id: _claimed_row(*row) for client_id, *row in rows}


def _waiting(row: Any) -> tuple[Any, ...]:
    return row["id"], row["slot"], row["source"], row["qos"], row["state"], row["packet_id"], row["payload"]


async def _contents(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    return {
        session: (
            epoch, {each["filter"]: each["qos"] for each in subscriptions}, set(received),
            {_waiting(row) for row in flying},
        )
        for session, epoch, subscriptions, received, flying in rows
    }  # fmt: skip


async def _reads(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    found: dict[Any, Any] = {}
    for session, epoch, final, taken, slot, source, number, qos, state, packet_id, *_, content, _, _, _ in rows:
        _, _, more, waiting = found.get(session, (None, 0, False, []))
        found[session] = epoch, final, more or taken is False, waiting
        if taken:
            waiting.append((number, slot, source, qos, state, packet_id, content))
    return found


async def _pulled(db: Mirror, tx: Transaction, rows: Any) -> Any:
    del db, tx
    [[taken, full, left, refused]] = rows
    return set(taken), full, left, set(refused)


ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    "join": _joined,
    "beat": _single,
    "declare_dead": _single,
    "feed": _fed,
    "feed_retained": _fed_retained,
    "look": _looked,
    "due_wills": _due,
    "write": _written,
    "claim": _claimed,
    "claim_free": _claimed_free,
    "content": _contents,
    "read": _reads,
    "pull": _pulled,
}


def _as_it_is(tx: Transaction) -> Any:
    return tx.result


def _expect_fed(tx: Transaction) -> Any:
    rows, _ = tx.result
    return {(name, row["gone"], row["node"], row["grp"], row["share"]) for name, row in rows}


def _expect_fed_retained(tx: Transaction) -> Any:
    rows, _ = tx.result
    return {(topic, _retained(row["msg"])[1], row["node"], row["grp"]) for topic, row in rows}


def _expect_looked(tx: Transaction) -> Any:
    nodes, orphans, wills = tx.result
    return {(name, row["incarnation"], row["alive"]) for name, row in nodes.items()}, orphans, wills


def _expect_due(tx: Transaction) -> Any:
    return {(*key, payload(msg).decode()) for key, msg in tx.result}


def _expect_written(tx: Transaction) -> Any:
    out = tx.result
    if out is None:
        return None
    told = out["result"], set(out["lost"]), set(out["failed"])
    return told if out["result"] == "again" else (*told, out["news"], out["retained"], set(out["hints"]))


def _expect_claimed(tx: Transaction) -> Any:
    return _expect_claim(tx.result)


def _expect_claim(got: Any) -> Any:
    return None if got is None else (got["sid"], got["epoch"], got["present"], set(got["hints"]))


def _expect_claimed_free(tx: Transaction) -> Any:
    return {client: _expect_claim(got) for client, got in tx.result.items()}


def _expect_waiting(key: Any, row: Any, msg: Any) -> tuple[Any, ...]:
    return key[3], key[0], key[2], row["qos"], row["state"], row["pid"], payload(msg)


def _expect_contents(tx: Transaction) -> Any:
    return {
        sid: (out["epoch"], out["subscriptions"], out["received"], {_expect_waiting(*each) for each in out["flying"]})
        for sid, out in tx.result.items()
    }


def _expect_reads(tx: Transaction) -> Any:
    found, owned, final = tx.result
    return {
        sid: (owned.get(sid), final, more, [_expect_waiting(key, row, row["msg"]) for _, key, row in rows])
        for sid, (rows, more) in found.items()
    }


EXPECTED: Final[dict[str, Callable[[Transaction], Any]]] = {
    "feed": _expect_fed,
    "feed_retained": _expect_fed_retained,
    "look": _expect_looked,
    "due_wills": _expect_due,
    "write": _expect_written,
    "claim": _expect_claimed,
    "claim_free": _expect_claimed_free,
    "content": _expect_contents,
    "read": _expect_reads,
}

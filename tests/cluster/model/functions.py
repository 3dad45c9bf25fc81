"""The functions of the schema, statement by statement, as the nodes call them.

A statement that others may precede begins behind a `yield` with its name. The shipped SQL has the same names in the
same order (`canopy_mqtt/store/shared/functions.py`, `-- step:`), and `tests/store/shared/mirror.py` runs both side by
side. The model has nothing that expires while it waits, and no bounds of queues (`forget`, `bound`): they delete what
is queued, as an acknowledgement does.

`without` of the database names rules that are taken away, to see that each is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tests.cluster.model.database import Lock, Row, Steps, Transaction
from tests.cluster.model.network import FOR_EVER

MATCHES: Final[dict[str, tuple[str, ...]]] = {
    "a": ("a",), "b": ("b",), "+": ("a", "b"), "s": ("s",), "w": ("w",), "$share/x/a": (), "$share/x/b": (),
}  # fmt: skip
"""The topics that each topic filter matches. A share group gets what matches its own subscription."""
RETAINED: Final = ("r", "r2")
"""The topics of retained messages, which no filter matches."""
SLOTS: Final = (0, 1, 2, 3)
LONG: Final = 9
"""The slot of what has waited long."""
BATCH: Final = 2
"""Rows that a sweeper moves, and sessions that a group releases for a dead node, at once."""

WILL: Final = -1
"""In place of the source of a delivery: a will, with the epoch of its session."""

Item: TypeAlias = dict[str, Any]
"""A change that a node has noted. `kind` says which; with `fence` it counts only if the session is the node's."""
ONE_STATEMENT: Final = ()
"""What a function of a single statement yields."""
Vector: TypeAlias = dict[str, int]
"""By node, the group up to which its rows of a feed are known."""


def matches(topic_filter: str, topic: str) -> bool:
    return topic in MATCHES.get(topic_filter, ())


def of_group(topic_filter: str) -> str:
    """Return the filter that a share group subscribes to; empty: it is an ordinary subscription."""
    return topic_filter.split("/", 2)[2] if topic_filter.startswith("$share/") else ""


def is_alive(tx: Transaction, node: str, incarnation: int) -> bool:
    row = tx.get("node", node)
    return row is not None and row["alive"] and row["incarnation"] == incarnation


def newest(tx: Transaction, node: str) -> tuple[int, int]:
    """Return the number of a node's last group, and the greatest number of a message by then."""
    return max([(grp, row["last"]) for (name, grp), row in tx.scan("progress") if name == node], default=(0, 0))


def final(tx: Transaction) -> int:
    """Return a number: no message up to it can appear any more, since each living node has written a greater one."""
    return min([newest(tx, name)[1] for name, row in tx.scan("node") if row["alive"]], default=0)


def fresh(tx: Transaction, table: str, vector: Vector) -> tuple[list[tuple[Any, Row]], Vector]:
    """Return the rows of a feed that are not known: those of each node above a group. One statement."""
    rows = [(key, row) for key, row in tx.scan(table) if row["grp"] > vector.get(row["node"], 0)]
    after = dict(vector)
    for _, row in rows:
        after[row["node"]] = max(after.get(row["node"], 0), row["grp"])
    return rows, after


def rows_of(tx: Transaction, session: int) -> list[tuple[Any, Row]]:
    return [(key, row) for key, row in tx.scan("delivery") if key[1] == session]


# -- nodes -------------------------------------------------------------------------------------------------------------


def join(
    tx: Transaction, node: str, before: int, grp: int
) -> Steps[tuple[int, int, tuple[frozenset[Any], frozenset[Any]] | None]]:
    """Begin another incarnation of a node, and return its number and the next group's. Numbers of groups go on.

    `before`, `grp`: the group that the process asked for last. Return what its answer was; None: it is not written.
    """
    yield Lock(("node", node), "x")
    row = tx.get("node", node)
    incarnation = 1 if row is None else row["incarnation"] + 1
    yield "join"
    asked = tx.get("progress", (node, grp))
    written = asked is not None and asked["incarnation"] == before and "join_unasked" not in tx.db.without
    grp = newest(tx, node)[0] + 1
    tx.put("node", node, {"incarnation": incarnation, "alive": True})
    tx.put("beat", node, tx.db.clock())
    outcome: tuple[frozenset[Any], frozenset[Any]] = frozenset(), frozenset()
    tx.put("progress", (node, grp), {"incarnation": None, "last": tx.db.draw("message"), "outcome": outcome})
    yield "commit"
    return incarnation, grp, asked["outcome"] if asked is not None and written else None


def beat(tx: Transaction, node: str, incarnation: int) -> Steps[bool]:
    """Show that a node is alive. False: this incarnation is over."""
    alive = is_alive(tx, node, incarnation)  # of the statement's snapshot, also where it waits
    if alive:
        yield Lock(("beat", node), "x")
        tx.put("beat", node, tx.db.clock())
    return alive


def declare_dead(tx: Transaction, node: str, incarnation: int, seen: int) -> Steps[bool]:
    """Declare a node dead, unless it has shown a sign of life since."""
    yield Lock(("node", node), "x")
    yield "dead"
    row = tx.get("node", node)
    dies = is_alive(tx, node, incarnation) and tx.get("beat", node) == seen
    if dies:
        tx.put("node", node, {**row, "alive": False})
    yield "commit"
    return dies


def feed(tx: Transaction, vector: Vector) -> Steps[tuple[list[tuple[Any, Row]], Vector]]:
    """Return the filters that are not known, without a lock."""
    yield from ONE_STATEMENT
    return fresh(tx, "filter", vector)


def feed_retained(tx: Transaction, vector: Vector) -> Steps[tuple[list[tuple[Any, Row]], Vector]]:
    """Return the retained messages, and the topics that were cleared, that are not known, without a lock."""
    yield from ONE_STATEMENT
    return fresh(tx, "retained", vector)


def look(tx: Transaction) -> Steps[tuple[dict[str, Row], bool, set[str]]]:
    """What a node polls: the nodes, whether dead ones have sessions or wills, and which nodes have wills that are
    due."""
    yield from ONE_STATEMENT
    nodes = {name: dict(row) for name, row in tx.scan("node")}

    def is_dead(row: Row) -> bool:
        node = nodes[row["node"]]
        return not (node["alive"] and node["incarnation"] == row["incarnation"])

    owned = [row for table in ("session", "will") for _, row in tx.scan(table) if row["node"] is not None]
    due = {row["node"] for _, row in tx.scan("will") if is_due(tx, row) and not is_dead(row)}
    return nodes, any(is_dead(row) for row in owned), due


def is_due(tx: Transaction, will: Row) -> bool:
    return will["due"] is not None and will["due"] <= tx.db.clock()


def due_wills(tx: Transaction, node: str, incarnation: int) -> Steps[list[tuple[Any, Row]]]:
    """Return the wills of a node that are due. One waits for earlier ones of its client, wherever these are."""
    yield from ONE_STATEMENT
    firsts = _first_wills(tx)
    return [
        (key, row["msg"])
        for key, row in tx.scan("will")
        if (row["node"], row["incarnation"]) == (node, incarnation)
        and is_due(tx, row)
        and (key == firsts[row["client"]] or "will_overtakes" in tx.db.without)
    ]


def _first_wills(tx: Transaction) -> dict[str, tuple[int, int]]:
    """Return the earliest will of each client."""
    firsts: dict[str, tuple[int, int]] = {}
    for key, row in tx.scan("will"):
        firsts[row["client"]] = min(key, firsts.get(row["client"], key))
    return firsts


# -- a group of changes ------------------------------------------------------------------------------------------------


def write(
    tx: Transaction, node: str, incarnation: int, grp: int, items: list[Item], vectors: tuple[Vector, Vector]
) -> Steps[dict[str, Any] | None]:
    """Write a group of a node, once. None: this incarnation is over."""
    without = tx.db.without
    lost: set[tuple[int, int]] = set()
    failed: set[tuple[int, int, int]] = set()
    hints: list[tuple[int, int]] = []
    given: list[tuple[int, int]] = []
    out: dict[str, Any] = {"result": "written", "lost": lost, "failed": failed, "hints": []}
    yield Lock(("node", node), "n")
    if not is_alive(tx, node, incarnation):
        return None
    yield "number"
    done = tx.get("progress", (node, grp))
    if done is not None and "no_grp" not in without:
        out["result"] = "again"
        yield Lock(("beat", node), "x")
        tx.put("beat", node, tx.db.clock())
        if "no_outcome" not in without:
            out["lost"], out["failed"] = done["outcome"]
        return out
    yield "feed"
    last = tx.db.draw("message")
    if "number_first" in without:
        tx.put(
            "progress", (node, grp), {"incarnation": incarnation, "last": last, "outcome": (frozenset(), frozenset())}
        )
    rows, _ = fresh(tx, "filter", vectors[0])
    out["news"] = bool(rows)
    out["retained"] = bool(fresh(tx, "retained", vectors[1])[0])
    publishes = [i for i in items if i["kind"] in ("pub", "will")]
    if publishes and any(not row["gone"] for _, row in rows) and "no_look" not in without:
        # A filter that the node may not know: nothing is written, and the node matches its messages again.
        out["result"] = "rematch"
        return out
    # Fence: the rows of sessions, before anything else of them is read.
    owners = sorted({(i["sid"], i["epoch"]) for i in items if i.get("fence")})
    if owners:
        yield "fence"
        for sid in sorted({sid for sid, _ in owners}):
            row = tx.get("session", sid)
            if row is not None and "fence_nolock" not in without:
                yield Lock(("session", row["row"]), "x")
        yield "owners"
        for sid, epoch in owners:
            row = tx.get("session", sid)
            if row is None or row["epoch"] != epoch:
                lost.add((sid, epoch))

    def counts(item: Item) -> bool:
        return not item.get("fence") or (item["sid"], item["epoch"]) not in lost

    left_out = yield from _change_wills(tx, node, incarnation, [i for i in items if counts(i)], failed)
    # A message of QoS 2 counts where its row of `received` is new.
    twice = [i for i in publishes if i["qos"] == 2 and i["sid"] is not None]
    completed = [i for i in items if i["kind"] == "complete" and counts(i)]
    if twice or completed:
        yield "received"
        for i in twice:
            if counts(i):
                if tx.get("received", (i["sid"], i["pid"])) is not None and "received_memory" not in without:
                    left_out.append(i)
                tx.put("received", (i["sid"], i["pid"]), True)
        for i in completed:
            tx.delete("received", (i["sid"], i["pid"]))
    yield from _subscribe(tx, node, grp, [i for i in items if counts(i)])
    kept = [i for i in publishes if counts(i) and not any(i is other for other in left_out)]
    for i in kept:
        if i["kind"] == "will":
            tx.put("published_will", (i["sid"], i["epoch"], node, grp), i["msg"])
    matched = [i for i in kept if i["filters"]]
    if matched:
        last = yield from _expand(tx, matched, hints)
    changes = [i for i in items if i["kind"] in ("done", "sent", "released") and counts(i)]
    if changes:
        yield from _change(tx, changes, failed)
    # Sessions that their node leaves, and those of nodes that are dead.
    releases = sorted(i["sid"] for i in items if i["kind"] == "release" and counts(i))
    if releases:
        yield "release"
        yield from _let_go(tx, releases, given)
    if any(i["kind"] == "reap" for i in items):
        yield "reap"
        reaped: list[int] = []
        rows = tx.scan("session")
        for sid, row in sorted(rows, key=lambda each: (each[1]["node"] or "", each[1]["incarnation"] or 0, each[0])):
            dead = row["node"] is not None and not is_alive(tx, row["node"], row["incarnation"])
            if dead and len(reaped) < BATCH and tx.free(("session", row["row"]), "x"):
                tx.hold(("session", row["row"]), "x")
                reaped.append(sid)
        if reaped:
            yield "reaped"
            yield from _let_go(tx, reaped, given)
        yield "orphans"
        # Their wills are the node's: they are due after their delay, which begins now.
        rows = sorted(tx.scan("will"), key=lambda each: (each[1]["node"], each[1]["incarnation"], each[0]))
        orphans = [
            (key, will)
            for key, will in rows
            if not is_alive(tx, will["node"], will["incarnation"]) and tx.free(("will", key), "x")
        ][:BATCH]
        for key, _ in orphans:
            tx.hold(("will", key), "x")
        for key, will in orphans:
            due = tx.db.clock() + will["delay"] if will["due"] is None else will["due"]
            tx.put("will", key, {**will, "due": due, "node": node, "incarnation": incarnation})
    retained = [i for i in kept if i["kind"] == "pub" and i["retain"]]
    if retained:
        yield "retained"
        # Of several in a group the last one.
        newest = {i["msg"]["topic"]: i["msg"] for i in retained}
        for topic, msg in sorted(newest.items()):
            # A topic without a message is not cleared: nobody has anything to hear.
            if not msg["clear"] or _has_message(tx, topic):
                yield Lock(("retained", topic), "x")
                if not msg["clear"] or _has_message(tx, topic):
                    tx.put("retained", topic, {"msg": msg, "node": node, "grp": grp})
    out["hints"] = _by_session(hints) + _by_session(given)
    yield "progress"
    # The number is written last, with what a lost answer would have said.
    outcome = frozenset(lost), frozenset(failed)
    tx.put("progress", (node, grp), {"incarnation": incarnation, "last": last, "outcome": outcome})
    yield "commit"
    return out


def _change_wills(
    tx: Transaction, node: str, incarnation: int, items: list[Item], failed: set[tuple[int, int, int]]
) -> Steps[list[Item]]:
    """Set wills, and end them: a will is published by the transaction that deletes its row. Return those that another
    one has deleted, and those that wait for an earlier one of their client: these are due."""
    begun = [i for i in items if i["kind"] == "set"]
    ended = sorted((i for i in items if i["kind"] in ("will", "ended")), key=lambda i: (i["sid"], i["epoch"]))
    left_out: list[Item] = []
    if not begun and not ended:
        return left_out
    yield "wills"
    for i in begun:
        client = tx.get("session", i["sid"])["client"]
        row = {"msg": i["msg"], "node": node, "incarnation": incarnation, "delay": i["delay"], "due": None}
        tx.put("will", (i["sid"], i["epoch"]), {**row, "client": client})
    for i in ended:
        key = i["sid"], i["epoch"]
        if tx.get("will", key) is not None and "will_unlocked" not in tx.db.without:
            yield Lock(("will", key), "x")
    yield "ended"
    firsts = _first_wills(tx)
    for i in ended:
        key = i["sid"], i["epoch"]
        row = tx.get("will", key)
        waits = row is not None and firsts[row["client"]] < key and "will_overtakes" not in tx.db.without
        if i["kind"] == "will" and (waits or (row is None and "will_unlocked" not in tx.db.without)):
            left_out.append(i)
            failed.add((i["sid"], WILL, i["epoch"]))
            if row is not None and row["due"] is None:
                tx.put("will", key, {**row, "due": tx.db.clock()})
        elif row is None and "will_unlocked" not in tx.db.without:
            pass
        elif i["kind"] == "will" or i["delay"] is None:
            tx.delete("will", key)
        elif row is not None and row["due"] is None:
            tx.put("will", key, {**row, "due": tx.db.clock() + min(i["delay"], row["delay"])})
    return left_out


def _by_session(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return of each session how many messages it has got, and the last one."""
    found: dict[int, tuple[int, int]] = {}
    for sid, number in rows:
        count, last = found.get(sid, (0, 0))
        found[sid] = count + 1, max(last, number)
    return [(sid, *each) for sid, each in found.items()]


def _has_message(tx: Transaction, topic: str) -> bool:
    row = tx.get("retained", topic)
    return row is not None and not row["msg"]["clear"]


def _subscribe(tx: Transaction, node: str, grp: int, items: list[Item]) -> Steps[None]:
    subscribed = {i["filter"] for i in items if i["kind"] == "sub"}
    subscribed |= {of_group(each) for each in subscribed} - {""}
    ends = {i["filter"] for i in items if i["kind"] == "endfilter"}
    if subscribed or ends:
        yield "filters"
        for name in sorted(subscribed | ends):
            if "sub_nolock" not in tx.db.without or tx.get("filter", name) is None:
                yield Lock(("filter", name), "x")
            row = tx.get("filter", name)
            if name in subscribed and (row is None or row["gone"]):
                tx.put("filter", name, {"gone": False, "node": node, "grp": grp, "share": None})
    changes = [i for i in items if i["kind"] in ("sub", "unsub")]
    if changes:
        yield "subscriptions"
        for i in changes:
            if i["kind"] == "sub":
                tx.put("subscription", (i["sid"], i["filter"]), {"qos": i["qos"]})
            else:
                tx.delete("subscription", (i["sid"], i["filter"]))
        for name in sorted(subscribed):
            row = tx.get("filter", name)
            if of_group(name) and row["share"] is None:
                _begin_group(tx, name, row)
    if ends:
        yield "ends"  # after the subscriptions of the same group
        used = {topic_filter for (_, topic_filter), _ in tx.scan("subscription")}
        for name in sorted(ends - used):
            row = tx.get("filter", name)
            if row is not None and not row["gone"]:
                if row["share"] is not None:
                    tx.delete("session", row["share"])
                    tx.put("garbage", row["share"], True)
                tx.put("filter", name, {"gone": True, "node": node, "grp": grp, "share": None})


def _begin_group(tx: Transaction, name: str, row: Row) -> None:
    """Give a share group its queue: a session without a client. Each time another one."""
    gid = tx.db.draw("session")
    unowned = {"node": None, "incarnation": 0, "epoch": 0, "expiry": FOR_EVER, "expires": None}
    tx.put("session", gid, {**unowned, "client": name, "row": gid})
    tx.put("filter", name, {**row, "share": gid})
    tx.put("subscription", (gid, of_group(name)), {"qos": 2})


def _expand(tx: Transaction, publishes: list[Item], hints: list[tuple[int, int]]) -> Steps[int]:
    """Write messages, and a delivery for each session behind their filters. Return the number of the last message."""
    yield "slot"
    slot = tx.get("slots", "current")
    yield "messages"
    yield Lock(("message", slot), "s")
    numbers = [tx.db.draw("message") for _ in publishes]
    for number, i in zip(numbers, publishes, strict=True):
        tx.put("message", (slot, number), i["msg"])
    yield "deliveries"
    yield Lock(("delivery", slot), "s")
    for number, i in zip(numbers, publishes, strict=True):
        targets: dict[int, int] = {}
        for (sid, topic_filter), row in tx.scan("subscription"):
            if topic_filter in i["filters"]:
                targets[sid] = max(targets.get(sid, 0), min(row["qos"], i["qos"]))
        for sid, qos in sorted(targets.items()):
            if tx.get("session", sid) is not None:
                tx.put("delivery", (slot, sid, 0, number), {"qos": qos, "state": 0, "pid": 0})
                hints.append((sid, number))
    return numbers[-1]


def _change(tx: Transaction, changes: list[Item], failed: set[tuple[int, int, int]]) -> Steps[None]:
    """Change deliveries where they were read, in the order of their keys; then in `LONG` those that were not there."""
    without = tx.db.without
    for slots in (SLOTS, (LONG,)):
        here = [i for i in changes if i["row"][0] in slots]
        if slots == (LONG,):
            if "slot_only" in without:
                changes = here
            here = changes
        if not here:
            continue

        def key_of(item: Item, long: bool = slots == (LONG,)) -> Any:
            return (LONG, *item["row"][1:]) if long else item["row"]

        def locks(items: list[Item], key_of: Callable[[Item], Any] = key_of) -> Steps[None]:
            keys = sorted({key_of(i) for i in items}, key=lambda key: (*key[1:], key[0]))
            for slot in sorted({key[0] for key in keys}):
                yield Lock(("delivery", slot), "s")
            for key in [key for key in keys if tx.get("delivery", key) is not None]:
                yield Lock(("row", key), "x")

        if any(i["kind"] != "done" for i in here):
            yield "long" if slots == (LONG,) else "rows"
            yield from locks(here)
        yield "long changed" if slots == (LONG,) else "changed"
        # Where all are acknowledged, the statement that deletes them locks them in the same order.
        yield from locks([i for i in here if i["kind"] == "done"])
        for i in here:
            key = key_of(i)
            row = tx.get("delivery", key)
            if row is None:
                continue
            if i["kind"] == "done":
                tx.delete("delivery", key)
            elif i["kind"] == "sent" and (row["state"] == 0 or "sent_unchecked" in without):
                tx.put("delivery", key, {**row, "state": 1, "pid": i["pid"]})
            elif i["kind"] == "released" and row["state"] == 1:
                tx.put("delivery", key, {**row, "state": 2})
            else:
                continue
            changes = [other for other in changes if other is not i]
    if "sent_unchecked" not in without:
        failed.update(i["row"][1:] for i in changes if i["kind"] == "sent")


def _let_go(tx: Transaction, sessions: list[int], hints: list[tuple[int, int]]) -> Steps[None]:
    for sid in sessions:
        row = tx.get("session", sid)
        tx.put("session", sid, {**row, "node": None, "expires": tx.db.clock() + row["expiry"]})
    yield from _give_back(tx, sessions, hints)


def _give_back(tx: Transaction, sessions: list[int], hints: list[tuple[int, int]]) -> Steps[None]:
    """Return to its share group what came to members through it, and was not sent, or is of QoS 1."""
    missed: set[Any] = set()
    while True:
        keys = [
            key
            for sid in sessions
            for key, row in rows_of(tx, sid)
            if key[2] and (row["qos"] == 1 or row["state"] == 0) and key not in missed
            and tx.get("session", key[2]) is not None
        ]  # fmt: skip
        if not keys:
            return
        before = len(hints)
        for key in sorted(keys, key=lambda key: (*key[1:], key[0])):
            yield Lock(("delivery", key[0]), "s")
            yield Lock(("row", key), "x")
            if tx.get("delivery", key) is None:
                missed.add(key)  # moved meanwhile: the next statement finds it in LONG
                continue
            tx.delete("delivery", key)
            row = {"qos": tx.get("message", (key[0], key[3]))["qos"], "state": 0, "pid": 0}
            tx.put("delivery", (key[0], key[2], 0, key[3]), row)
            hints.append((key[2], key[3]))
        if "give_back_once" in tx.db.without:
            return
        if len(hints) > before:
            yield "give back"


# -- sessions ----------------------------------------------------------------------------------------------------------


def _find(tx: Transaction, client: str) -> int | None:
    return next((sid for sid, row in tx.scan("session") if row["client"] == client), None)


def claim(
    tx: Transaction, node: str, incarnation: int, client: str, clean: bool, expiry: int
) -> Steps[dict[str, Any] | None]:
    """Make a session a node's own, and no other's: the only call that a CONNECT waits for. None: the incarnation is
    over."""
    yield Lock(("node", node), "k")
    if not is_alive(tx, node, incarnation):
        return None
    hints: list[tuple[int, int]] = []
    while True:
        yield "find"
        sid = _find(tx, client)
        if sid is not None:
            number = tx.get("session", sid)["row"]
            yield Lock(("session", number), "x")
            # The row as it is by then, also where it has got another session meanwhile.
            sid = next((sid for sid, row in tx.scan("session") if row["row"] == number), None)
        if sid is not None:
            break
        yield "make"
        sid = tx.db.draw("session")
        yield "insert"
        yield Lock(("client", client), "x")
        if _find(tx, client) is None:
            row = {"client": client, "epoch": 0, "row": sid}
            tx.hold(("session", sid), "x")
            _own(tx, sid, row, node, incarnation, expiry)
            yield "commit"
            return {"sid": sid, "epoch": 1, "present": False, "hints": hints}
        tx.drop(("client", client))  # ON CONFLICT DO NOTHING: another one has made it
    yield "own"
    row = tx.get("session", sid)
    clean = clean or row["expiry"] == 0 or (row["expires"] is not None and row["expires"] <= tx.db.clock())
    wills = [key for key, _ in tx.scan("will") if key[0] == sid]
    if wills:
        yield "wills"
        for key in wills:
            old = tx.get("will", key)
            if not clean and (old is None or not old["delay"] or is_due(tx, old)):
                continue
            yield Lock(("will", key), "x")
            old = tx.get("will", key)
            if old is None:
                continue  # it was published meanwhile
            if clean:
                # The session has ended: nothing is waited for any more.
                due = None if old["due"] is None else min(old["due"], tx.db.clock())
                tx.put("will", key, {**old, "delay": 0, "due": due})
            elif old["delay"] and not is_due(tx, old) and "will_stays" not in tx.db.without:
                tx.delete("will", key)  # its client is back in time
    if clean and "clean_same_id" in tx.db.without:
        yield from _give_back(tx, [sid], hints)
        for key, _ in rows_of(tx, sid):
            tx.delete("delivery", key)
        for table in ("subscription", "received"):
            for key, _ in tx.scan(table):
                if key[0] == sid:
                    tx.delete(table, key)
    elif clean:
        if "clean_keeps" not in tx.db.without:
            yield from _give_back(tx, [sid], hints)
        tx.delete("session", sid)
        tx.put("garbage", sid, True)
        sid = tx.db.draw("session")
    _own(tx, sid, row, node, incarnation, expiry)
    yield "commit"
    return {"sid": sid, "epoch": row["epoch"] + 1, "present": not clean, "hints": hints}


def claim_free(
    tx: Transaction, node: str, incarnation: int, claims: list[tuple[str, int]]
) -> Steps[dict[str, dict[str, Any] | None]]:
    """Claim many sessions at once, but for those that do not exist, and those that somebody has locked: client
    identifier and expiry of each, none with a clean start. It waits for nobody while it holds the others."""
    yield Lock(("node", node), "k")
    yield "free"
    asked = dict(claims)
    free = []
    for _, row in sorted(tx.scan("session"), key=lambda each: each[0]):
        number = ("session", row["row"])
        if row["client"] in asked and (tx.free(number, "x") or "claims_wait" in tx.db.without):
            if "claims_wait" in tx.db.without:
                yield Lock(number, "x")
            tx.hold(number, "x")
            free.append(row["client"])
    out = {}
    for client in free:
        out[client] = yield from claim(tx, node, incarnation, client, False, asked[client])
    return out


def _own(tx: Transaction, sid: int, row: Row, node: str, incarnation: int, expiry: int) -> None:
    owned = {"node": node, "incarnation": incarnation, "epoch": row["epoch"] + 1, "expiry": expiry, "expires": None}
    tx.put("session", sid, {**row, **owned})


def content(tx: Transaction, sids: list[int]) -> Steps[dict[int, dict[str, Any]]]:
    """Return what claimed sessions have: identifiers of QoS 2, and deliveries in flight. Read after the claim, without
    a lock: only its owner changes it, and `epoch` says whether there is another by now."""
    yield from ONE_STATEMENT
    return {sid: _content(tx, sid) for sid in sids}


def _content(tx: Transaction, sid: int) -> dict[str, Any]:
    row = tx.get("session", sid)
    return {
        "epoch": None if row is None else row["epoch"],
        "subscriptions": {name: row["qos"] for (session, name), row in tx.scan("subscription") if session == sid},
        "received": {pid for (session, pid), _ in tx.scan("received") if session == sid},
        "flying": [(key, row, tx.get("message", (key[0], key[3]))) for key, row in rows_of(tx, sid) if row["state"]],
    }


def read(tx: Transaction, asks: dict[int, tuple[int, frozenset[Any], int]]) -> Steps[Any]:
    """Return what waits for sessions and is not known: of source 0 a page above `low`, and all from share groups.

    One statement, whose snapshot is taken when it has its locks: what is truncated before is seen where it is then.
    """
    yield from ONE_STATEMENT
    found = {}
    for sid, (low, known, page) in asks.items():
        rows = []
        for key, row in rows_of(tx, sid):
            msg = tx.get("message", (key[0], key[3]))
            if (key[2], key[3]) not in known and msg is not None:
                rows.append((key[3], key, {**row, "msg": msg}))
        rows.sort(key=lambda each: each[:2])
        plain = [each for each in rows if not each[1][2] and each[0] > low]
        found[sid] = ([each for each in rows if each[1][2]] + plain[:page], len(plain) > page)
    owned = {sid: row["epoch"] for sid in asks if (row := tx.get("session", sid)) is not None}
    return found, owned, final(tx)


def pull(tx: Transaction, node: str, incarnation: int, name: str, members: list[tuple[int, int, int]]) -> Steps[Any]:
    """Move rows of a share group's queue to its members at a node, the oldest first: (session, epoch, room) of each.

    Return who got some, whether there was room for no more, whether any are left, and who is not the node's member.
    """
    for sid in sorted({sid for sid, _, _ in members}):
        row = tx.get("session", sid)
        if row is not None and "pull_unfenced" not in tx.db.without:
            yield Lock(("session", row["row"]), "s")
    yield "members"
    gid = tx.get("filter", name)["share"]
    places = []
    refused = set()
    for turn, (sid, epoch, room) in enumerate(members):
        row = tx.get("session", sid)
        owned = row is not None and (row["epoch"], row["node"], row["incarnation"]) == (epoch, node, incarnation)
        if "pull_released" in tx.db.without:
            owned = row is not None and row["epoch"] == epoch
        if (owned or "pull_unfenced" in tx.db.without) and tx.get("subscription", (sid, name)) is not None:
            places += [(number, turn, sid) for number in range(room)]
        else:
            refused.add(sid)
    places.sort()
    yield "rows"
    for slot in (*SLOTS, LONG):
        yield Lock(("delivery", slot), "s")
    free = sorted((key[3], key, row) for key, row in rows_of(tx, gid) if tx.free(("row", key), "x"))
    taken = set()
    for (_, _, sid), (number, key, row) in zip(places, free, strict=False):
        tx.hold(("row", key), "x")
        tx.delete("delivery", key)
        qos = min(row["qos"], tx.get("subscription", (sid, name))["qos"])
        source = gid if "source_lost" not in tx.db.without else 0
        tx.put("delivery", (key[0], sid, source, number), {**row, "qos": qos})
        taken.add(sid)
    yield "left"
    # A row that was skipped may stay, since its holder is a sweeper, or aborts. A later statement tells it.
    left = bool(rows_of(tx, gid)) and "pull_skips" not in tx.db.without
    yield "commit"
    return taken, 0 < len(places) <= len(free), left, refused


# -- sweepers ----------------------------------------------------------------------------------------------------------


def expire(tx: Transaction) -> Steps[None]:
    """End a session whose time is over. A claim that waits finds no row, and makes another."""
    ended = None
    by_age = sorted(tx.scan("session"), key=lambda item: (item[1].get("expires") or 0, item[0]))
    for sid, row in by_age:
        expires = row.get("expires")
        if expires is not None and expires <= tx.db.clock() and tx.free(("session", row["row"]), "x"):
            tx.hold(("session", row["row"]), "x")
            ended = sid, row
            break
    if ended is not None:
        yield "expired"
        sid, row = ended
        tx.hold(("client", row["client"]), "x")
        tx.delete("session", sid)
        tx.put("garbage", sid, True)
    yield "commit"


def collect(tx: Transaction) -> Steps[None]:
    """Delete some of what is left of a session that has ended."""
    sid = next((sid for sid, _ in tx.scan("garbage") if tx.free(("garbage", sid), "x")), None)
    if sid is not None:
        tx.hold(("garbage", sid), "x")
        yield "subscriptions"
        for table in ("subscription", "received"):
            for key, _ in tx.scan(table):
                if key[0] == sid:
                    tx.delete(table, key)
        yield "rows"
        mine = [key for key, _ in rows_of(tx, sid) if tx.free(("row", key), "x")][:BATCH]
        for key in mine:
            tx.hold(("row", key), "x")
        yield "collected"
        for key in mine:
            tx.delete("delivery", key)
        yield "garbage"
        if not rows_of(tx, sid):
            tx.delete("garbage", sid)
    yield "commit"


def _is_sweeper(tx: Transaction) -> bool:
    """Become the one sweeper (pg_try_advisory_xact_lock)."""
    free = tx.free("sweeper", "x")
    if free:
        tx.hold("sweeper", "x")
    return free


def trim(tx: Transaction) -> Steps[None]:
    """Forget the numbers of all groups but each node's last, and those of its joins before that one."""
    if not _is_sweeper(tx):
        return
    yield "trim"
    for (node, grp), _ in tx.scan("progress"):
        written = [n for (name, n), row in tx.scan("progress") if name == node and row["incarnation"] is not None]
        if grp < max(written, default=0) or "trim_all" in tx.db.without:
            tx.delete("progress", (node, grp))
    yield "commit"


def change_slot(tx: Transaction) -> Steps[None]:
    """Have new rows written into the next slot, if nothing is left there."""
    if _is_sweeper(tx):
        yield "slot"
        current = (tx.get("slots", "current") + 1) % len(SLOTS)
        if not any(key[0] == current for table in ("delivery", "message") for key, _ in tx.scan(table)):
            tx.put("slots", "current", current)
        yield "commit"


def move(tx: Transaction, slot: int) -> Steps[None]:
    """Move some rows of an old slot to LONG."""
    if not _is_sweeper(tx):
        return
    yield "rows"
    if tx.get("slots", "current") == slot:
        return
    # As a writer: excluded only by whoever truncates.
    yield Lock(("delivery", slot), "s")
    keys = [key for key, _ in tx.scan("delivery") if key[0] == slot and tx.free(("row", key), "x")][:BATCH]
    for key in keys:
        tx.hold(("row", key), "x")
    if keys:
        yield "move"
        _to_long(tx, keys)
    yield "commit"


def _to_long(tx: Transaction, keys: list[Any]) -> None:
    for slot, sid, source, number in keys:
        row = tx.get("delivery", (slot, sid, source, number))
        tx.delete("delivery", (slot, sid, source, number))
        if tx.get("session", sid) is not None:
            tx.put("delivery", (LONG, sid, source, number), row)
            if "message_left" not in tx.db.without:
                tx.put("message", (LONG, number), tx.get("message", (slot, number)))


def empty_deliveries(tx: Transaction, slot: int) -> Steps[None]:
    """Move all that is left of an old slot, and truncate it, under a lock that no writer and no reader passes."""
    if not _is_sweeper(tx):
        return
    yield "lock"
    locked = "truncate_after" not in tx.db.without
    if locked:
        yield Lock(("delivery", slot), "x")
    yield "move"
    if tx.get("slots", "current") == slot:
        return
    _to_long(tx, [key for key, _ in tx.scan("delivery") if key[0] == slot and (locked or tx.free(("row", key), "x"))])
    yield "truncate"
    if not locked:
        yield Lock(("delivery", slot), "x")
    tx.truncate("delivery", slot)
    yield "commit"


def empty_messages(tx: Transaction, slot: int) -> Steps[None]:
    """Truncate the messages of an old slot that has no delivery: in a transaction of its own, since writers lock
    messages first and deliveries second."""
    if not _is_sweeper(tx):
        return
    yield "lock"
    yield Lock(("message", slot), "x")
    yield "look"
    if tx.get("slots", "current") == slot:
        return
    # A writer may have put a delivery here since the slot was emptied; with the lock held, it has committed.
    if any(key[0] == slot for key, _ in tx.scan("delivery")) and "messages_unseen" not in tx.db.without:
        return
    yield "truncate"
    tx.truncate("message", slot)
    yield "commit"


def clean_long(tx: Transaction) -> Steps[None]:
    """Delete messages of LONG that no delivery needs any more."""
    if not _is_sweeper(tx):
        return
    yield "clean"
    needed = {key[3] for key, _ in tx.scan("delivery") if key[0] == LONG}
    for key, _ in tx.scan("message"):
        if key[0] == LONG and key[1] not in needed:
            tx.delete("message", key)
    yield "commit"

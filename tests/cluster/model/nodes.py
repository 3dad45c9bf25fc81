"""The nodes of the model: what a broker does between its clients, the database and the other nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

from tests.cluster.model import functions
from tests.cluster.model.functions import Item, Vector, matches
from tests.cluster.model.network import Connection, Network

WINDOW: Final = 2
"""Messages that a client has unacknowledged at once."""
PAGE: Final = 4
"""Messages of a session that its node has in memory."""


class Session:
    """A durable session at the node that has claimed it."""

    def __init__(self, connection: Connection, sid: int, epoch: int) -> None:
        self.client, self.connection = connection.client, connection
        self.sid, self.epoch = sid, epoch
        self.restored = False
        self.received: set[int] = set()
        self.pending: set[int] = set()
        """Packet identifiers of QoS 2 publishes in a group that is not committed."""
        self.rows: dict[tuple[int, int], Item] = {}
        """By (source, number): what is in memory."""
        self.known: set[tuple[int, int]] = set()
        self.out: dict[int, tuple[int, int]] = {}
        self.low = 0
        """No row of source 0 up to here is of interest any more."""
        self.more = self.reading = self.again = False
        self.last_pid = 0

    def pid(self) -> int:
        used = set(self.out) | {row["pid"] for row in self.rows.values()}
        while True:
            self.last_pid = self.last_pid % 20 + 1
            if self.last_pid not in used:
                return self.last_pid

    def plain(self) -> int:
        return sum(1 for source, _ in self.rows if not source)

    def shared(self) -> int:
        return sum(1 for source, _ in self.rows if source)


class Node:
    """One broker."""

    def __init__(self, world: Network, name: str) -> None:
        self.world, self.name = world, name
        self.without = world.without
        self.life = 0
        self.state = "down"  # run, stop, down
        self.reaches_db = True
        self.clear()

    def clear(self) -> None:
        """Forget everything: the process ends."""
        self.life += 1
        self.incarnation: int | None = None
        self.joining = False
        self.grp = 0
        self.sessions: dict[int, Session] = {}
        self.connections: list[Connection] = []
        self.items: list[Item] = []
        self.flight: list[Item] | None = None
        """The group that is being written."""
        self.inbox: list[tuple[Callable[[Any, bool], None], Any, bool]] = []
        self.registry: set[str] = set()
        """The filters of all durable sessions."""
        self.vectors: tuple[Vector, Vector] = ({}, {})
        self.feeding = False
        self.after_feed: list[Callable[[], None]] = []
        self.copy: dict[str, tuple[int, Any]] = {}
        self.deaths: dict[str, int] = {}
        self.groups: dict[int, dict[str, bool]] = {
            gid: {"flight": False, "again": False, "more": False} for gid in self.world.group_ids
        }
        self.reaping = False
        self.wills: set[Any] = set()
        self.retry: list[Callable[[], None]] = []

    # -- the database --------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], back: Callable[[Any, bool], None]) -> None:
        life = self.life

        def done(result: Any, error: bool) -> None:
            if self.life == life:
                self.inbox.append((back, result, error))

        if not self.reaches_db:
            done(None, True)
            return
        tx = self.world.db.start(function, *args)
        tx.caller, tx.back = self, done

    def join(self) -> None:
        if not self.joining:
            self.joining = True
            self.call(functions.join, (self.name,), self.joined)

    def joined(self, got: Any, error: bool) -> None:
        if error:
            self.joining = False
            return
        incarnation, grp = got

        def fed() -> None:
            self.joining = False
            self.incarnation, self.grp = incarnation, grp
            self.flight = None
            self.tell(("hello",))

        self.feed(fed)

    def feed(self, then: Callable[[], None]) -> None:
        """Learn the filters that are new. One read at a time: an older answer that comes later brings back the past."""
        self.after_feed.append(then)
        if self.feeding and "feeds_at_once" not in self.without:
            return
        self.feeding = True
        waiting, self.after_feed = self.after_feed, []

        def back(got: Any, error: bool) -> None:
            self.feeding = False
            if error:
                self.after_feed[:0] = waiting
                self.retry.append(partial(self.feed, lambda: None))
                return
            rows, vector = got
            for name, row in rows:
                (self.registry.discard if row["gone"] else self.registry.add)(name)
            self.vectors = (vector, self.vectors[1])
            for each in waiting:
                each()
            if self.after_feed:
                self.feed(self.after_feed.pop())

        self.call(functions.feed, (self.vectors[0],), back)

    def replaced(self) -> None:
        """Nothing of this incarnation counts any more, since another node declared it dead."""
        connections, self.connections = self.connections, []
        for connection in connections:
            self.world.close(connection)
        self.clear()
        self.join()

    # -- groups of changes ---------------------------------------------------------------------------------------------

    def add(self, **item: Any) -> None:
        self.items.append(item)

    def close_group(self) -> None:
        rng = self.world.rng
        if self.flight is not None or self.incarnation is None or not self.items:
            return
        count = len(self.items) if rng.random() < 0.7 else rng.randint(1, len(self.items))
        # One change of a thing in a group.
        seen: set[Any] = set()
        for n, i in enumerate(self.items[:count]):
            thing: Any = None
            if i["kind"] in ("sub", "unsub"):
                thing = (i["sid"], i["filter"])
            elif i["kind"] in ("pub", "complete") and i.get("qos", 2) == 2:
                thing = (i["sid"], i["pid"])
            elif i["kind"] in ("done", "sent", "released"):
                thing = i["row"]
            if thing is not None and thing in seen:
                count = n
                break
            seen.add(thing)
        self.flight, self.items = self.items[:count], self.items[count:]
        self.grp += 1
        self.match()
        self.submit()

    def match(self) -> None:
        for i in self.flight or ():
            if i["kind"] in ("pub", "will"):
                i["filters"] = {each for each in self.registry if matches(each, i["msg"]["topic"])}

    def submit(self) -> None:
        self.call(functions.write, (self.name, self.incarnation, self.grp, self.flight, self.vectors), self.written)

    def written(self, out: Any, error: bool) -> None:
        if error:
            self.retry.append(self.submit)
            return
        if out is None:
            self.replaced()
            return
        assert self.flight is not None
        if out["result"] == "again":
            # Whom the group gave rows was in the lost answer: all read. Items that look at the feeds look again.
            if "no_general" not in self.without:
                self.general()
                self.tell(("general",))
            if "again_no_look" not in self.without:
                self.items[:0] = [i for i in self.flight if i["kind"] == "look"]
                self.flight = [i for i in self.flight if i["kind"] != "look"]
            self.finish(self.flight, out)
            return
        for topic, row in out["retained"]:
            if topic not in self.copy or row["version"] > self.copy[topic][0]:
                self.copy[topic] = (row["version"], row["msg"])
        self.vectors = (self.vectors[0], out["retained_at"])
        if out["result"] == "rematch":
            self.feed(self.rematch)
            return
        if out["news"]:
            self.feed(lambda: None)
        self.spread(out["hints"])
        self.finish(self.flight, out)

    def rematch(self) -> None:
        self.match()
        self.submit()

    def finish(self, items: list[Item], out: Any) -> None:
        self.flight = None
        for i in items:
            if i["kind"] == "reap":
                self.reaping = False
            if i["kind"] == "will":
                self.wills.discard(i["key"])
            if i.get("fence") and (i["sid"], i["epoch"]) in out["lost"]:
                self.drop(i["sid"], i["epoch"])
            elif i.get("then") is not None:
                i["then"](i, out)

    def drop(self, sid: int, epoch: int | None = None) -> None:
        """Another node has this session."""
        session = self.sessions.get(sid)
        if session is not None and epoch in (None, session.epoch):
            self.sessions.pop(sid)
            self.world.close(session.connection)

    # -- hints and reads -----------------------------------------------------------------------------------------------

    def tell(self, piece: tuple[Any, ...]) -> None:
        for name in self.world.nodes:
            if name != self.name and self.world.link(self.name, name) in ("up", "cut"):
                self.world.links[(self.name, name)].append(piece)

    def spread(self, hints: list[tuple[int, int]]) -> None:
        if hints:
            self.tell(("hints", hints))
            self.hinted(hints)

    def receive(self, piece: tuple[Any, ...]) -> None:
        if piece[0] == "hints":
            self.hinted(piece[1])
        elif piece[0] == "taken":
            session = next((each for each in self.sessions.values() if each.client == piece[1]), None)
            if session is not None and session.epoch < piece[2]:
                self.drop(session.sid)
        elif not (piece[0] == "hello" and "no_hello_read" in self.without):
            self.general()

    def hinted(self, hints: list[tuple[int, int]]) -> None:
        sids = set()
        for sid, number in hints:
            if sid in self.groups:
                self.pull(sid)
            elif sid in self.sessions and (0, number) not in self.sessions[sid].known:
                sids.add(sid)
        if "read_by_key" in self.without:
            self.look_at(sids, {sid: {number for each, number in hints if each == sid} for sid in sids})
        else:
            self.look_at(sids)

    def general(self) -> None:
        self.look_at(set(self.sessions))
        for gid in self.groups:
            self.pull(gid)

    def look_at(self, sids: Iterable[int], only: dict[int, set[int]] | None = None) -> None:
        asks: dict[int, tuple[int, frozenset[Any], int]] = {}
        asked: dict[int, Session] = {}
        for sid in sorted(sids):
            session = self.sessions.get(sid)
            if session is None or not session.restored:
                continue
            if session.reading:
                session.again = True
                continue
            session.reading = True
            asked[sid] = session
            asks[sid] = (session.low, frozenset(session.known), max(0, PAGE - session.plain()))

        def back(got: Any, error: bool) -> None:
            for sid, session in asked.items():
                session.reading = False
                if self.sessions.get(sid) is not session:
                    continue
                if error:
                    self.retry.append(partial(self.look_at, [sid]))
                    continue
                self.saw_rows(session, got, None if only is None else only[sid])

        if asks:
            self.call(functions.read, (asks,), back)

    def saw_rows(self, session: Session, got: Any, only: set[int] | None) -> None:
        found, owned, final = got
        sid = session.sid
        if owned.get(sid, session.epoch + 1) > session.epoch:
            self.drop(sid)
            return
        if owned[sid] < session.epoch:
            return
        rows, session.more = found[sid]
        if only is not None:
            rows = [each for each in rows if each[0] in only]
        for _, key, row in rows:
            self.take(session, key, row)
        top = max([number for number, key, _ in rows if not key[2]], default=session.low)
        if "cursor_any" in self.without:
            session.low = max(session.low, top)
        else:
            session.low = max(session.low, min(final, top) if session.more else final)
        if session.again and "no_again" not in self.without:
            session.again = False
            self.look_at([sid])
        self.pump(session)

    def take(self, session: Session, key: Any, row: Any) -> None:
        tag = (key[2], key[3])
        if tag not in session.known:
            session.known.add(tag)
            session.rows[tag] = {
                "key": key,
                "msg": row["msg"],
                "qos": row["qos"],
                "state": row["state"],
                "pid": row["pid"],
            }

    # -- towards the client --------------------------------------------------------------------------------------------

    def pump(self, session: Session) -> None:
        busy = sum(1 for row in session.rows.values() if row["state"] != 0)
        order = sorted(session.rows.items(), key=lambda item: (item[0][1], item[0][0]))
        for n, (tag, row) in enumerate(order):
            if busy >= WINDOW:
                break
            if row["state"] != 0:
                continue
            if row["qos"] == 2 and any(other["state"] == 0 for _, other in order[:n]):
                break
            busy += 1
            row["pid"] = session.pid()
            if row["qos"] == 1:
                row["state"] = "out"
                session.out[row["pid"]] = tag
                self.send(session, ("publish", 1, row["pid"], row["msg"], tag[0]))
            else:
                row["state"] = "sending"
                self.add(
                    kind="sent", sid=session.sid, epoch=session.epoch, row=row["key"], pid=row["pid"], fence=True,
                    tag=tag, then=self.sent,
                )  # fmt: skip
        if session.more and session.plain() < PAGE // 2:
            self.look_at([session.sid])

    def sent(self, i: Item, out: Any) -> None:
        session = self.sessions.get(i["sid"])
        if session is None or session.epoch != i["epoch"] or i["tag"] not in session.rows:
            return
        row = session.rows[i["tag"]]
        if i["row"][1:] in out["failed"]:
            del session.rows[i["tag"]]
            self.pump(session)
            return
        row["state"] = "sent"
        session.out[row["pid"]] = i["tag"]
        self.send(session, ("publish", 2, row["pid"], row["msg"], i["tag"][0]))

    def send(self, session: Session, packet: Any) -> None:
        if session.connection.open:
            session.connection.down.append(packet)

    def packet(self, connection: Connection, packet: Any) -> None:
        session = next((each for each in self.sessions.values() if each.connection is connection), None)
        kind = packet[0]
        if kind == "connect":
            if self.incarnation is None:
                self.world.close(connection)
                return
            self.claim(connection)
            return
        if session is None or not session.restored:
            return
        owner = {"sid": session.sid, "epoch": session.epoch, "fence": True}

        def answer(what: Any) -> Callable[[Item, Any], None]:
            def then(i: Item, out: Any) -> None:
                del i, out
                if connection.open:
                    connection.down.append(what)

            return then

        if kind == "publish":
            self.publish(session, connection, *packet[1:])
        elif kind == "pubrel":
            pid = packet[1]
            session.received.discard(pid)
            self.add(kind="complete", pid=pid, **owner, then=answer(("pubcomp", pid)))
        elif kind in ("puback", "pubrec", "pubcomp"):
            self.acked(session, kind, packet[1])
        elif kind == "subscribe":
            self.add(kind="sub", filter=packet[1], qos=packet[2], **owner, then=answer(("suback", packet[1])))
        elif kind == "unsubscribe":
            self.add(kind="unsub", filter=packet[1], **owner, then=answer(("unsuback", packet[1])))

    def publish(self, session: Session, connection: Connection, qos: int, pid: int, msg: Any, retain: bool) -> None:
        answer = ("puback" if qos == 1 else "pubrec", pid)
        if qos == 2:
            if pid in session.received:
                if pid not in session.pending:
                    connection.down.append(answer)
                return
            session.received.add(pid)
            session.pending.add(pid)

        def then(i: Item | None, out: Any) -> None:
            del i, out
            session.pending.discard(pid)
            if connection.open:
                connection.down.append(answer)

        known = any(matches(each, msg["topic"]) for each in self.registry)
        if "no_look" in self.without and not known and not retain and qos == 1:
            then(None, None)
            return
        fence = (qos == 2 and "no_pub_fence" not in self.without) or (
            retain and "retained_unfenced" not in self.without
        )
        self.add(
            kind="pub", msg=msg, qos=qos, sid=session.sid, epoch=session.epoch, pid=pid, retain=retain, then=then,
            fence=fence,
        )  # fmt: skip

    def acked(self, session: Session, kind: str, pid: int) -> None:
        tag = session.out.get(pid)
        row = None if tag is None else session.rows.get(tag)
        if tag is None or row is None:
            return
        if kind == "pubrec":
            if row["state"] == "sent":
                row["state"] = "releasing"

                def then(i: Item, out: Any) -> None:
                    del i, out
                    row["state"] = "released"
                    self.send(session, ("pubrel", pid))

                self.add(kind="released", sid=session.sid, epoch=session.epoch, row=row["key"], fence=True, then=then)
            elif row["state"] == "released":
                self.send(session, ("pubrel", pid))
            return
        del session.out[pid]
        del session.rows[tag]
        self.add(kind="done", sid=session.sid, row=row["key"])
        self.pump(session)
        for gid, group in self.groups.items() if tag[0] else ():
            if group["more"]:
                self.pull(gid)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def claim(self, connection: Connection) -> None:
        def back(got: Any, error: bool) -> None:
            if not error and got is None:
                self.world.close(connection)
                self.replaced()
                return
            if not error and "no_taken" not in self.without:
                self.tell(("taken", connection.client, got["epoch"]))
            if error or connection.known_lost or not connection.open:
                if error:
                    self.world.close(connection)
                    if "no_general" not in self.without:
                        self.general()
                        self.tell(("general",))
                else:
                    self.spread(got["hints"])
                    self.leave(connection.client, got["sid"], got["epoch"], connection.will)
                if "no_doubt" not in self.without:
                    self.look_at([each.sid for each in self.sessions.values() if each.client == connection.client])
                return
            before = next((each for each in self.sessions.values() if each.client == connection.client), None)
            self.spread(got["hints"])
            if before is not None:
                if before.epoch > got["epoch"]:
                    self.world.close(connection)
                    return
                self.sessions.pop(before.sid)
                self.world.close(before.connection)
            session = Session(connection, got["sid"], got["epoch"])
            self.sessions[session.sid] = session
            self.restore(session, got["present"])

        args = (self.name, self.incarnation, connection.client, connection.clean, connection.expiry, connection.will)
        self.call(functions.claim, args, back)

    def restore(self, session: Session, present: bool) -> None:
        """Read what the session has, and answer its CONNECT. The read begins after the answer of the claim."""

        def back(got: Any, error: bool) -> None:
            if self.sessions.get(session.sid) is not session:
                return
            if error:
                self.retry.append(partial(self.restore, session, present))
                return
            if got["epoch"] != session.epoch:
                self.drop(session.sid, session.epoch)
                return
            session.restored = True
            session.received = set(got["received"])
            session.connection.down.append(("connack", present))
            for key, row, msg in sorted(got["flying"], key=lambda each: each[0][3]):
                tag = (key[2], key[3])
                self.take(session, key, {**row, "msg": msg})
                session.rows[tag]["state"] = "sent" if row["state"] == 1 else "released"
                session.out[row["pid"]] = tag
                again = ("publish", 2, row["pid"], msg, tag[0]) if row["state"] == 1 else ("pubrel", row["pid"])
                self.send(session, again)
            # What commits later is hinted to a node that has the session.
            if "no_claim_read" not in self.without:
                self.look_at([session.sid])
            if session.client in self.world.members:
                for gid in self.groups:
                    self.pull(gid)

        self.call(functions.content, (session.sid,), back)

    def leave(self, client: str, sid: int, epoch: int, will: Any) -> None:
        self.add(kind="release", sid=sid, epoch=epoch, fence=True)
        if will is not None and (client, epoch) not in self.wills:
            self.wills.add((client, epoch))
            self.add(kind="will", key=(client, epoch), msg=will, qos=1, retain=False)

    def gone(self, connection: Connection) -> None:
        """The client's connection is over."""
        connection.known_lost = True
        if connection in self.connections:
            self.connections.remove(connection)
        session = next((each for each in self.sessions.values() if each.connection is connection), None)
        if session is not None:
            self.sessions.pop(session.sid)
            self.leave(session.client, session.sid, session.epoch, connection.will)

    # -- share groups --------------------------------------------------------------------------------------------------

    def pull(self, gid: int) -> None:
        group = self.groups[gid]
        if group["flight"]:
            group["again"] = True
            return
        here = [each for each in self.sessions.values() if each.client in self.world.members and each.restored]
        members = [(each.sid, each.epoch, WINDOW - each.shared()) for each in here if each.shared() < WINDOW]
        group["more"] = bool(here)
        if not members or self.incarnation is None:
            return
        group["flight"] = True

        def back(got: Any, error: bool) -> None:
            group["flight"] = False
            if error:
                # What a lost answer took is read by the members.
                self.look_at([sid for sid, _, _ in members])
                self.retry.append(partial(self.pull, gid))
                return
            taken, group["more"], left, refused = got
            # A member that was refused is elsewhere: nothing else may tell it, if it is idle.
            self.look_at(taken if "refused_stay" in self.without else taken | refused)
            if left and not group["more"]:
                self.retry.append(partial(self.pull, gid))
            if group["again"]:
                group["again"] = False
                self.pull(gid)

        self.call(functions.pull, (gid, members), back)

    # -- now and then --------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        if self.incarnation is None:
            self.join()
            return
        self.add(kind="empty")
        self.call(functions.beat, (self.name, self.incarnation), self.beaten)
        self.call(functions.look, (), self.saw)
        others: Collection[str] = [name for name in self.world.nodes if name != self.name]
        if "no_down_read" not in self.without and any(self.world.link(self.name, name) == "down" for name in others):
            self.general()

    def beaten(self, got: Any, error: bool) -> None:
        if not error and not got:
            self.replaced()

    def saw(self, got: Any, error: bool) -> None:
        if error:
            return
        nodes, orphans, wills = got
        mine = nodes.get(self.name)
        own = self.incarnation
        if mine is not None and own is not None and (mine["incarnation"], not mine["alive"]) >= (own, True):
            self.replaced()
            return
        for name, row in nodes.items():
            over = row["incarnation"] - (1 if row["alive"] else 0)
            if name != self.name and self.deaths.get(name, 0) < over:
                self.deaths[name] = over
                if "no_death_read" not in self.without:
                    self.general()
        if orphans and not self.reaping and "no_reap" not in self.without:
            self.reaping = True
            self.add(kind="reap")
        for key, msg in wills:
            if key not in self.wills:
                self.wills.add(key)
                self.add(kind="will", key=key, msg=msg, qos=1, retain=False)

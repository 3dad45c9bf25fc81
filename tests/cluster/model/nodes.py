"""The nodes of the model: the shipped logic of a node between its clients, the database and the other nodes.

`Logic` is what ships, without the rules that are taken away. `Node` is what it calls, and `Holder` the broker's side of
a session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from canopy_mqtt.store.shared import node as shipped
from canopy_mqtt.store.shared.calls import (
    ACKNOWLEDGED,
    RELEASED,
    SENT,
    Ask,
    Change,
    ChangedFilter,
    Claimed,
    Completion,
    Content,
    DeliveryKey,
    DueWill,
    Empty,
    End,
    EndedWill,
    Foreign,
    Hello,
    Hint,
    Joined,
    Look,
    Member,
    NewWill,
    Noted,
    Owner,
    Page,
    Peer,
    Piece,
    Publish,
    Pulled,
    Reap,
    Release,
    Subscribe,
    Taken,
    Terms,
    Waiting,
    Written,
)
from canopy_mqtt.store.shared.node import Session, ShareGroup
from tests.cluster.model import functions
from tests.cluster.model.functions import MATCHES, Item, Vector, matches
from tests.cluster.model.network import Connection, Network

WINDOW: Final = 2
"""Messages that a client has unacknowledged at once."""
PAGE: Final = 4
"""Messages of a session that its node has in memory."""
SEEN: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Signs of life are looked at by nobody here."""
NAMES: Final = tuple(MATCHES)
"""The filters; their numbers are the places here."""


def publish(msg: Any, qos: int, owner: tuple[int | None, int | None], pid: int, *, retain: bool) -> Publish:
    """Note a message."""
    retained = not msg["clear"] if retain else None
    return Publish(*owner, pid, msg["topic"], payload_of(msg), qos, retain, None, msg["pub"], None, [], retained)


def payload_of(msg: Any) -> bytes:
    """Return a payload that is the message as a whole."""
    return json.dumps(msg).encode()


def will_publish(will: Owner, msg: Any) -> Publish:
    return publish(msg, 1, (None, None), 0, retain=False)._replace(will=will)


def item_of(what: Noted, without: frozenset[str]) -> Item:
    """Return a change as the functions of the model take it."""
    item: Item = {"fence": what.owner is not None}
    match what:
        case NewWill():
            item |= {"kind": "set", "msg": json.loads(what.payload), "delay": what.delay}
        case EndedWill():
            item |= {"kind": "ended", "delay": what.delay}
        case Publish(will=Owner() as will):
            item |= {"kind": "will", "msg": json.loads(what.payload), "qos": 1}
            item |= {"sid": will.session, "epoch": will.epoch}
            return {**item, "filters": {NAMES[number] for number in what.filters or ()}}
        case Publish():
            item |= {"kind": "pub", "msg": json.loads(what.payload), "qos": what.qos}
            item |= {"retain": what.retain, "pid": what.packet_id}
            item["fence"] &= what.retain or "no_pub_fence" not in without
            item["fence"] &= not (what.retain and "retained_unfenced" in without)
        case Completion():
            item |= {"kind": "complete", "pid": what.packet_id}
        case Subscribe():
            item |= {"kind": "unsub" if what.qos is None else "sub", "filter": what.filter, "qos": what.qos}
        case Change():
            kind = {SENT: "sent", RELEASED: "released", ACKNOWLEDGED: "done"}[what.state]
            item |= {"kind": kind, "row": (what.slot, what.session, what.source, what.id), "pid": what.packet_id}
        case End():
            return {"kind": "endfilter", "filter": what.filter}
        case Release():
            item["kind"] = "release"
        case _:
            return {"kind": {Reap: "reap", Empty: "empty", Look: "look"}[type(what)]}
    if isinstance(what, Publish):
        item["filters"] = {NAMES[number] for number in what.filters or ()}
    return {**item, "sid": what.session, "epoch": what.epoch}


def waiting_of(key: Any, row: Any, msg: Any) -> Waiting:
    slot, _, source, number = key
    return Waiting(
        slot, source, number, row["qos"], row["state"], row["pid"], False, None, msg["topic"], payload_of(msg), None,
        msg["pub"], None,
    )  # fmt: skip


class Registry:
    """The filters of all sessions."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def change(self, changed: ChangedFilter) -> None:
        (self.names.discard if changed.gone else self.names.add)(changed.name)

    def match(self, topic: str) -> Collection[int]:
        return {NAMES.index(each) for each in self.names if matches(each, topic)}


class Holder:
    """A connection of a client to a node, and what its session has in memory."""

    session: Session

    def __init__(self, node: Node, connection: Connection) -> None:
        self.node, self.connection = node, connection
        self.is_restored = False
        """And its will is not given away."""
        self.received: set[int] = set()
        self.pending: set[int] = set()
        """Packet identifiers of QoS 2 publishes in a group that is not committed."""
        self.rows: dict[tuple[int, int], Item] = {}
        """By (source, number): what is in memory."""
        self.out: dict[int, tuple[int, int]] = {}
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

    # -- as the logic of the node sees it ------------------------------------------------------------------------------

    @property
    def terms(self) -> Terms:
        return Terms(self.connection.clean, self.connection.expiry, "")

    @property
    def is_gone(self) -> bool:
        return self.connection.known_lost or not self.connection.open

    @property
    def room(self) -> int:
        return max(0, PAGE - self.plain())

    @property
    def share_room(self) -> int:
        return max(0, WINDOW - self.shared())

    def restored(self, session: Session, content: Content) -> None:
        self.session, self.is_restored = session, True
        self.received = set(content.received)
        self.connection.down.append(("connack", session.present))
        self.take(content.flying)
        for each in content.flying:
            tag = (each.source, each.id)
            self.rows[tag]["state"] = "sent" if each.state == SENT else "released"
            self.out[each.packet_id] = tag
            again = ("publish", 2, each.packet_id, json.loads(each.payload), each.source)
            self.send(again if each.state == SENT else ("pubrel", each.packet_id))

    def take(self, waiting: Sequence[Waiting]) -> int:
        for each in waiting:
            self.rows[(each.source, each.id)] = {
                "slot": each.slot,
                "msg": json.loads(each.payload),
                "qos": each.qos,
                "state": each.state,
                "pid": each.packet_id,
            }
        return len(waiting)

    def go_on(self) -> None:
        busy = sum(1 for row in self.rows.values() if row["state"] != 0)
        order = sorted(self.rows.items(), key=lambda item: (item[0][1], item[0][0]))
        for n, (tag, row) in enumerate(order):
            if busy >= WINDOW:
                break
            if row["state"] != 0:
                continue
            if row["qos"] == 2 and any(other["state"] == 0 for _, other in order[:n]):
                break
            busy += 1
            row["pid"] = self.pid()
            if row["qos"] == 1:
                row["state"] = "out"
                self.out[row["pid"]] = tag
                self.send(("publish", 1, row["pid"], row["msg"], tag[0]))
            else:
                row["state"] = "sending"
                self.change(tag, SENT, partial(self.sent, tag), row["pid"])
        if self.plain() < PAGE // 2:
            self.node.logic.wants(self.session)

    def will_of(self, owner: Owner) -> NewWill | None:
        will = self.connection.will
        if will is None:
            return None
        return NewWill(*owner, will["topic"], payload_of(will), 1, False, None, None, self.connection.delay)

    def end(self) -> None:
        self.lost()
        self.failed()

    def failed(self) -> None:
        self.node.world.close(self.connection)

    foreign = failed

    def lost(self, *, goodbye: bool = False) -> None:
        """The connection has ended: the will is published, or due after its delay, or not published."""
        if not self.is_restored or self.connection.will is None:
            return
        self.is_restored = False
        will, delay = self.session.owner, self.connection.delay
        number = self.connection.will["n"]
        if goodbye:
            self.node.logic.note(EndedWill(*will, None), lambda _: self.node.world.goodbyes.add(number))
        elif delay:
            self.node.logic.note(EndedWill(*will, delay))
        else:
            self.node.logic.note(will_publish(will, self.connection.will))

    # -- towards the client --------------------------------------------------------------------------------------------

    def send(self, packet: Any) -> None:
        if self.connection.open:
            self.connection.down.append(packet)

    def change(
        self, tag: tuple[int, int], state: int, then: Callable[[Written], None] | None = None, pid: int = 0
    ) -> None:
        epoch = self.session.epoch if state != ACKNOWLEDGED else None
        self.node.logic.note(Change(self.session.id, epoch, *tag, self.rows[tag]["slot"], state, pid), then)

    def sent(self, tag: tuple[int, int], written: Written) -> None:
        if self.node.logic.sessions.get(self.session.id) is not self.session or tag not in self.rows:
            return
        row = self.rows[tag]
        if DeliveryKey(self.session.id, *tag) in written.failed:
            del self.rows[tag]
            self.go_on()
            return
        row["state"] = "sent"
        self.out[row["pid"]] = tag
        self.send(("publish", 2, row["pid"], row["msg"], tag[0]))

    def packet(self, packet: Any) -> None:
        kind = packet[0]
        session, logic = self.session, self.node.logic

        def answer(what: Any) -> Callable[[Written], None]:
            def then(written: Written) -> None:
                del written
                self.send(what)

            return then

        if kind == "publish":
            self.publish(*packet[1:])
        elif kind == "pubrel":
            pid = packet[1]
            self.received.discard(pid)
            logic.note(Completion(*session.owner, pid), answer(("pubcomp", pid)))
        elif kind in ("puback", "pubrec", "pubcomp"):
            self.acked(kind, packet[1])
        elif kind == "subscribe":
            logic.note(Subscribe(*session.owner, packet[1], packet[2]), answer(("suback", packet[1])))
        elif kind == "unsubscribe":
            logic.note(Subscribe(*session.owner, packet[1], None), answer(("unsuback", packet[1])))

    def publish(self, qos: int, pid: int, msg: Any, retain: bool) -> None:
        answer = ("puback" if qos == 1 else "pubrec", pid)
        if qos == 2:
            if pid in self.received:
                if pid not in self.pending:
                    self.connection.down.append(answer)
                return
            self.received.add(pid)
            self.pending.add(pid)

        def then(written: Written | None) -> None:
            del written
            self.pending.discard(pid)
            self.send(answer)

        logic = self.node.logic
        if "no_look" in self.node.without and not logic.filters.match(msg["topic"]) and not retain and qos == 1:
            then(None)
            return
        logic.note(publish(msg, qos, self.session.owner, pid, retain=retain), then)

    def acked(self, kind: str, pid: int) -> None:
        tag = self.out.get(pid)
        row = None if tag is None else self.rows.get(tag)
        if tag is None or row is None:
            return
        if kind == "pubrec":
            if row["state"] == "sent":
                row["state"] = "releasing"

                def then(written: Written) -> None:
                    del written
                    row["state"] = "released"
                    self.send(("pubrel", pid))

                self.change(tag, RELEASED, then)
            elif row["state"] == "released":
                self.send(("pubrel", pid))
            return
        self.change(tag, ACKNOWLEDGED)
        del self.out[pid]
        del self.rows[tag]
        self.go_on()
        self.node.logic.has_room(self.session)


class Logic(shipped.Node):
    """The shipped logic, with the parts that do not ship, and without the rules that are taken away."""

    def __init__(self, node: Node) -> None:
        self.node, self.without = node, node.without
        super().__init__(node, Registry)

    def _clear(self) -> None:
        super()._clear()
        self.keyed: dict[int, set[int]] = {}

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _feed(self, then: Callable[[], None] | None = None) -> None:
        if "feeds_at_once" in self.without:
            self._filter_feed._out = False
        super()._feed(then)

    def _read_retained(self, then: Callable[[], None] | None = None) -> None:
        if "retained_at_once" in self.without:
            self._retained_feed._out = False
        super()._read_retained(then)
        if then is not None and "look_unread" in self.without:
            then()

    def _doubt(self) -> None:
        if "no_general" not in self.without:
            super()._doubt()

    def receive(self, piece: Piece) -> None:
        if not (isinstance(piece, Hello) and "no_hello_read" in self.without):
            super().receive(piece)

    def _look_for(self, client_id: str) -> None:
        if "no_doubt" not in self.without:
            super()._look_for(client_id)

    def _seen_up_to(self, session: Session, page: Page) -> int:
        if "cursor_any" in self.without:
            return max((each.id for each in page.waiting if not each.source), default=0)
        return super()._seen_up_to(session, page)

    def _saw(self, session: Session, page: Page) -> None:
        if "no_again" in self.without:
            self.unread.pop(session.id, None)
        if (only := self.keyed.pop(session.id, None)) is not None:
            page = page._replace(waiting=[each for each in page.waiting if each.id in only])
        super()._saw(session, page)

    def _hinted(self, hints: Sequence[DeliveryKey]) -> None:
        for hint in hints:
            session = self.sessions.get(hint.session)
            if "read_by_key" in self.without and session and session.is_restored and not session.reading:
                self.keyed.setdefault(session.id, set()).add(hint.id)
        super()._hinted(hints)

    def _restored(self, session: Session) -> None:
        if "no_claim_read" not in self.without:
            super()._restored(session)

    def _pulled(self, group: ShareGroup, pulled: Pulled) -> None:
        super()._pulled(group, pulled._replace(refused=frozenset()) if "refused_stay" in self.without else pulled)


class Node:
    """One broker: what the logic calls, in the model."""

    def __init__(self, world: Network, name: str) -> None:
        self.world, self.name = world, name
        self.number = int(name[1:])
        self.without = world.without
        self.life = 0
        self.state = "down"  # run, stop, down
        self.reaches_db = True
        self.clear()

    def clear(self) -> None:
        """Forget everything: the process ends."""
        self._forget()
        self.asked = 0, 0
        """The incarnation and the number of the group that was asked for last."""
        self.logic = Logic(self)
        self.connections: list[Connection] = []

    def _forget(self) -> None:
        self.life += 1
        self.inbox: list[tuple[Callable[[Any, bool], None], Any, bool]] = []
        self.retry: list[Callable[[], None]] = []
        self.unclaimed: list[tuple[str, Holder, Callable[[Claimed | Foreign | None], None]]] = []
        """CONNECTs whose claims have not begun."""
        self.grp = 0
        self.vectors: tuple[Vector, Vector] = ({}, {})
        self.copy: dict[str, Any] = {}
        """The retained messages, and the topics that were cleared."""

    @property
    def incarnation(self) -> int | None:
        return None if self.logic.joined is None else self.logic.joined.incarnation

    # -- what the logic calls ------------------------------------------------------------------------------------------

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

    def join(self, back: Callable[[Joined | None], None]) -> None:
        def joined(got: Any, error: bool) -> None:
            if error:
                back(None)
                return
            incarnation, self.grp, outcome = got
            failed = None if outcome is None else frozenset(DeliveryKey(*each) for each in outcome[1])
            back(Joined(self.number, incarnation, failed))

        self.call(functions.join, (self.name, *self.asked), joined)

    def feed(self, back: Callable[[Sequence[ChangedFilter] | None], None]) -> None:
        def fed(got: Any, error: bool) -> None:
            if error:
                back(None)
                return
            rows, vector = got
            self.vectors = (vector, self.vectors[1])
            back([ChangedFilter(NAMES.index(name), name, row["gone"], row["share"]) for name, row in rows])

        self.call(functions.feed, (self.vectors[0],), fed)

    def retained(self, back: Callable[[Sequence[object] | None], None]) -> None:
        def fed(got: Any, error: bool) -> None:
            if error:
                back(None)
                return
            rows, vector = got
            self.vectors = (self.vectors[0], vector)
            self.copy |= {topic: row["msg"] for topic, row in rows}
            back(())

        self.call(functions.feed_retained, (self.vectors[1],), fed)

    def write(self, noted: Sequence[Noted], back: Callable[[Written], None]) -> None:
        items = [item_of(each, self.without) for each in noted]
        # As far as the filters were known that the messages were matched with, also when it is asked again.
        known = self.vectors[0]

        def submit() -> None:
            self.asked = self.incarnation or 0, self.grp + 1
            vector = self.vectors[0] if "vector_now" in self.without else known
            args = (self.name, self.incarnation, self.grp + 1, items, (vector, self.vectors[1]))
            self.call(functions.write, args, written)

        def written(out: Any, error: bool) -> None:
            if error:
                self.retry.append(submit)
                return
            if out is None:
                self.logic.over()
                return
            result = out["result"]
            if result != "rematch":
                self.grp += 1
            hints = [Hint(*each) for each in out["hints"]]
            lost = frozenset(Owner(*each) for each in out["lost"])
            failed = frozenset(DeliveryKey(*each) for each in out["failed"])
            again, news = result == "again", out.get("news", False)
            retained = out.get("retained", "retained" in self.world.parts)
            back(Written(again, result == "rematch", news, retained, lost, failed, hints))

        submit()

    def wrote(self, noted: Sequence[Noted], written: Written) -> Iterable[Callable[[], None]]:
        """Nobody waits for whole groups here."""
        del noted, written
        return ()

    def refused(self, what: Noted, why: str) -> None:
        """The database takes everything."""

    def claim(self, client_id: str, client: shipped.Client, back: Callable[[Claimed | Foreign | None], None]) -> None:
        assert isinstance(client, Holder)
        self.unclaimed.append((client_id, client, back))

    def claims(self) -> None:
        """Claim for one CONNECT, or for all together that wait: the first one of each client."""
        if self.world.rng.random() < 0.5:
            self.claim_alone(*self.unclaimed.pop(0))
            return
        waiting, self.unclaimed = self.unclaimed, []
        first = {client_id: client for client_id, client, _ in reversed(waiting)}
        asked = [(name, client.terms.expiry) for name, client in first.items() if not client.terms.clean]

        def claimed(got: Any, error: bool) -> None:
            if not error and None in got.values():
                self.logic.over()
                return
            for client_id, client, back in waiting:
                if first[client_id] is client and (error or client_id in got):
                    self.claimed(back, None if error else got[client_id], error)
                else:
                    self.claim_alone(client_id, client, back)

        if asked:
            self.call(functions.claim_free, (self.name, self.incarnation, asked), claimed)
        else:
            claimed({}, error=False)

    def claim_alone(self, client_id: str, client: Holder, back: Callable[[Claimed | Foreign | None], None]) -> None:
        clean, expiry, *_ = client.terms
        args = (self.name, self.incarnation, client_id, clean, expiry)
        self.call(functions.claim, args, partial(self.claimed, back))

    def claimed(self, back: Callable[[Claimed | Foreign | None], None], got: Any, error: bool) -> None:
        if error:
            back(None)
        elif got is None:
            self.logic.over()
        else:
            hints = [Hint(sid, 1, number) for sid, number in got["hints"]]
            back(Claimed(got["sid"], got["epoch"], got["present"], hints))

    def content(self, session: int, back: Callable[[Content | None], None]) -> None:
        def read(answer: Any, error: bool) -> None:
            if error:
                back(None)
                return
            got = answer[session]
            flying = [waiting_of(*each) for each in sorted(got["flying"], key=lambda each: each[0][3])]
            subscriptions = [Subscribe(session, None, name, qos) for name, qos in got["subscriptions"].items()]
            back(Content(got["epoch"], subscriptions, sorted(got["received"]), flying))

        self.call(functions.content, ([session],), read)

    def read(
        self, asks: Sequence[Ask], known: Sequence[DeliveryKey], back: Callable[[Sequence[Page] | None], None]
    ) -> None:
        def told(got: Any, error: bool) -> None:
            if error:
                back(None)
                return
            found, owned, final = got
            pages = []
            for ask in asks:
                rows, more = found[ask.session]
                waiting = [waiting_of(key, row, row["msg"]) for _, key, row in rows]
                pages.append(Page(ask.session, owned.get(ask.session), final, more, waiting))
            back(pages)

        keys: dict[int, set[tuple[int, int]]] = {ask.session: set() for ask in asks}
        for key in known:
            keys[key.session].add((key.source, key.id))
        args = {ask.session: (ask.low, frozenset(keys[ask.session]), ask.room) for ask in asks}
        self.call(functions.read, (args,), told)

    def pull(self, share_filter: int, members: Sequence[Member], back: Callable[[Pulled | None], None]) -> None:
        def pulled(got: Any, error: bool) -> None:
            if error:
                back(None)
                return
            taken, full, left, refused = got
            back(Pulled(frozenset(taken), full, left, frozenset(refused)))

        args = (self.name, self.incarnation, NAMES[share_filter], [tuple(each) for each in members])
        self.call(functions.pull, args, pulled)

    def wills(self, back: Callable[[Sequence[DueWill] | None], None]) -> None:
        def read(got: Any, error: bool) -> None:
            terms = 1, False, None, None
            wills = [
                DueWill(sid, epoch, msg["pub"], "", msg["topic"], payload_of(msg), *terms)
                for (sid, epoch), msg in got or ()
            ]
            back(None if error else wills)

        self.call(functions.due_wills, (self.name, self.incarnation), read)

    def publish_will(self, will: DueWill) -> None:
        self.logic.note(will_publish(will.will, json.loads(will.payload)))

    def due(self) -> None:
        """The world closes groups when it likes."""

    def read_due(self) -> None:
        """It reads when it likes."""

    def later(self, call: Callable[[], None]) -> None:
        self.retry.append(call)

    def tell(self, piece: Piece) -> None:
        if isinstance(piece, Taken) and "no_taken" in self.without:
            return
        for name in self.world.nodes:
            if name != self.name and self.world.link(self.name, name) in ("up", "cut"):
                self.world.links[(self.name, name)].append(piece)

    def over(self) -> Iterable[Callable[[], None]]:
        for connection in [each for each in self.connections if each.lasts]:
            self.world.close(connection)
        self._forget()
        return ()

    def carry(self, notes: Sequence[shipped.Note]) -> Iterable[shipped.Note]:
        # Of wills the database decides, whoever says that they have ended.
        for what, then in notes:
            if isinstance(what, NewWill):
                yield shipped.Note(EndedWill(*what.owner, None), None)
            elif isinstance(what, EndedWill) or (isinstance(what, Publish) and what.session is None):
                yield shipped.Note(what, then)

    # -- what happens to the node --------------------------------------------------------------------------------------

    def close_group(self) -> None:
        rng, waiting = self.world.rng, len(self.logic.notes)
        self.logic.close_group(waiting if rng.random() < 0.7 else rng.randint(1, waiting))

    def packet(self, connection: Connection, packet: Any) -> None:
        if not connection.lasts:
            self.packet_of_clean(connection, packet)
            return
        if packet[0] == "connect":
            if self.incarnation is None:
                self.world.close(connection)
            else:
                self.logic.claim(connection.client, Holder(self, connection))
            return
        session = self.session_of(connection)
        if packet[0] == "goodbye":
            self.gone(connection, goodbye=True)
        elif session is not None and session.is_restored:
            assert isinstance(session.client, Holder)
            session.client.packet(packet)

    def packet_of_clean(self, connection: Connection, packet: Any) -> None:
        """Serve a publisher whose session ends with its connection."""

        def answer(*what: Any) -> None:
            if connection in self.connections and connection.open:
                connection.down.append(what)

        kind = packet[0]
        if kind == "connect":
            answer("connack", False)
        elif kind == "publish":
            _, qos, pid, msg, _ = packet
            then = ("puback" if qos == 1 else "pubrec", pid)
            self.logic.note(publish(msg, qos, (None, None), 0, retain=False), lambda _: answer(*then))
        elif kind == "pubrel":
            answer("pubcomp", packet[1])

    def session_of(self, connection: Connection) -> Session | None:
        """The session of a connection that counts."""
        for each in self.logic.sessions.values():
            assert isinstance(each.client, Holder)
            if each.client.connection is connection:
                return each
        return None

    def gone(self, connection: Connection, *, goodbye: bool = False) -> None:
        """The client's connection is over."""
        connection.known_lost = True
        if connection in self.connections:
            self.connections.remove(connection)
        session = self.session_of(connection)
        if session is not None:
            assert isinstance(session.client, Holder)
            session.client.lost(goodbye=goodbye)
            self.logic.leave(session)

    def poll(self) -> None:
        if self.incarnation is not None:
            self.call(functions.beat, (self.name, self.incarnation), self.beaten)
            self.call(functions.look, (), self.saw)
        others: Iterable[str] = [name for name in self.world.nodes if name != self.name]
        down = any(self.world.link(self.name, name) == "down" for name in others)
        self.logic.second(linked=not down or "no_down_read" in self.without)

    def beaten(self, got: Any, error: bool) -> None:
        if not error and not got:
            self.logic.over()

    def saw(self, got: Any, error: bool) -> None:
        if error:
            return
        nodes, orphans, wills = got
        orphans = orphans and "no_reap" not in self.without
        peers = [
            Peer(int(name[1:]), name, row["incarnation"], row["alive"], SEEN, orphans, name in wills)
            for name, row in nodes.items()
            if name == self.name or "no_death_read" not in self.without
        ]
        self.logic.saw(peers)

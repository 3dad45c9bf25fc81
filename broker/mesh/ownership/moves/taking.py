"""Sessions that come to this node from others.

Owns each until all of it is kept here. When all has arrived here that had been published before, the subscriptions
stand here; when all nodes know that, the rest comes of what went to the old node meanwhile, and what came here too is
left out of it. A session that is here already stays as it is, and takes in the other: the subscriptions that it has
not, and what waits, behind its own (`merging`).

Promises: what has come is in the session when its node leaves, and is never told twice to be kept. The same if somebody
else waits for the session, and the node has said nothing of it for too long (`silence`): what comes later is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from broker.core.connection.connect.handshake import RESERVED
from broker.core.persistence.commits import Waiter
from broker.core.persistence.journal import DeliveryRecord, SessionRecord
from broker.core.persistence.moving import delivery_record
from broker.core.persistence.restore import admit, append, subscribe
from broker.core.routing.remote.loop_detection import FROM_NODE, NODES
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.bus import ProtocolFault
from broker.mesh.ownership.barriers import Barrier
from broker.mesh.ownership.claims import Claim, Claims
from broker.mesh.ownership.gates import LATE, Gate, Gates, drop_waiting, move_name
from broker.mesh.ownership.messages import Abort, Message, Missed, Part, Ready, Taken, Took, Without
from broker.mesh.ownership.moves.merging import is_of, waiting_again
from broker.mesh.ownership.moves.records import SessionReader
from broker.mesh.ownership.moves.silence import Move, Silence
from broker.store.groups.principals import Principals


class Coming(Move):
    """One session that comes from a node."""

    def __init__(self, node: str, client_id: str, time: int, principals: Principals, claim: Claim, late: bool) -> None:
        super().__init__(client_id)
        self.node = node
        self.time = time
        self.claim = claim
        self.late = late
        self.reader = SessionReader(principals)
        self.record: SessionRecord | None = None
        # What had been published before it was given has arrived here, but perhaps from these nodes.
        self.arrived = False
        self.unsure: set[str] = set()
        # The session here was made of it; else it was here before.
        self.fresh: Session | None = None
        # Its subscriptions stand here, and the rest may come.
        self.placed = False
        self.rest: list[DeliveryRecord] = []
        # The nodes that did not take part, and what it is shut to them with; None: as if all had. `without`: those that
        # the old node was told of.
        self.missed: list[Missed] = []
        self.without: set[str] = set()
        self.gate: Gate | None = None
        # Its messages are in the session here.
        self.complete = False


class _Kept(Waiter):
    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self._told = told

    def committed(self, number: int) -> int:
        del number
        self._told()
        return 1


class Taker:
    """The sessions that come."""

    def __init__(
        self,
        router: Router,
        principals: Principals,
        claims: Claims,
        gates: Gates,
        send: Callable[[str, Message], None],
        giving: Callable[[str], bool],
        settle: Callable[[Callable[[set[str]], None]], None],
        barrier: Barrier,
        compare: Callable[[list[str]], None],
        wanted: Callable[[Coming], bool],
        now: Callable[[], float],
        log: Any,
        silence: float,
    ) -> None:
        """`giving`: whether a session is on its way to another node. `settle`: calls when all nodes know what this
        one's clients have subscribed to, with those that may not. `barrier`: calls when all has arrived that the nodes
        had published for this. `compare`: has all nodes say whether they have a session of a client, too. `wanted`:
        whether somebody waits for a session; no more of it is taken then when the other node has said nothing for
        `silence` seconds."""
        self.coming: dict[tuple[str, str], Coming] = {}
        # Those that this node has given up, and of which parts may be on their way: when they were claimed.
        self.given_up: dict[tuple[str, str], int] = {}
        self.silence = Silence(silence, now, wanted, self._give_up)
        self.moved = 0
        """Sessions that have come from other nodes."""
        self.merged = 0
        """Those of them that came into one that was here."""
        self.dropped = 0
        """Messages that came with them and are lost: no room, or none that may be sent again."""
        self._router = router
        self._principals = principals
        self._claims = claims
        self._gates = gates
        self._send = send
        self._giving = giving
        self._settle = settle
        self._barrier = barrier
        self._compare = compare
        self._now = now
        self._log = log

    def part(self, node: str, part: Part) -> None:
        """A part has come. Raises ProtocolFault."""
        key = (node, part.client_id)
        if self.given_up.get(key) == part.time:
            self._send(node, Took(len(part.data)))
            return
        coming = self.coming.get(key)
        if not part.rest and (coming is None or coming.time != part.time):
            if coming is not None:
                self._end(coming)
            self.given_up.pop(key, None)
            claim, late = self._claims.move_begins(part.client_id, node, part.time)
            coming = self.coming[key] = Coming(node, part.client_id, part.time, self._principals, claim, late)
        if coming is None or coming.time != part.time or coming.placed is not part.rest:
            raise ProtocolFault("a part of a session that nobody expects")
        record = coming.reader.add(part.data)
        self._send(node, Took(len(part.data)))
        self._goes_on(coming)
        if record is None:
            return
        if record.client_id != part.client_id or record.client_id.startswith(RESERVED):
            raise ProtocolFault("a session under a name that it has not")
        if part.rest:
            # What came to the old node came here too, or does so before this is passed.
            coming.rest += record.deliveries
            coming.reader = SessionReader(self._principals)
            missed = {each.node for each in coming.missed}
            self._barrier(lambda unsure: self._rest_came(coming, unsure - missed), missed, numbers=True)
        else:
            coming.record = record
            # What its client has had of QoS 2 is not to come again to this node, where nobody may have wanted it: not
            # before its subscriptions stand here, nor, of what was published until its rest is there, after that.
            self._barrier(lambda unsure: self._came(coming, unsure), numbers=True)

    def without(self, node: str, without: Without) -> None:
        """What has not come to the old node of a session either. Raises ProtocolFault."""
        if self.given_up.get((node, without.client_id)) == without.time:
            return
        coming = self.coming.get((node, without.client_id))
        if coming is None or coming.time != without.time or not coming.placed or coming.complete:
            raise ProtocolFault("what is missing of a session that nobody expects")
        coming.missed = without.missed

    # -- its subscriptions ---------------------------------------------------------------------------------------------

    def _came(self, coming: Coming, unsure: set[str]) -> None:
        """What nodes had published before is in the session, or its client has had it, and it has come here before the
        subscriptions stand: on its way here it may have been slower than to the old node, and than the session."""
        if self.coming.get((coming.node, coming.client_id)) is coming:
            coming.arrived = True
            coming.unsure = unsure
            self._goes_on(coming)
            self._place(coming)

    def _goes_on(self, coming: Coming) -> None:
        self.silence.broken(coming)
        self._claims.move_goes_on(coming.claim)

    def _place(self, coming: Coming) -> None:
        record = coming.record
        if record is None or not coming.arrived or coming.placed or self._giving(coming.client_id):
            return  # `given` comes back to it
        coming.placed = True
        coming.reader = SessionReader(self._principals)
        router, now = self._router, self._now()
        name = move_name(coming.client_id, coming.time)
        session = router.sessions.get(coming.client_id)
        if session is not None and session.outbox is None:
            router.look_at(session, now)
            session = router.sessions.get(coming.client_id)
        if session is None:
            if record.expiry_interval > 0:
                deliveries, record.deliveries = record.deliveries, []
                coming.fresh = admit(router, record, now)
                # What comes meanwhile stays behind what comes along, and is compared with that.
                coming.fresh.queue.pages = None
                record.deliveries = deliveries
                coming.gate = self._gates.begin(name, coming.node, [coming.fresh])
        elif is_of(router, session, record, now):
            self.merged += 1
            subscribe(router, session, record.subscriptions)
            coming.gate = self._gates.begin(name, coming.node, [session], merges=True)
        self._settle(lambda unsure: self._settled(coming, unsure))

    def _settled(self, coming: Coming, unsure: set[str]) -> None:
        if self.coming.get((coming.node, coming.client_id)) is coming:
            self.silence.broken(coming)
            self._ready(coming, unsure | coming.unsure)

    def _ready(self, coming: Coming, without: set[str]) -> None:
        coming.without |= without
        self._send(coming.node, Ready(coming.client_id, coming.time, sorted(without)))

    def given(self, client_id: str) -> None:
        """A session goes to another node no more: one that came meanwhile has its place."""
        for coming in list(self.coming.values()):
            if coming.client_id == client_id:
                self._place(coming)

    # -- its messages --------------------------------------------------------------------------------------------------

    def _rest_came(self, coming: Coming, unsure: set[str]) -> None:
        """Nodes that this one has lost just now may have sent to the old node what is still to come here: they did not
        take part after all."""
        if self.coming.get((coming.node, coming.client_id)) is not coming or coming.complete:
            return
        lost = unsure - coming.without - {coming.node}
        shuts = coming.gate is not None and bool(coming.gate.filters) and self._untouched(coming)
        if lost and shuts and self._gates.speaks(coming.node):
            self._goes_on(coming)
            self._ready(coming, lost)
        else:
            self._complete(coming, True)

    def _untouched(self, coming: Coming) -> bool:
        """Whether the session here was made of it, and its client has not been here yet."""
        session = self._router.sessions.get(coming.client_id)
        return session is not None and session is coming.fresh and session.outbox is None and not session.inflight

    def _complete(self, coming: Coming, tells: bool) -> None:
        """All has come: put its messages into the session. `tells`: the node hears when they are kept."""
        record, rest = coming.record, coming.rest
        if record is None or coming.complete:
            return
        coming.complete = True
        self.silence.forget(coming)
        _may_page(coming)
        router, now = self._router, self._now()
        session = router.sessions.get(coming.client_id)
        dropped = self.dropped
        gate, coming.gate = coming.gate, None
        if gate is not None:
            shut = self._gates.shut(gate, coming.missed)
            if shut and session is coming.fresh and session is not None:
                drop_waiting(session, shut)
        if session is not None:
            if self._untouched(coming):
                came = session.queue.take_all()
                session.offered -= len(came)
                here = [delivery_record(delivery, {}, now) for delivery in came]
                deliveries = [*record.deliveries, *_together(rest, coming.node, here, self._claims.node)]
            elif is_of(router, session, record, now):
                deliveries, lost = waiting_again(session, [*record.deliveries, *rest])
                self.dropped += lost
            else:
                deliveries = []
                self.dropped += len(record.deliveries) + len(rest)
            self.dropped += append(router, session, deliveries, now)
        coming.record, coming.rest = None, []  # the session has it
        if gate is not None:
            self._gates.ask(gate)
        self.moved += 1
        self._log.debug("session moved here", client_id=coming.client_id, node=coming.node)
        if self.dropped > dropped:
            messages = self.dropped - dropped
            self._log.warning(
                "messages of a moved session lost", client_id=coming.client_id, node=coming.node, messages=messages
            )
        if coming.late or coming.claim.beaten:
            self._compare([coming.client_id])
        self._claims.moved(coming.claim, coming.node)
        if tells:
            self._when_kept(coming)
        else:
            self._end(coming)

    def _when_kept(self, coming: Coming) -> None:
        def kept() -> None:
            if self.coming.get((coming.node, coming.client_id)) is coming:
                self._send(coming.node, Taken(coming.client_id, coming.time))
                self._end(coming)

        commits = self._router.commits
        if commits is not None and commits.pending():
            commits.wait(_Kept(kept))
        else:
            kept()

    def left(self, node: str) -> None:
        """A node is gone: what has come of its sessions is what there is."""
        for key in [key for key in self.given_up if key[0] == node]:
            del self.given_up[key]
        for coming in [each for each in self.coming.values() if each.node == node]:
            self._no_more(coming)

    def aborted(self, node: str, abort: Abort) -> None:
        """A node gives no more of a session: what has come is what there is."""
        key = (node, abort.client_id)
        if self.given_up.get(key) == abort.time:
            del self.given_up[key]
        coming = self.coming.get(key)
        if coming is not None and coming.time == abort.time:
            self._no_more(coming)

    def hurry(self, client_id: str) -> None:
        """Somebody waits for a session that comes."""
        for coming in [each for each in self.coming.values() if each.client_id == client_id]:
            if not coming.complete:
                self.silence.hurry(coming)

    def _give_up(self, coming: Coming) -> None:
        self.given_up[coming.node, coming.client_id] = coming.time
        self._send(coming.node, Abort(coming.client_id, coming.time, False))
        self._no_more(coming)

    def _no_more(self, coming: Coming) -> None:
        if coming.placed and not coming.complete:
            self._complete(coming, False)
        else:
            self._end(coming)

    def _end(self, coming: Coming) -> None:
        self.silence.forget(coming)
        _may_page(coming)
        if coming.gate is not None:
            self._gates.shut(coming.gate, ())
            coming.gate = None
        if self.coming.pop((coming.node, coming.client_id), None) is not None:
            self._claims.move_ends(coming.claim, coming.node)


def _may_page(coming: Coming) -> None:
    """From now on messages for its session may wait on disk alone."""
    session = coming.fresh
    if session is not None and session.journal is not None:
        session.queue.pages = session.journal.pages


def _together(
    rest: Sequence[DeliveryRecord], old: str, here: Sequence[DeliveryRecord], new: str
) -> list[DeliveryRecord]:
    """What came to the old node, in the order in which it came there, and behind it what came here alone.

    Nodes hear of this one at different times: what came to both may have been published before what came to the old one
    alone. Of equal messages the last of the old node and the first ones here are the same.
    """
    both = Counter(_key(kept, old, new) for kept in rest) & Counter(_key(kept, new, new) for kept in here)
    same: dict[tuple[object, ...], list[DeliveryRecord]] = {key: [] for key in both}
    alone: list[DeliveryRecord] = []
    for kept in here:
        key = _key(kept, new, new)
        twice = key in same and len(same[key]) < both[key]
        (same[key] if twice else alone).append(kept)
    found: list[DeliveryRecord] = []
    for kept in reversed(rest):
        left = same.get(_key(kept, old, new))
        found.append(left.pop() if left else kept)
    found.reverse()
    return found + alone


def _key(kept: DeliveryRecord, node: str, new: str) -> tuple[object, ...]:
    """What is the same of a message that came to two nodes; `node`: the one that has this record of it.

    A node has the publisher's name if that is connected there, and otherwise the name of the publisher's node. What the
    new node has handed over to the old one came to it itself, too, if it was published since the session is there.
    """
    message = kept.message
    assert message is not None
    publisher = message.publisher
    origin = publisher if publisher.startswith(NODES) else FROM_NODE + node
    if publisher == LATE + new:
        origin = FROM_NODE + new
    return (origin, message.topic, message.payload, message.properties, kept.qos, kept.identifiers)

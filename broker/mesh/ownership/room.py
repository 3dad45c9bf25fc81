"""The room of the mesh in which a client identifier has one session: claims, and sessions that come and go.

Owns what is said to each node in a turn. Nodes that could not talk to each other, or not in time, may both have had
clients of one identifier: their sessions are compared (`comparing`). The later claim keeps the session, and what is at
the other node comes into it (`taking`); it ends there instead if the later one began with a clean start, or is another
user's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from math import inf
from typing import Any, Final

from broker.core.hooks import Owner, OwnerClaim
from broker.core.routing.in_turns.broadcasts import Broadcast
from broker.core.routing.remote.loop_detection import FROM_NODE
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.bus import OWNERSHIP, Bus, Room
from broker.mesh.ownership.adopting import Adopter
from broker.mesh.ownership.barriers import Barriers
from broker.mesh.ownership.claims import ClaimHost, Claims
from broker.mesh.ownership.comparing import Comparing, counts
from broker.mesh.ownership.gates import LATE, Gates, filters_of, move_name
from broker.mesh.ownership.messages import (
    MOST,
    NONE,
    Abort,
    Answer,
    Ask,
    Comes,
    Compared,
    Flush,
    Flushed,
    Held,
    Hello,
    Knows,
    Late,
    Message,
    Missed,
    Noted,
    Offer,
    Part,
    Ready,
    Source,
    Taken,
    Took,
    Without,
    decode,
    encode,
)
from broker.mesh.ownership.moves.giving import Giver, Giving
from broker.mesh.ownership.moves.leaving import Leaving
from broker.mesh.ownership.moves.taking import Taker
from broker.mesh.ownership.shell import Shell
from broker.store.adoptions import Estate
from broker.store.groups.principals import Principals

MOST_READ: Final = 268_435_456
"""Bytes of messages that are read from disk to go along with one session, if nothing else is said."""

MOST_MISSED: Final = 8_388_608
"""Bytes of topic filters of sessions that have moved without some node, if nothing else is said."""

SILENCE: Final = 2
"""Times `timeout` for which a node may say nothing of a session that moves and that somebody waits for: until all nodes
know where the subscriptions stand, and the messages of all have arrived, takes one and a half."""

HELD_UP: Final = 0.5
"""Seconds by which `tick` is late where this node has stood still, and seconds for what came meanwhile to be heard."""


class Ownership(Room, Owner):
    """The room, and what the router asks for each CONNECT.

    The broker attaches it to the bus (`OWNERSHIP`) and to `Router.owner`, and calls `tick` when `due` has come.
    """

    def __init__(
        self,
        router: Router,
        bus: Bus,
        shell: Shell,
        log: Any,
        timeout: float,
        principals: Principals | None = None,
        most_read: int = MOST_READ,
        largest: int = MOST_READ,
        expiry: float = inf,
        most_missed: int = MOST_MISSED,
    ) -> None:
        """`timeout`: seconds that a node is waited for (`mesh.confirm_timeout`). `most_read`: see `MOST_READ`.
        `largest`: bytes of a message of a session that goes to another node (a quarter of `mesh.queue_bytes`).
        `expiry`: seconds that a node that is gone may come back (`mesh.node_expiry`). `most_missed`: see `Gates`."""
        known = Principals() if principals is None else principals
        # What is still to be said to each node in this turn.
        self._to_say: dict[str, list[Message]] = {}
        # The nodes that are there: how many sessions they were told to be here.
        self._told: dict[str, int] = {}
        # The last number of a publish that was given when they were told those that may come again.
        self._numbered: dict[str, int] = {}
        self._router = router
        self._bus = bus
        self._shell = shell
        self._claim_host = _ClaimHost(self)
        self.claims = Claims(bus.node, self._claim_host, shell.wall, timeout)
        # Two of them have to fit into the time that a claim has: the last one waits for no node that the first missed.
        self.barriers = Barriers(self.say, shell.now, timeout / 2)
        self.gates = Gates(
            bus.node, router, self._tell_late, self._told.__contains__, bus.version, shell.now, expiry, most_missed, log
        )
        router.publisher.late = self.gates
        self.comparing = Comparing(bus.node, router, self.claims, self._told, self.say)
        self.giver = Giver(
            bus.node,
            router,
            known,
            self.say,
            self._given,
            self._awaits_giving,
            self._stays,
            self.barrier,
            lambda giving: self.gates.going(giving.session, giving.node),
            self._parting,
            self._comes,
            shell.now,
            log,
            most_read,
            largest,
            timeout,
            SILENCE * timeout,
        )
        self.taker = Taker(
            router,
            known,
            self.claims,
            self.gates,
            self.say,
            self._claim_host.giving,
            shell.settle,
            self.barrier,
            self.comparing.name,
            lambda coming: self.gates.speaks(coming.node) and self.claims.waited_for(coming.client_id),
            shell.now,
            log,
            SILENCE * timeout,
        )
        self.claimed: Callable[[str, str | None, bool], None] | None = None
        """Who is told of each client that has come to a node, here and before others hear that it may have its session:
        its identifier, its user, and whether its session begins anew."""
        self.adopter = Adopter(router, self._claim_host.giving, self.comparing.name, shell.now, log)
        self.adopter.came = self._adopted
        self.leaving: Leaving | None = None
        """This node is about to go: what it offers to others."""
        # When this node was last found to have stood still.
        self._held_up = -inf

    # -- the router's --------------------------------------------------------------------------------------------------

    def claim(
        self, client_id: str, user_name: str | None, clean_start: bool, told: Callable[[int], None]
    ) -> OwnerClaim | None:
        """See `Owner.claim`."""
        if self.claimed is not None:
            self.claimed(client_id, user_name, clean_start)
        return self.claims.claim(client_id, user_name, clean_start, told)

    def hand_over(self) -> int:
        """See `Owner.hand_over`."""
        if self.leaving is None:
            time = SILENCE * self.claims.timeout
            self.leaving = Leaving(self._router, _moves, self.claims.time_of, self.say, self.giver.goes_on, time)
            self.leaving.look()
        return self.leaving.turn(self._shell.takers(list(self._told)), self._shell.now())

    def stay(self) -> None:
        """See `Owner.stay`."""
        self.leaving = None

    @property
    def due(self) -> float:
        """When `tick` is to be called (s, of the shell's clock); 0.0: not before something happens here."""
        silence = self.giver.silence.due, self.taker.silence.due
        times = [self.claims.due, self.barriers.due, self.gates.due, self.giver.turns.due, *silence]
        return min((each for each in times if each > 0.0), default=0.0)

    def tick(self) -> None:
        """Go on without nodes that do not answer. Where this one stood still, their answers are heard first."""
        now = self._shell.now()
        late = now - self.due
        if late > HELD_UP and now - self._held_up > self.claims.timeout:
            self._held_up = now
            for waiting in (self.barriers, self.claims, self.giver.silence, self.taker.silence):
                waiting.postpone(late + HELD_UP)
            self._shell.wake()
            return
        self.barriers.tick()
        self.claims.tick()
        self.giver.silence.tick()
        self.taker.silence.tick()
        self.giver.turns.tick()
        self.gates.tick()
        self._shell.wake()

    def barrier(self, call: Callable[[set[str]], None], but: Collection[str] = (), *, numbers: bool = False) -> None:
        """See `Barrier`. All nodes are meant that something may wait for."""
        nodes = [each for each in self._told if each not in but]

        def passed(answered: set[str]) -> None:
            self._spread(self._router.fanout.line.last(), lambda: call(self._shell.known() - answered))

        self.barriers.begin(nodes, passed, numbers)

    def _spread(self, broadcast: Broadcast | None, call: Callable[[], None]) -> None:
        """Call something when a message to very many sessions has come to all of them: it has arrived before."""
        if broadcast is None or broadcast.over:
            call()
        else:
            self._shell.soon(lambda: self._spread(broadcast, call))

    # -- the bus's -----------------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A node is there: say how many sessions are here, so that the one with fewer names them."""
        count = self._told[node] = sum(map(counts, self._router.sessions.values()))
        self.say_now(node, Hello(self.claims.clock, count))
        if self.gates.speaks(node):
            self.say_now(node, Knows(sorted(self._shell.known())))
        self.gates.joined(node)
        self.claims.joined(node)

    def met(self, node: str, given_up: bool = False) -> None:
        """Something may wait for a node from now on; or it is given up, and nothing does."""
        for other in self._told:
            if other != node and self.gates.speaks(other):
                self.say_now(other, Knows([], [node]) if given_up else Knows([node]))

    def left(self, node: str) -> None:
        """A node is gone, and all that was under way with it."""
        self._told.pop(node, None)
        self._numbered.pop(node, None)
        self._to_say.pop(node, None)
        self.comparing.left(node)
        with ExitStack() as stack:
            # Where one fails, the others hear of it all the same: nothing waits for that node for ever.
            stack.callback(self._shell.wake)
            for part in (self.claims, self.giver, self.taker, self.barriers, self.gates):
                stack.callback(part.left, node)

    def received(self, node: str, data: bytes) -> None:
        """A node has said something. Raises ProtocolFault."""
        router = self._router
        router.peers.drain(router, self._shell.now())
        try:
            for _, messages in groupby(decode(data), type):
                together = list(messages)
                lates = [message for message in together if isinstance(message, Late)]
                if lates:
                    self._hear_late(node, lates)
                else:
                    for message in together:
                        self._hear(node, message)
        finally:
            self._shell.wake()

    def _hear(self, node: str, message: Message) -> None:
        match message:
            case Ask():
                if self.claimed is not None and not message.merges:
                    self.claimed(message.client_id, message.user, message.clean)
                self.claims.asked(node, message)
            case Answer():
                self.claims.answered(node, message)
            case Part():
                self.taker.part(node, message)
            case Took():
                self.giver.took(node, message.size)
            case Ready():
                self.giver.ready(node, message.client_id, message.time, message.without)
            case Taken():
                self.giver.taken(node, message.client_id, message.time)
            case Hello():
                self.comparing.begin(node, message)
            case Held():
                self.comparing.held(node, message)
            case Compared():
                self.comparing.compared(node, message)
            case Abort(giver=True):
                self.taker.aborted(node, message)
            case Abort():
                self.giver.aborted(node, message)
            case Flush():
                self._shell.arrived(
                    node, partial(self._answer_flush, node, message.number, self._given_to(node, message))
                )
            case Flushed():
                self._router.nodes.numbers.keep(message.numbers)
                self.barriers.flushed(node, message)
            case Offer() if self.leaving is None:
                self.claims.fetch(message.client_id, message.user, node, message.time)
            case Offer():
                pass  # this node is about to go, too
            case Without():
                self.taker.without(node, message)
            case Knows():
                self.gates.knows(node, message.nodes, message.given_up)
            case Noted():
                self.gates.noted(node, message)
            case Comes():
                claim = self.claims.pending.get(message.client_id)
                if claim is not None and claim.time == message.time and node in claim.awaiting:
                    self.claims.move_goes_on(claim)

    def _hear_late(self, node: str, lates: list[Late]) -> None:
        self._shell.hand_over(lates)
        for late in lates:
            if late.to != node:
                self.say(node, Noted(late.name))

    def _given_to(self, node: str, asked: Flush) -> list[int]:
        """Numbers that a node is told. It has what has them when it hears of them: else it would take it for known."""
        router = self._router
        if not asked.numbers or router.fanout.broadcasting:
            return []  # a message that is still on its way to very many sessions may not wait for the node yet
        given = router.nodes.numbers.given_since(self._numbered.get(node, 0))
        self._numbered[node] = router.nodes.numbers.last
        return given

    def _answer_flush(self, node: str, number: int, given: list[int]) -> None:
        if node in self._told:
            self.say(node, Flushed(number, given))

    # -- saying --------------------------------------------------------------------------------------------------------

    def say(self, node: str, message: Message) -> None:
        """Say something to a node, with all else of this turn."""
        waiting = self._to_say.get(node)
        if waiting is None:
            if not self._to_say:
                self._shell.soon(self._flush)
            waiting = self._to_say[node] = []
        waiting.append(message)
        if isinstance(message, Part) or len(waiting) >= MOST:
            self._bus.send(node, OWNERSHIP, encode(waiting))
            waiting.clear()

    def say_now(self, node: str, *messages: Message) -> None:
        """Say something to a node, before all else that it is sent after this."""
        self._bus.send(node, OWNERSHIP, encode([*self._to_say.pop(node, ()), *messages]))

    def _tell_late(self, node: str, lates: list[Late]) -> None:
        self.say_now(node, *lates)

    def _flush(self) -> None:
        to_say, self._to_say = self._to_say, {}
        for node, waiting in to_say.items():
            if waiting:
                self._bus.send(node, OWNERSHIP, encode(waiting))

    # -- sessions that go ----------------------------------------------------------------------------------------------

    def _parting(self, giving: Giving) -> None:
        """What comes to a session from now on does not go along: say of whom more may come, and tell those."""
        filters = filters_of([giving.session])
        if filters and self.gates.speaks(giving.node):
            missed = self.gates.missed(giving.session, giving.node, giving.without)
            if missed:
                self.say(giving.node, Without(giving.client_id, giving.ask.time, missed))
                self.gates.owe(move_name(giving.client_id, giving.ask.time), giving.node, missed, filters)
                giving.parted = frozenset(head + each.node for each in missed for head in (FROM_NODE, LATE))

    def _comes(self, giving: Giving) -> None:
        """A session waits for its turn."""
        if self.gates.speaks(giving.node):
            self.say(giving.node, Comes(giving.client_id, giving.ask.time))

    def _awaits_giving(self, giving: Giving) -> bool:
        """Whether somebody waits for a session that goes, and its new node understands that it stays."""
        return self.gates.speaks(giving.node) and (bool(giving.askers) or self.claims.waits_here(giving.client_id))

    def _stays(self, giving: Giving) -> None:
        """The other node may have all of it."""
        self.comparing.name([giving.client_id])

    def _given(self, giving: Giving) -> None:
        """A session has gone, or stays: whoever has waited for that goes on."""
        for node, ask in sorted(giving.askers, key=lambda asker: (asker[1].time, asker[0]), reverse=True):
            self.claims.asked(node, ask)
        if self._router.sessions.get(giving.client_id) is not giving.session:
            self.gates.forget(giving.session)
            self.claims.gone(giving.client_id)
        if not self._claim_host.giving(giving.client_id):
            self.taker.given(giving.client_id)
            self.claims.given(giving.client_id)

    def _adopted(self, estate: Estate, sessions: list[Session]) -> None:
        """Have what waits for a dead node, here and at others, come to sessions of its that are new here."""
        gate = self.gates.begin(f"{estate.node}-{self.claims.next()}", estate.node, sessions)
        if gate is None:
            return

        def missed(node: str) -> Missed:
            return Missed(node, [Source(estate.node, received=estate.received.get(node, []))])

        for message in self._shell.waiting(missed(self._bus.node), filters_of(sessions)):
            self.gates.put(gate, message)
        self.gates.shut(gate, map(missed, self._shell.known() - {estate.node}))
        self._shell.settle(lambda _: self.gates.ask(gate))

    # -- for the claims ------------------------------------------------------------------------------------------------

    def give(self, node: str, ask: Ask) -> int:
        """See `ClaimHost.give`."""
        session = self._router.sessions.get(ask.client_id)
        merges = ask.merges and session is not None and not self._claim_host.giving(ask.client_id)
        if session is not None and merges and self.claims.later(ask.client_id, node, ask.time):
            # Its client has come back here since: it is the other way round.
            self.claims.reclaim(ask.client_id, session.user_name, node, ask.time)
            return NONE
        return self.giver.give(node, ask, fetched=ask.time <= self.claims.time_of(ask.client_id))


class _ClaimHost(ClaimHost):
    """This node, for its claims."""

    def __init__(self, room: Ownership) -> None:
        self._room = room

    def nodes(self) -> list[str]:
        return list(self._room._told)

    def send(self, node: str, message: Message) -> None:
        self._room.say(node, message)

    def holds(self, client_id: str) -> bool:
        return client_id in self._room._router.sessions

    def giving(self, client_id: str) -> bool:
        return client_id in self._room.giver.givings

    def now(self) -> float:
        return self._room._shell.now()

    def give(self, node: str, ask: Ask) -> int:
        return self._room.give(node, ask)

    def let_go(self, ask: Ask) -> None:
        self._room.giver.let_go(ask)

    def hurry(self, client_id: str) -> None:
        self._room.giver.hurry(client_id)
        self._room.taker.hurry(client_id)

    def name(self, client_id: str, node: str) -> None:
        self._room.comparing.name([client_id], [node])

    def notify_soon(self) -> None:
        self._room._shell.soon(self._room.claims.notify)


def _moves(session: Session) -> bool:
    """Whether another node can take it, with its client away."""
    return counts(session) and not session.ended and session.expiry_interval > 0

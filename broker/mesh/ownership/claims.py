"""Who has the session of a client identifier: one node, whichever its client came to last.

Owns the claims of this node. No directory of sessions is kept: a claim asks every node, so that nothing has to be
repaired after a node dies; a CONNECT costs one message of about 40 bytes to each, and nothing where the session is here
already. Promises: of claims that are made at once the latest wins, by the clock that all nodes share and then by the
node's name; a session goes to a later claim only, so that no nodes wait for each other in a circle. Each claim ends,
whatever other nodes do: they have `timeout` seconds to answer, one that comes meanwhile as long, and one whose session
is coming from each part on; a move that somebody waits for, and that stands still, ends, too (`silence`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from broker.core.codec import reasons
from broker.core.hooks import OwnerClaim
from broker.mesh.ownership.messages import LATER, LATEST, LOST, NONE, Answer, Ask, Message

MICROSECONDS: Final = 1_000_000

NOTIFIED: Final = 100
"""Claimants that are notified in one turn: each opens its session, and thousands may have waited for one node."""

FORGET: Final = 4_096
"""Claims whose sessions may be over before they are looked for."""


class ClaimHost(ABC):
    """What claims ask of the node that they are made on: its sessions, and the other nodes."""

    @abstractmethod
    def nodes(self) -> list[str]:
        """The other nodes that are there."""

    @abstractmethod
    def send(self, node: str, message: Message) -> None:
        """Say something to a node."""

    @abstractmethod
    def holds(self, client_id: str) -> bool:
        """Whether there is a session here."""

    @abstractmethod
    def giving(self, client_id: str) -> bool:
        """Whether it is being handed over to another node."""

    @abstractmethod
    def let_go(self, ask: Ask) -> None:
        """End the connection of a session that a node has claimed, and that cannot go yet."""

    @abstractmethod
    def hurry(self, client_id: str) -> None:
        """Somebody waits for a session that is on its way to this node or from it."""

    @abstractmethod
    def name(self, client_id: str, node: str) -> None:
        """Say to a node that there is a session here: it may have one, too."""

    @abstractmethod
    def now(self) -> float:
        """The broker's monotonic clock (s)."""

    @abstractmethod
    def give(self, node: str, ask: Ask) -> int:
        """Hand a session over to a node that has claimed it: NONE, REFUSED, or LATER: somebody answers in time."""

    @abstractmethod
    def notify_soon(self) -> None:
        """Have `Claims.notify` be called in a later turn."""


class Claimant(OwnerClaim):
    """A connection that waits until a claim is decided, which calls `decided`, and then until its session is open."""

    def __init__(self, claims: Claims, claim: Claim, clean: bool, decided: Callable[[int], None]) -> None:
        self.clean = clean
        self.decided: Callable[[int], None] | None = decided
        self.claim: Claim | None = claim
        self._claims = claims

    def over(self) -> None:
        self.decided = None
        claim, self.claim = self.claim, None
        if claim is not None:
            self._claims.left_by(claim, self)


class Claim:
    """One client identifier that this node claims. `time` and the node name it."""

    def __init__(self, client_id: str, user: str | None, clean: bool, time: int) -> None:
        self.client_id = client_id
        self.user = user
        self.clean = clean
        self.time = time
        self.due = self.made = 0.0
        # The nodes that have not answered; this one while it still hands the session over itself.
        self.awaiting: set[str] = set()
        # Sessions that are on their way here because of it.
        self.moves = 0
        # A session is here already: the claim is about another one, which a node has that was not there.
        self.merges = False
        self.granted = False
        # Nodes that keep their session: it is compared with the one that is here when this is over.
        self.contested: set[str] = set()
        self.beaten = False
        self.claimants: list[Claimant] = []
        # Connections that came when it was beaten: the next claim is theirs.
        self.next: list[tuple[Claimant, str | None]] = []
        # Nodes that claim the same, and have their answer when this is over.
        self.askers: list[tuple[str, Ask]] = []


class Claims:
    """The claims of one node. `wall`: seconds since the epoch; `timeout`: seconds that a node is waited for."""

    def __init__(self, node: str, host: ClaimHost, wall: Callable[[], float], timeout: float) -> None:
        self.node = node
        self.timeout = timeout
        self.pending: dict[str, Claim] = {}
        # When the sessions that are here were claimed, and when last with a clean start.
        self.times: dict[str, int] = {}
        self.clean: dict[str, int] = {}
        self.clock = 0
        self.made = 0
        self.timed_out = 0
        """Nodes that did not answer a claim in time, and so counted as having nothing."""
        self.lost = 0
        """Clients that were refused because another one came elsewhere at the same time."""
        self.fenced = 0
        """Answers to claims that were over."""
        self._host = host
        self._wall = wall
        # When clients came back to sessions here, which other nodes have not heard of.
        self._back: dict[str, int] = {}
        # Those that wait for nodes, in the order in which they fall due.
        self._line: dict[Claim, None] = {}
        # How many of `times` there were when they were last looked through.
        self._kept = 0
        self._to_notify: list[tuple[Claimant, int]] = []

    # -- clients of this node ------------------------------------------------------------------------------------------

    def claim(self, client_id: str, user: str | None, clean: bool, decided: Callable[[int], None]) -> Claimant | None:
        """Claim a client identifier for a connection; None: it is this node's, and need not wait.

        Else `decided` is called in a later turn: 0, or the reason code with which the client is refused.
        """
        claim = self.pending.get(client_id)
        if claim is None:
            giving = self._host.giving(client_id)
            if not giving and self._host.holds(client_id):
                self._came_back(client_id, clean)
                return None
            if not giving and not self._host.nodes():
                self._own(client_id, self.next(), clean)
                return None
            claim = self._begin(client_id, user, clean)
        claimant = Claimant(self, claim, clean, decided)
        here = claim.merges and self._host.holds(client_id)
        if claim.beaten or claim.askers or ((claim.merges or claim.user != user) and not here):
            claim.next.append((claimant, user))
            self._host.hurry(client_id)
        else:
            claim.claimants.append(claimant)
            if claim.granted:
                self._came_back(client_id, clean)
                self._notify(claimant, 0)
        self._advance(claim)
        return claimant

    def reclaim(self, client_id: str, user: str | None, node: str, time: int) -> None:
        """The session is here, and an older one, claimed at `time`, at a node: have that come into this one.

        Where this one has begun with a clean start since, the other one ends.
        """
        clean = time < self.clean.get(client_id, 0)
        claim = self.pending.get(client_id)
        if self._host.giving(client_id) or (claim is not None and not claim.granted):
            return  # somebody claims it: what the node has goes there
        if claim is None:
            claim = self._begin_merging(client_id, user, clean)
        self._ask(claim, node, True)

    def named(self, client_id: str, node: str) -> bool:
        """A node has a session, which it need not have had when it was asked: ask it again.

        False where nobody claims that session here.
        """
        claim = self.pending.get(client_id)
        if claim is None or claim.beaten or claim.merges:
            return False
        if node not in claim.awaiting:
            self._ask(claim, node, claim.granted)
        return True

    def fetch(self, client_id: str, user: str | None, node: str, time: int) -> None:
        """Claim a session for a client that is away, of the node that has it and is about to go; claimed at `time`.

        Whoever claims it for a client is later, and has it. A node that could not talk to that one may have another
        session: the two become one.
        """
        if client_id in self.pending or self._host.holds(client_id):
            return
        claim = Claim(client_id, user, False, time)
        self._add(claim)
        for other in {node, *self._host.nodes()}:
            self._say(claim, other, other != node)

    def later(self, client_id: str, node: str, time: int) -> bool:
        """Whether the session here was claimed later than that of a node at `time`."""
        return (self.time_of(client_id), self.node) > (time, node)

    def time_of(self, client_id: str) -> int:
        """When a client came last to the session here; 0: never."""
        return self._back.get(client_id, 0) or self.times.get(client_id, 0)

    def waited_for(self, client_id: str) -> bool:
        """Whether somebody waits for what is on its way here."""
        claim = self.pending.get(client_id)
        return claim is not None and bool(claim.askers or claim.next)

    def waits_here(self, client_id: str) -> bool:
        """Whether a client of this node waits for a session that is on its way from here."""
        claim = self.pending.get(client_id)
        return claim is not None and self.node in claim.awaiting

    def left_by(self, claim: Claim, claimant: Claimant) -> None:
        """A connection has its session open, or has ended."""
        if claimant in claim.claimants:
            claim.claimants.remove(claimant)
        claim.next = [each for each in claim.next if each[0] is not claimant]
        for ask in [ask for _, ask in claim.askers if not ask.merges][:1]:
            self._host.let_go(ask)
        self._advance(claim)

    def notify(self) -> None:
        """Tell claimants what has become of their claims: some, and the others in later turns."""
        decisions, self._to_notify = self._to_notify[:NOTIFIED], self._to_notify[NOTIFIED:]
        if self._to_notify:
            self._host.notify_soon()
        for claimant, code in decisions:
            call = claimant.decided
            claimant.decided = None
            if call is not None:
                call(code)

    def _begin(self, client_id: str, user: str | None, clean: bool) -> Claim:
        claim = Claim(client_id, user, clean, self.next())
        self.made += 1
        self._add(claim)
        for node in self._host.nodes():
            self._say(claim, node, False)
        if self._host.giving(client_id):
            claim.awaiting.add(self.node)
            self._host.hurry(client_id)
        return claim

    def _begin_merging(self, client_id: str, user: str | None, clean: bool) -> Claim:
        claim = Claim(client_id, user, clean, self.time_of(client_id))
        claim.merges = claim.granted = True
        self._add(claim)
        return claim

    def _add(self, claim: Claim) -> None:
        claim.made = self._host.now()
        self.pending[claim.client_id] = claim
        self._wait(claim)

    def _wait(self, claim: Claim) -> None:
        """From now on."""
        self._line.pop(claim, None)
        claim.due = self._host.now() + self.timeout
        self._line[claim] = None

    def _ask(self, claim: Claim, node: str, merges: bool) -> None:
        """Ask one node more. Unless that has come about before, it has as long as the others had."""
        if claim not in self._line or self._host.now() < claim.made + self.timeout:
            self._wait(claim)
        self._say(claim, node, merges)

    def _say(self, claim: Claim, node: str, merges: bool) -> None:
        claim.awaiting.add(node)
        self._host.send(node, Ask(claim.client_id, claim.user, claim.clean, merges, claim.time))

    def next(self) -> int:
        """The next point of the clock."""
        self.clock = max(int(self._wall() * MICROSECONDS), self.clock + 1)
        return self.clock

    def heard(self, clock: int) -> None:
        """No claim of this node is earlier than what others have said."""
        if self.clock < clock < LATEST // 2:
            self.clock = clock

    def _came_back(self, client_id: str, clean: bool) -> None:
        """To the session that is here: nobody else is told."""
        announced = self.times.get(client_id, 0)
        self._own(client_id, self.next(), clean)
        self._back[client_id] = self.times[client_id]
        self.times[client_id] = announced

    def _own(self, client_id: str, time: int, clean: bool) -> None:
        self.times[client_id] = time
        self._back.pop(client_id, None)
        if clean:
            self.clean[client_id] = time
        if len(self.times) > 2 * self._kept + FORGET:
            self.times = {each: at for each, at in self.times.items() if self._host.holds(each)}
            self.clean = {each: at for each, at in self.clean.items() if each in self.times}
            self._back = {each: at for each, at in self._back.items() if each in self.times}
            self.times[client_id] = time
            self._kept = len(self.times)

    def _notify(self, claimant: Claimant, code: int) -> None:
        if not self._to_notify:
            self._host.notify_soon()
        self._to_notify.append((claimant, code))

    # -- what becomes of a claim ---------------------------------------------------------------------------------------

    def _beat(self, claim: Claim, code: int) -> None:
        """Its clients are refused, except those that open their session now; what is on its way here still comes."""
        claim.beaten = True
        refused = [claimant for claimant in claim.claimants if claimant.decided is not None]
        self._to_notify = [each for each in self._to_notify if each[0] not in refused]
        for claimant in refused:
            self.lost += 1
            claimant.claim = None
            claim.claimants.remove(claimant)
            self._notify(claimant, code)

    def _advance(self, claim: Claim) -> None:
        if self.pending.get(claim.client_id) is not claim:
            return
        if not claim.awaiting and not claim.granted and not claim.beaten:
            claim.granted = True
            self._own(claim.client_id, claim.time, claim.clean)
            for claimant in claim.claimants:
                self._notify(claimant, 0)
        if claim.awaiting or claim.claimants or claim.moves:
            return
        del self.pending[claim.client_id]
        self._line.pop(claim, None)
        for node in claim.contested:
            self._host.name(claim.client_id, node)
        # The latest first: it has the session, and the others hear of none.
        for node, ask in sorted(claim.askers, key=lambda asker: (asker[1].time, asker[0]), reverse=True):
            self._serve(node, ask)
        if claim.next:
            _, user = claim.next[-1]
            after = self._begin(claim.client_id, user, claim.next[-1][0].clean)
            for claimant, _ in claim.next:
                claimant.claim = after
                after.claimants.append(claimant)
            self._advance(after)

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def asked(self, node: str, ask: Ask) -> None:
        """A node claims a client identifier."""
        self.heard(ask.time)
        claim = self.pending.get(ask.client_id)
        if claim is None:
            self._serve(node, ask)
            return
        if not (claim.granted and (claim.merges or ask.merges)) and (claim.time, self.node) > (ask.time, node):
            # Also where this one is beaten itself: two that wait for each other would never come to an end.
            self._host.send(node, Answer(ask.client_id, ask.time, LOST))
            return
        claim.askers.append((node, ask))
        if not ask.merges:
            if not claim.beaten:
                self._beat(claim, reasons.SERVER_UNAVAILABLE)
            self._host.let_go(ask)
        if claim.merges and not claim.moves and (claim.time, self.node) < (ask.time, node):
            claim.awaiting.clear()  # the other node may wait for this one in the same way
        self._advance(claim)
        self._host.hurry(ask.client_id)

    def _serve(self, node: str, ask: Ask) -> None:
        """Hand over what is here, or say that it is nothing.

        A node whose claim is earlier than the last one that was made here has not heard of that, and gives what it has
        when it does: not the other way round as well.
        """
        if not ask.merges and self.times.get(ask.client_id, 0) > ask.time and self._host.holds(ask.client_id):
            outcome = LOST
        else:
            outcome = self._host.give(node, ask)
        if outcome != LATER:
            self._host.send(node, Answer(ask.client_id, ask.time, outcome))

    def answered(self, node: str, answer: Answer) -> None:
        """A node has answered a claim of this one."""
        claim = self.pending.get(answer.client_id)
        if claim is None or claim.time != answer.time:
            self.fenced += 1
            if answer.outcome != NONE:
                # The client has its session here by now, perhaps, and there is another one.
                self._host.name(answer.client_id, node)
            return
        if node not in claim.awaiting:
            self.fenced += 1
        if answer.outcome != NONE and not claim.merges:
            claim.contested.add(node)
            if not claim.beaten:
                code = reasons.SERVER_UNAVAILABLE if answer.outcome == LOST else reasons.CLIENT_IDENTIFIER_NOT_VALID
                self._beat(claim, code)
        claim.awaiting.discard(node)
        self._advance(claim)

    def joined(self, node: str) -> None:
        """A node is there that was not asked: what is claimed and not opened yet is claimed of it, too."""
        for claim in list(self.pending.values()):
            if claim.merges or claim.beaten:
                continue
            if claim.granted:
                unnotified = [claimant for claimant, _ in self._to_notify if claimant.claim is claim]
                if not unnotified:
                    continue  # its session is here, and is compared
                self._to_notify = [each for each in self._to_notify if each[0].claim is not claim]
                claim.granted = False
            self._ask(claim, node, False)

    def left(self, node: str) -> None:
        """A node is gone: it counts as having nothing, and claims nothing."""
        for claim in list(self.pending.values()):
            claim.askers = [each for each in claim.askers if each[0] != node]
            claim.awaiting.discard(node)
            self._advance(claim)

    def gone(self, client_id: str) -> None:
        """The session is here no more: one that comes now is another one."""
        self._back.pop(client_id, None)

    def given(self, client_id: str) -> None:
        """This node hands the session over no more: it has gone, or stays."""
        claim = self.pending.get(client_id)
        if claim is not None:
            claim.awaiting.discard(self.node)
            self._advance(claim)

    # -- sessions on their way here ------------------------------------------------------------------------------------

    def move_begins(self, client_id: str, node: str, time: int) -> tuple[Claim, bool]:
        """A session comes: the claim that it answers; if that is over, the one of now, so that others wait for it.

        And whether it has come too late, so that another node may have been told that there is none here.
        """
        claim = self.pending.get(client_id)
        if claim is None:
            claim = self._begin_merging(client_id, None, False)
        claim.moves += 1
        return claim, claim.time != time or node not in claim.awaiting

    def move_goes_on(self, claim: Claim) -> None:
        """More of it has come: there is no reason to give the node up."""
        if claim in self._line:
            self._wait(claim)

    def moved(self, claim: Claim, node: str) -> None:
        """All of it is here: its client may have it."""
        claim.awaiting.discard(node)
        self._advance(claim)

    def move_ends(self, claim: Claim, node: str) -> None:
        """All of it is kept here; or no more comes of it."""
        claim.moves -= 1
        claim.awaiting.discard(node)
        self._advance(claim)

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When `tick` is to be called; 0.0: not before something happens."""
        return next((claim.due for claim in self._line), 0.0)

    def postpone(self, seconds: float) -> None:
        """All nodes have so many seconds more."""
        for claim in self._line:
            claim.due += seconds

    def tick(self) -> None:
        """Go on without the nodes whose time is over."""
        now = self._host.now()
        while 0.0 < self.due <= now:
            claim = next(iter(self._line))
            del self._line[claim]
            # What this node hands over itself comes to an end of its own (`silence`).
            late = claim.awaiting - {self.node}
            self.timed_out += len(late)
            claim.awaiting -= late
            self._advance(claim)

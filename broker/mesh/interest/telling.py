"""What the clients of this node want, told to the other nodes: the one side of the interest tables.

Owns `Interest`: the ledger of what local sessions want, with what is told of it (`told`), its versions, how far each
other node is, and who waits for them. Points of time are the caller's, in seconds. Promises: one message is on its way
to a node at any time; what happens meanwhile waits as keys, each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.core.codec.topic_names import SHARE_PREFIX
from broker.mesh.bus import INTEREST, Bus, ProtocolFault
from broker.mesh.interest import wire
from broker.mesh.interest.confirmations import Confirmations, Waiter
from broker.mesh.interest.told import UNBOUNDED, Told
from broker.mesh.interest.wire import ABSENT, AWAY, MOST_CONNECTED, TELL_BYTES, TELL_KEYS, Message
from broker.upstream.filters.budget import BudgetLedger
from broker.upstream.filters.ledger import Ledger

UNITS: Final = 2_048
"""Keys that are looked at in one turn, about: some milliseconds."""

_UNSURE: Final = -1
"""The state before, of what has changed while the full set was told: the node may have it or not."""


class Hearer:
    """One other node: how far it is. `confirmed`: it has everything up to this version; 0: that is not sure.

    `sent`: the version of the TELL that it has not confirmed; -1: there is none. `asked`: it was sent a digest, and has
    not answered.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.known = False  # its HELLO has come
        self.most = UNBOUNDED
        self.most_bytes = UNBOUNDED
        self.confirmed = 0
        self.sent = -1
        self.asked = False
        self.check = False  # a digest is due
        # The full set: whether it is to begin, and how many groups and filters are still to be told of.
        self.begins = True
        self.paging = True
        self.groups = 0
        self.filters = 0
        # What has changed since the cut that is told (`cut`), or was told last: the states before.
        self.behind: dict[str, int] = {}
        self.cut: dict[str, int] | None = None
        self.version = 0  # the cut's
        self.keys: Iterator[str] | None = None
        self.leaving = False  # of the cut, what is wanted has been told

    @property
    def ready(self) -> bool:
        """Whether a message may be sent, and there is one."""
        if not self.known or self.sent >= 0 or self.asked:
            return False
        return self.check or not self.level

    @property
    def level(self) -> bool:
        """Whether nothing is to be told, and all that was told is confirmed."""
        return self.sent < 0 and not self.paging and self.cut is None and not self.behind

    def restart(self) -> None:
        """Tell it the full set, from the beginning."""
        self.confirmed = 0
        self.begins = True
        self.paging = True
        self.behind = {}
        self.cut = None
        self.keys = None
        self.check = False


class Interest:
    """This node's interest. `max_filters`: topic filters that are told before they are folded; 0: each as it is.

    `hold`: seconds before a fold is opened. `confirm_timeout`: seconds that anybody waits at most. `check_interval`:
    seconds between two digests for a node. `tell_keys`: keys in one message at most, TELL_KEYS or fewer. `units`: keys
    that are looked at in one turn, about. `version`: of what is told. `work`: keys that were looked at or told, so far.
    `resent`: how often a node asked for the full set again, since it had something else.

    What changes between two turns is one version, which takes several turns where it is very much; what comes and goes
    between them is not told. A node gets the full
    set in several messages, one after the other, and then one *cut* after the other: what has changed since the one
    before, with the states that were true at one moment, first what is wanted and then what is not. With the end of a
    cut the node has exactly what was told at its version, and on the way there nothing less than was wanted both
    before and after.

    `turn` does all of the work, and has to be called after each turn of the event loop in which anything else was
    called, when it has said so itself, and at `due`.
    """

    def __init__(
        self,
        bus: Bus,
        max_filters: int = 0,
        hold: float = 30.0,
        confirm_timeout: float = 5.0,
        check_interval: float = 30.0,
        tell_keys: int = TELL_KEYS,
        units: int = UNITS,
    ) -> None:
        self.told = Told()
        self.ledger: Ledger | BudgetLedger = Ledger(self.told)
        if max_filters > 0:
            self.ledger = BudgetLedger(self.told, max_filters, hold=hold)
        self.waiting = Confirmations()
        self.confirm_timeout = confirm_timeout
        self.check_interval = check_interval
        self.tell_keys = min(tell_keys, TELL_KEYS)
        self.version = 1
        self.work = 0
        self.resent = 0
        self._bus = bus
        self._units = units
        self._hearers: dict[str, Hearer] = {}
        self._fresh: list[tuple[Waiter, float]] = []
        # What has changed since the last version and is not looked at yet, with the states before; and whether anything
        # of what was looked at since then is another now.
        self._closing: dict[str, int] = {}
        self._differs = False
        self._check_at = 0.0
        self._first = 0  # whose turn it is to be first

    # -- what local sessions want --------------------------------------------------------------------------------------

    def wanted(self, topic_filter: str, now: float) -> None:
        """One more subscription at a topic filter, without `$share/name/`. `$SYS` is each node's own."""
        if not _is_own(topic_filter):
            self.ledger.add(topic_filter, now)

    def unwanted(self, topic_filter: str, now: float) -> None:
        """One subscription less.

        Raises:
            ValueError: nobody wants the filter, so that somebody counts wrongly.
        """
        if not _is_own(topic_filter):
            self.ledger.remove(topic_filter, now)

    def put_group(self, name: str, topic_filter: str, connected: int, away: int) -> None:
        """So many members of a share group are here now, connected and not."""
        state = min(connected, MOST_CONNECTED)
        if state == 0 and away > 0:
            state = AWAY
        if not _is_own(topic_filter):
            self.told.put_group(f"{SHARE_PREFIX}{name}/{topic_filter}", state)

    def wait(self, waiter: Waiter, now: float) -> bool:
        """Whether other nodes do not have all yet that is wanted now: then the waiter is told, once, by a `turn`."""
        if not self._hearers:
            return False
        told = self.told
        if not (told.changed or told.unsettled or self._closing) and self.confirmed >= self.version:
            return False
        self._fresh.append((waiter, now + self.confirm_timeout))
        return True

    @property
    def confirmed(self) -> int:
        """All nodes that are there have everything up to this version."""
        version = self.version
        for hearer in self._hearers.values():
            version = min(version, hearer.confirmed)
        return version

    @property
    def undeclared(self) -> int:
        """How many filters and share groups no node is told of in any way, since there is no room: see the bounds."""
        refused = self.ledger.refused if isinstance(self.ledger, BudgetLedger) else 0
        return self.told.undeclared + refused

    def confirmed_by(self, node: str) -> int:
        """A node has everything up to this version; 0: that is not sure, or it is not there."""
        hearer = self._hearers.get(node)
        return 0 if hearer is None else hearer.confirmed

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A node is there, and has nothing of us."""
        self._hearers[node] = Hearer(node)

    def left(self, node: str) -> None:
        """A node is gone: nobody waits for it."""
        self._hearers.pop(node, None)
        self._bound()

    def received(self, node: str, message: Message) -> None:
        """A node says HELLO, CONFIRM or ANSWER. Raises ProtocolFault."""
        hearer = self._hearers.get(node)
        if hearer is None:
            raise ProtocolFault("a message of the interest before the node was there")
        if message.kind == wire.HELLO:
            if hearer.known:
                raise ProtocolFault("a second HELLO")
            hearer.known = True
            hearer.most = message.most
            hearer.most_bytes = message.most_bytes
            self._bound()
        elif message.kind == wire.CONFIRM:
            if hearer.sent != message.version:
                raise ProtocolFault(f"a CONFIRM of version {message.version}, which it was not told")
            hearer.sent = -1
            if message.version > 0:
                hearer.confirmed = message.version
        elif message.kind == wire.ANSWER:
            if not hearer.asked:
                raise ProtocolFault("an ANSWER to no DIGEST")
            hearer.asked = False
            if not message.same:
                self.resent += 1
                hearer.restart()
        else:
            raise ProtocolFault(f"a message of the interest of kind {message.kind} for the one who tells")

    def _bound(self) -> None:
        most = UNBOUNDED
        most_bytes = UNBOUNDED
        for hearer in self._hearers.values():
            most = min(most, hearer.most)
            most_bytes = min(most_bytes, hearer.most_bytes)
        self.told.limit(most, most_bytes)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> bool:
        """Tell what has changed, go on with what was begun, and tell those who wait. Whether there is more at once."""
        due = self.ledger.next_tick()
        if 0.0 < due <= now:
            self.ledger.tick(now)
        units = self._units - self.told.settle(self._units)
        self.work += self._units - units
        self._call_for_checks(now)
        more = not self._close_version() or self._send(units) or self.told.unsettled
        return self.waiting.release(self.confirmed, now) or more

    @property
    def due(self) -> float:
        """When `turn` has something to do by time; 0.0: never."""
        due = self.ledger.next_tick()
        for other in (self.waiting.due, self._check_at if self._hearers else 0.0):
            if other > 0.0 and (due == 0.0 or other < due):
                due = other
        return due

    def _close_version(self) -> bool:
        """Look at what has changed: all of it, or a part where that is very much. Whether it was all, and so a version.

        Between the parts nothing is told. More is looked at in each than has come since the last one.
        """
        told, closing = self.told, self._closing
        units = self._units
        if told.changed:
            changed, told.changed = told.changed, {}
            if closing:
                units += len(changed)
                for key, state in changed.items():
                    closing.setdefault(key, state)
            else:
                closing = self._closing = changed
        told_of = [hearer for hearer in self._hearers.values() if not hearer.begins]
        while closing and units > 0:
            key, before = closing.popitem()
            after = told.state(key)
            if after != before:
                self._differs = True
            for hearer in told_of:
                _put_behind(hearer, key, before, after)
            units -= 1 + len(told_of)
            self.work += 1 + len(told_of)
        if closing:
            return False
        if self._differs:
            self._differs = False
            self.version += 1
        for waiter, deadline in self._fresh:
            self.waiting.wait(waiter, self.version, deadline)
        self._fresh.clear()
        return True

    def _call_for_checks(self, now: float) -> None:
        if self._check_at == 0.0:
            self._check_at = now + self.check_interval
        elif self._check_at <= now:
            self._check_at = now + self.check_interval
            for hearer in self._hearers.values():
                hearer.check = True

    def _send(self, units: int) -> bool:
        hearers = list(self._hearers.values())
        self._first += 1
        for at in range(len(hearers)):
            hearer = hearers[(self._first + at) % len(hearers)]
            if hearer.confirmed > 0 and hearer.level:
                # What had changed since is as it was.
                hearer.confirmed = self.version
            if not hearer.ready or (hearer.begins and not self.told.fits(hearer.most, hearer.most_bytes)):
                continue
            if units <= 0:
                return True
            units -= self._send_one(hearer)
        return False

    def _send_one(self, hearer: Hearer) -> int:
        """One message. How many keys were looked at for it."""
        if hearer.level:
            hearer.check = False
            hearer.asked = True
            self._bus.send(hearer.node, INTEREST, wire.digest(self.told.count, self.told.digest))
            return 1
        page = _Page(self.tell_keys)
        begins = hearer.begins
        if begins:
            hearer.begins = False
            hearer.groups = len(self.told.groups.names)
            hearer.filters = len(self.told.filters.names)
            for wide in self.told.wides:
                page.add(wide, self.told.state(wide))
        if hearer.paging:
            self._fill_from_table(hearer, page)
        else:
            self._fill_from_cut(hearer, page)
        hearer.sent = page.version
        self.work += page.looked
        self._bus.send(hearer.node, INTEREST, wire.tell(page.keys, page.states, page.version, begins))
        return page.looked + 1

    def _fill_from_table(self, hearer: Hearer, page: _Page) -> None:
        told = self.told
        hearer.groups = min(hearer.groups, len(told.groups.names))
        while hearer.groups > 0 and page.has_room:
            hearer.groups -= 1
            key = told.groups.names[hearer.groups]
            page.add(key, told.state(key))
        hearer.filters = min(hearer.filters, len(told.filters.names))
        while hearer.filters > 0 and page.has_room:
            hearer.filters -= 1
            page.add(told.filters.names[hearer.filters], wire.WANTED)
        if hearer.groups == 0 and hearer.filters == 0:
            hearer.paging = False
            if not hearer.behind:
                page.version = self.version

    def _fill_from_cut(self, hearer: Hearer, page: _Page) -> None:
        cut = hearer.cut
        if cut is None:
            cut = hearer.behind
            hearer.cut = cut
            hearer.behind = {}
            hearer.version = self.version
            hearer.leaving = False
            hearer.keys = iter(cut)
        while page.has_room:
            assert hearer.keys is not None
            key = next(hearer.keys, None)
            if key is None:
                if hearer.leaving:
                    hearer.cut = None
                    hearer.keys = None
                    page.version = hearer.version
                    return
                hearer.leaving = True
                hearer.keys = iter(cut)
                continue
            # As it was at the moment of the cut.
            state = hearer.behind[key] if key in hearer.behind else self.told.state(key)
            if (state == ABSENT) == hearer.leaving and state != cut[key]:
                page.add(key, state)
            else:
                page.looked += 1


def _put_behind(hearer: Hearer, key: str, before: int, after: int) -> None:
    """A key has changed since the last version. One that is as it was stands at another place, perhaps, which a walk
    may have passed."""
    behind = hearer.behind
    if hearer.paging:
        behind[key] = _UNSURE
    elif after == before:
        return
    elif key not in behind:
        behind[key] = before
    elif behind[key] == after:
        del behind[key]


class _Page:
    """The keys of a message that is being made. `looked`: how many were looked at for it."""

    def __init__(self, most: int) -> None:
        self.keys: list[str] = []
        self.states: list[int] = []
        self.version = 0
        self.looked = 0
        self._most = most
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether one more may be looked at."""
        return self.looked < self._most and self._bytes < TELL_BYTES

    def add(self, key: str, state: int) -> None:
        """One more key."""
        self.looked += 1
        self.keys.append(key)
        self.states.append(state)
        self._bytes += len(key.encode()) + 4


def _is_own(topic_filter: str) -> bool:
    return topic_filter == "$SYS" or topic_filter.startswith("$SYS/")

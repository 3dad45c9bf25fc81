"""What the clients of this node want, declared to the other nodes: the one side of the interest tables.

Owns `Interest`: the ledger of what local sessions want, with what is declared of it (`declared`), its versions, how far
each other node is, and who waits for them. Points of time are the caller's, in seconds. Promises: one message is on its
way to a node at any time; what happens meanwhile waits as keys, each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.core.codec.topic_names import SHARE_PREFIX
from broker.mesh.bus import INTEREST, Bus, ProtocolFault
from broker.mesh.interest import wire
from broker.mesh.interest.confirmations import Confirmations, Waiter
from broker.mesh.interest.declared import UNBOUNDED, Declared
from broker.mesh.interest.wire import ABSENT, AWAY, DECLARE_BYTES, DECLARE_KEYS, MOST_CONNECTED, Message
from broker.upstream.filters.budget import BudgetLedger
from broker.upstream.filters.ledger import Ledger

UNITS: Final = 2_048
"""Keys that are looked at in one turn, about: some milliseconds."""

_UNSURE: Final = -1
"""The state before, of what has changed while the full set was declared: the node may have it or not."""


class Recipient:
    """One other node: how far it is. `confirmed`: it has everything up to this version; 0: that is not sure.

    `sent`: the version of the DECLARE that it has not confirmed; -1: there is none. `asked`: it was sent a digest, and
    has not answered.
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
        # The full set: whether it is to begin, and how many groups and filters are still to be declared.
        self.begins = True
        self.paging = True
        self.groups = 0
        self.filters = 0
        # What has changed since the cut that is declared (`cut`), or was declared last: the states before.
        self.behind: dict[str, int] = {}
        self.cut: dict[str, int] | None = None
        self.version = 0  # the cut's
        self.keys: Iterator[str] | None = None
        self.leaving = False  # of the cut, what is wanted has been declared

    @property
    def ready(self) -> bool:
        """Whether a message may be sent, and there is one."""
        if not self.known or self.sent >= 0 or self.asked:
            return False
        return self.check or not self.level

    @property
    def level(self) -> bool:
        """Whether nothing is to be declared, and all that was is confirmed."""
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
    """This node's interest. `max_filters`: topic filters that are declared before they are folded; 0: each as it is.

    `hold`: seconds before a fold is opened. `confirm_timeout`: seconds that anybody waits at most. `check_interval`:
    seconds between two digests for a node. `declare_keys`: keys in one message at most, DECLARE_KEYS or fewer. `units`:
    keys that are looked at in one turn, about. `version`: of what is declared. `work`: keys that were looked at or
    declared, so far. `resent`: how often a node asked for the full set again, since it had something else.

    What changes between two turns is one version, which takes several turns where it is very much; what comes and goes
    between them is not declared. A node gets the full
    set in several messages, one after the other, and then one *cut* after the other: what has changed since the one
    before, with the states that were true at one moment, first what is wanted and then what is not. With the end of a
    cut the node has exactly what was declared at its version, and on the way there nothing less than was wanted both
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
        declare_keys: int = DECLARE_KEYS,
        units: int = UNITS,
    ) -> None:
        self.declared = Declared()
        self.ledger: Ledger | BudgetLedger = Ledger(self.declared)
        if max_filters > 0:
            self.ledger = BudgetLedger(self.declared, max_filters, hold=hold)
        self.waiting = Confirmations()
        self.confirm_timeout = confirm_timeout
        self.check_interval = check_interval
        self.declare_keys = min(declare_keys, DECLARE_KEYS)
        self.version = 1
        self.work = 0
        self.resent = 0
        self._bus = bus
        self._units = units
        self._recipients: dict[str, Recipient] = {}
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
            self.declared.put_group(f"{SHARE_PREFIX}{name}/{topic_filter}", state)

    def wait(self, waiter: Waiter, now: float) -> bool:
        """Whether other nodes do not have all yet that is wanted now: then the waiter is called, once, by a `turn`."""
        if not self._recipients:
            return False
        declared = self.declared
        if not (declared.changed or declared.unsettled or self._closing) and self.confirmed >= self.version:
            return False
        self._fresh.append((waiter, now + self.confirm_timeout))
        return True

    @property
    def confirmed(self) -> int:
        """All nodes that are there have everything up to this version."""
        version = self.version
        for recipient in self._recipients.values():
            version = min(version, recipient.confirmed)
        return version

    @property
    def undeclared(self) -> int:
        """How many filters and share groups are declared in no form, since there is no room: see the bounds."""
        refused = self.ledger.refused if isinstance(self.ledger, BudgetLedger) else 0
        return self.declared.undeclared + refused

    def confirmed_by(self, node: str) -> int:
        """A node has everything up to this version; 0: that is not sure, or it is not there."""
        recipient = self._recipients.get(node)
        return 0 if recipient is None else recipient.confirmed

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A node is there, and has nothing of us."""
        self._recipients[node] = Recipient(node)

    def left(self, node: str) -> None:
        """A node is gone: nobody waits for it."""
        self._recipients.pop(node, None)
        self._bound()

    def received(self, node: str, message: Message) -> None:
        """A node says HELLO, CONFIRM or ANSWER. Raises ProtocolFault."""
        recipient = self._recipients.get(node)
        if recipient is None:
            raise ProtocolFault("a message of the interest before the node was there")
        if message.kind == wire.HELLO:
            if recipient.known:
                raise ProtocolFault("a second HELLO")
            recipient.known = True
            recipient.most = message.most
            recipient.most_bytes = message.most_bytes
            self._bound()
        elif message.kind == wire.CONFIRM:
            if recipient.sent != message.version:
                raise ProtocolFault(f"a CONFIRM of version {message.version}, which it was not sent")
            recipient.sent = -1
            if message.version > 0:
                recipient.confirmed = message.version
        elif message.kind == wire.ANSWER:
            if not recipient.asked:
                raise ProtocolFault("an ANSWER to no DIGEST")
            recipient.asked = False
            if not message.same:
                self.resent += 1
                recipient.restart()
        else:
            raise ProtocolFault(f"a message of the interest of kind {message.kind} for the one who declares")

    def _bound(self) -> None:
        most = UNBOUNDED
        most_bytes = UNBOUNDED
        for recipient in self._recipients.values():
            most = min(most, recipient.most)
            most_bytes = min(most_bytes, recipient.most_bytes)
        self.declared.limit(most, most_bytes)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> bool:
        """Declare what has changed, go on with what was begun, and call those who wait. Whether there is more at
        once."""
        due = self.ledger.next_tick()
        if 0.0 < due <= now:
            self.ledger.tick(now)
        units = self._units - self.declared.settle(self._units)
        self.work += self._units - units
        self._call_for_checks(now)
        more = not self._close_version() or self._send(units) or self.declared.unsettled
        return self.waiting.release(self.confirmed, now) or more

    @property
    def due(self) -> float:
        """When `turn` has something to do by time; 0.0: never."""
        due = self.ledger.next_tick()
        for other in (self.waiting.due, self._check_at if self._recipients else 0.0):
            if other > 0.0 and (due == 0.0 or other < due):
                due = other
        return due

    def _close_version(self) -> bool:
        """Look at what has changed: all of it, or a part where that is very much. Whether it was all, and so a version.

        Between the parts nothing is declared. More is looked at in each than has come since the last one.
        """
        declared, closing = self.declared, self._closing
        units = self._units
        if declared.changed:
            changed, declared.changed = declared.changed, {}
            if closing:
                units += len(changed)
                for key, state in changed.items():
                    closing.setdefault(key, state)
            else:
                closing = self._closing = changed
        declared_to = [recipient for recipient in self._recipients.values() if not recipient.begins]
        while closing and units > 0:
            key, before = closing.popitem()
            after = declared.state(key)
            if after != before:
                self._differs = True
            for recipient in declared_to:
                _put_behind(recipient, key, before, after)
            units -= 1 + len(declared_to)
            self.work += 1 + len(declared_to)
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
            for recipient in self._recipients.values():
                recipient.check = True

    def _send(self, units: int) -> bool:
        recipients = list(self._recipients.values())
        self._first += 1
        for at in range(len(recipients)):
            recipient = recipients[(self._first + at) % len(recipients)]
            if recipient.confirmed > 0 and recipient.level:
                # What had changed since is as it was.
                recipient.confirmed = self.version
            if not recipient.ready:
                continue
            if recipient.begins and not self.declared.fits(recipient.most, recipient.most_bytes):
                continue
            if units <= 0:
                return True
            units -= self._send_one(recipient)
        return False

    def _send_one(self, recipient: Recipient) -> int:
        """One message. How many keys were looked at for it."""
        if recipient.level:
            recipient.check = False
            recipient.asked = True
            self._bus.send(recipient.node, INTEREST, wire.digest(self.declared.count, self.declared.digest))
            return 1
        page = _Page(self.declare_keys)
        begins = recipient.begins
        if begins:
            recipient.begins = False
            recipient.groups = len(self.declared.groups.names)
            recipient.filters = len(self.declared.filters.names)
            for wide in self.declared.wides:
                page.add(wide, self.declared.state(wide))
        if recipient.paging:
            self._fill_from_table(recipient, page)
        else:
            self._fill_from_cut(recipient, page)
        recipient.sent = page.version
        self.work += page.looked
        self._bus.send(recipient.node, INTEREST, wire.declare(page.keys, page.states, page.version, begins))
        return page.looked + 1

    def _fill_from_table(self, recipient: Recipient, page: _Page) -> None:
        declared = self.declared
        recipient.groups = min(recipient.groups, len(declared.groups.names))
        while recipient.groups > 0 and page.has_room:
            recipient.groups -= 1
            key = declared.groups.names[recipient.groups]
            page.add(key, declared.state(key))
        recipient.filters = min(recipient.filters, len(declared.filters.names))
        while recipient.filters > 0 and page.has_room:
            recipient.filters -= 1
            page.add(declared.filters.names[recipient.filters], wire.WANTED)
        if recipient.groups == 0 and recipient.filters == 0:
            recipient.paging = False
            if not recipient.behind:
                page.version = self.version

    def _fill_from_cut(self, recipient: Recipient, page: _Page) -> None:
        cut = recipient.cut
        if cut is None:
            cut = recipient.behind
            recipient.cut = cut
            recipient.behind = {}
            recipient.version = self.version
            recipient.leaving = False
            recipient.keys = iter(cut)
        while page.has_room:
            assert recipient.keys is not None
            key = next(recipient.keys, None)
            if key is None:
                if recipient.leaving:
                    recipient.cut = None
                    recipient.keys = None
                    page.version = recipient.version
                    return
                recipient.leaving = True
                recipient.keys = iter(cut)
                continue
            # As it was at the moment of the cut.
            state = recipient.behind[key] if key in recipient.behind else self.declared.state(key)
            if (state == ABSENT) == recipient.leaving and state != cut[key]:
                page.add(key, state)
            else:
                page.looked += 1


def _put_behind(recipient: Recipient, key: str, before: int, after: int) -> None:
    """A key has changed since the last version. One that is as it was stands at another place, perhaps, which a walk
    may have passed."""
    behind = recipient.behind
    if recipient.paging:
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
        return self.looked < self._most and self._bytes < DECLARE_BYTES

    def add(self, key: str, state: int) -> None:
        """One more key."""
        self.looked += 1
        self.keys.append(key)
        self.states.append(state)
        self._bytes += len(key.encode()) + 4


def _is_own(topic_filter: str) -> bool:
    return topic_filter == "$SYS" or topic_filter.startswith("$SYS/")

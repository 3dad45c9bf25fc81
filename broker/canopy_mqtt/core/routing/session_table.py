"""The sessions of a broker by client identifier, their total size, which are empty, and which give way to others.

Owns the session map and its accounts. Promises: the accounts are exact for what `count` was told; the session that has
been empty for longest is found at once, and so is the one of an account whose client has been away for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.accounts import FILTERS, MAX_USER_BYTES, SESSION_SIZE, SESSIONS, SETTINGS, Account, Accounts, Room
from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.jobs import END_SESSION_WORK, STEP_WORK
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import text_bytes

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.router import Router


class SessionTable:
    """The existing sessions, connected or not."""

    def __init__(self, accounts: Accounts) -> None:
        self.sessions: dict[str, Session] = {}
        # What is counted for all of them (`session_bytes`).
        self.bytes = 0
        # Sessions that brokers share (`core.shared`) and that are not here. The store's to set.
        self.elsewhere = 0
        # Those of clients that are away, with nothing in them, in the order in which they became so; and their bytes.
        self._empty: OrderedDict[Session, None] = OrderedDict()
        self.empty_bytes = 0
        # Those of clients that are away, by account, in the order in which they left; those with subscriptions again.
        self._absent: dict[Account, OrderedDict[Session, None]] = {}
        self._subscribed: dict[Account, OrderedDict[Session, None]] = {}
        self._accounts = accounts
        self._number: Room = accounts.rooms[SESSIONS]
        self._size: Room = accounts.rooms[SESSION_SIZE]
        # What is counted for wills without a session, and on which account: see `hold_will`.
        self._wills: dict[object, tuple[Account, int]] = {}

    @property
    def empty_count(self) -> int:
        """Return how many sessions of clients that are away hold nothing."""
        return len(self._empty)

    def add(self, session: Session) -> None:
        """Take in a new session; it has its client identifier."""
        self.enter(session)
        self.count(session)

    def enter(self, session: Session) -> None:
        """Take in a new session; `count` is still to be told of it."""
        session.account.belong_to(self._account_of(session))
        self._number.change(session.account.owner, 1)
        self.sessions[session.client_id] = session

    def _account_of(self, session: Session) -> Account:
        return self._accounts.internal if session.internal else self._accounts.of(session.principal)

    def belong(self, session: Session) -> None:
        """A session has another principal: its account is charged with what it holds."""
        before = session.account.owner
        account = self._account_of(session)
        if account is before or session.ended:
            return
        self._leave(session)
        held = session.account
        # First what the new one gets: neither is gone in between.
        self._number.change(account, 1)
        self._size.change(account, int(held.session))
        self._accounts.filters.change(account, int(held.filters))
        held.belong_to(account)
        self._number.change(before, -1)
        self._size.change(before, -int(held.session))
        self._accounts.filters.change(before, -int(held.filters))
        self._note(session)

    def count(self, session: Session) -> None:
        """A session's user, will, or connection has changed: count it anew, and see whether it is empty, or absent."""
        if session.ended:
            return
        size = bytes_of(session)
        grown = size - int(session.account.session)
        self.bytes += grown
        self._size.change(session.account.owner, grown)
        if session in self._empty:
            self.empty_bytes -= int(session.account.session)
            if not is_empty(session):
                del self._empty[session]
        elif is_empty(session):
            self._empty[session] = None
        session.account.session = size
        if session in self._empty:
            self.empty_bytes += size
        self._note(session)

    def _note(self, session: Session) -> None:
        """Note a session among the absent ones of its account, or not."""
        if session.send_buffer is not None or session.internal:
            self._leave(session)
            return
        _put(self._absent, session)
        if session.subscriptions:
            _put(self._subscribed, session)

    def _leave(self, session: Session) -> None:
        """Note a session as absent no more."""
        _take(self._absent, session)
        _take(self._subscribed, session)

    def hold_will(self, holder: object, client_id: str, principal: Principal, will: Will) -> None:
        """Count a will that is in no session, on the account of its principal.

        `holder`: the client identifier, if it waits for its client; of one that waits for its turn, what has it.
        """
        self.let_go_of_will(holder)
        size = session_bytes(client_id, principal, will)
        account = self._accounts.of(principal)
        self._wills[holder] = (account, size)
        self.bytes += size
        self._size.change(account, size)

    def let_go_of_will(self, holder: object) -> None:
        """Count it no more."""
        held = self._wills.pop(holder, None)
        if held is not None:
            account, size = held
            self.bytes -= size
            self._size.change(account, -size)

    def remove(self, session: Session) -> None:
        """A session is over."""
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        size = int(session.account.session)
        self.bytes -= size
        owner = session.account.owner
        if session in self._empty:
            del self._empty[session]
            self.empty_bytes -= size
        absent = self._absent.get(owner)
        if absent is not None and session in absent:
            self._leave(session)
        self._size.change(owner, -size)
        session.account.session = 0
        self._number.change(owner, -1)

    # -- room ----------------------------------------------------------------------------------------------------------

    def grows_by(self, client_id: str, principal: Principal, will: Will | None) -> int:
        """The bytes that a client's session takes, or takes more than the one that is there."""
        grows = session_bytes(client_id, principal, will)
        present = self.sessions.get(client_id)
        if present is not None:
            return grows - session_bytes(client_id, present.principal, present.will)
        # A will that stands without a session goes when its client comes.
        held = self._wills.get(client_id)
        return grows if held is None else grows - held[1]

    def lacking(self, limits: Limits, account: Account, client_id: str, grows: int, new: bool = True) -> int:
        """The room that is short for a client's session, by its number; -1: none is. `new`: it is not one of those that
        are elsewhere.

        A session that is there already may stay, also beyond the limits, but not with a larger will or more to say of
        its user. What is empty makes room for others, and so it counts as free for an account.
        """
        if client_id in self.sessions:
            if grows <= 0:
                return -1
        elif limits.max_sessions > 0 and (
            len(self.sessions) + (self.elsewhere if new else 0) >= limits.max_sessions
            or not self.is_fair(limits, SESSIONS, account, grows, new)
        ):
            return SESSIONS
        if limits.max_session_bytes > 0 and (
            self.bytes + grows > limits.max_session_bytes or not self.is_fair(limits, SESSION_SIZE, account, grows)
        ):
            return SESSION_SIZE
        return -1

    def is_fair(self, limits: Limits, room: int, account: Account, grows: int, new: bool = True) -> bool:
        """Return whether an account may have another session, or this many bytes more, if all empty ones end."""
        if room == SESSIONS:
            used = len(self.sessions) - len(self._empty) + (self.elsewhere if new else 0)
            return self._number.left(account, limits.max_sessions, used) >= 1
        return self._size.left(account, limits.max_session_bytes, self.bytes - self.empty_bytes) >= grows

    def oldest_empty(self) -> Session | None:
        """The session that has been empty for longest, if there is one."""
        return next(iter(self._empty), None)

    def giver(self, room: Room, account: Account, need: int, bound: int) -> Session | None:
        """Return the session that ends so that an account gets some of a room: of the largest account of `Room.givers`
        that has a session whose client is away, the one whose client left first. None: none gives way."""
        absent = self._subscribed if room.number == FILTERS else self._absent
        for each in room.givers(account, need, bound):
            sessions = absent.get(each)
            if sessions is not None:
                return next(iter(sessions))
        return None


def _put(absent: dict[Account, OrderedDict[Session, None]], session: Session) -> None:
    owner = session.account.owner
    sessions = absent.get(owner)
    if sessions is None:
        sessions = OrderedDict()
        absent[owner] = sessions
    sessions[session] = None


def _take(absent: dict[Account, OrderedDict[Session, None]], session: Session) -> None:
    owner = session.account.owner
    sessions = absent.get(owner)
    if sessions is not None and session in sessions:
        del sessions[session]
        if not sessions:
            del absent[owner]


SESSION_BYTES: Final = 1_536
"""A session with its dicts and its ledger, its place among the sessions, and its time in the heap."""

IDENTIFIER_BYTES: Final = 64
"""A packet identifier of a QoS 2 publish that is not released yet."""

CHARACTER_BYTES: Final = 4
"""A character of what an authenticator says of a client, at most."""

WILL_BYTES: Final = 256
"""A will without its topic, payload and properties."""


def will_bytes(will: Will | None) -> int:
    """Return the bytes that are counted for a will."""
    if will is None:
        return 0
    return WILL_BYTES + text_bytes(will.topic) + len(will.payload) + len(will.properties)


def session_bytes(client_id: str, principal: Principal, will: Will | None) -> int:
    """Return the bytes that are counted for a session of a client that has no QoS 2 publishes to release."""
    size = SESSION_BYTES + text_bytes(client_id) + text_bytes(principal.user_name or "") + will_bytes(will)
    return size + CHARACTER_BYTES * principal.size()


def bytes_of(session: Session) -> int:
    """Return the bytes that are counted for a session as it is now."""
    size = session_bytes(session.client_id, session.principal, session.will)
    received = session.received_qos2
    return size if received is None else size + len(received) * IDENTIFIER_BYTES


def is_empty(session: Session) -> bool:
    """Return whether the end of a session whose client is away would lose nothing but the word that it was there."""
    return (
        session.send_buffer is None
        and not session.internal
        and not session.subscriptions
        and not session.has_messages()
        and not session.received_qos2
        and session.will is None
    )


# -- who gives way -----------------------------------------------------------------------------------------------------
#
# First the empty sessions of clients that are away, of any account, since nothing is lost with them; then those of the
# largest account above its fair share (`canopy_mqtt.core.accounts`), if the client is away, in the order in which the
# clients left. Such a session ends as at its expiry: its will is published, and its messages are counted as lost. A
# connected client loses nothing. The work of one call is bounded, and charged to the client.

MAX_ENDED: Final = 256
"""Sessions that may end for one that comes: a will of 400 KB takes the room of all these empty ones."""


def lacking_session_room(
    router: Router, client_id: str, principal: Principal, will: Will | None, now: float, new: bool = True
) -> str:
    """Make room for the session of a client. Return the setting that leaves none for it; empty: there is room.

    `new`: see `SessionTable.lacking`. What its user holds has one from elsewhere already.
    """
    limits = router.limits
    table = router.session_table
    accounts = router.accounts
    account = accounts.of(principal)
    grows = table.grows_by(client_id, principal, will)
    until: i64 = router.budget.used + STEP_WORK
    lacking = -1
    for _ in range(MAX_ENDED):
        lacking = table.lacking(limits, account, client_id, grows, new)
        if lacking < 0:
            break
        room = accounts.rooms[lacking]
        ending: Session | None = None
        if table.is_fair(limits, lacking, account, grows, new):
            ending = table.oldest_empty()
        gives = ending is None
        if gives and router.budget.used < until:
            need, bound = 1, limits.max_sessions
            if lacking == SESSION_SIZE:
                need, bound = grows, limits.max_session_bytes
            ending = table.giver(room, account, need, bound)
        if ending is None or ending.client_id == client_id:
            break
        _end_for_another(router, ending, room if gives else None, now)
    else:
        lacking = table.lacking(limits, account, client_id, grows, new)
    if lacking >= 0:
        accounts.refuse(account, accounts.rooms[lacking], SETTINGS[lacking])
        return SETTINGS[lacking]
    if new and grows > 0 and accounts.lacks(account, grows, limits.max_user_bytes):
        accounts.refuse(account, accounts.rooms[SESSION_SIZE], MAX_USER_BYTES)
        return MAX_USER_BYTES
    return ""


def lacking_filter_room(
    router: Router, session: Session, name: str, group_name: str, topic_filter: str, now: float
) -> str:
    """Make room for another subscription of a client, by what it takes; one that it has already it may replace.

    Return the setting that leaves none for it; empty: there is room. `name` as the client wrote it, `topic_filter`
    without `$share/name/`.
    """
    if name in session.subscriptions:
        return ""
    limits = router.limits
    table = router.table
    accounts = router.accounts
    owner = session.account.owner
    cost: i64 = table.cost(name, group_name, topic_filter)
    if cost > table.room(limits, session, True):
        if accounts.lacks(owner, int(cost), limits.max_user_bytes):
            accounts.refuse(owner, accounts.filters, MAX_USER_BYTES)
            return MAX_USER_BYTES
        return "limits.max_client_bytes"
    until: i64 = router.budget.used + STEP_WORK
    while not table.is_fair(limits, session, cost):
        ending: Session | None = None
        if router.budget.used < until:
            if table.leaving and accounts.filters.is_below_share(owner, int(cost), limits.max_filter_bytes):
                # Of sessions that are over.
                table.work_off(table.drops)
                continue
            ending = router.session_table.giver(accounts.filters, owner, int(cost), limits.max_filter_bytes)
        if ending is None:
            accounts.refuse(owner, accounts.filters, SETTINGS[FILTERS])
            return SETTINGS[FILTERS]
        _end_for_another(router, ending, accounts.filters, now)
    return ""


def _end_for_another(router: Router, session: Session, room: Room | None, now: float) -> None:
    """End a session whose account gives way in a room; None: it is an empty one, which gives nothing."""
    if room is not None:
        router.accounts.give_way(session.account.owner, room)
    router.budget.used += END_SESSION_WORK
    router.end_session(session, now)

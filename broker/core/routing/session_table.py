"""The sessions of a broker by client identifier, their total size, and which of them are empty.

Owns the session map and its accounts. Promises: the accounts are exact for what `count` was told; the session that has
been empty for longest is found at once; a client that connects never ends another session, unless it is empty: no
subscription, no message, no will.
"""

from __future__ import annotations

from collections import OrderedDict

from broker.core.codec.packets import Will
from broker.core.counters import Counters
from broker.core.limits import Limits
from broker.core.principal import Principal
from broker.core.session.session import Session
from broker.core.session.session_bytes import bytes_of, is_empty, session_bytes


class SessionTable:
    """The existing sessions, connected or not."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        # What is counted for all of them (`session_bytes`).
        self.bytes = 0
        # Those of clients that are away, with nothing in them, in the order in which they became so.
        self._empty: OrderedDict[Session, None] = OrderedDict()
        # What is counted for wills without a session, by client identifier.
        self._wills: dict[str, int] = {}

    @property
    def empty_count(self) -> int:
        """How many sessions of clients that are away hold nothing."""
        return len(self._empty)

    def make(self, client_id: str, limits: Limits, counters: Counters, principal: Principal | None) -> Session:
        """Make a session and take it in; `count` is still to be told of it."""
        session = Session(client_id, limits.session_messages, limits.session_bytes, counters, principal)
        session.queue_qos0 = limits.queue_qos0
        self.sessions[client_id] = session
        return session

    def add(self, session: Session) -> None:
        """Take in a new session; it has its client identifier."""
        self.sessions[session.client_id] = session
        self.count(session)

    def count(self, session: Session) -> None:
        """A session's user, will, or connection has changed: count it anew, and see whether it is empty."""
        if session.ended:
            return
        size = bytes_of(session)
        self.bytes += size - session.account.session
        session.account.session = size
        if is_empty(session):
            self._empty[session] = None
        elif session in self._empty:
            del self._empty[session]

    def hold_will(self, client_id: str, principal: Principal, will: Will) -> None:
        """Count the will of a client that has no session."""
        self.let_go_of_will(client_id)
        size = session_bytes(client_id, principal, will)
        self._wills[client_id] = size
        self.bytes += size

    def let_go_of_will(self, client_id: str) -> None:
        """Count it no more."""
        self.bytes -= self._wills.pop(client_id, 0)

    def remove(self, session: Session) -> None:
        """A session is over."""
        self.bytes -= session.account.session
        session.account.session = 0
        self._empty.pop(session, None)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]

    def has_room(self, limits: Limits, client_id: str, principal: Principal, will: Will | None) -> bool:
        """Whether the limits leave room for the session of a client.

        A session that is there already may stay, also beyond the limits, but not with a larger will or
        more to say of its user.
        """
        present = self.sessions.get(client_id)
        grows = session_bytes(client_id, principal, will)
        if present is not None:
            grows -= session_bytes(client_id, present.principal, present.will)
            if grows <= 0:
                return True
        elif 0 < limits.max_sessions <= len(self.sessions):
            return False
        elif self._wills:
            # Its own goes when it comes.
            grows -= self._wills.get(client_id, 0)
        return not 0 < limits.max_session_bytes < self.bytes + grows

    def oldest_empty(self) -> Session | None:
        """The session that has been empty for longest, if there is one."""
        return next(iter(self._empty), None)

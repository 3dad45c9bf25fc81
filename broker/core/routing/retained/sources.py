"""Whether a retained message may still be sent: its publisher may have lost the right to its topic since.

Owns the question, which `retained.check_publisher` switches on: mosquitto asks it by default (`check_retain_source`).
Promises: a publisher that has a session is asked about as what it is now; of another one its client identifier and its
user name (without one, its address) are known, which is all that a store keeps. What the broker itself, its program or
a link has retained is always sent.
"""

from __future__ import annotations

from typing import Final

from broker.core.permissions import Permissions
from broker.core.principal import LOCAL, Principal
from broker.core.queues.message import Message
from broker.core.queues.queue_totals import RetainedCheck
from broker.core.routing.retained.by_age import account_name
from broker.core.session.session import Session

RETAINED: Final = "retained"
"""In place of the authenticator that knew a publisher."""


class PublisherCheck(RetainedCheck):
    """Asks access control about the publishers of retained messages."""

    def __init__(self, sessions: dict[str, Session]) -> None:
        self.permissions: Permissions | None = None
        self._sessions = sessions

    def may_be_sent(self, message: Message) -> bool:
        """Whether the publisher of a retained message may publish it now."""
        permissions = self.permissions
        account = account_name(message)
        if permissions is None or not account:
            return True
        principal = self._publisher(message.publisher, account)
        return permissions.asked.may_publish(principal, message.topic.decode(), message.qos, True)

    def _publisher(self, client_id: str, account: str) -> Principal:
        session = self._sessions.get(client_id)
        if session is not None and session.account.owner.name == account:
            return session.principal
        kind, _, name = account.partition(" ")
        if kind == "user":
            return Principal(name, client_id=client_id, authenticator=RETAINED)
        # Of an IPv6 address an account has the network, and of a Unix socket a word.
        host = "" if name == LOCAL else name.partition("/")[0]
        return Principal(None, client_id=client_id, host=host)

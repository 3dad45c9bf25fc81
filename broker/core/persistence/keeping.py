"""Decides which sessions and wills are stored, and tells a journal of an opened session and its subscriptions."""

from __future__ import annotations

from broker.core.persistence.journal import Journal
from broker.core.session.session import Session
from broker.core.topics.subscription import Subscription


def keep(session: Session, journal: Journal) -> None:
    """A session has got its expiry interval and its will: have a journal keep it from now on, if it lasts.

    An interval of 0 cannot be raised later on the same connection (section 3.14.2.2.2).
    """
    if session.expiry_interval == 0 and session.queue.disk is None:
        if session.journal is not None:
            session.keep_in(None)
            journal.session_gone(session.client_id)
        if session.will is not None:
            session.will_alone = True
            journal.will_alone(session.client_id, session.principal, session.will, 0.0)
        return
    session.keep_in(journal)
    # What waits on disk alone is kept until the end of the connection, or, if the broker dies, for a second.
    journal.session_kept(session.client_id, session.principal, session.expiry_interval or 1, 0.0)
    if session.will is not None:
        journal.will_set(session.client_id, session.will, 0.0)


def keep_subscription(session: Session, subscription: Subscription) -> None:
    """A session has a subscription, or has it with other terms: have that kept, where the session is."""
    if session.journal is not None:
        session.journal.subscribed(session.client_id, subscription, session.is_streaming(subscription))

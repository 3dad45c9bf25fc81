"""Two sessions of one client become one: the one that is here takes in what another one had.

Owns the rule, whichever way the other one came: from a node that lives, or out of the store of a dead one. What was in
flight there and may have been sent waits again (QoS 1) or is over (QoS 2, which is never sent twice).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.codec.errors import Refused
from broker.core.connection.connect.identity import check_owner
from broker.core.counters import SESSION_ENDED
from broker.core.persistence.journal import DeliveryRecord, SessionRecord
from broker.core.queues.delivery import QUEUED, RELEASED
from broker.core.queues.message import MovedMessage
from broker.core.routing.router import Router
from broker.core.session.session import Session


def is_of(router: Router, session: Session, record: SessionRecord, now: float) -> bool:
    """Whether a session that is here is that user's whose the other one is."""
    try:
        check_owner(session, record.principal.user_name, router.limits, now)
    except Refused:
        return False
    return session.principal.mount == record.principal.mount


def waiting_again(session: Session, records: Iterable[DeliveryRecord]) -> tuple[list[DeliveryRecord], int]:
    """The records of another session, as they can be the last of this one; and how many are lost."""
    found: list[DeliveryRecord] = []
    lost = 0
    here = {
        each.message.identity
        for each in (*session.inflight.values(), *session.queue.waiting())
        if isinstance(each.message, MovedMessage)
    }
    for kept in records:
        if kept.state == RELEASED:
            _release(session, kept, found)  # its client had it
            continue
        if kept.message is not None and kept.message.identity in here:
            continue  # the move to or from here was not over when the nodes lost each other
        if kept.state != QUEUED and kept.qos == 2 and kept.attempts > 0:
            session.offered += 1
            session.drop(SESSION_ENDED)
            lost += 1
            _release(session, kept, found)
            continue
        kept.state, kept.packet_id, kept.attempts = QUEUED, 0, 0
        found.append(kept)
    return found, lost


def _release(session: Session, kept: DeliveryRecord, found: list[DeliveryRecord]) -> None:
    """Its client may still know the packet identifier, and would take another message with it for this one: have it
    be released first [MQTT-4.3.3-7], unless the session here has it in flight."""
    if session.inflight.get(kept.packet_id) is None:
        kept.message, kept.state = None, RELEASED
        found.append(kept)

"""A message for a session that was loaded after the message was published, but subscribed before.

Owns its delivery, as `routing.in_turns.broadcasts` does for present sessions. Share groups have had the message
already.
"""

from __future__ import annotations

from broker.core.codec.topic_names import matches
from broker.core.queues.message import Message
from broker.core.routing.receivers.plans import Recipient
from broker.core.routing.receivers.reach import Reach
from broker.core.routing.router import Router
from broker.core.session.session import Session


def deliver_late(router: Router, session: Session, message: Message, publisher: str) -> bool:
    """Offer a message to a session, by the subscriptions and the rules of now. `publisher`: for No Local.

    False: the session does not want it, or may not have it.
    """
    topic = message.topic.decode()
    own = publisher == session.client_id
    target = Recipient(session)
    found = False
    for subscription in session.subscriptions.values():
        entry = subscription.entry
        if entry is None or subscription.group is not None or (own and subscription.no_local):
            continue
        if matches(entry.topic_filter, topic):
            target.add(subscription)
            found = True
    if not found:
        return False
    target.settle()
    qos = min(int(message.qos), int(target.qos))
    permissions = router.permissions
    if permissions is not None and permissions.filters:
        reach = Reach(message.topic, permissions)
        if not reach.may(session):
            return False
        qos = reach.qos(session, qos)
    retain = message.retain and target.retain_as_published
    session.deliver(message, qos, retain, target.identifiers, None, target.sub_queue)
    return True

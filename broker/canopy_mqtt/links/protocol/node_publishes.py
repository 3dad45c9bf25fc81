"""Publishes a message of another node, or of another worker, that is not for all who subscribe here."""

from __future__ import annotations

from canopy_mqtt.core.ledger import SESSION_ENDED, Ledger
from canopy_mqtt.core.routing.fanout import takes_at_once
from canopy_mqtt.core.routing.node_messages import GroupMessage, NodeMessage
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.routing.share_homes import ShareHome
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import SharedGroup


def publish_again(router: Router, message: NodeMessage, origin: Session) -> bool:
    """Retain, or clear, what another node has sent again; route it only if that changes what is retained here.

    So a message that does not stay here does not come to the subscribers anew with each connection of the node.
    """
    if router.limits.upgrade_outgoing_qos:
        message.qos = 2
    topic = message.topic.decode()
    before = router.retained.get(topic)
    router.retained_store.retain(message, origin, True)
    if router.retained.get(topic) is before:
        return False
    router.publish(message, origin, True)
    return True


def publish_to_group(router: Router, message: GroupMessage) -> int:
    """Deliver what another worker has sent for one group alone. Return for how many members, or queues, it was.

    It goes to a member here, or to the queue if the group lives here; else back to where it lives, unless it is for a
    member that is away.
    """
    queues, home_of = router.share_queues, router.table.home_of
    name = message.share
    group = queues.find(name)
    home = "" if home_of is None else home_of(name)
    member = None if group is None else group.any_member()
    if home and (member is None or not (member.present or message.away)):
        return queues.send_home(message, name, home)
    if group is None or member is None:
        Ledger(name, router.counters).lost(SESSION_ENDED, 1)
        return 0
    count = router.fanout.deliver_to_one_group(group, message)
    if group.home is not None and not group.home.busy:
        _see_room(router, group, group.home)
    return count


def _see_room(router: Router, group: SharedGroup, home: ShareHome) -> None:
    """Tell the home of a group if no member here has room; the first that has says so (`ShareSource`)."""
    members = [member for member in group.connected.slots if member is not None]
    if any(takes_at_once(member.session) for member in members):
        return
    home.set_busy(group, True)
    for member in members:
        router.share_queues.attach(member)

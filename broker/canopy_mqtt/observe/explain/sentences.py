"""The sentences for people: one for each part of an answer."""

from __future__ import annotations

from itertools import islice
from typing import Final

from canopy_mqtt.core.codec.reason_codes import (
    MALFORMED_PACKET,
    QOS_NOT_SUPPORTED,
    RETAIN_NOT_SUPPORTED,
    ProtocolError,
)
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.refusals import ACCESS_CONTROL
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.observe.explain.answer import Group, Publisher, Receiver, Retained, Subscription

LOOKED_AT: Final = 1_000
"""Filters of one client that are searched for the reason that none matches."""

FILTERS_SHOWN: Final = 3
"""Filters that a sentence names."""

CAUSES: Final = {
    "full-messages": "its queue is full of messages",
    "full-bytes": "its queue is full of bytes",
    "too-large": "the packet is larger than its Maximum Packet Size",
    "disconnected": "its client is away, and QoS 0 messages do not wait (session.queue_qos0)",
    "global": "all queues of the broker together are full",
    "no-quota": "its queue is full, and it does not acknowledge earlier messages",
    "not-authorized": "the topic has no name below its mount",
}


CLOSES: Final = {
    QOS_NOT_SUPPORTED: "mqtt.max_qos",
    RETAIN_NOT_SUPPORTED: "mqtt.retain_available",
    MALFORMED_PACKET: "the topic contains a control character",
}


def why_closed(error: ProtocolError) -> str:
    """Name the setting for which a connection ends, or say what its client is told."""
    return CLOSES.get(error.reason_code, str(error))


def not_checked(client_id: str | None) -> str:
    """Say why nothing was asked about the publisher: it has no session, or the question names none."""
    if client_id is not None:
        return f"{client_id} has no session here, so its access rules were not checked"
    return (
        "no publisher was given: the message counts as accepted; access rules of publishers and No Local do not apply"
    )


def publisher(client_id: str, made: Publisher, why: str) -> str:
    """Say how the broker reacts to the PUBLISH."""
    if made.accepted:
        return f"{client_id} may publish it" + (f": {made.rule}" if made.rule else "")
    end = "and its connection ends" if made.disconnected else "and nobody gets it"
    return f"{client_id} is refused with 0x{made.reason_code:02X} ({why}), {end}"


def no_match(name: str, session: Session | None, message: Message, member: bool) -> str:
    """Say why none of a client's ordinary subscriptions matches. `member`: it is in a share group that has one."""
    if session is None:
        return f"{name} does not get it: it has no session here"
    if member:
        return f"{name} has no subscription of its own that matches; it is a member of a share group (see there)"
    if session.ended:
        return f"{name} does not get it: its session is over"
    count = len(session.subscriptions)
    if count == 0:
        return f"{name} does not get it: it has no subscription"
    if message.topic.startswith(b"$") and any(each[0] in "+#" for each in islice(session.subscriptions, LOOKED_AT)):
        return f"{name} does not get it: filters that begin with a wildcard match no topic that begins with $"
    what = "its only subscription does not match" if count == 1 else f"none of its {count} subscriptions matches"
    mount = session.principal.mount
    return f"{name} does not get it: {what} {message.topic.decode()}" + (f" (its mount is {mount})" if mount else "")


def _through(subscriptions: list[Subscription], more: int) -> str:
    named = ", ".join(each.topic_filter for each in subscriptions[:FILTERS_SHOWN])
    more += len(subscriptions) - FILTERS_SHOWN
    return f"through {named}" + (f" and {more} more" if more > 0 else "")


def receiver(made: Receiver, message: Message) -> str:
    """Describe the effect on one session."""
    name = made.client_id
    through = _through(made.subscriptions, made.more_subscriptions)
    if made.outcome == "denied":
        return f"{name} does not ({through}): it may not receive this topic, refused by {made.rule or ACCESS_CONTROL}"
    if made.outcome == "own":
        return f"{name} does not: it published it, and {through.removeprefix('through ')} has No Local"
    if made.outcome == "link":
        return f"{name} is the link to another broker ({through}): the link also applies its own filters"
    if made.outcome == "dropped":
        end = ", and its client is disconnected for it" if made.disconnects else ""
        return f"{name} does not ({through}): {CAUSES.get(made.cause, made.cause)}; counted as {made.cause}{end}"
    how = f"at QoS {made.qos}" + (" with RETAIN" if made.retain else "")
    parts = [f"{name} gets it {how} {through}"]
    if made.qos < message.qos:
        parts.append(f"published at QoS {message.qos}, but granted a lower one")
    if made.outcome == "waits":
        parts.append(f"it waits {'behind its queued messages' if made.connected else 'until its client is back'}")
    if made.outcome == "sent" and made.queue is not None and made.queue.max_delay > 0.0:
        parts.append(f"within {made.queue.max_delay * 1_000:g} ms, in one write with what else comes for it by then")
    if not made.certain:
        parts.append("uncertain: its queue or all queues are full, or it gets this message in another way first")
    return "; ".join(parts)


def group(made: Group, present: bool) -> str:
    """Name the member that a share group chooses."""
    name = f"$share/{made.name}/{made.topic_filter}"
    if made.next is None:
        return f"{name}: nobody gets it: no member may receive it"
    if made.next.client_id == name and made.next.gets:
        if made.connected == 0:
            return f"{name}: it waits in the queue of the group for the member that connects first"
        return f"{name}: it waits in the queue of the group, behind {made.waiting} that its members have no room for"
    if made.next.client_id == name:
        return f"{name}: the queue of the group does not take it"
    why = "it is the next connected member with room" if present else "it is next; no member is connected"
    return f"{name}: {made.next.client_id} is chosen, since {why}"


def retained(made: Retained) -> str:
    """Describe the effect on the retained message."""
    if made.clears:
        return "the topic's retained message is cleared" if made.present else "there is no retained message to clear"
    if made.refused_by:
        gone = "; the current one is removed, because it is out of date" if made.present else ""
        return f"it is not retained: {made.refused_by} leaves no room{gone}"
    return "it is retained" + (" and replaces the current one" if made.present else "")

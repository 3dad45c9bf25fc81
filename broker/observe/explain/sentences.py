"""What is explained, in one sentence for each part."""

from __future__ import annotations

from itertools import islice
from typing import Final

from broker.core.queues.message import Message
from broker.core.refusals import ACCESS_CONTROL
from broker.core.session.session import Session
from broker.observe.explain.answer import Group, Publisher, Receiver, Retained, Subscription

LOOKED_AT: Final = 1_000
"""Filters of one client that are looked at for the reason that none matches."""

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


def unknown_publisher(client_id: str) -> str:
    """Nobody of that name has a session here."""
    return f"{client_id} has no session here, so its access rules were not checked"


def nobodys() -> str:
    """Nobody was named."""
    return (
        "no publisher was given: the message counts as accepted; access rules of publishers and No Local do not apply"
    )


def publisher(client_id: str, made: Publisher, why: str) -> str:
    """What the broker makes of the PUBLISH."""
    if made.accepted:
        return f"{client_id} may publish it" + (f": {made.rule}" if made.rule else "")
    end = "and its connection ends" if made.disconnected else "and nobody gets it"
    return f"{client_id} is refused with 0x{made.reason_code:02X} ({why}), {end}"


def no_session(client_id: str) -> str:
    """The client that is asked about is unknown."""
    return f"{client_id} does not get it: it has no session here"


def no_match(session: Session, message: Message, member: bool) -> str:
    """None of its ordinary subscriptions matches."""
    name = session.client_id
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
    """What one session does."""
    name = made.client_id
    through = _through(made.subscriptions, made.more_subscriptions)
    if made.outcome == "denied":
        return f"{name} does not ({through}): it may not receive this topic, refused by {made.rule or ACCESS_CONTROL}"
    if made.outcome == "own":
        return f"{name} does not: it published it, and {through.removeprefix('through ')} has No Local"
    if made.outcome == "link":
        return f"{name} is the link to another broker ({through}): the link also applies its own filters"
    if made.outcome == "gone":
        return f"{name} does not: its session is over"
    if made.outcome == "dropped":
        end = ", and its client is disconnected for it" if made.disconnects else ""
        return f"{name} does not ({through}): {CAUSES.get(made.cause, made.cause)}; counted as {made.cause}{end}"
    how = f"at QoS {made.qos}" + (" with RETAIN" if made.retain else "")
    parts = [f"{name} gets it {how} {through}"]
    if made.qos < message.qos:
        parts.append(f"published at QoS {message.qos}, but granted a lower one")
    if made.outcome == "waits":
        parts.append(f"it waits {'behind its queued messages' if made.connected else 'until its client is back'}")
    if not made.certain:
        parts.append("uncertain: its queue or all queues are full, or it gets this message in another way first")
    return "; ".join(parts)


def group(made: Group, present: bool) -> str:
    """Whose turn it is in a share group."""
    name = f"$share/{made.name}/{made.topic_filter}"
    if made.next is None:
        return f"{name}: nobody gets it: no member may receive it"
    why = "it is the next connected member with room" if present else "it is next; no member is connected"
    return f"{name}: {made.next.client_id} is chosen, since {why}"


def retained(made: Retained) -> str:
    """What is kept."""
    if made.clears:
        return "the topic's retained message is cleared" if made.present else "there is no retained message to clear"
    if made.refused_by:
        gone = "; the current one is removed, because it is out of date" if made.present else ""
        return f"it is not retained: {made.refused_by} leaves no room{gone}"
    return "it is retained" + (" and replaces the current one" if made.present else "")

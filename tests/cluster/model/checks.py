"""What is held against the promises when a history has come to rest."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.cluster.model.clients import GROUPS, Subscriber
from tests.cluster.model.functions import matches, of_group
from tests.cluster.model.network import FOR_EVER, Network, Violation


def check(world: Network) -> None:
    """Raise Violation if a promise was broken."""
    for client in world.clients.values():
        if isinstance(client, Subscriber) and client.name not in ("g2", "w1", "s4"):
            _check_messages(world, client)
            if client.name != "c1":
                _check_order(world, client)
    if "shares" in world.parts:
        for name, qos in GROUPS.items():
            _check_share_group(world, name, qos)
    if "retained" in world.parts:
        _check_retained(world)
    if "wills" in world.parts:
        _check_wills(world)


def _check_messages(world: Network, client: Subscriber) -> None:
    """What was acknowledged after the SUBACK came, and QoS 2 once."""
    seen: dict[Any, int] = defaultdict(int)
    for msg, source in client.got:
        if not source:
            seen[(msg["pub"], msg["n"])] += 1
    sessions = world.db.tables["session"]
    stored = [key for key in world.db.tables["subscription"] if key[0] in sessions]
    for key, (begun, msg) in world.begun.items():
        if min(msg["qos"], client.qos) == 2 and seen[key] > 1 and client.name != "c1":
            raise Violation(f"{client.name} got QoS 2 {key} {seen[key]} times")
        if key not in world.acked or seen[key]:
            continue
        if client.name == "c1" and key in client.mistaken:
            continue  # the same: the client has kept its packet identifiers, and took it for another message
        for each in client.wanted:
            if client.name == "c1":
                now = {sid for sid, row in world.db.tables["session"].items() if row["client"] == "c1"}
                kept = any(name == each and sid in now for sid, name in stored)
                if client.since.get(each, 0) <= world.anew or not kept:
                    continue  # the session began anew under a live connection
            spans = client.subscribed(each)
            if matches(each, msg["topic"]) and any(a < begun and world.acked[key] < b for a, b in spans):
                raise Violation(
                    f"{client.name} did not get {key} of {msg['topic']}, begun {begun} acknowledged {world.acked[key]}"
                )


def _check_order(world: Network, client: Subscriber) -> None:
    """The first copies of one publisher's messages to one topic come in their order."""
    last: dict[Any, int] = {}
    first = set()
    for msg, source in client.got:
        key = (msg["pub"], msg["n"])
        if source or key in first:
            continue
        first.add(key)
        at = (msg["pub"], msg.get("session"), msg["topic"])
        begun = world.begun[key][0]
        spans = [span for each in client.wanted if matches(each, msg["topic"]) for span in client.subscribed(each)]
        if not any(a < begun < b for a, b in spans):
            continue  # begun before the SUBACK: it may come, also late and again
        if last.get(at, 0) > msg["n"]:
            raise Violation(f"{client.name} got {key} after {last[at]}: order")
        last[at] = msg["n"]


def _check_share_group(world: Network, name: str, qos: int) -> None:
    """Each message comes to one member, and QoS 2 once, from when the first one was there that stays."""
    seen: dict[Any, int] = defaultdict(int)
    members = [world.clients[each] for each in sorted(world.members)]
    for member in members:
        assert isinstance(member, Subscriber)
        for msg, source in member.got:
            if world.group_ids.get(source) == name:
                seen[(msg["pub"], msg["n"])] += 1
    since = min(each.since[name] for each in members if not each.clean)
    for key, (begun, msg) in world.begun.items():
        if msg["topic"] != of_group(name):
            continue
        twice = min(qos, msg["qos"]) == 2
        if twice and seen[key] > 1:
            raise Violation(f"{name} got QoS 2 {key} {seen[key]} times")
        # What was sent to a member with QoS 2 ends with its session.
        if key in world.acked and begun > since and not seen[key] and not (twice and any(m.clean for m in members)):
            raise Violation(f"{name} did not get {key}")
        if not world.faults and not world.roam and seen[key] > 1:
            raise Violation(f"{name} got {key} {seen[key]} times without a fault")


def _check_retained(world: Network) -> None:
    """No publisher's message is retained in place of a newer one of its own that was acknowledged, and all nodes have
    the same."""
    rows = world.db.tables["retained"]
    for topic, row in rows.items():
        pub, number, clear = row["msg"]["pub"], row["msg"]["n"], row["msg"]["clear"]
        later = [msg for key, (_, msg) in world.begun.items() if key in world.acked and msg["topic"] == topic]
        newest = max((msg for msg in later if msg["pub"] == pub), key=lambda msg: msg["n"], default=row["msg"])
        # What clears a topic that is clear leaves no trace, nor what comes before it in one group.
        begun = world.begun[(pub, newest["n"])][0]
        cleared = any(msg["clear"] and world.acked[(msg["pub"], msg["n"])] >= begun for msg in later)
        if newest["n"] > number and not (clear and cleared):
            raise Violation(f"retained: {pub} {number} is kept, {newest['n']} was acknowledged")
    for node in world.nodes.values():
        if world.works(node) and node.copy != {topic: row["msg"] for topic, row in rows.items()}:
            raise Violation(f"retained: {node.name} has {node.copy}")


def _check_wills(world: Network) -> None:
    """The will of a connection that has ended is published once: after its delay, or when its client begins anew. Not
    if the client had said goodbye, or was back in time. It is delivered, and none before an earlier one of its
    client."""
    willing, heir = world.clients["w1"], world.clients["s4"]
    assert isinstance(willing, Subscriber)
    assert isinstance(heir, Subscriber)
    for number, will in world.wills.items():
        count = len(will.published)
        at, clean = will.back or (FOR_EVER, False)
        is_revoked = will.delay > 0 and not clean and at < will.ended + will.delay
        told = f"will {number}, delay {will.delay}, ended {will.ended}, back {will.back}, published {will.published}"
        if count > 1 or (count and (number in world.goodbyes or is_revoked)):
            raise Violation(told)
        if count and will.published[0] < min(will.ended + will.delay, at if clean or not will.delay else FOR_EVER):
            raise Violation(f"{told}: too early")
        accepted = number in willing.wills[:-1]
        # It is revoked by the return before it is due, which is a moment after the delay.
        if accepted and not count and not will.goodbye and (not will.delay or clean):
            raise Violation(told)
    in_order = [number for number in world.published_wills if number in willing.wills]
    if in_order != sorted(in_order):
        raise Violation(f"wills were published as {in_order}")
    delivered = {msg["n"] for msg, _ in heir.got}
    published = {number for number, will in world.wills.items() if will.published}
    if delivered != published:
        raise Violation(f"wills {published - delivered} were not delivered")

"""What a broker's core is made of now, as plain values to compare: nothing in it may depend on clients that have gone.

Owns `fingerprint`, which walks over everything that the router keeps, and `branches`, which sends messages through the
core and says in which form each session's connection got them. Left out is what only grows (counters, versions, numbers
of nodes), what is arbitrary (the order of subscribers, whose turn it is in a share group), and what says when something
was last used.
"""

from __future__ import annotations

from typing import Any

from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.routing.verdicts import Verdicts
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import MatchCache, Route
from canopy_mqtt.core.topics.subscription import (
    FilterEntry,
    MergedRecipient,
    Recipient,
    SharedGroup,
    Subscription,
    subscription_identifiers,
)
from canopy_mqtt.core.topics.topic_tree import Children, TopicNode, TopicTree
from canopy_mqtt.core.topics.trie import CompactTrie, Node, NodeTrie, Trie
from tests.core.harness import Client, Network
from tests.core.recount import frames
from tests.support.sessions import members
from tests.support.tries import filters_of

Facts = Any


def fingerprint(network: Network) -> dict[str, Facts]:
    """Everything that the core of a broker keeps. Publish to every topic before, so that each route is looked up."""
    router = network.router
    table, store, totals = router.table, router.retained_store, router.counters.totals
    return {
        "trie": trie(router.trie),
        "filters": {name: filter_of(router.trie, name) for name in filters_of(router.trie)},
        "subscriptions": (table.count, table.shared_count, int(table.own_bytes), len(table._leaving)),
        "cache": cache(router.cache),
        "routes": {topic: route(each) for topic, each in router.cache.routes.items()},
        "sessions": {client_id: session(each) for client_id, each in router.sessions.items()},
        "session table": (router.session_table.bytes, sorted(each.client_id for each in router.session_table._empty)),
        "retained": tree(router.retained),
        "cleared": tree(store.cleared),
        "retained bytes": (store.bytes, store.system_count, dict(store.shares._bytes)),
        "deadlines": deadlines(router),
        "peers": (
            sorted(each.client_id for each in router.peers.send_buffers),
            len(router.peers.touched),
            len(router.peers.placing),
            len(router.peers.events),
        ),
        "in turns": (
            len(router.wills.line),
            len(router.unfinished._line),
            len(router.fanout.broadcasts.line),
            dict(router.fanout.broadcasts.topics),
            router.fanout.broadcasting,
        ),
        "aliases": int(router.alias_bytes),
        "load": (
            int(totals.messages),
            int(totals.bytes),
            int(totals.inflight),
            int(totals.inflight_bytes),
            len(totals.overflowed),
            len(totals.aging),
        ),
    }


def trie(found: Trie) -> Facts:
    """The records of a layout."""
    size = (len(found), int(found.nodes), int(found.bytes))
    if isinstance(found, NodeTrie):
        return (*size, sorted(found._exact), node(found._root))
    assert isinstance(found, CompactTrie)
    shapes = {prefix: {each.shape: each.count, **(each.more or {})} for prefix, each in found._shapes.items()}
    return (
        *size,
        sorted(found._filters),
        shapes,
        {prefix: each.more is None for prefix, each in found._shapes.items()},
    )


def node(found: Node | FilterEntry) -> Facts:
    """A node of the layout with nodes, and all below it."""
    if isinstance(found, FilterEntry):
        return found.topic_filter
    children = None if found.children is None else {level: node(each) for level, each in found.children.items()}
    ends = [None if each is None else each.topic_filter for each in (found.hash, found.entry)]
    return (children, None if found.plus is None else node(found.plus), *ends)


def filter_of(found: Trie, name: str) -> Facts:
    """An entry: who subscribes, and in which form they are kept."""
    entry = found.find(name)
    assert entry is not None
    assert not entry.retired
    return (
        (entry.only is not None, entry.many is not None),
        sorted((subscription(each) for each in entry.subscriptions), key=repr),
        [each.slot for each in entry.subscriptions],
        {each: group(members) for each, members in entry.groups.items()},
        entry.slow,
        int(entry.cost),
    )


def subscription(found: Subscription) -> Facts:
    """A subscription, with its subscriber's name."""
    assert isinstance(found.session, Session)
    queue = found.message_terms
    return (
        found.session.client_id,
        found.topic_filter,
        (int(found.qos), found.no_local, found.retain_as_published, int(found.retain_handling), int(found.identifier)),
        None if queue is None else (queue.policy, queue.max_age, queue.depth, queue.waiting),
    )


def group(found: SharedGroup) -> Facts:
    """A share group: who is there, and who is away."""
    there, away = (
        sorted((subscription(each) for each in members(some)), key=repr) for some in (found.connected, found.away)
    )
    return there, away, found.subscriptions


def cache(found: MatchCache) -> Facts:
    """The match cache without its routes."""
    return {
        "size": (len(found), found.weight, found._index.node_count),
        "index": tree(found._index),
    }


def route(found: Route) -> Facts:
    """A cached route, and what was computed from it."""
    return {
        "filters": sorted(each.topic_filter for each in found.entries),
        "weight": (found.weight, found.name_weight),
        "run": None if found.run_key is None else found.run_key.topic_filter,
        "sole": recipient(found.sole),
        "receivers": sorted(map(recipient, found.receivers), key=repr),
        "everyone": sorted(map(recipient, found.everyone), key=repr),
        "groups": sorted(each.name for each in found.groups),
        "counts": (int(found.listeners), int(found.list_references), int(found.references)),
        "forms": (found.built, found.own_list, found.places is None),
        "barred": None if found.barred is None else sorted(each.client_id for each in found.barred.principals),
        "verdicts": None if found.verdicts is None else verdicts_of(found.verdicts),
        "tapped": found.tapped,
    }


def recipient(found: Recipient | None) -> Facts:
    """One session's part."""
    if found is None:
        return None
    return (
        found.session.client_id,
        int(found.qos),
        found.retain_as_published,
        found.no_local,
        found.plain,
        sorted(subscription_identifiers(found)),
        found.message_terms is None,
        recipient(found.others) if isinstance(found, MergedRecipient) else type(found).__name__,
    )


def verdicts_of(found: Verdicts) -> Facts:
    """What access control said about the receivers of a route."""
    return (
        int(found.references()),
        sorted((principal.client_id, qos) for principal, qos in found._known.items()),
    )


def session(found: Session) -> Facts:
    """A session, and what its connection has."""
    account, queue, window, send_buffer = found.account, found.queue, found.window, found.send_buffer
    return {
        "subscriptions": sorted(found.subscriptions),
        "shared": (found.shared, len(found.memberships or ())),
        "ways": (found.plain, found.fast_path, found.send_buffer is not None, found.ended, int(found.fresh_terms)),
        "account": (int(account.filters), int(account.retained), int(account.session)),
        "queue": (queue.messages, queue.bytes, int(queue.max_bytes), queue.qos0),
        "window": (window.bytes, int(window.max_bytes), window.quota, int(window.inflight.count)),
        "incoming": sorted(found.received_qos2 or ()),
        "will": (found.will is not None, found.will_due, found.expires_at, found.expiry_interval),
        "send_buffer": None
        if send_buffer is None
        else (send_buffer.messages, int(send_buffer.bytes), send_buffer.fresh, send_buffer.empty, send_buffer.holds),
    }


def tree(found: TopicTree) -> Facts:
    """A tree of topics: its levels, and in which form each has its children."""
    return (len(found), found.node_count, level(found.root))


def level(found: TopicNode) -> Facts:
    """One level of it, and all below."""
    value = found.value
    kept = (value.payload(), value.publisher) if isinstance(value, Message) else value is not None
    below = found.below
    if isinstance(below, Children):
        return kept, {name: level(each) for name, each in below.children.items()}
    return kept, None if below is None else (below.level, level(below))


def deadlines(router: Router) -> Facts:
    """What falls due, and when."""
    waiting = router.deadlines._by_thing
    assert len(router.deadlines._heap.items) == len(waiting)
    return sorted(
        (thing.client_id if isinstance(thing, Session) else str(thing), each.key) for thing, each in waiting.items()
    )


def branches(network: Network, publisher: Client, topics: tuple[str, ...], receivers: list[Client]) -> Facts:
    """In which form a burst of each topic comes to each connection: whole, message by message, or as objects.

    Nothing is said of a topic with share groups: who of a group has a message, and in which form, is its turn.
    """
    found: dict[tuple[str, int], Facts] = {}
    for qos in (0, 1, 2):
        for topic in topics:
            for client in receivers:
                client.wire.frozen = True
            for _ in range(3):
                publisher.post(topic, b"probe", qos)
            network.settle()
            forms: dict[str, list[str]] = {}
            for client in receivers:
                forms[client.client_id] = [form(each) for each in client.wire.send_buffer.items]
                client.wire.frozen = False
            network.settle()
            entries = network.router.cache.route(topic.encode()).entries
            found[topic, qos] = {} if any(each.groups for each in entries) else forms
    for client in receivers:
        client.take()
    return found


def form(item: object) -> str:
    """What one item of a send buffer is."""
    if isinstance(item, bytes):
        return f"bytes of {len(list(frames(item)))}"
    if isinstance(item, Delivery):
        return f"delivery of QoS {item.qos}"
    return type(item).__name__

"""What a broker's core is made of now, as plain values to compare: nothing in it may depend on clients that have gone.

Owns `fingerprint`, which walks over everything that the router keeps, and `branches`, which sends messages through the
core and says in which form each session's connection got them. Left out is what only grows (counters, versions, numbers
of nodes), what is arbitrary (the order of subscribers, whose turn it is in a share group), and what says when something
was last used.
"""

from __future__ import annotations

from typing import Any

from broker.core.queues.delivery import Delivery
from broker.core.queues.message import Message
from broker.core.routing.receivers.plans import FanoutPlan, Recipient
from broker.core.routing.receivers.reach import Reach
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.core.topics.match_cache import MatchCache
from broker.core.topics.route import Route
from broker.core.topics.subscription import FilterEntry, SharedGroup, Subscription
from broker.core.topics.topic_tree import Children, RetainedTree, TopicNode
from broker.core.topics.trie_base import Trie
from broker.core.topics.trie_compact import CompactTrie
from broker.core.topics.trie_nodes import Node, NodeTrie
from tests.core.harness import Client, Network
from tests.core.recount import frames

Facts = Any


def fingerprint(network: Network) -> dict[str, Facts]:
    """Everything that the core of a broker keeps. Publish to every topic before, so that each route is looked up."""
    router = network.router
    table, store, load = router.table, router.retained_store, router.counters.load
    return {
        "trie": trie(router.trie),
        "filters": {name: filter_of(router.trie, name) for name in router.trie.filters()},
        "subscriptions": (table.count, table.shared_count, int(table.own_bytes), len(table._leaving)),
        "cache": cache(router.cache),
        "routes": {topic: route(each) for topic, each in router.cache._routes.items()},
        "sessions": {client_id: session(each) for client_id, each in router.sessions.items()},
        "session table": (router.session_table.bytes, sorted(each.client_id for each in router.session_table._empty)),
        "retained": tree(router.retained),
        "retained bytes": (store.bytes, store.system_count, dict(store.shares._bytes)),
        "deadlines": deadlines(router),
        "peers": (
            sorted(each.client_id for each in router.peers.outboxes),
            len(router.peers.touched),
            len(router.peers.placing),
            len(router.peers._events),
        ),
        "in turns": (
            router.wills.waiting,
            len(router.unfinished._line),
            len(router.fanout.line.broadcasts),
            dict(router.fanout.line.topics),
            router.fanout.broadcasting,
        ),
        "aliases": int(router.alias_bytes),
        "load": (
            int(load.messages),
            int(load.bytes),
            int(load.inflight),
            int(load.inflight_bytes),
            len(load.overflowed),
            len(load.aging),
        ),
    }


def trie(found: Trie) -> Facts:
    """The records of a layout."""
    size = (len(found), found.node_count, int(found.bytes))
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
    held = entry._held
    changes = held.changed is not None if held is not None and not isinstance(held, Subscription) else None
    return (
        type(held).__name__,
        sorted((subscription(each) for each in entry.subscriptions), key=repr),
        [each.slot for each in entry.subscriptions],
        {each: group(members) for each, members in entry.groups.items()},
        changes,
        entry.slow,
        (int(entry.text), int(entry.cost)),
    )


def subscription(found: Subscription) -> Facts:
    """A subscription, with its subscriber's name."""
    assert isinstance(found.session, Session)
    queue = found.sub_queue
    return (
        found.session.client_id,
        found.topic_filter,
        (int(found.qos), found.no_local, found.retain_as_published, int(found.retain_handling), int(found.identifier)),
        None if queue is None else (queue.policy, queue.max_age, queue.depth, queue.waiting),
    )


def group(found: SharedGroup) -> Facts:
    """A share group: who is there, and who is away."""
    there, away = (
        sorted((subscription(each) for each in some.members), key=repr) for some in (found.connected, found.away)
    )
    return there, away, found.subscriptions


def cache(found: MatchCache) -> Facts:
    """The match cache without its routes."""
    return {
        "size": (len(found), found.weight, found.left, found._index.node_count),
        "wide filters": sorted(each.topic_filter for each in found._wide.values()),
        "index": tree(found._index),
    }


def route(found: Route) -> Facts:
    """A cached route, and what was computed from it."""
    plan = found.plan
    assert plan is None or isinstance(plan, FanoutPlan)
    reach = found.reach
    assert reach is None or isinstance(reach, Reach)
    return {
        "filters": sorted(each.topic_filter for each in found.entries),
        "weight": (found.weight, found.name_weight),
        "plan": None if plan is None else plan_of(plan),
        "reach": None if reach is None else reach_of(reach),
        "tapped": found.tapped,
    }


def plan_of(found: FanoutPlan) -> Facts:
    """A plan: its recipients, and what it is mended from."""
    return (
        sorted(map(recipient, found.targets), key=repr),
        sorted(each.name for each in found.groups),
        int(found.references),
        sorted((each.entry.topic_filter, each.few is None, each.changed is None) for each in found._seen.values()),
    )


def recipient(found: Recipient | None) -> Facts:
    """One session's part."""
    if found is None:
        return None
    return (
        found.session.client_id,
        found.qos,
        found.retain_as_published,
        found.no_local,
        sorted(found.identifiers),
        found.sub_queue is None,
        recipient(found.rest),
    )


def reach_of(found: Reach) -> Facts:
    """Who may have the messages of a route."""
    return (
        found.everybody,
        found.lowered,
        sorted(map(repr, map(subscription, found.subscriptions))),
        sorted((recipient(each) for each in found.targets), key=repr),
        int(found.references),
        sorted((principal.client_id, qos) for principal, qos in found._verdicts.items()),
    )


def session(found: Session) -> Facts:
    """A session, and what its connection has."""
    account, queue, window, outbox = found.account, found.queue, found.window, found.outbox
    return {
        "subscriptions": sorted(found.subscriptions),
        "shared": (found.shared, len(found.memberships or ())),
        "ways": (found.plain, found.fast_path, found.connected, found.ended, int(found.fresh_sub_queues)),
        "account": (int(account.filters), int(account.retained), int(account.session)),
        "queue": (queue.messages, queue.bytes, int(queue.max_bytes), queue.qos0),
        "window": (window.bytes, int(window.max_bytes), window.quota, int(window.inflight.count)),
        "incoming": sorted(found.incoming_qos2 or ()),
        "will": (found.will is not None, found.will_due, found.expires_at, found.expiry_interval),
        "outbox": None
        if outbox is None
        else (outbox.messages, int(outbox.bytes), outbox.fresh, outbox.empty, outbox.queue.holds),
    }


def tree(found: RetainedTree) -> Facts:
    """A tree of topics: its levels, and in which form each has its children."""
    return (len(found), found.node_count, level(found._root))


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
    assert len(router.deadlines._heap) == len(waiting)
    return sorted(
        (thing.client_id if isinstance(thing, Session) else str(thing), each.when) for thing, each in waiting.items()
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
                forms[client.client_id] = [form(each) for each in client.wire.outbox.queue.items]
                client.wire.frozen = False
            network.settle()
            entries = network.router.cache.route(topic.encode()).entries
            found[topic, qos] = {} if any(each.groups for each in entries) else forms
    for client in receivers:
        client.take()
    return found


def form(item: object) -> str:
    """What one item of an outbox is."""
    if isinstance(item, bytes):
        return f"bytes of {len(list(frames(item)))}"
    if isinstance(item, Delivery):
        return f"delivery of QoS {item.qos}"
    return type(item).__name__

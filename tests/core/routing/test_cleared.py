"""What a node of a cluster knows of cleared topics: bounded as retained messages are, for a day, and then nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.jobs import RETAIN_WORK
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.node_messages import Mark, NodeMessage
from canopy_mqtt.core.routing.nodes import ALL_CLEARED, ALL_RETAINED, NODES, NodeSession
from canopy_mqtt.core.routing.retained_shares import RetainedMessage
from canopy_mqtt.core.routing.router import Router
from tests.core.harness import Client, Network, limits
from tests.core.recount import check_accounts

DAY = 86_400.0
NODE = "$node/b"
LINK = "$upstream/$node/b"


def node(**changes: int) -> Network:
    """A broker with another node, which is not connected."""
    network = Network(limits(**changes))
    network.router.retained_store.nodes = (NODE,)
    return network


def cleared(router: Router) -> list[str]:
    return sorted(each.topic for each in router.retained_store.cleared.matching("#"))


def at(network: Network, client_id: str, host: str) -> Client:
    """A client at an address."""
    client = network.idle(client_id)
    client.host = host
    client.connect()
    return client


def forget(router: Router, now: float) -> None:
    """Let everything happen that is due at a time."""
    while router.tick(now):
        pass


def is_empty(router: Router) -> bool:
    """Whether nothing is left of retained messages."""
    store = router.retained_store
    shares = store.shares
    return (store.bytes, store.count, store.cleared.node_count, dict(shares._clearings), len(router.deadlines)) == (
        0, 0, 0, {}, 0,
    )  # fmt: skip


def test_a_broker_without_nodes_remembers_nothing() -> None:
    network = Network()
    client = network.client("c")
    client.publish("t", b"x", retain=True)
    client.publish("t", b"", retain=True)
    client.publish("never", b"", retain=True)
    assert is_empty(network.router)


def test_it_is_forgotten_after_a_day() -> None:
    network = node()
    router = network.router
    client = network.client("c")
    client.publish("t", b"x", retain=True)
    client.publish("t", b"", retain=True)
    assert (cleared(router), len(router.retained)) == (["t"], 0)
    assert router.retained_store.shares.of("c") == router.retained_store.bytes > 0
    forget(router, network.now + DAY - 1.0)
    assert cleared(router) == ["t"]
    forget(router, network.now + DAY + 1.0)
    assert is_empty(router)


def test_a_new_message_takes_its_place() -> None:
    network = node()
    router = network.router
    client = network.client("c")
    for payload in (b"x", b"", b"y"):
        client.publish("a/topic", payload, retain=True)
    assert cleared(router) == []
    assert router.retained.get("a/topic") is not None
    check_accounts(router)
    client.publish("a/topic", b"", retain=True)
    forget(router, network.now + DAY + 1.0)
    assert is_empty(router)


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_retained_messages": 20},
        {"max_retained_bytes": 40_000},
        {"max_retained_bytes_per_client": 20_000},
        {"max_user_bytes": 40_000},
    ],
    ids=lambda bounds: next(iter(bounds)),
)
def test_empty_messages_take_no_more_room_than_others(bounds: dict[str, int]) -> None:
    """And none of what clients retain."""
    network = node(**bounds)
    router = network.router
    client = network.client("c")
    for number in range(200):
        client.publish(f"{number}/" + "long" * 100, b"", qos=1, retain=True)
    assert 0 < len(cleared(router)) <= 20
    assert router.retained_store.bytes <= bounds.get("max_retained_bytes", 60_000)
    check_accounts(router)
    kept = 5
    for number in range(kept):
        client.publish(f"kept/{number}", b"x", qos=1, retain=True)
    assert len(router.retained) == kept
    check_accounts(router)


def test_another_accounts_messages_make_them_give_way() -> None:
    network = node(max_retained_messages=10)
    router = network.router
    greedy, other = at(network, "greedy", "10.0.0.1"), at(network, "other", "10.0.0.2")
    for number in range(50):
        greedy.publish(f"greedy/{number}", b"", qos=1, retain=True)
    for number in range(5):
        other.publish(f"other/{number}", b"x", qos=1, retain=True)
    assert sorted(each.topic for each in router.retained.matching("#")) == [f"other/{each}" for each in range(5)]
    check_accounts(router)


def test_what_one_client_has_cleared_does_not_bound_another_one_of_its_address() -> None:
    network = node(max_retained_bytes_per_client=8_000)
    router = network.router
    first, second = network.client("first"), network.client("second")
    first.publish("first", b"", qos=1, retain=True)
    for number in range(20):
        second.publish(f"second/{number}", b"", qos=1, retain=True)
    for number in range(5):
        second.publish(f"kept/{number}", b"x", qos=1, retain=True)
    assert (len(router.retained), "first" in cleared(router)) == (5, True)
    check_accounts(router)


@pytest.mark.parametrize(
    "bounds",
    [{"max_retained_bytes": 400_000}, {"max_retained_bytes_per_client": 300_000}, {"max_user_bytes": 300_000}],
    ids=lambda bounds: next(iter(bounds)),
)
def test_any_number_of_cleared_topics_gives_way_to_a_large_message(bounds: dict[str, int]) -> None:
    """And no more than it takes, each charged to the one that publishes it."""
    network = node(**bounds)
    router = network.router
    client = network.client("c")
    client.publish("image", b"x", qos=1, retain=True)
    for number in range(1_000):
        client.publish(f"no/{number}", b"", retain=True)
    before = len(cleared(router))
    router.budget.used = 0
    client.publish("image", b"y" * 200_000, qos=1, retain=True)
    found = router.retained.get("image")
    assert isinstance(found, RetainedMessage)
    assert len(found.payload()) == 200_000
    gone = before - len(cleared(router))
    assert 64 < gone < before
    assert router.budget.used > gone * RETAIN_WORK
    assert router.counters.retained_refused == 0
    check_accounts(router)


def test_what_the_broker_itself_has_cleared_takes_no_room_from_clients() -> None:
    network = node(max_retained_messages=10)
    router = network.router
    for number in range(50):
        router.retained_store.retain(Message(b"own/%d" % number, b"", 1, True, b"", 0.0, ""))
    assert len(cleared(router)) == 10
    client = network.client("c")
    for number in range(8):
        client.publish(f"kept/{number}", b"x", qos=1, retain=True)
    assert len(router.retained) == 8
    check_accounts(router)


def test_a_clearing_without_room_still_clears() -> None:
    network = node(max_retained_messages=1)
    router = network.router
    one, other = at(network, "one", "10.0.0.1"), at(network, "other", "10.0.0.2")
    one.publish("t", b"x", qos=1, retain=True)
    other.publish("another", b"", qos=1, retain=True)
    assert (cleared(router), router.counters.retained_refused) == ([], 1)
    other.publish("t", b"", qos=1, retain=True)
    assert (cleared(router), len(router.retained)) == (["t"], 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["one", "two", LINK]),
        st.sampled_from(["a", "a/b", "a/c/d", "$x/y"]),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 5),
    ),
    max_size=30,
)


@given(STEPS)
def test_accounts_are_exact_whatever_is_set_and_cleared(steps: list[tuple[str, str, int, int, int]]) -> None:
    network = node(max_retained_messages=3, max_retained_bytes_per_client=4_000)
    router = network.router
    store = router.retained_store
    for publisher, topic, size, qos, ahead in steps:
        message = Message(topic.encode(), b"x" * size * 100, qos, True, b"", 0.0, publisher)
        if publisher == LINK:
            message = NodeMessage(message, Mark(0, int((network.now + ahead) * 1e6), ahead == 5))
        router.retained_store.retain(message)
        check_sums(router)
    forget(router, network.now + 2 * DAY)
    assert store.cleared.node_count == 0
    for each in topics(router):
        store.drop(each)
    assert is_empty(router)


def topics(router: Router) -> Iterator[str]:
    return iter([each.topic for name in ("#", "$x/#") for each in router.retained.matching(name)])


def check_sums(router: Router) -> None:
    store = router.retained_store
    held: list[RetainedMessage] = []
    for tree in (store.tree, store.cleared):
        for each in (*tree.matching("#"), *tree.matching("$x/#")):
            assert isinstance(each.value, RetainedMessage)
            assert (each.value.payload() == b"") is (tree is store.cleared)
            held.append(each.value)
    assert store.count == len(held) <= 3
    assert sum(int(each.charge) for each in held) <= store.bytes


def test_an_older_message_of_a_node_does_not_undo_a_clearing_and_a_newer_one_does() -> None:
    network = node()
    router = network.router
    network.client("c").publish("t", b"", retain=True)
    now = int(network.now * 1e6)
    for ahead, expected in ((-1_000_000, None), (1_000_000, b"x")):
        message = Message(b"t", b"x", 1, True, b"", 0.0, LINK)
        assert router.retained_store.retain(NodeMessage(message, Mark(0, now + ahead, False))) is (expected is not None)
        found = router.retained.get("t")
        assert (None if found is None else found.payload()) == expected  # type: ignore[attr-defined]


def test_nothing_older_comes_back_after_a_message_that_has_expired() -> None:
    """It is known as cleared for the rest of its day, and then nothing is."""
    network = node()
    router = network.router
    client = network.client("c")
    router.retained_store.retain(Message(b"t", b"on", 1, True, b"", network.now + 60.0, "c"))
    now = int(network.now * 1e6)
    forget(router, network.now + 61.0)
    assert (len(router.retained), cleared(router)) == (0, ["t"])
    assert router.retained_store.shares.of("c") == router.retained_store.bytes > 0
    check_accounts(router)
    assert not retained_from_node(router, b"older", now - 1_000_000)
    assert retained_from_node(router, b"newer", now + 1_000_000)
    client.publish("t", b"", retain=True)
    forget(router, network.now + DAY + 61.0)
    assert is_empty(router)


def test_what_expires_leaves_nothing_where_no_other_node_keeps_it() -> None:
    network = Network()
    network.router.retained_store.retain(Message(b"t", b"on", 1, True, b"", network.now + 60.0, "c"))
    forget(network.router, network.now + 61.0)
    assert is_empty(network.router)


@pytest.mark.parametrize("known", [b"on", b""])
def test_nothing_older_comes_back_after_a_message_of_a_node_that_had_no_room(known: bytes) -> None:
    """Neither than the topic's message nor than its clearing; the refused message may come again."""
    network = node(max_retained_bytes=5_000)
    router = network.router
    client = network.client("c")
    client.publish("other", b"x", qos=1, retain=True)
    client.publish("t", known, qos=1, retain=True)
    now = int(network.now * 1e6)
    assert not retained_from_node(router, b"y" * 6_000, now + 1_000_000)
    assert (router.retained.get("t"), cleared(router)) == (None, ["t"])
    check_accounts(router)
    assert not retained_from_node(router, b"ancient", now - 1_000_000)
    router.limits.max_retained_bytes = 50_000
    assert retained_from_node(router, b"y" * 6_000, now + 1_000_000)
    assert cleared(router) == []
    check_accounts(router)


def retained_from_node(router: Router, payload: bytes, at: int) -> bool:
    """Whether a message that another node retained at a time, in microseconds, is retained here as well."""
    return router.retained_store.retain(
        NodeMessage(Message(b"t", payload, 1, True, b"", 0.0, LINK), Mark(0, at, False))
    )


def test_the_stream_of_all_is_no_subscription_to_all() -> None:
    network = node()
    router = network.router
    network.client("c").publish("t", b"x", retain=True)
    session = NodeSession(NODE, router.counters)
    session.bound(Limits())
    session.stream_all(router.retained, router.retained_store.cleared, router.sessions)
    # What an UNSUBSCRIBE does.
    session.stop_stream("#")
    assert session.streams is not None
    assert list(session.streams.streams) == [ALL_RETAINED, ALL_CLEARED]


@pytest.mark.parametrize("bounds", [{"max_retained_bytes_per_client": 9_000}, {"max_user_bytes": 9_000}], ids=str)
def test_a_message_that_does_not_fit_anyway_costs_its_client_no_clearing(bounds: dict[str, int]) -> None:
    network = node(**bounds)
    router = network.router
    client = network.client("client")
    client.publish("kept", b"x" * 1_000, qos=1, retain=True)
    client.publish("gone", b"", qos=1, retain=True)
    client.publish("large", b"x" * 9_000, qos=1, retain=True)
    assert router.retained.get("large") is None
    assert "gone" in cleared(router)
    check_accounts(router)


@pytest.mark.parametrize("for_all", [False, True])
def test_what_an_upstream_has_no_more_other_workers_clear_if_its_link_is_for_all(for_all: bool) -> None:
    network = node()
    router = network.router
    router.retained_store.for_all_workers = for_all
    session = NodeSession(NODE, router.counters)
    router.adopt(session)
    router.retained_store.retain(Message(b"t", b"x", 1, True, b"", 0.0, "$upstream/up"))
    router.retained_store.drop("t")
    assert router.retained.get("t") is None
    sent = [delivery.message.payload() for delivery in session.queue.waiting()]
    assert sent == ([b"x", b""] if for_all else [b"x"])
    assert cleared(router) == (["t"] if for_all else [])


def retained_of(router: Router, publisher: str, topic: str, at: int) -> None:
    """Retain what another node, or a client of this one, has retained at a time in microseconds."""
    message: Message = Message(topic.encode(), b"x", 1, True, b"", 0.0, publisher)
    assert router.retained_store.retain(
        NodeMessage(message, Mark(0, at, False)) if publisher.startswith("$") else message
    )


@pytest.mark.parametrize("relays", [True, False])
def test_a_node_that_has_lost_all_gets_of_other_nodes_what_these_do_not_send(relays: bool) -> None:
    """`relays`: no store brings back what a node had retained."""
    network = node()
    router = network.router
    router.limits.relays_retained = relays
    # It knows what time it is.
    network.client("client")
    sessions = {name: NodeSession(NODES + name, router.counters) for name in ("b", "c", "d")}
    for session in sessions.values():
        session.bound(router.limits)
        router.adopt(session)
    # One is connected, and has not been for long; another one is away.
    sessions["c"].send_buffer = SendBuffer(router.peers.touched, router.counters, 0, 0)
    began = sessions["c"]._began
    retained_of(router, "client", "own", 0)
    retained_of(router, LINK, "lost", began)
    retained_of(router, "$upstream/$node/c", "sent by c", began)
    retained_of(router, "$upstream/$node/c", "lost by c", began - 1)
    retained_of(router, "$upstream/$node/d", "of d", began)
    joining = sessions["b"]
    joining.stream_all(router.retained, router.retained_store.cleared, router.sessions)
    crossing = {
        each.topic
        for each in router.retained.matching("#")
        if joining.adapt_retained(Delivery(cast(Message, each.value), 1, True, (), None))
    }
    assert crossing == ({"own", "lost", "lost by c", "of d"} if relays else {"own"})

"""What one client may have retained: not more than its share, exactly counted, and links excepted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.queues.message import OVERHEAD, Message
from broker.core.routing.retained_shares import EXPIRY_BYTES
from broker.core.routing.router import Router
from broker.core.topics.topic_tree import NODE_BYTES
from tests.core.harness import Network, limits

SHARE = 20_000


def kept(router: Router) -> set[str]:
    cursor = router.retained.walk("#")
    found: set[str] = set()
    while not cursor.done:
        found.update(node.topic for node in cursor.take(100))
    return found


def test_one_client_does_not_take_all_the_room() -> None:
    """What is beyond its share is delivered and not kept; another client's is."""
    network = Network(limits(max_retained_bytes=1 << 20, max_retained_bytes_per_client=SHARE))
    greedy, other, listener = network.client("greedy"), network.client("other"), network.client("listener")
    listener.subscribe("#")
    for number in range(200):
        greedy.publish(f"greedy/{number}", b"x", retain=True)
    router = network.router
    taken = router.retained_store.shares.of("greedy")
    assert SHARE - 2 * NODE_BYTES - OVERHEAD < taken <= SHARE
    assert router.counters.retained_refused == 200 - len(kept(router)) > 0
    assert len(listener.take()) == 200
    other.publish("other", b"x", retain=True)
    assert "other" in kept(router)
    greedy.publish("greedy/0", b"", retain=True)
    greedy.publish("greedy/again", b"x", retain=True)
    assert "greedy/again" in kept(router)


def test_a_deep_topic_takes_what_its_levels_take() -> None:
    network = Network(limits(max_retained_bytes_per_client=SHARE))
    client = network.client("deep")
    client.publish("d" + "/x" * 100, b"x", retain=True)
    assert kept(network.router) == set()
    client.publish("d" + "/x" * 20, b"x", retain=True)
    assert network.router.retained_store.shares.of("deep") > 20 * NODE_BYTES


def test_what_another_replaces_is_the_others() -> None:
    network = Network(limits(max_retained_bytes_per_client=SHARE))
    one, other = network.client("one"), network.client("other")
    one.publish("a/b/c", b"x" * 100, retain=True)
    before = network.router.retained_store.shares.of("one")
    other.publish("a/b/c", b"x" * 100, retain=True)
    shares = network.router.retained_store.shares
    assert (shares.of("one"), shares.of("other")) == (0, before)


def test_links_are_excepted() -> None:
    """They publish what many clients have published elsewhere."""
    network = Network(limits(max_retained_bytes_per_client=SHARE))
    router = network.router
    link = network.client("link")
    link.session.link_peer = "downstream"
    for number in range(200):
        link.publish(f"t/{number}", b"x", retain=True)
        router.retain(Message(b"up/%d" % number, b"x", 0, True, b"", 0.0, "$upstream/cloud"))
        router.retain(Message(b"own/%d" % number, b"x", 0, True, b"", 0.0, ""))
    assert len(kept(router)) == 600
    assert router.retained_store.shares.of("link") == 0


TOPICS = st.sampled_from(["a", "a/b", "a/b/c", "a/b/d", "e/f/g/h", "e", "$SYS/x"])


@given(st.lists(st.tuples(st.sampled_from(["one", "two", ""]), TOPICS, st.integers(0, 3)), max_size=40))
def test_the_account_is_exact(steps: list[tuple[str, str, int]]) -> None:
    """Nobody's share outlives what is retained, and all shares together are what clients' messages take."""
    router = Router(limits(max_retained_bytes_per_client=2_000))
    clients = ("one", "two")
    for client_id, topic, size in steps:
        if topic.startswith("$") and client_id:
            continue
        router.retain(Message(topic.encode(), b"x" * (size * 100), 0, True, b"", 0.0, client_id))
        taken = [router.retained_store.shares.of(each) for each in clients]
        assert all(0 <= each <= 2_000 for each in taken)
        assert sum(taken) <= router.retained_bytes
    for topic in kept(router):
        router.retained_store.drop(topic)
    assert [router.retained_store.shares.of(each) for each in clients] == [0, 0]
    assert router.retained_bytes == 0


def test_the_time_of_one_that_expires_counts() -> None:
    """It stands among the deadlines under its topic, and is given back with the message."""
    router = Network().router
    for expires_at in (0.0, 5_000.0, 0.0, 6_000.0, 7_000.0):
        router.retain(Message(b"a/topic", b"x", 0, True, b"", expires_at, "p"))
        plain = NODE_BYTES * 2 + Message(b"a/topic", b"x", 0, True, b"", 0.0, "p").size()
        assert router.retained_bytes == plain + (EXPIRY_BYTES + 7 if expires_at else 0)
        assert router.retained_store.shares.of("p") == router.retained_bytes
    router.retain(Message(b"a/topic", b"", 0, True, b"", 0.0, "p"))
    assert (router.retained_bytes, router.retained_store.shares.of("p")) == (0, 0)

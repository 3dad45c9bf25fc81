"""The recipients of a topic: mended where subscriptions change, and the same as if computed anew."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.routing.recipients import MAX_MENDED_SESSIONS, NO_FILTERS, PLACE_WEIGHT, refresh
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import MatchCache, Route
from canopy_mqtt.core.topics.subscription import Recipient, subscription_identifiers, without_own
from canopy_mqtt.core.topics.trie import NodeTrie
from tests.core.harness import Network
from tests.core.recount import ask, user_wish
from tests.support.runs import examples

TOPIC = b"a/b"
FILTERS = ("a/b", "a/+", "+/b", "#", "a/#", "+/+")


def route_of(router: Router) -> Route:
    """Return the route as a message finds it."""
    return router.fanout.route(TOPIC) or router.fanout.new_route(TOPIC)


def anew(route: Route) -> Route:
    """Return a route of the same filters whose recipients are computed from nothing."""
    cache = MatchCache(NodeTrie(), 0)
    made = Route(route.topic, list(route.entries), cache.changes)
    cache.renew(made)
    refresh(made, cache, None, NO_FILTERS, 1 << 60)
    return made


def facts(recipient: Recipient | None) -> object:
    """Return what a recipient comes to."""
    if recipient is None:
        return None
    queue = recipient.message_terms
    return (
        recipient.session.client_id,
        int(recipient.qos),
        recipient.retain_as_published,
        recipient.no_local,
        recipient.plain,
        sorted(subscription_identifiers(recipient)),
        None if queue is None else (queue.policy, queue.max_age, queue.depth),
        facts(without_own(recipient)),
    )


def whole(route: Route) -> tuple[object, ...]:
    """Return all that a route says of its receivers."""
    places = 0 if route.places is None else PLACE_WEIGHT * len(route.places)
    return (
        sorted(map(facts, route.recipients()), key=repr),
        sorted(map(facts, route.everyone), key=repr),
        facts(route.sole),
        {id(group) for group in route.groups},
        route.run_key,
        int(route.list_references) - places,
        int(route.listeners),
    )


def crowd(network: Network, count: int, filters: tuple[str, ...] = ("a/+", "#")) -> list[Session]:
    """So many connected sessions that have subscribed to these."""
    router = network.router
    found = []
    for number in range(count):
        client = network.idle(f"c{number}")
        client.dial()
        session, _ = router.connect(f"c{number}", True, client.wire.send_buffer, 5, 10, True, network.now)
        for name in filters:
            router.subscribe(session, "", name, Request(name, 1), 0)
        found.append(session)
    return found


def test_many_changes_make_it_anew() -> None:
    """More than is remembered: the recipients are what new ones are."""
    network = Network()
    crowd(network, 2_000)
    router = network.router
    before = route_of(router).receivers
    for number in range(1_000):
        router.unsubscribe(router.sessions[f"c{number}"], "#")
    route = route_of(router)
    assert route.receivers is not before
    assert whole(route) == whole(anew(route))


class Mended(RuleBasedStateMachine):
    """Whatever changes between two publishes, the recipients are those that would be computed from the start."""

    @initialize()
    def begin(self) -> None:
        self.network = Network()
        # A route with few receivers is computed anew at each change: with these it is mended.
        crowd(self.network, MAX_MENDED_SESSIONS // 2 + 1)
        self.clients = [self.network.client(f"m{number}", expiry=1_000) for number in range(25)]
        for client in self.clients:
            client.subscribe("#")
        self.clients[0].subscribe("a/+")

    @rule(
        number=st.integers(0, 24),
        name=st.sampled_from(FILTERS),
        qos=st.integers(0, 2),
        no_local=st.booleans(),
        published=st.booleans(),
        identifier=st.integers(0, 2),
        policy=st.sampled_from(["", "", "", "latest"]),
    )
    def subscribe(
        self, number: int, name: str, qos: int, no_local: bool, published: bool, identifier: int, policy: str
    ) -> None:
        request = Request(name, qos, no_local, published)
        ask(self.clients[number], request, user=user_wish(policy), identifier=identifier)

    @rule(number=st.integers(0, 24), name=st.sampled_from(FILTERS))
    def share(self, number: int, name: str) -> None:
        self.clients[number].subscribe(f"$share/g/{name}")

    @rule(number=st.integers(0, 24), name=st.sampled_from(FILTERS), shared=st.booleans())
    def unsubscribe(self, number: int, name: str, shared: bool) -> None:
        self.clients[number].unsubscribe(f"$share/g/{name}" if shared else name)

    @rule(name=st.sampled_from(FILTERS))
    def all_leave(self, name: str) -> None:
        for client in self.clients:
            if name in client.session.subscriptions:
                client.unsubscribe(name)

    @rule(name=st.sampled_from(FILTERS))
    def all_come(self, name: str) -> None:
        for client in self.clients:
            client.subscribe(name)

    @rule(number=st.integers(0, 24), clean=st.booleans())
    def come_again(self, number: int, clean: bool) -> None:
        self.clients[number].cut()
        self.clients[number].connect(clean=clean, expiry=1_000)

    @invariant()
    def as_made_anew(self) -> None:
        route = route_of(self.network.router)
        assert whole(route) == whole(anew(route))
        if route.places is not None:
            assert route.places == {each.session: at for at, each in enumerate(route.everyone)}


TestMended = Mended.TestCase
TestMended.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)

"""Plans of topics that several filters match: mended where subscriptions change, and the same as if made anew."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.core.codec.packets import SubscriptionRequest as Request
from broker.core.queues.message import Message
from broker.core.routing.receivers.plans import FanoutPlan, Recipient
from broker.core.routing.router import Router
from tests.core.harness import Network
from tests.core.recount import ask, user_wish
from tests.support.runs import examples

TOPIC = b"a/b"
FILTERS = ("a/b", "a/+", "+/b", "#", "a/#", "+/+")


def publish(router: Router) -> None:
    router.publish(Message(TOPIC, b"x", 0, False, b"", 0.0, ""), None)


def plan_of(router: Router) -> FanoutPlan:
    """The plan as it stands in the cache, brought up to date."""
    made = router.fanout._plan(router.cache.route(TOPIC))
    assert isinstance(made, FanoutPlan)
    return made


def facts(target: Recipient | None) -> object:
    """What a recipient comes to."""
    if target is None:
        return None
    queue = target.sub_queue
    return (
        target.session.client_id,
        target.qos,
        target.retain_as_published,
        target.no_local,
        sorted(target.identifiers),
        None if queue is None else (queue.policy, queue.max_age, queue.depth),
        facts(target.rest),
    )


def whole(plan: FanoutPlan) -> tuple[list[object], set[int], int]:
    return sorted(map(facts, plan.targets), key=repr), {id(group) for group in plan.groups}, int(plan.references)


class TestManyReceivers:
    COUNT = 2_000

    def crowd(self) -> Network:
        network = Network()
        router = network.router
        for number in range(self.COUNT):
            client = network.idle(f"c{number}")
            client.dial()
            session, _ = router.connect(f"c{number}", True, client.wire.outbox, 5, 10, True, network.now)
            for name in ("a/+", "#"):
                router.subscribe(session, "", name, Request(name, 1), 0)
        return network

    def test_one_change_makes_one_recipient(self) -> None:
        """An option, a subscriber more or less, a filter more or less: the others stay as they are."""
        network = self.crowd()
        router = network.router
        publish(router)
        plan = plan_of(router)
        assert plan.made == self.COUNT
        session = router.sessions["c7"]
        steps: list[Callable[[], object]] = [
            lambda: router.subscribe(session, "", "a/+", Request("a/+", 2), 0),
            lambda: router.unsubscribe(session, "a/+"),
            lambda: router.subscribe(session, "", "a/+", Request("a/+", 0), 9),
            lambda: router.subscribe(session, "", "a/b", Request("a/b", 0), 0),
            lambda: router.unsubscribe(session, "a/b"),
            lambda: router.end_session(router.sessions["c8"], network.now),
            lambda: router.subscribe(session, "g", "a/b", Request("$share/g/a/b", 0), 0),
        ]
        for step in steps:
            step()
            made, before = int(plan.made), router.work
            publish(router)
            spent = router.work - before
            assert plan_of(router) is plan
            assert plan.made - made <= 1
            # Next to nothing beside the deliveries.
            before = router.work
            publish(router)
            assert spent <= router.work - before + 50
            assert whole(plan) == whole(FanoutPlan(router.cache.route(TOPIC).entries))

    def test_many_changes_make_it_anew(self) -> None:
        """More than a filter remembers: the plan is what a new one is."""
        network = self.crowd()
        router = network.router
        plan = plan_of(router)
        for number in range(1_000):
            router.unsubscribe(router.sessions[f"c{number}"], "#")
        again = plan_of(router)
        assert again is not plan
        assert whole(again) == whole(FanoutPlan(router.cache.route(TOPIC).entries))

    def test_what_it_weighs_is_kept_up(self) -> None:
        """The match cache is told of what a mended plan holds."""
        network = self.crowd()
        router = network.router
        publish(router)
        route = router.cache.route(TOPIC)
        before = route.weight
        for number in range(100):
            router.unsubscribe(router.sessions[f"c{number}"], "#")
            router.unsubscribe(router.sessions[f"c{number}"], "a/+")
        publish(router)
        assert route.weight == before - 100


class Mended(RuleBasedStateMachine):
    """Whatever changes between two publishes, the plan is the one that would be made from the start."""

    @initialize()
    def begin(self) -> None:
        self.network = Network()
        # More at one filter than a plan remembers by itself.
        self.clients = [self.network.client(f"c{number}", expiry=1_000) for number in range(25)]
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
        router = self.network.router
        route = router.cache.route(TOPIC)
        if len(route.entries) > 1:
            plan = plan_of(router)
            assert whole(plan) == whole(FanoutPlan(route.entries))
            assert [target.place for target in plan.targets] == list(range(len(plan.targets)))


TestMended = Mended.TestCase
TestMended.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)

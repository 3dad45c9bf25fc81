"""What a subscriber may ask of its queue: every form of the question, and the answer to it.

The wish is read from the user properties of SUBSCRIBE, bounded by what the administrator allows, told in the SUBACK,
and kept with the subscription over a restart of the broker.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.queue_terms import (
    DISCONNECT,
    DROP_NEWEST,
    LATEST,
    MAX_OPTION,
    POLICIES,
    UNSET,
    BadQueueOptions,
    MessageTerms,
    QueueRule,
    QueueTerms,
    RequestedTerms,
    SubscriptionTerms,
    grant,
    granted_properties,
    read_options,
)
from canopy_mqtt.store import MemoryStore
from tests.core.harness import Client, Network
from tests.core.recount import User, ask, numbers, user_wish
from tests.store.observed import at_once
from tests.store.places import rebooted
from tests.support.restored import restore
from tests.support.runs import for_each

HOUR = 3_600

GOOD_AGES = ["0", "1", "5", "0.5", "05", "0.0", "0.001", "123456.75", "4294967295", "4294967295.0"]
BAD_AGES = [
    "", " ", "-1", "-0", "+1", "1.", ".5", ".", "1.2.3", "1e3", "inf", "nan", "0x10", "1_000", "1,5", "five", " 5",
    "5 ", "5s", "\u0665", "²", "1.\u0665", "4294967296", "4294967295.5", "9" * 17, "0" * 17, "9" * 1_000,
]  # fmt: skip
BAD_DEPTHS = ["", "-1", "1.0", "1.5", "1.", "1e2", "ten", "+3", " 3", "4294967296", "\u0663", "9" * 17]
BAD_POLICIES = ["", "Latest", "LATEST", "latest ", "drop", "drop_oldest", "0", "3", "latest,drop-oldest"]
BAD_NAMES = ["canopy-", "canopy-Queue", "canopy-queue ", "canopy-lost", "canopy-max-age-s", "canopy-maxage", "canopy-x"]


class TestReading:
    """`queue_terms.read_options`."""

    @for_each(
        "user",
        [
            *((("canopy-max-age", text),) for text in BAD_AGES),
            *((("canopy-depth", text),) for text in BAD_DEPTHS),
            *((("canopy-queue", text),) for text in BAD_POLICIES),
            *(((name, "1"),) for name in BAD_NAMES),
            (("canopy-depth", "1"), ("canopy-depth", "1")),
            (("canopy-queue", "latest"), ("x", "y"), ("canopy-queue", "drop-oldest")),
            (("canopy-queue", "latest"), ("canopy-depth", "1"), ("canopy-max-age", "1"), ("canopy-more", "1")),
        ],
    )
    def test_what_means_nothing(self, user: tuple[User, ...]) -> None:
        """The text is short, whatever the client wrote."""
        with pytest.raises(BadQueueOptions) as caught:
            read_options(list(user))
        assert 0 < len(str(caught.value)) < 200
        assert user[-1][0][:40] in str(caught.value)

    @given(st.lists(st.tuples(st.text(max_size=8).map("canopy-".__add__) | st.text(), st.text(max_size=20))))
    def test_anything_else(self, user: list[User]) -> None:
        """A wish, none, or `BadQueueOptions`; and what is understood is within its bounds."""
        try:
            options = read_options(user)
        except BadQueueOptions:
            return
        if options is None:
            assert not any(name.startswith("canopy-") for name, _ in user)
        else:
            assert options.policy in (UNSET, 0, 1, 2, 3)
            assert options.max_age == -1.0 or 0.0 <= options.max_age <= MAX_OPTION
            assert options.depth == UNSET or 0 <= options.depth <= MAX_OPTION


class TestGrant:
    """`queue_terms.grant`: tighter than the administrator's bounds, never looser."""

    @given(
        options=st.builds(
            RequestedTerms,
            st.sampled_from((UNSET, 0, 1, 2, 3)),
            st.sampled_from((-1.0, 0.0, 0.5, 5.0, 4_294_967_295.0)),
            st.sampled_from((UNSET, 0, 1, 10, 4_294_967_295)),
        ),
        base=st.builds(
            SubscriptionTerms, st.integers(0, 3), st.sampled_from((0.0, 2.0, 5.0)), st.sampled_from((0, 3, 10))
        ),
        live_messages=st.sampled_from((0, 5, 10_000)),
        allowed=st.lists(st.integers(0, 3), unique=True, max_size=4).map(tuple),
    )
    def test_never_looser(
        self, options: RequestedTerms, base: SubscriptionTerms, live_messages: int, allowed: tuple[int, ...]
    ) -> None:
        limits = Limits()
        limits.subscriber_policies = allowed
        limits.live_messages = live_messages
        granted = grant(options, limits, QueueTerms(limits), base)
        if not allowed:
            assert (granted.policy, granted.max_age, granted.depth) == (base.policy, base.max_age, base.depth)
            return
        assert granted.policy == (options.policy if options.policy in allowed else base.policy)
        bounds = [age for age in (base.max_age, options.max_age) if age > 0]
        assert granted.max_age == min(bounds, default=0.0)
        depths = [depth for depth in (base.depth or live_messages, options.depth) if depth > 0]
        assert granted.depth == min(depths, default=0)

    @given(
        st.integers(0, 3),
        st.one_of(
            st.floats(0.0, MAX_OPTION, allow_subnormal=False),
            st.decimals(0, MAX_OPTION, places=3).map(float),
            st.sampled_from([1_234_567.0, 100_000.5, 0.000001, 1e-5, float(MAX_OPTION)]),
        ),
        st.integers(0, MAX_OPTION),
    )
    def test_what_is_told_can_be_asked(self, policy: int, max_age: float, depth: int) -> None:
        """The answer has the form of the question, and says what was granted, to the millisecond."""
        told = dict(granted_properties(SubscriptionTerms(policy, max_age, depth)))
        assert list(told) == ["canopy-queue", "canopy-max-age", "canopy-depth"]
        whole, _, rest = told["canopy-max-age"].partition(".")
        assert (whole + rest).isdigit(), told
        assert float(told["canopy-max-age"]) == pytest.approx(max_age, abs=0.001)
        assert told["canopy-queue"] == POLICIES[policy]
        assert told["canopy-depth"] == str(depth)

    @for_each("text", [text for text in GOOD_AGES if float(text)])
    def test_what_was_asked_comes_back(self, text: str) -> None:
        """And asked again, it is understood as the same."""
        client = Network().client("c")
        answer = ask(client, "t", user=user_wish(max_age=text))
        told = dict(answer.properties.user)["canopy-max-age"]
        again = ask(client, "t", user=user_wish(max_age=told))
        assert again.reason_codes == [0]
        assert float(told) == float(text)


def message_terms(client: Client, topic_filter: str) -> MessageTerms | None:
    return client.session.subscriptions[topic_filter].message_terms


class TestRestart:
    """A broker that starts again on what a store kept."""

    def restarted(self, network: Network, store: MemoryStore, limits: Limits) -> Network:
        """Another broker, a moment later."""
        made = Network(limits)
        made.now = network.now + 1
        saved = at_once(store.load())
        made.router.journal = store.journal
        restore(made.router, saved, made.now)
        made.router.tick(made.now)
        return made

    def world(self, limits: Limits) -> tuple[Network, MemoryStore, Client]:
        network = Network(limits)
        store = MemoryStore(rebooted(lambda: network.now))
        at_once(store.open(lambda: network.now))
        network.router.journal = store.journal
        return network, store, network.client("c", clean=False, expiry=HOUR)

    def test_a_wish_is_kept(self) -> None:
        """And what of it may be had is judged anew."""
        limits = Limits()
        network, store, client = self.world(limits)
        ask(client, "t", "$share/g/s", qos=1, user=user_wish("latest", "50", "7"))
        ask(client, "u", qos=1, user=user_wish("disconnect"))
        client.subscribe("v", qos=1)
        client.cut()
        limits.subscriber_policies = (DROP_NEWEST, LATEST)
        limits.queue_max_age = 5.0
        made = self.restarted(network, store, limits)
        subscriptions = made.session("c").subscriptions
        for name in ("t", "$share/g/s"):
            kept = subscriptions[name].message_terms
            assert kept is not None
            assert kept.keeps_to(SubscriptionTerms(LATEST, 5.0, 7))
            assert kept.options is not None
            assert (kept.options.policy, kept.options.max_age, kept.options.depth) == (LATEST, 50.0, 7)
        kept = subscriptions["u"].message_terms
        assert kept is not None
        assert kept.keeps_to(SubscriptionTerms(DROP_NEWEST, 5.0, limits.live_messages))
        assert kept.options is not None
        assert kept.options.policy == DISCONNECT
        assert subscriptions["v"].message_terms is None

    def test_it_holds(self) -> None:
        """For what comes after the restart."""
        limits = Limits()
        network, store, client = self.world(limits)
        ask(client, "t", qos=1, user=user_wish("latest"))
        client.cut()
        made = self.restarted(network, store, limits)
        publisher = made.client("p")
        for payload in numbers(5):
            publisher.publish("t", payload, 1)
        back = made.idle("c")
        back.connect(clean=False, expiry=HOUR)
        assert back.payloads() == [b"0004"]

    def test_rules_by_user_name(self) -> None:
        """A restored session has no user name until its client is back; then the rules for that user hold again."""
        limits = Limits()
        limits.rules = (
            QueueRule(user="kiosk*", topic_filter="t/#", policy=LATEST),
            QueueRule(user="kiosk*", session_messages=3),
        )
        network = Network(limits)
        store = MemoryStore(rebooted(lambda: network.now))
        at_once(store.open(lambda: network.now))
        network.router.journal = store.journal
        client = network.client("c", clean=False, expiry=HOUR, user_name="kiosk7")
        client.subscribe("t/a", qos=1)
        assert message_terms(client, "t/a") is not None
        client.cut()
        made = self.restarted(network, store, limits)
        back = made.idle("c")
        back.connect(clean=False, expiry=HOUR, user_name="kiosk7")
        assert made.session("c").queue.max_messages == 3
        kept = message_terms(back, "t/a")
        assert kept is not None
        assert kept.policy == LATEST

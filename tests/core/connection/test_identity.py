"""Who is who: whose session a client may take up."""

from __future__ import annotations

import pytest

from broker.core.codec.packets import V5, V31, V311, Will
from broker.core.hooks import AccessControl
from broker.core.persistence.restore import restore
from broker.store.memory import MemoryStore
from tests.core.harness import Network, limits

HOUR = 3600


class Rules(AccessControl):
    """Lets nobody subscribe to what it is told to forbid."""

    def __init__(self) -> None:
        self.forbidden: set[str] = set()
        self.asked: list[tuple[str, str | None, str]] = []

    def may_subscribe(self, client_id: str, user_name: str | None, topic_filter: str) -> bool:
        self.asked.append((client_id, user_name, topic_filter))
        return topic_filter not in self.forbidden


class TestOwner:
    """A session belongs to the user name that made it."""

    @pytest.mark.parametrize(("version", "code"), [(V31, 2), (V311, 2), (V5, 0x85)])
    @pytest.mark.parametrize("clean", [False, True])
    @pytest.mark.parametrize(("owner", "other"), [("alice", "bob"), ("alice", None), (None, "bob"), ("", None)])
    def test_another_user_is_refused(
        self, version: int, code: int, clean: bool, owner: str | None, other: str | None
    ) -> None:
        """Connected or away: neither the connection nor the queue nor the subscriptions are touched."""
        network = Network()
        publisher = network.client("p")
        alice = network.client("c", V5, clean=False, expiry=HOUR, user_name=owner)
        alice.subscribe("t", qos=1)
        bob = network.idle("c", version)
        assert bob.connect(clean=clean, user_name=other).reason_code == code
        assert bob.closed
        publisher.publish("t", b"live", 1)
        assert alice.payloads() == [b"live"]
        alice.cut()
        publisher.publish("t", b"queued", 1)
        assert bob.connect(clean=clean, user_name=other).reason_code == code
        assert bob.take() == []
        assert alice.connect(clean=False, expiry=HOUR, user_name=owner).session_present
        assert alice.payloads() == [b"queued"]

    def test_the_same_user_takes_over(self) -> None:
        """As ever [MQTT-3.1.4-3]; and so do clients without a user name."""
        for user in ("alice", None):
            network = Network()
            first = network.client("c", clean=False, expiry=HOUR, user_name=user)
            assert first.connect(clean=False, expiry=HOUR, user_name=user).session_present

    def test_a_will_is_not_set_off(self) -> None:
        """A refused takeover ends no connection, so that no will is published."""
        network = Network()
        witness = network.client("w")
        witness.subscribe("#")
        network.client("c", will=Will("gone", b"x"), user_name="alice")
        assert network.idle("c").connect(user_name="bob").reason_code == 0x85
        assert witness.take() == []

    def test_an_identifier_is_free_when_its_session_has_ended(self) -> None:
        """Also one whose time is over and which nobody has cleared away yet [MQTT-4.1.0-2]."""
        network = Network()
        alice = network.client("c", clean=False, expiry=10, user_name="alice")
        alice.cut()
        network.now += 9.0
        assert network.idle("c").connect(clean=False, user_name="bob").reason_code == 0x85
        network.now += 1.0
        answer = network.idle("c").connect(clean=False, user_name="bob")
        assert (answer.reason_code, answer.session_present) == (0, False)

    def test_by_a_setting_anybody_may(self) -> None:
        """Then the session is that of whoever has it."""
        network = Network(limits(any_user_takes_over=True))
        first = network.client("c", clean=False, expiry=HOUR, user_name="alice")
        assert first.connect(clean=False, expiry=HOUR, user_name="bob").session_present
        assert network.session("c").user_name == "bob"

    @pytest.mark.asyncio
    @pytest.mark.parametrize("connected", [False, True])
    async def test_it_is_its_owner_s_after_a_restart(self, connected: bool) -> None:
        """A store keeps the user name with the session."""
        store = MemoryStore()
        before = Network()
        before.router.journal = store.journal
        await store.open(lambda: before.now)
        alice = before.client("c", clean=False, expiry=HOUR, user_name="alice")
        alice.subscribe("t", qos=1)
        if not connected:
            alice.cut()
        after = Network()
        after.router.journal = store.journal
        restore(after.router, await store.load(), after.now)
        assert after.idle("c").connect(clean=False, expiry=HOUR, user_name="bob").reason_code == 0x85
        assert after.idle("c").connect(clean=True).reason_code == 0x85
        assert after.idle("c").connect(clean=False, expiry=HOUR, user_name="alice").session_present


class TestAskedAgain:
    """Subscriptions of a session that goes on."""

    def test_what_is_forbidden_by_now_is_taken_back(self) -> None:
        """Shared ones too; what is allowed still stays."""
        network = Network()
        rules = Rules()
        network.router.access_control = rules
        client = network.client("c", clean=False, expiry=HOUR, user_name="u")
        assert client.subscribe("a", "b", "$share/g/a", qos=1) == [1, 1, 1]
        client.cut()
        rules.forbidden.add("a")
        rules.asked.clear()
        assert client.connect(clean=False, expiry=HOUR, user_name="u").session_present
        assert sorted(rules.asked) == [("c", "u", "a"), ("c", "u", "a"), ("c", "u", "b")]
        assert list(network.session("c").subscriptions) == ["b"]
        assert sorted(network.router.trie.filters()) == ["b"]
        publisher = network.client("p")
        publisher.publish("a", b"1", 1)
        publisher.publish("b", b"2", 1)
        assert client.payloads() == [b"2"]

    def test_by_the_user_who_takes_over(self) -> None:
        """Where any user may: it is that user who is asked about."""
        network = Network(limits(any_user_takes_over=True))
        rules = Rules()
        network.router.access_control = rules
        client = network.client("c", clean=False, expiry=HOUR, user_name="alice")
        client.subscribe("a")
        rules.asked.clear()
        client.connect(clean=False, expiry=HOUR, user_name="bob")
        assert rules.asked == [("c", "bob", "a")]

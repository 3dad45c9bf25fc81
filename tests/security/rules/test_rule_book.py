"""The rule book: the order of the rules, whom they are about, and what they say of what clients do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from canopy_mqtt.core.codec.topic_names import matches
from canopy_mqtt.core.hooks import FORBIDDEN
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.rules import rule_book as book_module
from canopy_mqtt.security.rules.claims import MAX_CHARACTERS, MAX_FILTERS, read_claims
from canopy_mqtt.security.rules.rule import PUBLISH, RECEIVE
from canopy_mqtt.security.rules.rule_book import RuleBook
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.access.rules import MAX_FILTERS as MAX_RULE_FILTERS
from tests.support.runs import for_each


def book(*rules: dict[str, Any], **access: str) -> RuleBook:
    return RuleBook(Settings.model_validate({"rule": rules, "access": access}))


def who(user: str | None = "u", client_id: str = "c", **more: Any) -> Principal:
    return Principal(user, client_id=client_id, **more)


class TestOrder:
    """Which rule decides."""

    def test_the_first_that_speaks(self) -> None:
        rules = book(
            {"filters": "a/b", "effect": "deny"},
            {"filters": "a/#", "user": "u"},
            {"filters": "#", "effect": "deny"},
            {"filters": "z"},
        )
        assert [rules.may_publish(who(), topic, 0, False) for topic in ("a/b", "a/c", "a", "z")] == [
            False,
            True,
            True,
            False,
        ]
        assert rules.about(who(), PUBLISH, "a/c").place == "rule[1]"
        assert rules.about(who("v"), PUBLISH, "a/c").place == "rule[2]"

    @for_each(
        ("default", "rules", "allowed"),
        [("", (), True), ("", ({"filters": "x"},), False), ("allow", ({"filters": "x"},), True), ("deny", (), False)],
    )
    def test_the_last_word(self, default: str, rules: tuple[dict[str, Any], ...], allowed: bool) -> None:
        made = book(*rules, default=default)
        assert made.may_publish(who(), "t", 0, False) is allowed
        assert made.may_receive(who(), "t") is allowed
        assert (made.may_subscribe(who(), "t", 2) == 2) is allowed
        assert made.restricts is (rules != () or default == "deny")

    def test_the_file_of_mosquittos_is_asked_after_them_and_decides(self, tmp_path: Path) -> None:
        (tmp_path / "acl").write_text("topic read a\ntopic deny d\n")
        made = book({"filters": "d", "action": "receive"}, acl_file=str(tmp_path / "acl"), default="allow")
        anonymous = who(None)
        assert [made.may_receive(anonymous, topic) for topic in ("a", "d", "x")] == [True, True, False]
        assert made.may_subscribe(anonymous, "x/#", 1) == 1
        assert made.about(anonymous, RECEIVE, "a").place == f"{tmp_path / 'acl'}: line 1"
        assert made.files == (tmp_path / "acl",)


class TestWho:
    """Whom a rule is about."""

    @for_each(
        ("condition", "principal", "meant"),
        [
            ({"user": "sensor-*"}, who("sensor-1"), True),
            ({"user": "sensor-*"}, who("Sensor-1"), False),
            ({"user": "*"}, who(None), False),
            ({"user": ["a", "b"]}, who("b"), True),
            ({"user": ["a", "b"]}, who("ab"), False),
            ({"user": "a"}, who("a\n"), False),
            ({"anonymous": True}, who(None), True),
            ({"anonymous": True}, who(""), True),
            ({"anonymous": False}, who(None), False),
            ({"anonymous": False}, who("u"), True),
            ({"group": "staff"}, who(groups=("x", "staff")), True),
            ({"group": "staff"}, who(), False),
            ({"client_id": ["d-?"]}, who(client_id="d-1"), True),
            ({"client_id": ["d-?"]}, who(client_id="d-12"), False),
            ({"listener": "mqtts:*"}, who(listener="mqtts://0.0.0.0:8883"), True),
            ({"listener": "mqtts:*"}, who(), False),
            ({"address": "10.0.0.0/8"}, who(host="10.1.2.3"), True),
            ({"address": "10.0.0.0/8"}, who(host="::ffff:10.1.2.3"), True),
            ({"address": ["10.0.0.0/8", "fd00::/8"]}, who(host="fd00::1"), True),
            ({"address": "10.0.0.0/8"}, who(host="11.1.2.3"), False),
            ({"address": "10.0.0.0/8"}, who(host=""), False),
            ({"address": "127.0.0.1"}, who(host="127.0.0.1"), True),
            ({"user": "u", "client_id": "d"}, who(client_id="c"), False),
            ({"user": "u", "client_id": "c"}, who(client_id="c"), True),
        ],
    )
    def test_conditions(self, condition: dict[str, Any], principal: Principal, meant: bool) -> None:
        assert book({"filters": "t", **condition}).may_publish(principal, "t", 0, False) is meant


class TestWhat:
    """What a rule says."""

    def test_actions(self) -> None:
        made = book(
            {"filters": "p", "action": "publish"},
            {"filters": "s", "action": "subscribe"},
            {"filters": "r", "action": "receive"},
            {"filters": "m", "action": ["publish", "receive"]},
        )
        allowed = {
            topic: (
                made.may_publish(who(), topic, 0, False),
                made.may_subscribe(who(), topic, 0) == 0,
                made.may_receive(who(), topic),
            )
            for topic in "psrm"
        }
        assert allowed == {
            "p": (True, False, False),
            "s": (False, True, True),
            "r": (False, False, True),
            "m": (True, False, True),
        }

    @for_each("action", ["subscribe", "receive", "all"])
    def test_qos_of_what_is_sent(self, action: str) -> None:
        """By the rule about the topic, whatever the filter was granted; asked also where nobody is denied anything."""
        made = book({"filters": "t", "max_qos": 1, "action": action}, {"filters": "u/#"}, default="allow")
        assert made.filters_deliveries
        assert [made.receive_qos(who(), topic) for topic in ("t", "u/1", "x")] == [1, 2, 2]
        assert made.receive_qos(who(), "t") == 1  # remembered
        assert book({"filters": "t", "max_qos": 0}).receive_qos(who(), "x") < 0
        assert not book({"filters": "t", "max_qos": 1, "action": "publish"}, default="allow").filters_deliveries

    def test_retain(self) -> None:
        """A rule about the flag is about publishes alone."""
        made = book({"filters": "t", "retain": True, "effect": "deny"}, {"filters": "t"})
        assert made.may_publish(who(), "t", 0, False)
        assert not made.may_publish(who(), "t", 0, True)
        assert made.may_subscribe(who(), "t", 0) == 0
        assert made.may_receive(who(), "t")

    @for_each(("topic_filter", "granted"),
        [("a/#", True), ("a/+", True), ("a/b/c", True), ("a", True), ("+/b", False), ("#", False), ("a/b/+/#", True),
         ("d/+", False), ("d/1", False), ("d/2", True), ("$SYS/#", False)],
    )  # fmt: skip
    def test_a_subscription_needs_all_of_its_filter(self, topic_filter: str, granted: bool) -> None:
        """Denied as soon as some of it is; and what two rules allow together is what neither does."""
        made = book(
            {"filters": ["a/#"]},
            {"filters": ["d/1"], "effect": "deny"},
            {"filters": ["d/+", "$SYS/broker/#"]},
        )
        assert (made.may_subscribe(who(), topic_filter, 0) != FORBIDDEN) is granted

    def test_deliveries_are_not_looked_at_where_everybody_may_have_all(self) -> None:
        assert not book({"filters": "t", "effect": "deny", "action": "publish"}, default="allow").filters_deliveries
        assert book({"filters": "t", "effect": "deny"}, default="allow").filters_deliveries
        assert book(default="deny").filters_deliveries


class TestPlaceholders:
    """`{user}`, `{client}` and `{group}`."""

    def test_what_is_known_of_the_client(self) -> None:
        made = book({"filters": ["u/{user}/#", "c-{client}", "g/{group}/+"]})
        principal = who("alice", "c1", groups=("x", "y"))
        for topic in ("u/alice", "u/alice/1", "c-c1", "g/x/1", "g/y/1"):
            assert made.may_publish(principal, topic, 0, False)
        for topic in ("u/bob", "c-c2", "g/z/1", "u/{user}/1", "g/x"):
            assert not made.may_publish(principal, topic, 0, False)
        assert made.may_subscribe(principal, "g/y/+", 0) == 0
        assert made.may_subscribe(principal, "g/+/+", 0) == FORBIDDEN

    @for_each("name", ["+", "#", "a+", "x/y", "a/#", "/"])
    def test_a_name_that_would_widen_the_filter(self, name: str) -> None:
        """It allows nothing; and where the rule denies, it denies whatever name there is."""
        allows = book({"filters": ["u/{user}/x", "c/{client}", "g/{group}"]})
        denies = book({"filters": ["u/{user}/x", "c/{client}", "g/{group}"], "effect": "deny"}, default="allow")
        principal = who(name, name, groups=(name,))
        for topic in ("u/a/x", "c/a", "g/a", f"u/{name}/x".replace("+", "_").replace("#", "_")):
            assert not allows.may_publish(principal, topic, 0, False)
        for topic in ("u/a/x", "c/a", "g/a"):
            assert not denies.may_publish(principal, topic, 0, False)
        assert allows.may_subscribe(principal, "u/+/x", 0) == FORBIDDEN
        assert denies.may_subscribe(principal, "u/a/x", 0) == FORBIDDEN

    @for_each(
        ("user", "client_id", "named"), [("{client}", "bob", "{client}-bob"), ("{group}", "{user}", "{group}-{user}")]
    )
    def test_a_name_that_is_a_placeholder_itself(self, user: str, client_id: str, named: str) -> None:
        made = book({"filters": ["u/{user}-{client}", "g/{group}{user}"]})
        principal = who(user, client_id, groups=("{user}",))
        allowed = [f"u/{named}", f"g/{{user}}{user}"]
        others = ["u/bob-bob", f"u/{client_id}-{client_id}", f"u/{{user}}-{user}", f"g/{user}{user}"]
        assert [made.may_publish(principal, topic, 0, False) for topic in allowed + others] == [True] * 2 + [False] * 4

    @for_each("name", ["$SYS", "$share"])
    def test_a_name_that_begins_with_a_dollar(self, name: str) -> None:
        made = book({"filters": "{user}/#"})
        assert made.may_subscribe(who(name), f"{name}/#", 0) == FORBIDDEN
        assert not made.may_receive(who(name), f"{name}/x")
        assert made.may_receive(who("me"), "me/x")

    def test_an_anonymous_client_has_no_user_name(self) -> None:
        assert not book({"filters": "u/{user}"}).may_publish(who(None), "u/", 0, False)
        assert book({"filters": "u/{user}", "effect": "deny"}, default="allow").may_publish(who(None), "u/", 0, False)

    @given(
        user=st.text(alphabet="ab/+#$", max_size=4),
        client_id=st.text(alphabet="ab/+#$", min_size=1, max_size=4),
        topic=st.text(alphabet="ab/$", min_size=1, max_size=6),
    )
    def test_no_name_widens_anything(self, user: str, client_id: str, topic: str) -> None:
        """Whatever is allowed is what the filter allows whose placeholders are single levels."""
        made = book({"filters": ["{user}/x", "a/{client}/#"]})
        if made.may_publish(who(user, client_id), topic, 0, False):
            assert matches("+/x", topic) or matches("a/+/#", topic)
            assert user in topic or client_id in topic


class TestBounds:
    def test_filters_in_all_rules(self) -> None:
        """Each client that connects is held against them."""
        half = {"filters": ["t"] * (MAX_RULE_FILTERS // 2)}
        assert book(half, half).rules == MAX_RULE_FILTERS
        with pytest.raises(ValidationError, match="at most 10000 filters"):
            book(half, half, {"filters": "t"})

    def test_what_is_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Verdicts about so many topics, and none about long ones."""
        monkeypatch.setattr(book_module, "REMEMBERED", 100)
        made = book({"filters": "t/#"})
        for number in range(1_000):
            assert made.may_publish(who(), f"t/{number}", 0, False)
            assert len(made._verdicts) <= 100
        before = len(made._verdicts)
        assert made.may_publish(who(), "t/" + "x" * 1_000, 0, False)
        assert len(made._verdicts) == before

    @for_each(
        "claims",
        [
            {"pub": ["a"], "other": []},
            {"pub": "a#"},
            "a",
            7,
            None,
            [7],
            [{"topic": "a", "user": "admin"}],
            [{"topic": "a", "permission": "maybe"}],
            [{"permission": "allow"}],
            {"sub": ["t"] * (MAX_FILTERS + 1)},
            {"sub": ["x" * 1_000] * (MAX_CHARACTERS // 1_000 + 1)},
        ],
    )
    def test_rules_of_a_token_that_cannot_be_used(self, claims: object) -> None:
        """As a whole: half of the rules would be other rules."""
        with pytest.raises(ValueError):  # noqa: PT011
            read_claims(claims)

    def test_rules_of_a_token_in_either_form(self) -> None:
        made = book(default="deny")
        principal = who(
            rules=read_claims(
                [
                    {"permission": "deny", "action": "publish", "topic": "a/secret"},
                    {"permission": "allow", "action": "publish", "topic": "a/#", "qos": 1, "retain": False},
                    {"effect": "allow", "action": "subscribe", "filters": ["b/#"]},
                ]
            )
        )
        assert not made.may_publish(principal, "a/secret", 0, False)
        assert made.may_publish(principal, "a/x", 1, False)
        assert not made.may_publish(principal, "a/x", 2, False)
        assert not made.may_publish(principal, "a/x", 1, True)
        assert made.may_subscribe(principal, "b/+", 2) == 2

"""The judge of histories: a broker that keeps every promise is found to, and each broken promise is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from canopy_load.ledger.checker import STARVED, Verdict, check
from canopy_load.ledger.history import (
    Connect,
    Delivery,
    Ended,
    History,
    Look,
    Ping,
    Publish,
    Rest,
    Stream,
    Subscribe,
    Unsubscribe,
)
from canopy_load.ledger.sessions import SEEN as SEEN_SECONDS
from tests.support.runs import for_each

SEEN: Stream = ("p", "t/a", 1)


class Story:
    """A history that is told in order: each step takes a second, and what is asked for is answered in half of one."""

    def __init__(self) -> None:
        self.history = History()
        self.time = 0.0
        self.open: dict[str, int] = {}
        self.sequences: dict[Stream, int] = {}

    def _next(self) -> tuple[float, float]:
        self.time += 1
        return self.time, self.time + 0.5

    def connect(self, client: str, present: bool = False, answered: bool = True, **more: object) -> int:
        began, ended = self._next()
        made = self.history.add(Connect(client=client, began=began, present=present, **more))  # type: ignore[arg-type]
        if answered:
            made.ok(ended)
            self.open[client] = made.number
        return made.number

    def subscribe(self, client: str, topic_filter: str, qos: int = 1, **options: Any) -> None:
        began, ended = self._next()
        asked = Subscribe(client=client, began=began, topic_filter=topic_filter, qos=qos, **options)
        self.history.add(asked).ok(ended)

    def unsubscribe(self, client: str, topic_filter: str, code: int | None = None) -> None:
        began, ended = self._next()
        self.history.add(Unsubscribe(client=client, began=began, topic_filter=topic_filter, code=code)).ok(ended)

    def publish(self, outcome: str = "ok", topic: str = "t/a", qos: int = 1, **more: object) -> tuple[Stream, int]:
        began, ended = self._next()
        stream = ("p", topic, qos)
        sequence = self.sequences.get(stream, 0)
        self.sequences[stream] = sequence + 1
        made = self.history.add(
            Publish(client="p", began=began, topic=topic, qos=qos, sequence=sequence, **more)  # type: ignore[arg-type]
        )
        if outcome == "ok":
            made.ok(ended)
        elif outcome == "fail":
            made.fail(ended)
        return stream, sequence

    def comes(self, client: str, message: tuple[Stream, int], qos: int | None = None, **more: object) -> None:
        stream, sequence = message
        qos = stream[2] if qos is None else qos
        self.history.add(
            Delivery(client=client, at=self._next()[0], stream=stream, sequence=sequence, qos=qos, **more)  # type: ignore[arg-type]
        )

    def ends(self, client: str, own: bool = False, code: int | None = None, broke: str = "") -> None:
        at = self._next()[0]
        number = self.open.pop(client)
        self.history.add(Ended(client=client, at=at, connection=number, own=own, code=code, broke=broke))

    def rest(self) -> None:
        self.history.add(Rest(at=self._next()[0]))

    def look(self, found: dict[str, tuple[Stream, int]], node: str = "n1") -> None:
        self.history.add(Look(client="look", at=self._next()[0], node=node, found=found))

    def judged(self) -> Verdict:
        return check(self.history)

    def broken(self) -> list[str]:
        return [each.promise for each in self.judged().findings]


def subscribed(*clients: str, topic_filter: str = "t/#", qos: int = 2) -> Story:
    """Clients that are connected and subscribed, with sessions that are kept."""
    story = Story()
    for client in clients:
        story.connect(client)
        story.subscribe(client, topic_filter, qos)
    return story


def test_a_history_in_which_all_is_well() -> None:
    story = subscribed("s")
    first = story.publish(qos=2)
    story.comes("s", first)
    story.ends("s")
    second = story.publish(qos=2, retain=True)
    story.connect("s", present=True)
    story.comes("s", second)
    story.look({"t/a": second})

    verdict = story.judged()

    assert verdict.findings == []
    assert verdict.unjudged == {}
    assert verdict.checked["lost"] == 2
    assert verdict.checked["twice"] == 2
    assert verdict.checked["retained, the last"] == 1
    assert len(story.history.dumps().splitlines()) == len(story.history.events)


@for_each("qos", [1, 2])
def test_acknowledged_and_lost(qos: int) -> None:
    story = subscribed("s")
    story.publish(qos=qos)

    (found,) = story.judged().findings

    assert (found.promise, found.client) == ("lost", "s")
    assert found.statement == {1: "[MQTT-4.3.2-1]", 2: "[MQTT-4.3.3-1]"}[qos]
    assert found.operations == (1, 2), "the SUBSCRIBE and the PUBLISH show it"


@for_each(
    "changed",
    [
        lambda story: story.publish("unknown"),
        lambda story: story.publish("fail"),
        lambda story: story.publish(qos=0),
        lambda story: story.publish(topic="u"),
        lambda story: (story.unsubscribe("s", "t/#"), story.publish()),
    ],
)
def test_what_need_not_come(changed: Callable[[Story], object]) -> None:
    story = subscribed("s")
    changed(story)
    verdict = story.judged()
    assert (verdict.findings, verdict.unjudged) == ([], {})


def test_what_was_published_before_the_suback_and_by_oneself_need_not_come() -> None:
    story = Story()
    story.publish()
    story.connect("s")
    story.subscribe("s", "t/#", qos=0)
    story.connect("p")
    story.subscribe("p", "t/#", no_local=True)
    story.publish()
    assert story.broken() == []


@for_each(
    "changed",
    [
        lambda story: story.ends("s"),
        lambda story: story.connect("s", clean=True),
        lambda story: (story.connect("s", clean=True, answered=False), story.connect("s", present=True)),
        lambda story: story.unsubscribe("s", "t/#"),
    ],
)
def test_what_nobody_can_say_is_unjudged(changed: Callable[[Story], object]) -> None:
    """Published, and then: away at the end, a new session, perhaps a new session, no longer subscribed."""
    story = subscribed("s")
    story.publish()
    changed(story)
    verdict = story.judged()
    assert verdict.findings == []
    assert verdict.unjudged["lost"] == 1


def test_a_filter_with_a_lower_qos_brings_no_second_copy_with_qos_2() -> None:
    story = subscribed("s")
    story.subscribe("s", "+/a", qos=1)
    message = story.publish(qos=2)
    story.comes("s", message)
    story.comes("s", message, qos=1)
    assert story.broken() == []
    story.comes("s", message)
    assert story.broken() == ["twice"]


def test_what_may_come_twice() -> None:
    """QoS 1; two filters that match; published anew in another session; as the answer to a SUBSCRIBE."""
    story = subscribed("s")
    one = story.publish()
    story.comes("s", one)
    story.comes("s", one)
    anew = story.publish(qos=2, again=True)
    story.comes("s", anew)
    story.comes("s", anew)
    story.subscribe("s", "+/a", qos=2)
    both = story.publish(qos=2)
    for retained in (False, False, True):
        story.comes("s", both, retained=retained)
    assert story.broken() == []


def test_order_is_that_of_first_deliveries_of_one_stream() -> None:
    story = subscribed("s")
    first, second, other = story.publish(), story.publish(), story.publish(qos=2)
    for message in (other, first, second, first):
        story.comes("s", message)
    assert story.broken() == []
    third, fourth = story.publish(), story.publish()
    story.comes("s", fourth)
    story.comes("s", third)
    assert story.broken() == ["order"]


def test_what_a_later_subscription_gets_again_has_no_order() -> None:
    """Its first copy is the second one that was published."""
    story = Story()
    story.connect("s")
    first = story.publish(again=True)
    story.subscribe("s", "t/#")
    second = story.publish()
    story.comes("s", second)
    story.comes("s", first)
    assert story.broken() == []


def test_a_will_that_is_due_comes_once() -> None:
    story = subscribed("s")
    first = story.publish(qos=2, will=True)
    story.publish(qos=2, will=True)
    story.comes("s", first)
    story.comes("s", first)
    assert story.broken() == ["will missing", "will twice"]


def test_what_is_asked_for_on_a_connection_that_is_still_there_is_answered() -> None:
    story = Story()
    story.connect("p")
    story.publish("unknown", qos=0)
    story.publish("unknown", will=True)
    assert story.broken() == []
    story.publish("unknown")
    assert story.broken() == ["answered"]
    story.ends("p")
    assert story.broken() == []


def test_a_subscription_that_was_refused_gets_nothing() -> None:
    story = Story()
    story.connect("s")
    story.history.add(Subscribe(client="s", began=1.0, topic_filter="t/#", qos=1)).fail(1.5)
    story.comes("s", story.publish())
    assert story.broken() == ["asked for"]


@for_each("qos", [1, 2])
def test_a_group_has_each_message_once(qos: int) -> None:
    story = subscribed("a", "b", topic_filter="$share/g/t/#")
    one, two = story.publish(qos=qos), story.publish(qos=qos)
    story.comes("a", two)
    story.comes("a", one)
    assert story.broken() == [], "order is not promised to a group"
    story.comes("b", one)
    assert story.broken() == ["to two members"]
    story.publish(qos=qos)
    assert story.broken() == ["lost to a group", "to two members"]


def test_a_group_is_given_again_what_a_member_did_not_acknowledge() -> None:
    story = subscribed("a", "b", topic_filter="$share/g/t/#")
    message = story.publish()
    story.comes("a", message)
    story.ends("a")
    story.comes("b", message)
    assert story.broken() == []


@for_each(
    ("taken", "first_stays", "broken", "unjudged"),
    [("a", True, [], 0), ("b", True, ["first of a group"], 0), ("b", False, [], 1)],
)
def test_what_waits_for_a_group_is_for_the_member_that_connects_first(
    taken: str, first_stays: bool, broken: list[str], unjudged: int
) -> None:
    story = subscribed("a", "b", topic_filter="$share/g/t/#")
    for client in ("a", "b"):
        story.ends(client)
    story.time += 3.0  # the broker has seen it
    message = story.publish()
    story.connect("a", present=True)
    if not first_stays:
        story.ends("a")
    story.connect("b", present=True)
    if not first_stays:
        story.connect("a", present=True)
    story.comes(taken, message)
    verdict = story.judged()
    assert story.broken() == broken
    assert verdict.unjudged["first of a group"] == unjudged
    assert verdict.checked["first of a group"] == 1 - unjudged


def test_what_went_to_a_member_whose_session_ended_is_unjudged() -> None:
    story = subscribed("a", "b", topic_filter="$share/g/t/#")
    story.publish(qos=2)
    story.connect("a", clean=True)
    verdict = story.judged()
    assert verdict.findings == []
    assert verdict.unjudged["lost to a group"] == 1


def test_retained_is_never_older_than_what_was_acknowledged() -> None:
    story = Story()
    old = story.publish(retain=True)
    story.look({"t/a": old})
    new = story.publish(retain=True)
    unknown = story.publish("unknown", retain=True)
    story.look({"t/a": new})
    story.look({"t/a": unknown})
    assert story.broken() == []
    story.look({"t/a": old})
    assert story.broken() == ["retained, the last"]


def test_what_is_removed_is_gone_and_nothing_else_is() -> None:
    story = Story()
    old = story.publish(retain=True)
    story.publish(retain=True, clears=True)
    story.look({})
    assert story.broken() == []
    story.look({"t/a": old})
    assert "retained, the last" in story.broken()

    story = Story()
    story.publish(retain=True)
    story.look({})
    story.look({"t/a": (SEEN, 9)})
    assert story.broken().count("retained, the last") == 2


def test_retained_is_the_same_at_every_node() -> None:
    story = Story()
    one, two = story.publish("unknown", retain=True), story.publish("ok", retain=True)
    story.history.events[0].outcome = "ok"  # type: ignore[attr-defined]
    story.history.events[0].ended = 2.2  # type: ignore[attr-defined]
    story.look({"t/a": one}, "n1")
    story.look({"t/a": two}, "n2")
    assert story.broken() == ["retained, each node"], "each may be the last, for they were under way together"


@for_each(
    ("promise", "changed"),
    [
        ("session", lambda story: story.connect("s")),
        ("session", lambda story: story.connect("s", clean=True, present=True)),
        ("session", lambda story: story.connect("new", present=True)),
    ],
)
def test_a_session_that_is_gone_or_made_up(promise: str, changed: Callable[[Story], object]) -> None:
    story = subscribed("s")
    story.ends("s")
    changed(story)
    assert story.broken() == [promise]


def test_a_session_that_ends_with_its_connection() -> None:
    story = Story()
    story.connect("s", keeps=False)
    story.ends("s")
    story.connect("s", keeps=False)
    assert story.judged().unjudged["session"] == 1, "the broker may not have seen that the connection was over"
    story.connect("s")
    assert story.judged().unjudged["session"] == 2, "it took over one that was to end"
    assert story.broken() == []


def test_what_comes_as_a_session_ends_is_not_of_the_next_one_that_begins_in_the_same_millisecond() -> None:
    story = Story()
    story.connect("s", keeps=False)
    story.subscribe("s", "t/#")
    story.comes("s", story.publish())
    story.ends("s")
    story.time = story.history.of(Delivery)[0].at - 1
    story.connect("s", keeps=False)
    assert story.broken() == []


@for_each(("present", "broken"), [(False, []), (True, ["session"])])
def test_a_session_that_ended_with_its_connection_is_not_there(present: bool, broken: list[str]) -> None:
    story = Story()
    story.connect("s", keeps=False)
    story.ends("s")
    story.time += SEEN_SECONDS
    story.connect("s", present=present)
    assert story.broken() == broken


def test_a_connection_is_over_when_another_one_has_its_identifier() -> None:
    story = Story()
    before = story.connect("s")
    story.connect("s", present=True)
    assert story.broken() == []
    story.history.add(Ping(client="s", began=story.time + 1, connection=before)).ok(story.time + 2)
    assert story.broken() == ["one connection"]


@for_each(("code", "broken"), [(0x8E, []), (None, []), (0x97, []), (0x8D, ["told 0x8E"])])
def test_a_connection_that_is_taken_over_is_told_so(code: int | None, broken: list[str]) -> None:
    story = Story()
    before = story.connect("s")
    story.connect("s", present=True)
    story.history.add(Ended(client="s", at=story.time + 0.2, connection=before, code=code))
    assert story.broken() == broken


@for_each("code", [0x8B, 0x9C])
def test_a_connection_may_be_sent_away_before_the_new_one_is_accepted(code: int) -> None:
    story = Story()
    before = story.connect("s")
    after = story.history.add(Connect(client="s", began=story.time + 1, present=True))
    story.history.add(Ended(client="s", at=story.time + 2, connection=before, code=code))
    after.ok(story.time + 3)
    assert story.broken() == []


@for_each(("node", "broken"), [("", ["told 0x8E"]), ("other", [])])
def test_a_connection_may_be_sent_away_by_a_node_that_knows_of_no_other(node: str, broken: list[str]) -> None:
    story = Story()
    before = story.connect("s")
    story.connect("s", present=True, node=node)
    story.history.add(Ended(client="s", at=story.time + 2, connection=before, code=0x9C))
    assert story.broken() == broken


STEPS = st.lists(st.sampled_from(["publish 1", "publish 2", "unknown", "leave", "back", "clean", "unsubscribe"]))


@given(STEPS, st.integers(0, 100))
def test_a_broker_that_keeps_its_promises_is_found_to_and_one_that_loses_is_not(steps: list[str], lose: int) -> None:
    """A model of a broker with one durable subscriber; it forgets its message number `lose`."""
    story = subscribed("s")
    here, heard, waiting, due = True, True, list[tuple[Stream, int]](), list[tuple[Stream, int]]()
    for step in [*steps, "back"]:
        if step in ("publish 1", "publish 2", "unknown"):
            message = story.publish("unknown" if step == "unknown" else "ok", qos=2 if step == "publish 2" else 1)
            if heard:
                due.append(message)
                if step != "unknown" and len(due) - 1 == lose:
                    continue
                waiting.append(message)
        elif step == "leave" and here:
            story.ends("s")
            here = False
        elif step in ("back", "clean") and not here:
            story.connect("s", present=step == "back", clean=step == "clean")
            here = True
            if step == "clean":
                heard, waiting, due = False, [], []
        elif step == "unsubscribe" and here and heard:
            story.unsubscribe("s", "t/#")
            heard, due = False, []
        while here and waiting:
            story.comes("s", waiting.pop(0))
    forgot = lose < len(due) and story.history.events[0] is not None
    lost = forgot and any(
        (each.stream, each.sequence) == due[lose] and each.outcome == "ok" for each in story.history.of(Publish)
    )
    assert story.broken() == (["lost"] if lost else [])


def member(story: Story, client: str, **more: Any) -> None:
    story.connect(client, **more)
    story.subscribe(client, "$share/g/t/#")


@for_each(
    ("rested", "broken"),
    [
        (True, ["lost to a group"]),
        (False, []),
    ],
)
def test_a_member_that_leaves_when_nothing_is_on_its_way_excuses_no_loss(rested: bool, broken: list[str]) -> None:
    story = Story()
    member(story, "a", keeps=False)
    member(story, "b", keeps=False)
    story.publish()
    if rested:
        story.rest()
    story.ends("a")
    verdict = story.judged()
    assert [each.promise for each in verdict.findings] == broken
    assert verdict.unjudged["lost to a group"] == (not rested)


def test_a_member_that_comes_when_nothing_is_on_its_way_excuses_no_loss() -> None:
    story = Story()
    member(story, "a", keeps=False)
    story.publish()
    story.rest()
    member(story, "b", keeps=False)
    story.ends("b")
    assert story.broken() == ["lost to a group"]


@for_each(("own", "broken"), [(0, ["starved"]), (1, [])])
def test_a_member_that_gets_nothing_while_others_do(own: int, broken: list[str]) -> None:
    story = Story()
    member(story, "a")
    member(story, "b")
    for number in range(STARVED + own):
        story.comes("a" if number >= own else "b", story.publish())
    assert story.broken() == broken


def test_a_member_that_came_later_is_not_starved() -> None:
    story = Story()
    member(story, "a")
    for _ in range(STARVED):
        story.comes("a", story.publish())
    member(story, "b")
    assert (story.broken(), story.judged().checked["starved"]) == ([], 0)


def test_what_is_published_after_another_subscribe_must_come() -> None:
    story = subscribed("s")
    story.unsubscribe("s", "t/#")
    story.subscribe("s", "t/#")
    message = story.publish()
    assert story.broken() == ["lost"]
    story.comes("s", message)
    assert story.broken() == []


def test_a_message_comes_once_with_qos_0() -> None:
    story = subscribed("s", qos=0)
    message = story.publish()
    story.comes("s", message, qos=0)
    assert story.broken() == []
    assert story.judged().at_most_once == {"due": 1, "came": 1}
    story.comes("s", message, qos=0)
    assert story.broken() == ["twice with QoS 0"]


@for_each(
    ("options", "retain", "flag", "broken"),
    [
        ({}, True, False, []),
        ({}, True, True, ["RETAIN"]),
        ({"as_published": True}, True, True, []),
        ({"as_published": True}, True, False, ["RETAIN"]),
        ({"as_published": True}, False, True, ["RETAIN"]),
    ],
)
def test_the_retain_flag(options: dict[str, bool], retain: bool, flag: bool, broken: list[str]) -> None:
    story = Story()
    story.connect("s")
    story.subscribe("s", "t/#", **options)
    story.comes("s", story.publish(retain=retain), retain=flag)
    assert story.broken() == broken


def test_a_subscription_of_the_session_before_brings_nothing_to_a_new_one() -> None:
    story = subscribed("s")
    message = story.publish()
    story.comes("s", message)
    story.ends("s")
    story.connect("s", clean=True)
    story.comes("s", message)
    story.subscribe("s", "t/#")
    assert story.broken() == ["asked for"]


@for_each(("lasts", "broken"), [(1.0, []), (60.0, ["session"])])
def test_a_session_may_be_gone_after_its_expiry_interval(lasts: float, broken: list[str]) -> None:
    story = Story()
    story.connect("s", lasts=lasts)
    story.ends("s")
    story.connect("s", answered=False)
    story.connect("s")
    assert story.broken() == broken


@for_each(("lost_at", "broken"), [(0.0, []), (9.0, ["will missing"])])
def test_a_will_is_due_to_those_that_subscribed_before_the_connection_was_lost(
    lost_at: float, broken: list[str]
) -> None:
    story = Story()
    story.publish(will=True, lost_at=lost_at)
    story.connect("s")
    story.subscribe("s", "t/#")
    assert story.broken() == broken


def test_an_unsubscribe_that_is_sent_again_may_find_no_subscription() -> None:
    story = subscribed("s")
    story.history.add(Unsubscribe(client="s", began=2.5, topic_filter="t/#"))
    story.ends("s")
    story.connect("s", present=True)
    story.unsubscribe("s", "t/#", code=0x11)
    assert story.broken() == []


@for_each(("dup", "packet_id", "broken"), [(True, 5, []), (False, 5, ["DUP"]), (False, 6, [])])
def test_what_comes_again_on_another_connection_has_dup(dup: bool, packet_id: int, broken: list[str]) -> None:
    story = subscribed("s")
    message = story.publish()
    story.comes("s", message, packet_id=5)
    story.ends("s")
    story.connect("s", present=True)
    story.comes("s", message, packet_id=packet_id, dup=dup)
    assert story.broken() == broken


@for_each(("again", "broken"), [(False, ["DUP"]), (True, [])])
def test_what_is_new_on_the_first_connection_of_a_session_has_no_dup(again: bool, broken: list[str]) -> None:
    """On a later one it may have been sent before the client lost the connection."""
    story = subscribed("s")
    message = story.publish()
    if again:
        story.ends("s")
        story.connect("s", present=True)
    story.comes("s", message, packet_id=5, dup=True)
    assert story.broken() == broken


@for_each(("blind", "broken"), [((), ["lost to a group"]), (((4.0, 30.0),), [])])
def test_a_broker_that_is_down_sees_late_that_a_member_is_gone(
    blind: tuple[tuple[float, float], ...], broken: list[str]
) -> None:
    story = Story()
    member(story, "a", keeps=False)
    member(story, "b", keeps=False)
    story.ends("a")
    story.time = 20.0
    story.publish()
    assert [each.promise for each in check(story.history, blind).findings] == broken


@for_each(("resent", "broken"), [(True, []), (False, ["order"])])
def test_of_what_was_sent_again_the_first_copy_need_not_come_with_qos_0(resent: bool, broken: list[str]) -> None:
    story = subscribed("s", qos=0)
    first, second = story.publish(resent=resent), story.publish()
    story.comes("s", second, qos=0)
    story.comes("s", first, qos=0)
    assert story.broken() == broken


def test_what_was_sent_again_may_come_late_to_who_had_unsubscribed_meanwhile() -> None:
    story = subscribed("s")
    first = story.publish("unknown", again=True)
    second = story.publish()
    story.unsubscribe("s", "t/#")
    story.subscribe("s", "t/#")
    story.comes("s", second)
    story.comes("s", first)
    assert story.broken() == []


def test_the_looks_at_one_node_and_at_another_are_told_apart() -> None:
    story = Story()
    one, two = story.publish(retain=True), story.publish("fail", retain=True)
    story.look({"t/a": one}, "n1")
    story.look({"t/a": one}, "n2")
    story.look({"t/a": two}, "n1")
    assert story.broken() == ["retained, the same", "retained, each node"]


def test_a_session_that_is_gone_is_shown_with_the_connect_that_was_answered_before() -> None:
    story = Story()
    story.connect("s")
    story.ends("s")
    story.connect("s", answered=False)
    story.connect("s", present=False)
    (found,) = story.judged().findings
    assert (found.promise, found.operations) == ("session", (0, 3))

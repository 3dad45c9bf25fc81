"""What several nodes whose sessions stay do not promise is excused, for those messages and that time alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from canopy_load.ledger.checker import STARVED
from canopy_load.ledger.history import Connect, Delivery, Ended, History, Look, Ping, Publish, Rest, Subscribe
from canopy_load.prove.faults import BrokerFault, Fault
from canopy_load.prove.judge import Durability, judge
from canopy_load.prove.lateness import Lateness
from canopy_load.prove.plan import make
from canopy_load.prove.play import Proof
from tests.loadtest.prove.fake import Planted
from tests.loadtest.prove.proving import broken, proof
from tests.loadtest.prove.test_play import Apart
from tests.support.runs import for_each

A, B, C = NODES = ["mqtt://a", "mqtt://b", "mqtt://c"]
STAY = Durability(relinked=2.0)
SHARED = Durability(relinked=2.0, shared=True)


class Story:
    """A history of three nodes, and what was wrong with them."""

    def __init__(self, *faults: tuple[float, float, BrokerFault]) -> None:
        self.history = History()
        self.faults = faults
        self.lateness = Lateness()

    def connect(self, client: str, at: float, node: str) -> None:
        self.history.add(Connect(client=client, began=at, node=node, clean=True)).ok(at + 0.1)

    def subscribe(self, client: str, at: float, topic_filter: str, **more: Any) -> None:
        more = {"qos": 2, **more}
        self.history.add(Subscribe(client=client, began=at, topic_filter=topic_filter, **more)).ok(at + 0.1)

    def publish(self, at: float, number: int, topic: str = "t/0", **more: Any) -> Publish:
        made = self.history.add(Publish(client="p", began=at, topic=topic, qos=1, sequence=number, **more))
        made.ok(at + 0.1)
        return made

    def comes(self, publish: Publish, at: float, **more: Any) -> None:
        more = {"client": "s", "stream": publish.stream, "sequence": publish.sequence, "qos": 1, **more}
        self.history.add(Delivery(at=at, **more))

    def look(self, at: float, node: str, *found: Publish) -> None:
        self.history.add(
            Look(
                client="l",
                at=at,
                until=at,
                node=node,
                found={each.topic: (each.stream, each.sequence) for each in found},
            )
        )

    def broken(self, durability: Durability = STAY) -> set[str]:
        plan, outages = make(1, 1), [(began, ended, each.fault) for began, ended, each in self.faults]
        made = Proof(plan, "00000000", NODES, self.history, inflicted=list(self.faults), lateness=self.lateness)
        made.outages += [each for each in outages if each[2] is Fault.KILL]
        return broken(judge(made, durability))


def overtaken(first: str, then: str, own: str = C, client: str = "s") -> Story:
    """A publisher sends two messages, each by a node; the second comes before the first to a client at its own node."""
    story = Story()
    story.connect(client, 0.0, own)
    story.subscribe(client, 0.2, "t/#")
    story.connect("p", 1.0, first)
    one = story.publish(1.5, 0)
    if then != first:
        story.connect("p", 2.0, then)
    two = story.publish(2.5, 1)
    story.comes(two, 3.0, client=client)
    story.comes(one, 4.0, client=client)
    return story


def test_a_publisher_that_changes_nodes_may_overtake_itself() -> None:
    assert overtaken(A, B).broken() == set()
    assert overtaken(A, B).broken(Durability()) == {"order"}, "others promise it"


def test_what_comes_before_a_client_is_accepted_comes_to_the_node_before() -> None:
    story = overtaken(A, B)
    story.history.add(Connect(client="s", began=3.9, node=A, clean=True)).ok(4.5)
    assert story.broken() == set()


def test_what_a_client_got_at_another_node_says_nothing_of_order() -> None:
    """It gets the second message at the node of their publisher, then the third and the first elsewhere."""
    story = Story()
    story.connect("s", 0.0, A)
    story.subscribe("s", 0.2, "t/#", qos=0)
    story.connect("p", 0.5, A)
    first, second = story.publish(1.0, 0), story.publish(1.2, 1)
    story.comes(second, 1.4, qos=0)
    story.history.add(Connect(client="s", began=1.5, node=C, present=True)).ok(1.6)
    story.connect("p", 1.7, B)
    third = story.publish(1.9, 2)
    story.comes(third, 2.1, qos=0)
    story.comes(first, 2.3, qos=0)
    assert story.broken() == set()


@pytest.mark.parametrize(("client", "found"), [("connected-0", {"order"}), ("clean-0", set())])
def test_what_comes_from_a_database_comes_in_order(client: str, found: set[str]) -> None:
    assert overtaken(A, B, client=client).broken(SHARED) == found


@pytest.mark.parametrize(("client", "found"), [("connected-0", {"lost"}), ("clean-0", set())])
def test_a_kill_takes_nothing_from_a_database(client: str, found: set[str]) -> None:
    """It may take what was on its way to anybody else."""
    story = Story((1.5, 4.0, BrokerFault(1.5, Fault.KILL, 2.5)))
    story.connect(client, 0.0, A)
    story.subscribe(client, 0.2, "t/#")
    story.connect("p", 0.5, B)
    story.publish(1.0, 0)
    assert story.broken(SHARED) == found
    assert story.broken() == {"lost"}


@for_each(
    ("at", "clean", "found"),
    [(2.0, True, set()), (2.0, False, {"session"}), (8.0, True, {"session"})],
)
def test_a_clean_connect_leaves_a_session_while_the_database_is_away(at: float, clean: bool, found: set[str]) -> None:
    story = Story((1.0, 4.0, BrokerFault(1.0, Fault.STORE_RESTART, 3.0)))
    left = story.history.add(Connect(client="brief-0", began=at, node=A, clean=clean, keeps=False))
    left.ok(at + 0.1)
    story.history.add(Ended(client="brief-0", at=at + 1, connection=left.number))
    story.history.add(Connect(client="brief-0", began=at + 5, node=B, keeps=True, present=True)).ok(at + 5.1)
    assert story.broken(SHARED) == found
    assert story.broken() == {"session"}


@for_each(("accepted", "found"), [(False, set()), (True, {"order"})])
def test_the_will_of_a_connect_that_was_given_up_may_come_late(accepted: bool, found: set[str]) -> None:
    story = Story()
    story.connect("connected-0", 0.0, A)
    story.subscribe("connected-0", 0.2, "w/#")
    wills = []
    for number in range(2):
        connect = story.history.add(Connect(client="mortal-0", began=1.0 + number, node=B, clean=True))
        if number or accepted:
            connect.ok(1.1 + number)
        will = Publish(client="mortal-0", began=1.0 + number, topic="w/0", qos=1, sequence=number, will=True)
        wills.append(story.history.add(will))
    wills[1].ok(3.0)
    for number, will in enumerate(reversed(wills)):
        story.comes(will, 4.0 + number, client="connected-0")
    assert story.broken(SHARED) == found


@for_each(("at", "found"), [(2.0, set()), (8.0, {"twice"})])
def test_what_a_clean_connect_left_comes_again(at: float, found: set[str]) -> None:
    story = Story((1.0, 4.0, BrokerFault(1.0, Fault.STORE_RESTART, 3.0)))
    story.history.add(Connect(client="brief-0", began=0.0, node=A, keeps=True)).ok(0.1)
    story.subscribe("brief-0", 0.2, "t/#")
    left = story.history.add(Connect(client="brief-0", began=at, node=A, clean=True, keeps=False))
    left.ok(at + 0.1)
    story.subscribe("brief-0", at + 0.2, "t/#")
    story.connect("p", 0.5, A)
    publish = story.history.add(Publish(client="p", began=at + 1, topic="t/0", qos=2, sequence=0))
    publish.ok(at + 1.1)
    story.comes(publish, at + 1.2, client="brief-0", qos=2)
    story.history.add(Ended(client="brief-0", at=at + 3, connection=left.number))
    story.history.add(Connect(client="brief-0", began=at + 5, node=B, keeps=True, present=True)).ok(at + 5.1)
    story.comes(publish, at + 5.2, client="brief-0", qos=2)
    assert story.broken(SHARED) - {"session"} == found


@for_each(
    ("fault", "found"),
    [
        (BrokerFault(1.0, Fault.ISOLATE, 3.0, (1,)), set()),
        (BrokerFault(1.0, Fault.PAIR, 3.0, (0, 2)), {"starved"}),
        (BrokerFault(1.0, Fault.STOP, 3.0, (0,)), {"starved"}),
        (BrokerFault(1.0, Fault.STOP, 3.0, (1,)), set()),
    ],
)
def test_a_member_at_a_node_that_is_cut_off_gets_what_the_others_leave(fault: BrokerFault, found: set[str]) -> None:
    """Its node reaches the database, and takes what is there now and then; or it stands still."""
    story = Story((1.0, 4.5, fault))
    for client, node in (("s", A), ("away", B)):
        story.connect(client, 5.0, node)
        story.subscribe(client, 5.2, "$share/g/t/#")
    story.connect("p", 0.5, A)
    for number in range(STARVED):
        story.comes(story.publish(6.0 + number, number), 6.5 + number)
    assert story.broken(SHARED) == found
    assert story.broken() == {"starved"}


def test_a_kill_takes_nothing_of_a_share_group_from_a_database() -> None:
    story = Story((1.5, 4.0, BrokerFault(1.5, Fault.KILL, 2.5)))
    story.connect("s", 0.0, A)
    story.subscribe("s", 0.2, "$share/g/t/#")
    story.connect("p", 0.5, B)
    story.publish(1.0, 0)
    story.history.add(Rest(at=20.0))
    assert story.broken(SHARED) == {"lost to a group"}


@for_each(
    ("qos", "nodes", "found"),
    [(0, (A, B), set()), (0, (A, A), {"to two members"}), (1, (A, B), {"to two members"})],
)
def test_a_message_with_qos_0_comes_to_one_member_at_each_node(
    qos: int, nodes: tuple[str, str], found: set[str]
) -> None:
    story = Story()
    for name, node in zip("st", nodes, strict=True):
        story.connect(name, 0.0, node)
        story.subscribe(name, 0.2, "$share/g/t/#")
    story.connect("p", 0.5, C)
    publish = story.publish(1.0, 0)
    for at, name in ((1.2, "s"), (1.3, "t")):
        story.comes(publish, at, client=name, qos=qos)
    assert story.broken(SHARED) - {"QoS"} == found


@for_each(
    ("client", "publisher", "then", "found"),
    [
        ("connected-0", "p", B, {"twice"}),
        ("clean-0", "p", B, set()),
        ("clean-0", "p", A, {"twice"}),
        ("clean-0", "publisher-0", B, {"twice"}),
    ],
)
def test_a_message_whose_publisher_moves_before_it_is_acknowledged_may_come_twice(
    client: str, publisher: str, then: str, found: set[str]
) -> None:
    """But not from a database, and not what a session there publishes."""
    story = Story()
    story.connect(client, 0.0, C)
    story.subscribe(client, 0.2, "t/#")
    story.connect(publisher, 0.5, A)
    publish = story.history.add(Publish(client=publisher, began=1.0, topic="t/0", qos=2, sequence=0))
    story.comes(publish, 1.5, qos=2, client=client)
    story.connect(publisher, 2.0, then)
    story.comes(publish, 2.6, qos=2, client=client)
    publish.ok(2.7)
    assert story.broken(SHARED) == found


@for_each(
    ("behind", "node", "found"),
    [(0, B, set()), (0, A, {"twice with QoS 0"}), (1, B, set()), (1, A, {"order"})],
)
def test_a_client_that_changes_nodes_may_get_qos_0_at_each(behind: int, node: str, found: set[str]) -> None:
    """The same message again, or one behind a later one."""
    story = Story()
    story.connect("once-0", 0.0, A)
    story.subscribe("once-0", 0.2, "t/#", qos=0)
    story.connect("p", 0.5, C)
    messages = [story.publish(1.0, 0), story.publish(1.2, 1)]
    story.comes(messages[behind], 1.5, qos=0, client="once-0")
    story.history.add(Connect(client="once-0", began=2.0, node=node, present=True)).ok(2.1)
    story.comes(messages[0], 2.5, qos=0, client="once-0")
    assert story.broken(SHARED) == found


@for_each("will", [False, True])
@for_each(("durability", "found"), [(SHARED, set()), (STAY, {"DUP"})])
def test_a_database_does_not_keep_that_qos_1_was_sent(will: bool, durability: Durability, found: set[str]) -> None:
    """By a publisher, or as a will."""
    story = Story()
    story.history.add(Connect(client="cut-0", began=0.0, node=A)).ok(0.1)
    story.subscribe("cut-0", 0.2, "t/#")
    story.connect("p", 0.5, C)
    publish = story.publish(1.0, 0, will=will)
    story.comes(publish, 1.2, client="cut-0", packet_id=1)
    story.history.add(Connect(client="cut-0", began=2.0, node=A, present=True)).ok(2.1)
    story.comes(publish, 2.5, client="cut-0", packet_id=1)
    assert story.broken(durability) == found


@for_each(
    ("client", "node", "stopped", "at", "durability", "found"),
    [
        ("clean-0", A, 1, 4.0, SHARED, set()),
        ("clean-0", A, 0, 4.0, SHARED, set()),
        ("clean-0", A, 1, 6.5, SHARED, set()),  # not linked again
        ("clean-0", A, 1, 0.8, SHARED, {"lost"}),  # before it was stopped
        ("clean-0", A, 1, 9.0, SHARED, {"lost"}),  # linked again
        ("clean-0", A, 2, 4.0, SHARED, {"lost"}),  # another node
        ("clean-0", B, 1, 4.0, SHARED, {"lost"}),  # no other node is in between
        ("connected-0", A, 1, 4.0, SHARED, {"lost"}),  # its session is in the database
        ("clean-0", A, 1, 4.0, STAY, {"lost"}),  # what waits for a node is in that of its publisher
    ],
)
def test_a_node_that_stood_still_may_lose_what_is_live(
    client: str, node: str, stopped: int, at: float, durability: Durability, found: set[str]
) -> None:
    story = Story((2.0, 5.0, BrokerFault(2.0, Fault.STOP, 3.0, (stopped,))))
    story.connect(client, 0.0, A)
    story.subscribe(client, 0.2, "t/#")
    story.connect("p", 0.5, B if node == A else A)
    story.publish(at, 0)
    assert story.broken(durability) == found


@for_each(
    ("node", "at", "durability", "more", "found"),
    [
        (B, 1.2, SHARED, {}, set()),
        (A, 1.2, SHARED, {}, {"RETAIN"}),  # its own node tells it first
        (A, 1.2, SHARED, {"again": True}, set()),  # unless another one was sent it, too
        (B, 3.0, SHARED, {}, {"RETAIN"}),  # the look is over
        (B, 1.2, STAY, {}, {"RETAIN"}),  # there is none
        (B, 1.2, SHARED, {"retain": False}, {"RETAIN"}),
        (B, 1.2, SHARED, {"as_published": True, "retain": False}, {"RETAIN"}),
    ],
)
def test_what_is_retained_just_behind_a_suback_may_be_found(
    node: str, at: float, durability: Durability, more: dict[str, bool], found: set[str]
) -> None:
    story = Story()
    story.connect("connected-0", 0.0, A)
    story.connect("p", 0.5, node)
    story.subscribe("connected-0", 1.0, "r/#", as_published=more.get("as_published", False))
    publish = story.publish(at, 0, "r/0", retain=more.get("retain", True))
    if "again" in more:
        story.connect("p", at + 0.05, B)
    story.comes(publish, at + 0.1, client="connected-0", retain=True)
    assert story.broken(durability) == found


@for_each(("node", "at", "found"), [(B, 2.5, set()), (A, 2.5, {"one connection"}), (B, 9.0, {"one connection"})])
def test_the_connection_at_another_node_ends_in_a_moment(node: str, at: float, found: set[str]) -> None:
    story = Story()
    story.connect("taken-over-0", 0.0, A)
    story.connect("taken-over-0", 2.0, node)
    first, _ = story.history.of(Connect)
    story.history.add(Ping(client="taken-over-0", began=at, connection=first.number)).ok(at + 0.1)
    assert story.broken(SHARED) == found


@pytest.mark.parametrize(
    ("story", "why"),
    [
        (overtaken(A, A), "it stayed at its node"),
        (overtaken(C, A), "the first came to the receiver's own node, and had no way to go"),
    ],
)
def test_no_other_message_may_be_overtaken(story: Story, why: str) -> None:
    assert story.broken() == {"order"}, why


def test_what_stayed_at_a_node_is_found_beside_what_moved() -> None:
    story = Story()
    story.connect("s", 0.0, C)
    story.subscribe("s", 0.2, "t/#")
    story.connect("p", 1.0, A)
    one, two = story.publish(1.5, 0), story.publish(1.7, 1)
    story.connect("p", 2.0, B)
    three = story.publish(2.5, 2)
    for number, each in enumerate((three, two, one)):
        story.comes(each, 3.0 + number)
    assert story.broken() == {"order"}


def test_what_came_in_an_earlier_session_overtakes_nothing() -> None:
    story = Story()
    story.connect("s", 0.0, A)
    story.subscribe("s", 0.2, "t/#")
    story.connect("p", 1.0, A)
    one, two = story.publish(1.5, 0), story.publish(1.7, 1)
    story.comes(two, 1.8)
    story.connect("p", 2.0, B)
    story.connect("s", 2.1, C)
    story.subscribe("s", 2.2, "t/#")
    story.comes(story.publish(2.5, 2), 2.8)
    # It had waited at node a for node c.
    story.comes(one, 3.0)
    assert story.broken() == set()


def cut(fault: Fault, *nodes: int, began: float = 10.0, ended: float = 12.0) -> tuple[float, float, BrokerFault]:
    return began, ended, BrokerFault(0.0, fault, ended - began, nodes)


APART = cut(Fault.PAIR, 0, 1)


@pytest.mark.parametrize(
    ("faults", "at", "node", "looked", "kept"),
    [
        ((APART,), 10.5, B, 11.5, True),
        ((APART,), 10.5, B, 13.9, True),
        ((APART,), 10.5, B, 16.0, False),  # linked again long before
        ((APART,), 10.5, C, 11.9, False),  # that node was not cut off
        ((APART,), 10.5, A, 10.7, False),  # it is where it was acknowledged
        ((APART,), 5.0, B, 11.0, False),  # it was there long before the cut
        ((), 10.5, B, 11.0, True),  # a moment ago
        ((), 10.5, B, 12.0, False),
        ((cut(Fault.KILL, 1),), 10.5, B, 13.0, True),
        ((cut(Fault.KILL, 2),), 10.5, B, 13.0, False),
        ((cut(Fault.ISOLATE, 0),), 10.5, B, 13.0, True),
        ((cut(Fault.HALVES, 0, 1),), 10.5, B, 13.0, False),
        ((cut(Fault.ONE_WAY, 1, 0),), 10.5, B, 13.0, True),
        ((cut(Fault.STORE_PAUSED, 1),), 10.5, B, 13.0, False),
    ],
)
@pytest.mark.parametrize("asked", [False, True], ids=["a look", "Retain Handling 2"])
def test_a_retained_message_may_be_missed_where_it_can_hardly_be(
    faults: tuple[tuple[float, float, BrokerFault], ...], at: float, node: str, looked: float, kept: bool, asked: bool
) -> None:
    """Either a look finds the older one, or it comes as a new one after a SUBSCRIBE that wants no retained messages."""
    story = Story(*faults)
    story.connect("s", 0.0, node)
    story.connect("p", 1.0, A)
    old = story.publish(1.5, 0, "r/0/0", retain=True)
    new = story.publish(at, 1, "r/0/0", retain=True)
    if asked:
        story.subscribe("s", looked, "r/#", handling=2, as_published=True)
        story.comes(new, looked + 0.5, retain=True)
    else:
        story.look(looked, node, old)
    promise = "Retain Handling" if asked else "retained, the last"
    assert story.broken() == (set() if kept else {promise})
    assert story.broken(Durability()) == {promise}, "others promise it"


@pytest.mark.parametrize(("at", "looked", "kept"), [(9.5, 12.0, True), (5.0, 12.0, False), (9.5, 25.0, False)])
def test_a_node_shows_what_it_knows_while_the_database_is_away(at: float, looked: float, kept: bool) -> None:
    story = Story((10.0, 14.0, BrokerFault(10.0, Fault.STORE_RESTART, 4.0)))
    story.connect("p", 1.0, A)
    old = story.publish(1.5, 0, "r/0/0", retain=True)
    story.publish(at, 1, "r/0/0", retain=True)
    story.look(looked, B, old)
    assert story.broken(SHARED) == (set() if kept else {"retained, the last"})


@pytest.mark.parametrize(("faults", "kept"), [((APART,), True), ((), False)])
@pytest.mark.parametrize("nodes", [(A, B), (B, A)])
def test_two_nodes_may_differ_while_they_are_cut_off(
    faults: tuple[tuple[float, float, BrokerFault], ...], kept: bool, nodes: tuple[str, str]
) -> None:
    story = Story(*faults)
    story.connect("p", 1.0, A)
    old = story.publish(1.5, 0, "r/0/0", retain=True)
    new = story.publish(10.5, 1, "r/0/0", retain=True)
    for number, node in enumerate(nodes):
        story.look(12.5 + number / 10, node, new if node == A else old)
    assert story.broken() == (set() if kept else {"retained, the last", "retained, each node"})


def test_a_wait_for_a_core_makes_nodes_give_each_other_up() -> None:
    story = Story()
    story.connect("p", 1.0, A)
    old = story.publish(1.5, 0, "r/0/0", retain=True)
    story.publish(10.5, 1, "r/0/0", retain=True)
    story.look(13.9, B, old)
    assert story.broken() == {"retained, the last"}
    story.lateness.noted(8.0, 0.0)
    story.lateness.noted(10.0, 1.5)
    story.lateness.noted(14.0, 0.0)
    assert story.broken() == set()


def test_each_of_the_newer_messages_has_to_be_excused() -> None:
    """One of them was acknowledged by the very node that has an older one."""
    story = Story(APART)
    story.connect("p", 1.0, A)
    old = story.publish(1.5, 0, "r/0/0", retain=True)
    story.publish(10.5, 1, "r/0/0", retain=True)
    story.connect("p", 10.7, B)
    story.publish(11.0, 2, "r/0/0", retain=True)
    story.look(11.5, B, old)
    assert story.broken() == {"retained, the last"}


def test_a_retained_message_that_nobody_sent_is_not_excused() -> None:
    story = Story()
    story.connect("p", 1.0, A)
    new = story.publish(10.5, 1, "r/0/0", retain=True)
    story.look(10.7, B, replace(new, sequence=7))
    assert story.broken() == {"retained, the last"}


@pytest.mark.parametrize(
    ("planted", "promise"),
    [
        (Planted.REORDERS, "order"),
        (Planted.OVERTAKES, "order"),
        (Planted.OLD_RETAINED, "retained, the last"),
        (Planted.OLD_RETAINED_ELSEWHERE, "retained, the last"),
        (Planted.NO_RETAINED, "retained, the last"),
        (Planted.KEEPS_CLEARED, "retained, the last"),
        (Planted.IGNORES_RETAIN_HANDLING, "Retain Handling"),
    ],
)
def test_planted_faults_are_found_at_nodes_whose_sessions_stay(planted: Planted, promise: str) -> None:
    made = proof(planted, nodes=3, rounds=4, sessions_stay=True, broker=Apart(planted))
    assert promise in broken(judge(made, STAY))

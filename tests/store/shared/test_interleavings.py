"""What PostgreSQL does where transactions meet: each history is one that lost or doubled a message without its rule.

Each is carried out by the shipped SQL and by the model, and, with the rule taken out of the SQL, has to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import asyncpg
import pytest

from canopy_mqtt.store.shared.functions import PLANS
from tests.cluster.model import functions
from tests.cluster.model.database import Transaction
from tests.cluster.model.functions import Item
from tests.cluster.model.network import FOR_EVER
from tests.store.shared.script import Caller, Script, change, end, release, subscribe, unsubscribe
from tests.support.runs import for_each

WILL: Final = {"topic": "w", "pub": "c", "n": 1, "qos": 1}


def will(kind: str, owner: dict[str, Any], delay: int | None = 0) -> Item:
    """`kind`: set, ended, or will: it is published, for the filter "w"."""
    fenced = {"fence": kind == "set", "qos": 1, "retain": False}
    return {"kind": kind, "msg": WILL, "delay": delay, "filters": {"w"}, **fenced, **owner}


History = Callable[[Script], None]
GROUP: Final = "$share/x/a"


def a_slot_is_emptied_beside_a_writer(script: Script) -> None:
    """The writer goes on where the sweeper waits for it, also with what needs a lock of the slot again."""
    owner = script.n1.subscriber("s")
    writer = script.n2.begin(script.n2.publish(1), change("done", owner, (0, owner["sid"], 0, 99)))
    script.go(writer, "changed")
    script.change_slot(2)
    sweeper = script.begin(functions.empty_deliveries, 0)
    script.go(sweeper)
    assert script.waits(sweeper)
    script.go(writer)
    script.go(sweeper)
    assert [key[:2] for key in script.rows("delivery")] == [(functions.LONG, owner["sid"])]
    assert script.run(functions.empty_messages, 0) is None


def a_reader_waits_for_a_slot_that_is_emptied(script: Script) -> None:
    """It sees the rows where they are then: TRUNCATE has emptied what its own snapshot would show."""
    sid = script.n1.subscriber("s")["sid"]
    script.n2.write(script.n2.publish(1))
    script.change_slot(2)
    sweeper = script.begin(functions.empty_deliveries, 0)
    script.go(sweeper, "commit")
    reader = script.begin(functions.read, {sid: (0, frozenset(), 4)})
    assert script.waits(reader)
    script.go(sweeper)
    found, _, _ = reader.result
    assert [key[:2] for _, key, _ in found[sid][0]] == [(functions.LONG, sid)]


def a_slot_is_not_emptied_of_a_message_that_a_late_writer_needs(script: Script) -> None:
    script.n1.subscriber("s")
    writer = script.n2.begin(script.n2.publish(1))
    script.go(writer, "messages")
    script.change_slot(2)
    script.run(functions.empty_deliveries, 0)
    script.go(writer)
    script.run(functions.empty_messages, 0)
    assert {key[0] for key in script.rows("message")} == {0}


def a_delivery_is_changed_while_it_is_moved(script: Script) -> None:
    owner = script.n1.subscriber("s")
    script.n2.write(script.n2.publish(1))
    [key] = script.rows("delivery")
    script.change_slot()
    sweeper = script.begin(functions.move, 0)
    script.go(sweeper, "commit")
    writer = script.n1.begin(change("done", owner, key))
    script.go(writer)
    assert script.waits(writer)
    script.go(sweeper)
    script.go(writer)
    assert script.rows("delivery") == {}


def a_message_is_moved_with_its_delivery(script: Script) -> None:
    sid = script.n1.subscriber("s")["sid"]
    script.n2.write(script.n2.publish(1))
    script.change_slot(2)
    script.run(functions.move, 0)
    script.run(functions.empty_deliveries, 0)
    script.run(functions.empty_messages, 0)
    script.run(functions.clean_long)
    found, _, _ = script.run(functions.read, {sid: (0, frozenset(), 4)})
    assert [row["msg"]["n"] for _, _, row in found[sid][0]] == [1]


def a_claim_waits_for_a_group_and_sees_it(script: Script) -> None:
    owner = script.n1.subscriber("s")
    writer = script.n1.begin(script.n1.publish(1, qos=2, owner=owner, pid=7), subscribe(owner, "b"))
    script.go(writer, "commit")
    claim = script.n2.start_claim("s")
    script.go(claim)
    assert script.waits(claim)
    script.go(writer)
    got = script.go(claim)
    assert script.run(functions.content, [got["sid"]])[got["sid"]]["received"] == {7}


def claims_leave_out_whom_a_group_has_locked(script: Script) -> None:
    """Whoever waits while it holds other sessions may wait for a group that waits for one of these."""
    locked, free = script.n1.subscriber("s"), script.n1.subscriber("t", "b")
    writer = script.n1.begin(subscribe(locked, "b"))
    script.go(writer, "commit")
    asked = [(client, FOR_EVER) for client in ("new", "s", "t")]
    claims = script.begin(functions.claim_free, "n2", script.n2.incarnation, asked)
    got = script.go(claims)
    assert not script.waits(claims)
    assert [*got] == ["t"]
    script.go(writer)
    sessions = script.rows("session")
    assert (sessions[locked["sid"]]["node"], sessions[free["sid"]]["node"]) == ("n1", "n2")


def a_group_is_fenced_by_a_claim(script: Script) -> None:
    owner = script.n1.subscriber("s")
    script.n1.write(script.n1.publish(0, qos=2, owner=owner, pid=7))
    [key] = script.rows("delivery")
    claim = script.n2.start_claim("s")
    script.go(claim, "commit")
    writer = script.n1.begin(
        script.n1.publish(1, qos=2, owner=owner),
        script.n1.publish(2),
        {"kind": "complete", "pid": 7, "fence": True, **owner},
        change("sent", owner, key, pid=3),
        subscribe(owner, "b"),
        release(owner),
    )
    script.go(writer)
    assert script.waits(writer)
    script.go(claim)
    out = script.go(writer)
    assert out["lost"] == {(owner["sid"], owner["epoch"])}
    assert [msg["n"] for msg in script.rows("message").values()] == [0, 2]
    assert script.rows("session")[owner["sid"]]["node"] == "n2"


def a_group_is_fenced_by_a_clean_start(script: Script) -> None:
    """The session has another id then, and what is written for the old one is nobody's."""
    owner = script.n1.subscriber("s")
    writer = script.n2.begin(script.n2.publish(1))
    script.go(writer, "commit")
    got = script.n2.claim("s", clean=True)
    script.go(writer)
    assert (got["sid"] != owner["sid"], got["present"]) == (True, False)
    assert script.n1.write(subscribe(owner, "b"))["lost"] == {(owner["sid"], owner["epoch"])}
    found, _, _ = script.run(functions.read, {got["sid"]: (0, frozenset(), 4)})
    assert found[got["sid"]] == ([], False)
    script.run(functions.collect)
    assert (script.rows("delivery"), script.rows("subscription"), script.rows("garbage")) == ({}, {}, {})


def a_group_whose_answer_was_lost_is_written_once(script: Script) -> None:
    owner = script.n1.subscriber("s")
    stale = {**owner, "epoch": 0}
    script.n2.write(script.n2.publish(1))
    [key] = script.rows("delivery")
    items = [
        script.n1.publish(2), change("sent", owner, (key[0], key[1], 0, 99)), subscribe(stale, "b"),
    ]  # fmt: skip
    first = script.n1.write(*items)
    again = script.n1.write(*items, again=True)
    assert (first["result"], again["result"]) == ("written", "again")
    assert (again["lost"], again["failed"]) == (first["lost"], first["failed"])
    assert (again["lost"], again["failed"]) == ({(owner["sid"], 0)}, {(owner["sid"], 0, 99)})
    assert [msg["n"] for msg in script.rows("message").values()] == [1, 2]


def a_group_is_matched_again_where_a_filter_is_new(script: Script) -> None:
    script.n2.subscriber("other", "b")
    owner = script.n1.claim("s")
    script.n1.write(subscribe({"sid": owner["sid"], "epoch": owner["epoch"]}, "a"))
    assert script.n2.write(script.n2.publish(1))["result"] == "rematch"
    assert script.rows("message") == {}
    script.n2.learn()
    assert script.n2.write(script.n2.publish(1), again=True)["result"] == "written"
    assert len(script.rows("delivery")) == 1


def a_qos_2_publish_counts_once(script: Script) -> None:
    script.n1.subscriber("s")
    got = script.n1.claim("p")
    script.n1.write(script.n1.publish(1, qos=2, owner={"sid": got["sid"], "epoch": got["epoch"]}, pid=7))
    got = script.n2.claim("p")
    owner = {"sid": got["sid"], "epoch": got["epoch"]}
    script.n2.write(script.n2.publish(1, qos=2, owner=owner, pid=7))
    assert len(script.rows("message")) == 1
    script.n2.write({"kind": "complete", "pid": 7, "fence": True, **owner})
    script.n2.write(script.n2.publish(2, qos=2, owner=owner, pid=7))
    assert len(script.rows("message")) == 2


def a_delivery_is_sent_once(script: Script) -> None:
    owner = script.n1.subscriber("s")
    script.n2.write(script.n2.publish(1, qos=2, owner=script.n2.subscriber("p", "b")))
    [key] = script.rows("delivery")
    script.n1.write(change("sent", owner, key, pid=3))
    assert script.n1.write(change("sent", owner, key, pid=4))["failed"] == {key[1:]}
    assert script.rows("delivery")[key]["pid"] == 3
    script.n1.write(change("released", owner, key))
    [(_, row, _)] = script.run(functions.content, [owner["sid"]])[owner["sid"]]["flying"]
    assert (row["state"], row["pid"]) == (2, 3)


def a_filter_ends_beside_a_subscriber(script: Script) -> None:
    owner = script.n1.subscriber("s")
    script.n1.write(unsubscribe(owner, "a"))
    other = script.n2.claim("t")
    writer = script.n2.begin(subscribe({"sid": other["sid"], "epoch": other["epoch"]}, "a"))
    script.go(writer, "commit")
    ender = script.n1.begin(end("a"))
    script.go(ender)
    assert script.waits(ender)
    script.go(writer)
    script.go(ender)
    assert not script.rows("filter")["a"]["gone"]


def a_filter_that_has_ended_is_revived(script: Script) -> None:
    """Also by the group that ends it."""
    owner = script.n1.subscriber("s")
    script.n1.write(unsubscribe(owner, "a"), end("a"))
    assert script.rows("filter")["a"]["gone"]
    script.n1.write(subscribe(owner, "a"), end("a"))
    assert not script.rows("filter")["a"]["gone"]
    script.n2.learn()
    assert script.n2.filters == {"a"}


def a_claim_waits_for_an_expiry(script: Script) -> None:
    got = script.n1.claim("s", expiry=0)
    script.n1.write(release({"sid": got["sid"], "epoch": got["epoch"]}))
    sweeper = script.begin(functions.expire)
    script.go(sweeper, "commit")
    claim = script.n2.start_claim("s")
    script.go(claim)
    assert script.waits(claim)
    script.go(sweeper)
    anew = script.go(claim)
    assert (anew["present"], anew["epoch"], anew["sid"] != got["sid"]) == (False, 1, True)


def two_nodes_claim_a_client_that_is_new(script: Script) -> None:
    first = script.n1.start_claim("s")
    script.go(first, "insert")
    second = script.n2.start_claim("s")
    script.go(second, "insert")
    script.go(first, "commit")
    script.go(second)
    assert script.waits(second)
    script.go(first)
    got = script.go(second)
    assert (first.result["epoch"], got["epoch"], got["present"]) == (1, 2, True)
    assert got["sid"] == first.result["sid"]


def a_node_is_declared_dead_after_its_group(script: Script) -> None:
    seen = script.rows("beat")["n1"]
    writer = script.n1.begin(script.n1.publish(1))
    script.go(writer, "commit")
    death = script.begin(functions.declare_dead, "n1", script.n1.incarnation, seen)
    script.go(death)
    assert script.waits(death)
    script.go(writer)
    assert script.go(death) is True
    assert script.n1.write(script.n1.publish(2)) is None
    assert script.n1.claim("s") is None
    assert script.run(functions.beat, "n1", script.n1.incarnation) is False


def a_node_that_has_beaten_since_is_not_dead(script: Script) -> None:
    seen = script.rows("beat")["n1"]
    script.db.clock = lambda: 5
    assert script.run(functions.beat, "n1", script.n1.incarnation) is True
    assert script.run(functions.declare_dead, "n1", script.n1.incarnation, seen) is False
    assert script.n1.write()["result"] == "written"


def sessions_of_a_dead_node_are_released(script: Script) -> None:
    owner = script.n1.subscriber("s")
    again, *_ = script.run(functions.join, "n1", 0, 0)
    claim = script.n2.start_claim("locked")
    script.go(claim, "commit")
    script.n2.write({"kind": "reap"})
    row = script.rows("session")[owner["sid"]]
    assert (again, row["node"], row["epoch"]) == (2, None, owner["epoch"])
    script.go(claim)


def what_may_still_appear_is_not_final(script: Script) -> None:
    """One node has written far more than the other one, in whose group an earlier number may be."""
    sid = script.n1.subscriber("s")["sid"]
    last = script.rows("progress")[("n1", script.n1.grp)]["last"]
    script.n2.write(script.n2.publish(1))
    _, _, final = script.run(functions.read, {sid: (0, frozenset(), 4)})
    assert final == last


def only_numbers_that_are_asked_again_are_kept(script: Script) -> None:
    script.n1.write()
    script.n1.write()
    script.run(functions.trim)
    assert [key for key in script.rows("progress") if key[0] == "n1"] == [("n1", script.n1.grp)]
    assert script.n1.write(again=True)["result"] == "again"


def a_join_says_whether_the_group_before_it_was_written(script: Script) -> None:
    """Also where its own answer was lost, and what is not asked for any more has been forgotten; but a number that a
    join has written is nobody's group."""
    script.n1.write(script.n1.publish(1))
    asked = script.n1.incarnation, script.n1.grp
    script.run(functions.join, "n1", *asked)
    script.run(functions.trim)
    incarnation, grp, outcome = script.run(functions.join, "n1", *asked)
    assert outcome == (frozenset(), frozenset())
    for before in (asked[0], incarnation):
        assert script.run(functions.join, "n1", before, grp)[2] is None


def a_retained_message_of_an_earlier_owner_does_not_count(script: Script) -> None:
    """Its client has retained a newer one elsewhere since."""
    owner = script.n1.subscriber("p")
    got = script.n2.claim("p")
    script.n2.write(script.n2.retain(2, owner={"sid": got["sid"], "epoch": got["epoch"]}))
    out = script.n1.write(script.n1.retain(1, owner=owner))
    assert out["lost"] == {(owner["sid"], owner["epoch"])}
    assert script.rows("retained")["r"]["msg"]["n"] == 2


def a_retained_message_of_qos_2_counts_once(script: Script) -> None:
    owner = script.n1.subscriber("p")
    script.n1.write(script.n1.retain(1, qos=2, owner=owner, pid=7))
    script.n2.write(script.n2.retain(2))
    script.n1.write(script.n1.retain(1, qos=2, owner=owner, pid=7))
    assert script.rows("retained")["r"]["msg"]["n"] == 2


def the_last_of_a_group_is_retained(script: Script) -> None:
    node = script.n1
    node.write(node.retain(1), node.retain(2, topic="r2"), node.retain(3), node.retain(4, topic="r2", clear=True))
    rows, _ = script.run(functions.feed_retained, {})
    assert [(topic, row["msg"]["n"]) for topic, row in rows] == [("r", 3)]


def two_nodes_retain_at_once(script: Script) -> None:
    """The second waits for the first, and is heard of as the newer one."""
    first = script.n1.begin(script.n1.retain(1), script.n1.retain(2, topic="r2"))
    script.go(first, "progress")
    second = script.n2.begin(script.n2.retain(3, topic="r2"), script.n2.retain(4))
    script.go(second)
    assert script.waits(second)
    script.go(first)
    rows, vector = script.run(functions.feed_retained, {})
    assert sorted(row["msg"]["n"] for _, row in rows) == [1, 2]
    script.go(second)
    rows, _ = script.run(functions.feed_retained, vector)
    assert sorted(row["msg"]["n"] for _, row in rows) == [3, 4]
    assert script.n1.write()["retained"]


def a_topic_is_cleared_beside_one_that_retains(script: Script) -> None:
    script.n1.write(script.n1.retain(1))
    clears = script.n1.begin(script.n1.retain(2, clear=True))
    script.go(clears, "progress")
    again = script.n2.begin(script.n2.retain(3, clear=True))
    script.go(again)
    assert script.waits(again)
    script.go(clears)
    script.go(again)
    assert (script.rows("retained")["r"]["node"], script.rows("retained")["r"]["msg"]["n"]) == ("n1", 2)


def pull(script: Script, node: str, *members: dict[str, Any], room: int = 4) -> Transaction:
    """Begin to take from the queue of the share group, for members at a node."""
    caller = script.nodes[node]
    asked = [(each["sid"], each["epoch"], room) for each in members]
    return script.begin(functions.pull, node, caller.incarnation, GROUP, asked)


def a_pull_waits_for_a_member_that_leaves(script: Script) -> None:
    """Nothing comes to a session without a node: nobody would give it back."""
    owner = script.n1.subscriber("m", GROUP)
    script.n2.write(script.n2.publish(1))
    leaving = script.n1.begin(release(owner))
    script.go(leaving, "commit")
    taking = pull(script, "n1", owner)
    assert script.waits(taking)
    script.go(leaving)
    assert script.go(taking) == (set(), False, True, {owner["sid"]})


def a_member_that_leaves_waits_for_a_pull(script: Script) -> None:
    """It gives back what it got meanwhile."""
    owner = script.n1.subscriber("m", GROUP)
    script.n2.write(script.n2.publish(1))
    taking = pull(script, "n1", owner)
    script.go(taking, "left")
    leaving = script.n1.begin(release(owner))
    script.go(leaving)
    assert script.waits(leaving)
    script.go(taking)
    [hint] = script.go(leaving)["hints"]
    assert [(key[1], key[2]) for key in script.rows("delivery")] == [(hint[0], 0)]


def what_is_given_back_is_moved_meanwhile(script: Script) -> None:
    owner = script.n1.subscriber("m", GROUP)
    script.n2.write(script.n2.publish(1))
    script.go(pull(script, "n1", owner))
    script.change_slot()
    sweeper = script.begin(functions.move, 0)
    script.go(sweeper, "commit")
    leaving = script.n1.begin(release(owner))
    script.go(leaving)
    assert script.waits(leaving)
    script.go(sweeper)
    script.go(leaving)
    assert [(key[0], key[2]) for key in script.rows("delivery")] == [(functions.LONG, 0)]


def a_pull_passes_over_what_is_moved(script: Script) -> None:
    """And says that something is left."""
    owner = script.n1.subscriber("m", GROUP)
    script.n2.write(script.n2.publish(1))
    script.change_slot()
    sweeper = script.begin(functions.move, 0)
    script.go(sweeper, "commit")
    assert script.go(pull(script, "n1", owner)) == (set(), False, True, set())
    script.go(sweeper)
    assert script.go(pull(script, "n1", owner)) == ({owner["sid"]}, False, False, set())


def two_first_members_make_one_group(script: Script) -> None:
    first, second = script.n1.claim("m1"), script.n2.claim("m2")
    writers = [
        node.begin(subscribe({"sid": got["sid"], "epoch": got["epoch"]}, GROUP))
        for node, got in ((script.n1, first), (script.n2, second))
    ]
    script.go(writers[0], "commit")
    script.go(writers[1])
    assert script.waits(writers[1])
    for writer in writers:
        script.go(writer)
    assert [row["client"] for row in script.rows("session").values()].count(GROUP) == 1


def a_clean_start_gives_back(script: Script) -> None:
    owner = script.n1.subscriber("m", GROUP)
    other = script.n2.subscriber("n", GROUP)
    script.n2.write(script.n2.publish(1))
    script.go(pull(script, "n1", owner))
    [hint] = script.n1.claim("m", clean=True)["hints"]
    assert script.go(pull(script, "n2", other))[0] == {other["sid"]}
    assert [key[2:] for key in script.rows("delivery")] == [hint]


def a_will_is_published_by_one_node(script: Script) -> None:
    """A node that was counted as dead publishes it in its next incarnation, while another one does."""
    owner = script.n1.subscriber("c")
    script.n1.write(will("set", owner))
    script.n2.subscriber("heir", "w")
    assert script.run(functions.declare_dead, "n1", script.n1.incarnation, script.rows("beat")["n1"])
    script.n2.write({"kind": "reap"})
    assert script.run(functions.due_wills, "n2", script.n2.incarnation) == [((owner["sid"], owner["epoch"]), WILL)]
    script.nodes["n1"] = again = Caller(script, "n1")
    for node in (script.n2, again):
        node.learn()
    publishers = [node.begin(will("will", owner)) for node in (script.n2, again)]
    script.go(publishers[0], "commit")
    script.go(publishers[1])
    assert script.waits(publishers[1])
    for each in publishers:
        script.go(each)
    assert len(script.rows("delivery")) == 1
    assert publishers[1].result["failed"] == {(owner["sid"], functions.WILL, owner["epoch"])}


def a_client_is_back_before_its_will_is_due(script: Script) -> None:
    """At another node, while the first one notes that its connection has ended."""
    owner = script.n1.subscriber("c")
    script.n1.write(will("set", owner, 5))
    ended = script.n1.begin(will("ended", owner, 5))
    script.go(ended, "commit")
    claim = script.n2.start_claim("c")
    script.go(claim)
    assert script.waits(claim)
    script.go(ended)
    script.go(claim)
    assert script.rows("will") == {}


def a_will_without_delay_is_left_to_the_node_of_its_connection(script: Script) -> None:
    """The client may have said goodbye there."""
    owner = script.n1.subscriber("c")
    script.n1.write(will("set", owner))
    script.n2.claim("c")
    script.db.compare_all()
    assert script.run(functions.due_wills, "n2", script.n2.incarnation) == []
    script.n1.write(will("ended", owner, None))
    assert script.rows("will") == {}


def a_clean_start_makes_a_will_due(script: Script) -> None:
    owner = script.n1.subscriber("c")
    script.n1.write(will("set", owner, 5))
    script.n1.write(will("ended", owner, 5))
    script.n2.claim("c", clean=True)
    assert script.run(functions.due_wills, "n1", script.n1.incarnation) == [((owner["sid"], owner["epoch"]), WILL)]


HISTORIES: Final[dict[History, tuple[str, str]]] = {
    a_will_is_published_by_one_node: ("ORDER BY w.session, w.epoch FOR UPDATE OF w", ""),
    a_client_is_back_before_its_will_is_due: ("said.session AND delay > 0", "said.session AND delay < 0"),
    a_will_without_delay_is_left_to_the_node_of_its_connection: ("said.session AND delay > 0", "said.session"),
    a_clean_start_makes_a_will_due: ("due = CASE WHEN due IS NOT NULL THEN", "due = CASE WHEN false THEN"),
    a_slot_is_emptied_beside_a_writer: (
        "EXECUTE format('LOCK TABLE delivery_%s IN ACCESS EXCLUSIVE MODE', p_slot);",
        "",
    ),
    a_pull_waits_for_a_member_that_leaves: ("AND s.node = p_node", ""),
    a_member_that_leaves_waits_for_a_pull: ("ORDER BY id FOR SHARE", ""),
    what_is_given_back_is_moved_meanwhile: (
        "CONTINUE WHEN cardinality(hints) = before;",
        "EXIT WHEN cardinality(hints) = before;",
    ),
    a_pull_passes_over_what_is_moved: (
        "o_left := EXISTS (SELECT FROM delivery WHERE session = queue)",
        "o_left := false",
    ),
    two_first_members_make_one_group: ("CONTINUE WHEN (SELECT", "CONTINUE WHEN false AND (SELECT"),
    a_clean_start_gives_back: ("said.hints := give_back(ARRAY[said.session]);", ""),
    a_reader_waits_for_a_slot_that_is_emptied: (
        f"LANGUAGE plpgsql {PLANS} SET enable_sort",
        f"LANGUAGE plpgsql STABLE {PLANS} SET enable_sort",
    ),
    a_slot_is_not_emptied_of_a_message_that_a_late_writer_needs: (
        " OR EXISTS (SELECT FROM delivery WHERE slot = p_slot)",
        "",
    ),
    a_delivery_is_changed_while_it_is_moved: ("THEN todo\n", "THEN '{}'\n"),
    a_message_is_moved_with_its_delivery: ("AND id = ANY (ARRAY(SELECT k.id", "AND 0 = ANY (ARRAY(SELECT k.id"),
    a_claim_waits_for_a_group_and_sees_it: ("client_id = p_client_id FOR UPDATE", "client_id = p_client_id"),
    a_group_is_fenced_by_a_claim: ("ORDER BY id FOR NO KEY UPDATE", ""),
    claims_leave_out_whom_a_group_has_locked: (
        "(p_client_ids) ORDER BY id FOR UPDATE SKIP LOCKED",
        "(p_client_ids) ORDER BY id FOR UPDATE",
    ),
    a_group_is_fenced_by_a_clean_start: (
        "        said.session := nextval('session_id');\n    END IF;\n    UPDATE",
        "    END IF;\n    UPDATE",
    ),
    a_group_whose_answer_was_lost_is_written_once: (
        "FROM progress WHERE node = p_node AND grp = p_grp;\n    IF FOUND",
        "FROM progress WHERE false;\n    IF FOUND",
    ),
    a_group_is_matched_again_where_a_filter_is_new: ("IF appeared AND", "IF false AND"),
    a_qos_2_publish_counts_once: ("IN (SELECT session, packet_id FROM fresh)", "IS NOT NULL"),
    a_delivery_is_sent_once: ("AND d.state = c.state - 1", ""),
    a_filter_ends_beside_a_subscriber: (
        "FROM filter WHERE name = a_name FOR UPDATE",
        "FROM filter WHERE name = a_name",
    ),
    a_filter_that_has_ended_is_revived: ("SET gone = false, node = p_node, grp = p_grp WHERE", "SET gone = gone WHERE"),
    a_claim_waits_for_an_expiry: ("client_id = p_client_id FOR UPDATE", "client_id = p_client_id"),
    two_nodes_claim_a_client_that_is_new: (
        "ON CONFLICT DO NOTHING;\n        IF FOUND THEN\n            said.epoch",
        "ON CONFLICT (client_id) DO UPDATE SET node = p_node;\n        IF FOUND THEN\n            said.epoch",
    ),
    a_node_is_declared_dead_after_its_group: ("AND alive FOR NO KEY UPDATE", "AND alive"),
    a_node_that_has_beaten_since_is_not_dead: ("AND p_seen = (SELECT at FROM beat WHERE node = p_node)", ""),
    sessions_of_a_dead_node_are_released: ("AND incarnation < n.incarnation +", "AND incarnation > n.incarnation +"),
    what_may_still_appear_is_not_final: ("min(p.last_id)", "max(p.last_id)"),
    a_retained_message_of_an_earlier_owner_does_not_count: (" OR retained IS NOT NULL) AND session", ") AND session"),
    a_retained_message_of_qos_2_counts_once: ("counted AND retained IS NOT NULL", "retained IS NOT NULL"),
    the_last_of_a_group_is_retained: ("place DESC LOOP", "place LOOP"),
    two_nodes_retain_at_once: (
        "nextval('retained_version'),\n                            node = p_node, grp = p_grp;",
        "nextval('retained_version');",
    ),
    a_topic_is_cleared_beside_one_that_retains: (
        "r.topic = kept.topic AND r.payload IS NOT NULL",
        "r.topic = kept.topic",
    ),
    only_numbers_that_are_asked_again_are_kept: ("p.grp < (SELECT max(grp)", "p.grp <= (SELECT max(grp)"),
    a_join_says_whether_the_group_before_it_was_written: (" AND incarnation = p_incarnation;", ";"),
}
"""Histories, and for each a rule of the SQL, without which it fails: the text, and what takes its place."""


def carry_out(history: History, alter: Callable[[str], str] = str) -> None:
    script = Script(alter)
    try:
        history(script)
    except BaseException:
        script.db.close()
        raise
    script.close()


@for_each("history", HISTORIES)
def test_transactions_meet(history: History) -> None:
    carry_out(history)


STATEMENTS: Final = (
    "number", "feed", "fence", "owners", "wills", "ended", "received", "filters", "subscriptions", "ends", "slot",
    "messages", "deliveries", "rows", "changed", "long", "long changed", "release", "reap", "orphans", "progress",
    "commit",
)  # fmt: skip
"""The steps of a group that has something of everything."""


def a_group_is_killed_before_each_statement(script: Script) -> None:
    """Its connection ends, or the statement is refused. Asked again, the same number is written whole."""
    node = script.n1
    owner = script.n1.subscriber("s")
    script.n2.write(script.n2.publish(1), script.n2.publish(2))
    for number, statement in enumerate(STATEMENTS):
        before_owner, owner = owner, script.n1.subscriber("s")
        leaving = node.claim(f"leaving {number}")
        key = min(script.rows("delivery"))
        group = (
            node.publish(number, qos=2, owner=owner, pid=number), node.publish(100 + number),
            {"kind": "complete", "pid": number - 1, "fence": True, **owner},
            subscribe(owner, "b"), end("s"), change("done", owner, key),
            change("sent", owner, (*key[:3], 9999)), release({"sid": leaving["sid"], "epoch": leaving["epoch"]}),
            {"kind": "reap"}, will("set", owner), will("ended", before_owner),
        )  # fmt: skip
        tables = ("message", "delivery", "received", "progress", "will")
        before = {table: dict(script.rows(table)) for table in tables}
        tx = node.begin(*group)
        script.go(tx, statement)
        assert script.is_open(tx), statement
        assert tx.next == statement
        script.kill(tx)
        script.db.compare_all()
        assert {table: script.rows(table) for table in before} == before
        assert node.write(*group, again=True)["result"] == "written"
        assert {number} == {pid for _, pid in script.rows("received")}
        assert len(script.rows("message")) == len(before["message"]) + 2


def test_a_group_that_is_killed_has_written_nothing() -> None:
    carry_out(a_group_is_killed_before_each_statement)


@for_each("history", HISTORIES)
def test_each_rule_is_needed(history: History) -> None:
    text, instead = HISTORIES[history]
    altered = 0

    def alter(function: str) -> str:
        nonlocal altered
        altered += function.count(text)
        return function.replace(text, instead)

    with pytest.raises((AssertionError, asyncpg.PostgresError)):
        carry_out(history, alter)
    assert altered, f"the SQL has no {text!r}"

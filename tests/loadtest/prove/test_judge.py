"""What a judgement makes of findings: what a broker does not promise, and what the tool was too late to see."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from canopy_load.ledger.history import (
    Connect,
    Delivery,
    Ended,
    History,
    Publish,
    Subscribe,
    Unsubscribe,
)
from canopy_load.prove import report
from canopy_load.prove.faults import CLIENT_FAULTS, Fault
from canopy_load.prove.judge import PROMISES, Durability, Judgement, judge
from canopy_load.prove.plan import make
from canopy_load.prove.play import Proof
from tests.loadtest.prove.fake import Planted
from tests.loadtest.prove.proving import proof, proven, reported

AUTOSAVE = Durability(3.0, "it saves now and then")


def story(*, comes: bool = True) -> Proof:
    """A subscriber, and a message that was acknowledged."""
    history = History()
    connect = history.add(Connect(client="connected-0", began=1.0))
    connect.ok(1.1)
    history.add(Subscribe(client="connected-0", began=1.2, topic_filter="t/#", qos=2)).ok(1.3)
    publish = history.add(Publish(client="publisher-0", began=2.0, topic="t/0", qos=1, sequence=0))
    publish.ok(2.5)
    if comes:
        history.add(Delivery(client="connected-0", at=2.4, stream=publish.stream, sequence=0, qos=1))
    return Proof(make(1, 1), "00000000", ["mqtt://127.0.0.1:1883"], history, rounds=1, seconds=4.0)


def ruling(judgement: Judgement, promise: str) -> tuple[str, int, int, int]:
    """State, findings, what was not promised, and what is in doubt."""
    (found,) = [each for each in judgement.rulings if each.promise == promise]
    return found.state, len(found.findings), found.not_promised, found.doubtful


def test_a_loss_has_the_operations_that_show_it_and_the_kind_of_client() -> None:
    judgement = judge(story(comes=False))
    assert reported(judgement).code == 1
    (broken,) = judgement.broken
    (finding,) = broken.findings
    assert (broken.promise, finding.operations) == ("lost", (1, 2))
    assert reported(judgement).broken[0].by_kind == {"connected": 1}


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.RESTART, Fault.SCALE])
def test_the_end_of_a_process_excuses_a_broker_that_is_nothing_but_its_process(fault: Fault) -> None:
    ended = replace(story(comes=False), outages=[(100.0, 101.0, fault)])
    assert ruling(judge(ended, Durability(volatile=True)), "lost") == ("not judged", 0, 1, 0)
    stopped = replace(ended, outages=[(100.0, 101.0, Fault.STOP)])
    assert ruling(judge(stopped, Durability(volatile=True)), "lost") == ("broken", 1, 0, 0)


def test_a_kill_excuses_only_who_promises_nothing_of_it() -> None:
    killed = replace(story(comes=False), outages=[(2.7, 3.0, Fault.KILL)])
    assert ruling(judge(killed), "lost") == ("broken", 1, 0, 0)
    assert ruling(judge(killed, AUTOSAVE), "lost") == ("not judged", 0, 1, 0)
    before = replace(killed, outages=[(0.5, 0.6, Fault.KILL)])
    assert ruling(judge(before, AUTOSAVE), "lost") == ("broken", 1, 0, 0), "a kill before it excuses nothing"
    graceful = replace(killed, outages=[(2.7, 3.0, Fault.RESTART)])
    assert ruling(judge(graceful, AUTOSAVE), "lost") == ("broken", 1, 0, 0), "nor does a restart"
    late = replace(killed, outages=[(6.0, 6.5, Fault.KILL)])
    assert ruling(judge(late, AUTOSAVE), "lost") == ("broken", 1, 0, 0), "it was saved long before the kill"
    between = replace(killed, outages=[(1.8, 1.9, Fault.KILL)])
    assert ruling(judge(between, AUTOSAVE), "lost") == ("not judged", 0, 1, 0), "the subscription was not saved"


def test_a_kill_excuses_nothing_that_was_wrong_before_it() -> None:
    twice = story()
    publish = twice.history.of(Publish)[0]
    publish.qos = 2
    for at in (2.6, 2.8):
        twice.history.add(Delivery(client="connected-0", at=at, stream=publish.stream, sequence=0, qos=2))
    between = replace(twice, outages=[(2.7, 2.75, Fault.KILL)])
    assert ruling(judge(between, AUTOSAVE), "twice")[:3] == ("not judged", 0, 1)
    later = replace(twice, outages=[(2.9, 2.95, Fault.KILL)])
    assert ruling(judge(later, AUTOSAVE), "twice")[:3] == ("broken", 1, 0)


@pytest.mark.parametrize(
    ("got", "excused"),
    [("nothing", True), ("PUBACK", True), ("SUBACK", False), ("PUBCOMP", False)],
)
@pytest.mark.parametrize("back", [False, True])
def test_a_kill_may_take_a_session_that_had_got_nothing_that_lasts(got: str, excused: bool, back: bool) -> None:
    """`back`: its client had come back to the session before the kill."""
    history = History()
    before = history.add(Connect(client="late-0", began=1.0))
    before.ok(1.1)
    match got:
        case "SUBACK":
            history.add(Subscribe(client="late-0", began=1.2, topic_filter="t/#", qos=2)).ok(1.3)
        case "PUBACK" | "PUBCOMP":
            qos = 1 if got == "PUBACK" else 2
            history.add(Publish(client="late-0", began=1.2, topic="t/0", qos=qos, sequence=0)).ok(1.3)
    if back:
        history.add(Ended(client="late-0", at=1.4, connection=before.number, own=True))
        before = history.add(Connect(client="late-0", began=1.5, present=True))
        before.ok(1.6)
    history.add(Ended(client="late-0", at=2.0, connection=before.number))
    history.add(Connect(client="late-0", began=3.0)).ok(3.1)
    made = replace(story(), history=history, outages=[(2.0, 2.9, Fault.KILL)])
    assert ruling(judge(made), "session")[1:3] == ((0, 1) if excused else (1, 0))
    later = replace(made, outages=[(3.5, 4.0, Fault.KILL)])
    assert ruling(judge(later), "session")[1:3] == (1, 0), "it was gone before"


@pytest.mark.parametrize(
    ("first", "acknowledged", "state"),
    [
        ("durable-member-0", 5.0, "broken"),
        ("clean-member-0", 5.0, "not judged"),
        ("clean-member-0", 2.2, "broken"),
    ],
)
def test_a_kill_takes_what_was_known_of_a_clean_member_and_a_message_on_its_way(
    first: str, acknowledged: float, state: str
) -> None:
    history = History()
    for client in (first, "durable-member-1"):
        history.add(Connect(client=client, began=1.0)).ok(1.1)
        history.add(Subscribe(client=client, began=1.2, topic_filter="$share/g/t/#", qos=2)).ok(1.3)
    publish = history.add(Publish(client="publisher-0", began=2.0, topic="t/0", qos=2, sequence=0))
    publish.ok(acknowledged)
    history.add(Delivery(client=first, at=2.1, stream=publish.stream, sequence=0, qos=2))
    history.add(Delivery(client="durable-member-1", at=4.9, stream=publish.stream, sequence=0, qos=2))
    made = replace(story(), history=history, outages=[(2.5, 3.0, Fault.KILL)])
    assert ruling(judge(made), "to two members")[0] == state


@pytest.mark.parametrize(("ended", "qos", "state"), [(2.9, 1, "not judged"), (2.9, 2, "broken"), (9.0, 1, "broken")])
def test_a_member_may_read_late_what_went_to_another_when_its_connection_ended(
    ended: float, qos: int, state: str
) -> None:
    history = History()
    connections = {}
    for client in ("durable-member-0", "durable-member-1"):
        connections[client] = history.add(Connect(client=client, began=1.0))
        connections[client].ok(1.1)
        history.add(Subscribe(client=client, began=1.2, topic_filter="$share/g/t/#", qos=2)).ok(1.3)
    publish = history.add(Publish(client="publisher-0", began=2.0, topic="t/0", qos=qos, sequence=0))
    publish.ok(2.1)
    for number, client in enumerate(connections):
        history.add(Delivery(client=client, at=2.2 + number / 10, stream=publish.stream, sequence=0, qos=qos))
    over = connections["durable-member-1"]
    history.add(Ended(client="durable-member-1", at=ended, connection=over.number))
    assert ruling(judge(replace(story(), history=history)), "to two members")[0] == state


@pytest.mark.parametrize(("stopped", "shared", "broken"), [(1.9, True, 0), (1.9, False, 1), (9.0, True, 1)])
def test_a_goodbye_just_before_a_node_stands_still_may_not_be_in_the_database(
    stopped: float, shared: bool, broken: int
) -> None:
    """The others count that node as dead, and publish the will."""
    history = History()
    history.add(Connect(client="connected-0", began=1.0)).ok(1.1)
    history.add(Subscribe(client="connected-0", began=1.2, topic_filter="w/#", qos=2)).ok(1.3)
    will = history.add(Publish(client="mortal-0", began=1.5, topic="w/0", qos=1, sequence=0, will=True))
    will.fail(1.8)
    history.add(Delivery(client="connected-0", at=7.0, stream=will.stream, sequence=0, qos=1))
    made = replace(story(), history=history, outages=[(stopped, stopped + 6.0, Fault.STOP)])
    assert ruling(judge(made, Durability(shared=shared)), "will revoked")[1] == broken


@pytest.mark.parametrize(("killed", "state"), [(4.0, "not judged"), (40.0, "broken")])
def test_a_kill_may_take_an_unsubscribe_from_who_saves_now_and_then(killed: float, state: str) -> None:
    """So a subscription with Retain Handling 2 and Retain As Published goes on that the client has made anew later."""
    history = History()
    history.add(Connect(client="changing-0", began=1.0)).ok(1.1)
    options = {"topic_filter": "r/#", "qos": 2, "as_published": True, "handling": 2}
    history.add(Subscribe(client="changing-0", began=1.2, **options)).ok(1.3)  # type: ignore[arg-type]
    history.add(Unsubscribe(client="changing-0", began=3.0, topic_filter="r/#")).ok(3.1)
    publish = history.add(Publish(client="retainer-0", began=20.0, topic="r/0/0", qos=1, sequence=0, retain=True))
    publish.ok(20.1)
    history.add(Subscribe(client="changing-0", began=21.0, **options)).ok(21.1)  # type: ignore[arg-type]
    history.add(Delivery(client="changing-0", at=22.0, stream=publish.stream, sequence=0, qos=1, retain=True))
    made = replace(story(), history=history, outages=[(killed, killed + 1.0, Fault.KILL)])
    assert ruling(judge(made, AUTOSAVE), "Retain Handling")[0] == state
    assert ruling(judge(made), "Retain Handling")[0] == "broken"


@pytest.mark.parametrize(
    ("asked", "outage", "excused"),
    [
        (20.9, None, True),
        (21.5, None, False),
        (24.5, (20.5, 24.0, Fault.KILL_WORKER), True),
        (26.0, (20.5, 24.0, Fault.KILL_WORKER), False),
        (21.5, (10.0, 11.0, Fault.KILL_WORKER), False),
        (21.5, (22.0, 23.0, Fault.KILL_WORKER), False),
    ],
)
def test_another_worker_may_have_a_message_a_moment_after_its_acknowledgement(
    asked: float, outage: tuple[float, float, Fault] | None, excused: bool
) -> None:
    """A SUBSCRIBE with Retain Handling 2 gets it as a new one then."""
    history = History()
    history.add(Connect(client="changing-0", began=1.0)).ok(1.1)
    publish = history.add(Publish(client="retainer-0", began=20.0, topic="r/0/0", qos=1, sequence=0, retain=True))
    publish.ok(20.1)
    options = {"topic_filter": "r/#", "qos": 2, "as_published": True, "handling": 2}
    history.add(Subscribe(client="changing-0", began=asked, **options)).ok(asked + 0.1)  # type: ignore[arg-type]
    history.add(Delivery(client="changing-0", at=asked + 0.2, stream=publish.stream, sequence=0, qos=1, retain=True))
    made = replace(story(), history=history, outages=[] if outage is None else [outage])
    assert ruling(judge(made), "Retain Handling")[1:3] == (1, 0), "one process has it at once"
    found = ruling(judge(made, Durability(workers=True)), "Retain Handling")
    assert found[1:3] == ((0, 1) if excused else (1, 0))


def will(due: float, delay: float = 0.0) -> Proof:
    """A will that was due and did not come."""
    made = story()
    made.history.add(Subscribe(client="connected-0", began=1.3, topic_filter="w/#", qos=2)).ok(1.4)
    missing = Publish(client="mortal-0", began=2.0, topic="w/0", qos=1, sequence=0, will=True)
    missing.not_before = due if delay else 0.0
    made.history.add(missing).ok(due)
    return made


@pytest.mark.parametrize(
    ("made", "outage", "late", "state"),
    [
        (will(4.0), None, 0.0, "broken"),
        (will(4.0), (4.5, 5.0, Fault.KILL), 0.0, "not judged"),
        (will(4.0), (6.5, 7.0, Fault.KILL), 0.0, "broken"),
        (will(4.0), (6.5, 7.0, Fault.KILL), 2.0, "not judged"),
        (will(4.0), (3.5, 5.0, Fault.STOP), 0.0, "broken"),
        (will(4.0, 1.0), (3.5, 5.0, Fault.STOP), 0.0, "not judged"),
        (will(4.0, 1.0), None, 0.0, "broken"),
        (will(4.0, 1.0), None, 1.0, "not judged"),
    ],
)
def test_a_will_is_judged_where_the_broker_had_time_for_it(
    made: Proof, outage: tuple[float, float, Fault] | None, late: float, state: str
) -> None:
    before = made.history.dumps()
    judgement = judge(replace(made, outages=[outage] if outage else [], late=late))
    assert ruling(judgement, "will missing")[0] == state
    assert made.history.dumps() == before, "the history says what was seen"


@pytest.mark.parametrize(("delay", "state"), [(0.0, "broken"), (1.0, "not judged")])
def test_a_delayed_will_is_in_doubt_where_the_broker_waited_for_a_core(delay: float, state: str) -> None:
    made = will(4.0, delay)
    made.lateness.noted(2.0, 0.0)
    made.lateness.noted(4.0, 0.7)
    assert ruling(judge(made), "will missing")[0] == state


def test_what_did_not_come_to_a_tool_that_was_late_is_in_doubt() -> None:
    judgement = judge(replace(story(comes=False), late_at_end=3.0))
    assert ruling(judgement, "lost") == ("not judged", 0, 0, 1)
    assert reported(judgement).code == 2
    assert "could not judge" in reported(judgement).verdict


def test_what_is_missing_while_it_still_comes_is_in_doubt() -> None:
    judgement = judge(replace(story(comes=False), rested=False))
    assert ruling(judgement, "lost") == ("not judged", 0, 0, 1)
    assert reported(judgement).code == 2
    assert "still coming" in reported(judgement).verdict


def test_a_broker_that_lets_a_client_in_no_more_is_not_cleared() -> None:
    judgement = judge(replace(story(), absent={"away-0": "connection refused"}))
    assert judgement.broken == []
    assert reported(judgement).code == 2
    assert "could not judge: 1 client could not connect at the end" in reported(judgement).verdict
    suite = ElementTree.fromstring(report.junit(reported(judgement)))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert int(suite.get("tests", "")) == len(suite.findall("testcase"))


def test_where_nothing_was_checked_nothing_is_kept() -> None:
    judgement = judge(Proof(make(1, 1), "00000000", [], History()))
    assert {each.state for each in judgement.rulings} == {"not judged"}
    assert reported(judgement).code == 2


def test_a_broker_that_forgets_over_a_kill_is_excused_where_it_says_so() -> None:
    forgetful = proof(Planted.BEFORE_THE_DISK, faults=[Fault.KILL])
    assert reported(judge(forgetful, AUTOSAVE)).code == 0


def test_the_reports_say_the_same() -> None:
    judgement = proven(Planted.TWO_CONNECTIONS, faults=CLIENT_FAULTS)
    again = "canopy prove --seed 1"

    made = json.loads(reported(judgement, again).dumps())
    suite = ElementTree.fromstring(report.junit(reported(judgement)))
    text = report.text(reported(judgement, again))

    states = {each["promise"]: each["state"] for each in made["promises"]}
    assert set(states) == set(PROMISES)
    assert states["one connection"] == "broken"
    assert made["code"] == 1
    (broken,) = [each for each in made["promises"] if each["state"] == "broken"]
    first = broken["findings"][0]
    assert [line.split()[2:] for line in first["operations"]]
    assert int(suite.get("failures", "")) == 1
    assert int(suite.get("skipped", "")) == list(states.values()).count("not judged")
    assert f"BROKEN: {PROMISES['one connection']}" in text
    assert first["what"] in text
    assert text.endswith(f"verdict: 1 promise broken\nagain: {again}")

"""What clients waited for: which waits are the broker's, and which of them break a promise."""

from __future__ import annotations

from math import inf

import pytest

from canopy_load.ledger.checker import Verdict
from canopy_load.ledger.history import Connect, Ended, History, Hush, Publish
from canopy_load.prove import waits
from canopy_load.prove.faults import Fault
from canopy_load.prove.lateness import Lateness
from canopy_load.prove.plan import make
from canopy_load.prove.play import Proof
from tests.support.runs import for_each


def made(history: History, *outages: tuple[float, float], late: float = 0.0) -> Proof:
    return Proof(
        make(1, 1),
        "00000000",
        [],
        history,
        outages=[(began, ended, Fault.STOP) for began, ended in outages],
        late=late,
        ended=100.0,
    )


def checked(proof: Proof, bound: float = 5.0) -> Verdict:
    verdict = Verdict()
    waits.check(proof, waits.waits(proof), bound, verdict)
    return verdict


def broken(proof: Proof, bound: float = 5.0) -> list[str]:
    return [each.promise for each in checked(proof, bound).findings]


def attempt(history: History, began: float, over: float, *, silent: bool = False, client: str = "away-0") -> Connect:
    connect = history.add(Connect(client=client, began=began))
    connect.over, connect.silent = over, silent
    if not silent:
        connect.fail(over)
    return connect


@for_each(
    ("outages", "late", "broken_", "unjudged"),
    [
        ((), 0.0, ["CONNECT answered"], 0),
        (((9.0, 13.0),), 0.0, ["CONNECT answered"], 0),
        (((9.0, 16.0),), 0.0, [], 1),
        ((), 6.0, [], 1),
    ],
)
def test_a_connect_is_answered(
    outages: tuple[tuple[float, float], ...], late: float, broken_: list[str], unjudged: int
) -> None:
    """The attempt lasts from 10 to 20; a broker that was down must have had time."""
    history = History()
    attempt(history, 10.0, 20.0, silent=True)
    verdict = checked(made(history, *outages, late=late), 0.0)
    assert [each.promise for each in verdict.findings] == broken_
    assert verdict.unjudged["CONNECT answered"] == unjudged


def published(began: float, ended: float) -> History:
    history = History()
    history.add(Publish(client="publisher-0", began=began, topic="t", qos=1, sequence=0)).ok(ended)
    return history


@for_each(
    ("ended", "outages", "late", "broken_"),
    [
        (14.0, (), 0.0, []),
        (16.0, (), 0.0, ["in time"]),
        (16.0, (), 2.0, []),
        (16.0, ((9.0, 12.0),), 0.0, []),
        (18.0, ((9.0, 12.0),), 0.0, ["in time"]),
        (18.0, ((9.0, 12.0), (13.0, 17.0)), 0.0, []),
    ],
)
def test_an_answer_comes_in_the_time_that_the_broker_promises(
    ended: float, outages: tuple[tuple[float, float], ...], late: float, broken_: list[str]
) -> None:
    assert broken(made(published(10.0, ended), *outages, late=late)) == broken_
    assert broken(made(published(10.0, ended), *outages, late=late), bound=0.0) == [], "it promises nothing"


def test_attempts_to_connect_that_follow_each_other_are_one_wait() -> None:
    history = History()
    for at in (10.0, 11.0, 12.0, 13.0):
        attempt(history, at, at + 0.5)
    history.add(Connect(client="away-0", began=14.0)).ok(16.0)
    proof = made(history, (9.0, 12.0))

    (wait,) = waits.waits(proof)

    assert (wait.packet, wait.began, wait.since, wait.seconds) == ("CONNACK", 10.0, 12.0, 4.0)
    assert waits.longest([wait]) == {"CONNACK": 6.0}
    assert waits.felt([wait], 1) == [{"CONNACK": 4.0}]


def test_a_client_that_stayed_away_has_not_waited() -> None:
    history = History()
    attempt(history, 10.0, 10.5)
    history.add(Connect(client="away-0", began=30.0)).ok(30.1)
    assert broken(made(history)) == []


def test_a_client_that_cannot_come_back_waits_until_the_end() -> None:
    history = History()
    attempt(history, 90.0, 90.1)
    proof = made(history)
    assert broken(proof) == [], "it left"
    proof.absent = {"away-0": "refused"}
    assert broken(proof) == ["in time"]


def test_a_client_that_does_not_read_waits_for_nobody() -> None:
    history = History()
    history.add(Connect(client="frozen-0", began=10.0)).ok(30.0)
    assert waits.waits(made(history)) == []


@for_each(
    ("ended", "own", "outages", "broken_", "unjudged"),
    [
        (11.5, False, (), [], 0),
        (16.0, False, (), [], 0),
        (17.0, False, (), ["keep alive"], 0),
        (inf, False, (), ["keep alive"], 0),
        (17.0, False, ((9.0, 13.0),), [], 0),
        (12.0, True, (), [], 1),
    ],
)
def test_a_connection_ends_on_which_nothing_comes(
    ended: float, own: bool, outages: tuple[tuple[float, float], ...], broken_: list[str], unjudged: int
) -> None:
    history = History()
    connect = history.add(Connect(client="hushed-0", began=9.0))
    connect.ok(9.1)
    history.add(Hush(client="hushed-0", at=10.0, connection=connect.number, keep_alive=1))
    if ended < inf:
        history.add(Ended(client="hushed-0", at=ended, connection=connect.number, own=own))
    verdict = checked(made(history, *outages))
    assert [each.promise for each in verdict.findings] == broken_
    assert verdict.unjudged["keep alive"] == unjudged


def test_a_wait_for_a_core_excuses_a_wait_for_an_answer() -> None:
    proof = made(published(10.0, 16.0))
    proof.lateness = Lateness()
    proof.lateness.noted(9.0, 0.0)
    proof.lateness.noted(16.0, 2.0)
    assert broken(proof) == []
    assert proof.lateness.waited(9.0, 16.0) == pytest.approx(2.0)
    assert proof.lateness.waited(16.0, 20.0) == 0.0


@for_each(
    ("client", "seconds", "code", "outages", "findings", "unjudged"),
    [
        ("away-0", (10.0, 20.0, 30.0), None, (), 3, 0),
        ("away-0", (10.0, 10.5, 20.0), None, (), 0, 3),
        ("away-0", (10.0, 20.0, 30.0), 0x97, (), 0, 0),
        ("away-0", (10.0, 20.0, 30.0), None, ((14.0, 16.0),), 0, 2),
        ("frozen-0", (10.0, 20.0, 30.0), None, (), 0, 0),
    ],
)
def test_connections_do_not_end_again_and_again(
    client: str,
    seconds: tuple[float, ...],
    code: int | None,
    outages: tuple[tuple[float, float], ...],
    findings: int,
    unjudged: int,
) -> None:
    history = History()
    for at in seconds:
        connect = history.add(Connect(client=client, began=at - 0.2))
        connect.ok(at - 0.1)
        history.add(Ended(client=client, at=at, connection=connect.number, code=code))
    verdict = checked(made(history, *outages))
    assert [each.promise for each in verdict.findings] == ["dropped"] * findings
    assert verdict.unjudged["dropped"] == unjudged


def test_a_connection_ends_when_another_one_takes_over() -> None:
    history = History()
    for at in (10.0, 20.0, 30.0):
        before = history.add(Connect(client="taken-over-0", began=at))
        before.ok(at)
        history.add(Connect(client="taken-over-0", began=at + 1.0)).ok(at + 1.0)
        history.add(Ended(client="taken-over-0", at=at + 1.5, connection=before.number))
    assert broken(made(history)) == []

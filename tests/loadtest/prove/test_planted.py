"""Each fault that is planted in a broker is found, as the promise that it breaks; a broker without one is cleared."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_load.prove.faults import CLIENT_FAULTS, Fault
from canopy_load.prove.judge import PROMISES
from tests.loadtest.prove.fake import Planted
from tests.loadtest.prove.proving import EVERYTHING, broken, proven, reported
from tests.support.runs import LONG

KILL = (Fault.KILL,)

FOUND = [
    (Planted.LOSES_SOME, "lost", CLIENT_FAULTS),
    (Planted.LOSES_OF_AWAY, "lost", CLIENT_FAULTS),
    (Planted.LOSES_QOS_2_OF_AWAY, "lost", CLIENT_FAULTS),
    (Planted.LOSES_OF_EXACT, "lost", CLIENT_FAULTS),
    (Planted.LOSES_IN_FLIGHT, "lost", CLIENT_FAULTS),
    (Planted.FORGETS_IDENTIFIERS, "twice", CLIENT_FAULTS),
    (Planted.TWICE, "twice", CLIENT_FAULTS),
    (Planted.GROUP_TO_TWO, "to two members", CLIENT_FAULTS),
    (Planted.GROUP_TO_NOBODY, "lost to a group", CLIENT_FAULTS),
    (Planted.WAITS_FOR_ONE_MEMBER, "first of a group", CLIENT_FAULTS),
    (Planted.OLD_RETAINED, "retained, the last", CLIENT_FAULTS),
    (Planted.NO_RETAINED, "retained, the last", CLIENT_FAULTS),
    (Planted.KEEPS_CLEARED, "retained, the last", CLIENT_FAULTS),
    (Planted.STORES_EMPTY, "retained, the last", CLIENT_FAULTS),
    (Planted.NO_RETAINED_FOR_EXACT, "retained, the last", CLIENT_FAULTS),
    (Planted.NO_RETAINED_FOR_V5, "retained, the last", CLIENT_FAULTS),
    (Planted.NO_WILL, "will missing", CLIENT_FAULTS),
    (Planted.NO_WILL_OF_DURABLE, "will missing", CLIENT_FAULTS),
    (Planted.NO_WILL_OF_SILENT, "will missing", CLIENT_FAULTS),
    (Planted.WILL_AFTER_GOODBYE, "will revoked", CLIENT_FAULTS),
    (Planted.WILL_TOO_EARLY, "will too early", CLIENT_FAULTS),
    (Planted.WILL_TWICE, "will twice", CLIENT_FAULTS),
    (Planted.WILL_AFTER_RETURN, "will revoked", CLIENT_FAULTS),
    (Planted.REORDERS, "order", CLIENT_FAULTS),
    (Planted.OVERTAKES, "order", CLIENT_FAULTS),
    (Planted.BEFORE_THE_DISK, "lost", KILL),
    (Planted.SESSION_GONE, "session", CLIENT_FAULTS),
    (Planted.PRESENT_WITHOUT_STATE, "lost", CLIENT_FAULTS),
    (Planted.PRESENT_AFTER_CLEAN, "protocol", CLIENT_FAULTS),
    (Planted.IGNORES_CLEAN_START, "asked for", CLIENT_FAULTS),
    (Planted.TWO_CONNECTIONS, "one connection", CLIENT_FAULTS),
    (Planted.NO_ANSWER, "answered", CLIENT_FAULTS),
    (Planted.NO_SUBACK, "answered", CLIENT_FAULTS),
    (Planted.ALTERS, "altered", CLIENT_FAULTS),
    (Planted.ALTERS_THE_FIRST, "altered", CLIENT_FAULTS),
    (Planted.CUTS, "altered", CLIENT_FAULTS),
    (Planted.EMPTIES, "altered", CLIENT_FAULTS),
    (Planted.HIGHER_QOS, "QoS", CLIENT_FAULTS),
    (Planted.UNASKED, "asked for", CLIENT_FAULTS),
    (Planted.LOWER_QOS, "QoS", CLIENT_FAULTS),
    (Planted.OVER_GRANTED, "QoS", CLIENT_FAULTS),
    (Planted.TELLS_ANOTHER_REASON, "told 0x8E", CLIENT_FAULTS),
    (Planted.MAKES_UP, "as sent", CLIENT_FAULTS),
    (Planted.DELIVERS_REFUSED, "refused", CLIENT_FAULTS),
    (Planted.RETAINED_FADES, "retained, the same", CLIENT_FAULTS),
    (Planted.SESSIONS_GONE_AFTER_KILL, "session", (Fault.CUT, Fault.KILL)),
    (Planted.DEAF_AFTER_KILL, "lost", KILL),
    (Planted.SILENT_TO_CONNECT, "CONNECT answered", CLIENT_FAULTS),
    (Planted.SLOW_AFTER_KILL, "in time", KILL),
    (Planted.STARVES_A_MEMBER, "starved", CLIENT_FAULTS),
    (Planted.LOSES_OF_A_GROUP_EARLY, "lost to a group", CLIENT_FAULTS),
    (Planted.QOS_0_TWICE, "twice with QoS 0", CLIENT_FAULTS),
    (Planted.KEEPS_AFTER_UNSUBSCRIBE, "unsubscribed", CLIENT_FAULTS),
    (Planted.NO_UNSUBACK, "answered", CLIENT_FAULTS),
    (Planted.IGNORES_NO_LOCAL, "No Local", CLIENT_FAULTS),
    (Planted.CLEARS_RETAIN, "RETAIN", CLIENT_FAULTS),
    (Planted.LEAVES_RETAIN, "RETAIN", CLIENT_FAULTS),
    (Planted.IGNORES_RETAIN_HANDLING, "Retain Handling", CLIENT_FAULTS),
    (Planted.IGNORES_KEEP_ALIVE, "keep alive", CLIENT_FAULTS),
    (Planted.ALWAYS_DUP, "DUP", CLIENT_FAULTS),
    (Planted.NEVER_DUP, "DUP", CLIENT_FAULTS),
    (Planted.DENIES_SUBSCRIPTIONS, "UNSUBACK", CLIENT_FAULTS),
    (Planted.KEEPS_CLEAN_SESSIONS, "session", CLIENT_FAULTS),
    (Planted.DROPS_CONNECTIONS, "dropped", CLIENT_FAULTS),
    (Planted.NO_FIRST_WILL, "will missing", CLIENT_FAULTS),
    (Planted.OLD_RETAINED_ELSEWHERE, "retained, each node", CLIENT_FAULTS),
    (Planted.TWO_CONNECTIONS_ELSEWHERE, "one connection", CLIENT_FAULTS),
]
OPTIONS: dict[Planted, dict[str, Any]] = {
    Planted.GROUP_TO_NOBODY: {"seed": 3},
    Planted.WILL_AFTER_RETURN: {"seed": 2},
    Planted.NO_ANSWER: {"seed": 2},
    Planted.SLOW_AFTER_KILL: {"recovery": 5.0},
    Planted.STARVES_A_MEMBER: {"rounds": 4},
    Planted.NO_FIRST_WILL: {"rounds": 1},
    Planted.OLD_RETAINED_ELSEWHERE: {"nodes": 2},
    Planted.TWO_CONNECTIONS_ELSEWHERE: {"nodes": 2},
}


@pytest.mark.parametrize(("planted", "promise", "faults"), FOUND, ids=lambda value: getattr(value, "name", ""))
def test_a_planted_fault_is_found(planted: Planted, promise: str, faults: tuple[Fault, ...]) -> None:
    judgement = proven(planted, faults=faults, **OPTIONS.get(planted, {}))

    assert promise in broken(judgement)
    assert reported(judgement).code == 1


def test_every_fault_that_can_be_planted_is_tried() -> None:
    assert {each for each, _, _ in FOUND} == set(Planted)


def test_every_promise_has_a_fault_that_breaks_it() -> None:
    assert {promise for _, promise, _ in FOUND} == set(PROMISES)


@pytest.mark.parametrize("seed", range(200 if LONG else 6))
def test_a_broker_without_a_fault_is_cleared(seed: int) -> None:
    judgement = proven(seed=seed, faults=EVERYTHING, nodes=1 + seed % 3, recovery=5.0)

    assert broken(judgement) == set()
    assert reported(judgement).code == 0

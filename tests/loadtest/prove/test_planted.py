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

FOUND = {
    # the promise that is broken: what is planted
    "lost": (
        Planted.LOSES_SOME, Planted.LOSES_OF_AWAY, Planted.LOSES_QOS_2_OF_AWAY, Planted.LOSES_OF_EXACT,
        Planted.LOSES_IN_FLIGHT, Planted.BEFORE_THE_DISK, Planted.PRESENT_WITHOUT_STATE, Planted.DEAF_AFTER_KILL,
    ),
    "twice": (Planted.FORGETS_IDENTIFIERS, Planted.TWICE),
    "to two members": (Planted.GROUP_TO_TWO,),
    "lost to a group": (Planted.GROUP_TO_NOBODY, Planted.LOSES_OF_A_GROUP_EARLY),
    "first of a group": (Planted.WAITS_FOR_ONE_MEMBER,),
    "retained, the last": (
        Planted.OLD_RETAINED, Planted.NO_RETAINED, Planted.KEEPS_CLEARED, Planted.STORES_EMPTY,
        Planted.NO_RETAINED_FOR_EXACT, Planted.NO_RETAINED_FOR_V5,
    ),
    "will missing": (Planted.NO_WILL, Planted.NO_WILL_OF_DURABLE, Planted.NO_WILL_OF_SILENT, Planted.NO_FIRST_WILL),
    "will revoked": (Planted.WILL_AFTER_GOODBYE, Planted.WILL_AFTER_RETURN),
    "will too early": (Planted.WILL_TOO_EARLY,),
    "will twice": (Planted.WILL_TWICE,),
    "order": (Planted.REORDERS, Planted.OVERTAKES),
    "session": (Planted.SESSION_GONE, Planted.SESSIONS_GONE_AFTER_KILL, Planted.KEEPS_CLEAN_SESSIONS),
    "protocol": (Planted.PRESENT_AFTER_CLEAN,),
    "asked for": (Planted.IGNORES_CLEAN_START, Planted.UNASKED),
    "one connection": (Planted.TWO_CONNECTIONS, Planted.TWO_CONNECTIONS_ELSEWHERE),
    "answered": (Planted.NO_ANSWER, Planted.NO_SUBACK, Planted.NO_UNSUBACK),
    "altered": (Planted.ALTERS, Planted.ALTERS_THE_FIRST, Planted.CUTS, Planted.EMPTIES),
    "QoS": (Planted.HIGHER_QOS, Planted.LOWER_QOS, Planted.OVER_GRANTED),
    "told 0x8E": (Planted.TELLS_ANOTHER_REASON,),
    "as sent": (Planted.MAKES_UP,),
    "refused": (Planted.DELIVERS_REFUSED,),
    "retained, the same": (Planted.RETAINED_FADES,),
    "CONNECT answered": (Planted.SILENT_TO_CONNECT,),
    "in time": (Planted.SLOW_AFTER_KILL,),
    "starved": (Planted.STARVES_A_MEMBER,),
    "twice with QoS 0": (Planted.QOS_0_TWICE,),
    "unsubscribed": (Planted.KEEPS_AFTER_UNSUBSCRIBE,),
    "No Local": (Planted.IGNORES_NO_LOCAL,),
    "RETAIN": (Planted.CLEARS_RETAIN, Planted.LEAVES_RETAIN),
    "Retain Handling": (Planted.IGNORES_RETAIN_HANDLING,),
    "keep alive": (Planted.IGNORES_KEEP_ALIVE,),
    "DUP": (Planted.ALWAYS_DUP, Planted.NEVER_DUP),
    "UNSUBACK": (Planted.DENIES_SUBSCRIPTIONS,),
    "dropped": (Planted.DROPS_CONNECTIONS,),
    "retained, each node": (Planted.OLD_RETAINED_ELSEWHERE,),
}  # fmt: skip
OPTIONS: dict[Planted, dict[str, Any]] = {
    Planted.GROUP_TO_NOBODY: {"seed": 3},
    Planted.WILL_AFTER_RETURN: {"seed": 2},
    Planted.NO_ANSWER: {"seed": 2},
    Planted.SLOW_AFTER_KILL: {"faults": KILL, "recovery": 5.0},
    Planted.STARVES_A_MEMBER: {"rounds": 4},
    Planted.NO_FIRST_WILL: {"rounds": 1},
    Planted.OLD_RETAINED_ELSEWHERE: {"nodes": 2},
    Planted.TWO_CONNECTIONS_ELSEWHERE: {"nodes": 2},
    Planted.BEFORE_THE_DISK: {"faults": KILL},
    Planted.SESSIONS_GONE_AFTER_KILL: {"faults": (Fault.CUT, Fault.KILL)},
    Planted.DEAF_AFTER_KILL: {"faults": KILL},
}


@pytest.mark.parametrize(
    ("planted", "promise"),
    [(each, promise) for promise, several in FOUND.items() for each in several],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_planted_fault_is_found(planted: Planted, promise: str) -> None:
    judgement = proven(planted, **{"faults": CLIENT_FAULTS, **OPTIONS.get(planted, {})})

    assert promise in broken(judgement)
    assert reported(judgement).code == 1


def test_every_fault_that_can_be_planted_is_tried_and_breaks_one_of_the_promises() -> None:
    assert {each for several in FOUND.values() for each in several} == set(Planted)
    assert set(FOUND) == set(PROMISES)


@pytest.mark.parametrize("seed", range(200 if LONG else 6))
def test_a_broker_without_a_fault_is_cleared(seed: int) -> None:
    judgement = proven(seed=seed, faults=EVERYTHING, nodes=1 + seed % 3, recovery=5.0)

    assert broken(judgement) == set()
    assert reported(judgement).code == 0

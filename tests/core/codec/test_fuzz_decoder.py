"""The decoder's fuzz target for a fixed number of inputs, and the proof that it notices what it is there for."""

from __future__ import annotations

import random
from itertools import count

import pytest

from tests.core.codec.wire_cases import CASES, senders
from tests.fuzz import decoder_target
from tests.fuzz.finding import Finding
from tests.fuzz.mutate import stream

INPUTS = 15_000
"""For each seed; each input is decoded twice and everything that is accepted is written and decoded again."""


@pytest.mark.crowd
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_mutated_packets(seed: int) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.5-1] [MQTT-2.1.3-1]: only protocol errors come out."""
    turns = count()
    assert decoder_target.run(seed, lambda: next(turns) >= INPUTS) == INPUTS


def test_the_inputs_reach_both_packets_and_refusals() -> None:
    """A mutation that made every input trivially bad, or left them all good, would prove nothing."""
    rng = random.Random(5)
    outcomes = [decoder_target.decode([stream(rng)], True, rng.choice((0, 4, 5))) for _ in range(2_000)]
    accepted = {packet.kind for outcome in outcomes for _, packet in outcome.packets}
    refused = {outcome.refused for outcome in outcomes if outcome.refused}
    assert len(accepted) >= 8
    assert {code for _, code in refused} >= {0x81, 0x82, 0x84, 0x85, 0x94}


def test_wire_cases_hold() -> None:
    for case in CASES:
        for server in senders(case):
            halves = [case.raw[: len(case.raw) // 2], case.raw[len(case.raw) // 2 :]]
            outcome = decoder_target.check(case.raw, halves, server, case.version)
            assert [packet for _, packet in outcome.packets] == ([case.packet] if case.error is None else [])


def test_a_difference_between_reads_is_found() -> None:
    with pytest.raises(Finding, match="cutting"):
        decoder_target.check(b"\xc0\x00", [b"\xc0"], True, 4)

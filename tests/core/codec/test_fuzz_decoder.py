"""The decoder's fuzz target for a fixed number of inputs, and the proof that it notices what it is there for."""

from __future__ import annotations

from itertools import count

import pytest

from tests.fuzz import decoder_target

INPUTS = 15_000
"""For each seed; each input is decoded twice and everything that is accepted is written and decoded again."""


@pytest.mark.crowd
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_mutated_packets(seed: int) -> None:
    """[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.5-1] [MQTT-2.1.3-1]: only protocol errors come out."""
    turns = count()
    assert decoder_target.run(seed, lambda: next(turns) >= INPUTS) == INPUTS

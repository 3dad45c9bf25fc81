"""Who waits for other nodes, one by one."""

from __future__ import annotations

from broker.mesh.interest.confirmations import RELEASED, Confirmations, Waiter


class Waits(Waiter):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def confirmed(self, everywhere: bool) -> None:
        self.heard.append(everywhere)


def test_beyond_the_bound_the_first_goes_as_if_its_time_were_over() -> None:
    line = Confirmations(most=2)
    waiting = [Waits() for _ in range(3)]
    for each in waiting[:2]:
        line.wait(each, 1, 100.0)
    assert not line.release(0, 0.0)
    line.wait(waiting[2], 1, 100.0)
    line.release(0, 0.0)
    assert ([each.heard for each in waiting], line.late) == ([[False], [], []], 1)
    line.release(1, 0.0)
    assert [each.heard for each in waiting] == [[False], [True], [True]]


def test_very_many_are_released_in_turns() -> None:
    line = Confirmations()
    for _ in range(RELEASED + 1):
        line.wait(Waits(), 1, 100.0)
    assert line.release(1, 0.0)
    assert len(line) == 1
    assert not line.release(1, 0.0)
    assert len(line) == 0

"""A turn ends by the work that was counted in it, or by the clock, whichever is first."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec.packets import Subscribe, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.deadlines import Deadlines
from canopy_mqtt.core.hooks import AccessControl, MessageHook
from canopy_mqtt.core.jobs import BROADCASTS, CLOCK_WORK, MAX_UNIT_SECONDS, WILLS, Budget, Job, Scheduler
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from tests.core.harness import Network
from tests.support.step_clock import StepClock

ITEM = 64
"""Units of one item of the jobs here."""

WORK = 16 * CLOCK_WORK
"""Units of a turn."""


def items(budget: Budget) -> int:
    """Return how many items a turn of `WORK` units has."""
    budget.begin(WORK)
    count = 0
    while not budget.spent():
        budget.used += ITEM
        count += 1
    return count


class Items(Job):
    """A job of so many items."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self, budget: Budget) -> bool:
        while self.left > 0 and not budget.spent():
            budget.used += ITEM
            self.left -= 1
        return self.left == 0


def test_without_a_clock_a_turn_ends_by_its_work() -> None:
    assert items(Budget()) == WORK // ITEM


@pytest.mark.parametrize(("times", "share"), [(0.5, 1.0), (1.0, 1.0), (2.0, 0.5), (4.0, 0.25)])
def test_a_turn_ends_when_its_units_take_too_long(times: float, share: float) -> None:
    """The time counts from the first reading, after `CLOCK_WORK` units, and is compared after each `CLOCK_WORK`."""
    budget = Budget()
    budget.clock = StepClock(budget, times * MAX_UNIT_SECONDS)
    expected = CLOCK_WORK + (WORK - CLOCK_WORK) * share
    assert expected <= items(budget) * ITEM <= expected + CLOCK_WORK


def test_a_turn_that_is_over_by_the_clock_has_no_work_left() -> None:
    budget = Budget()
    budget.clock = StepClock(budget, 1.0)
    items(budget)
    assert budget.end == budget.used
    assert budget.spent()


def test_the_clock_is_read_once_in_so_much_work() -> None:
    budget = Budget()
    budget.clock = clock = StepClock(budget, 0.0)
    items(budget)
    assert clock.readings == WORK // CLOCK_WORK - 1


def test_a_small_turn_reads_no_clock() -> None:
    budget = Budget()
    budget.clock = clock = StepClock(budget)
    budget.begin(CLOCK_WORK)
    while not budget.spent():
        budget.used += ITEM
    assert clock.readings == 0


def test_a_look_reads_the_clock_after_an_item() -> None:
    budget = Budget()
    budget.clock = clock = StepClock(budget, 1.0)
    budget.begin(CLOCK_WORK)
    for _ in range(2):
        assert not budget.spent()
        budget.used += 1
        budget.look()
    assert budget.spent()
    assert clock.readings == 2


def test_each_turn_has_its_own_time() -> None:
    budget = Budget()
    budget.clock = StepClock(budget, 1.0)
    assert items(budget) == items(budget) == 2 * CLOCK_WORK // ITEM


def test_a_job_that_takes_too_long_goes_on_in_the_next_run() -> None:
    """And a job of a lane behind it has its step all the same."""
    budget = Budget()
    deadlines = Deadlines()
    jobs = Scheduler(budget, deadlines)
    first, second = Items(WORK // ITEM // 2), Items(1)
    jobs.submit(BROADCASTS, first)
    jobs.submit(WILLS, second)
    budget.clock = StepClock(budget, 1.0)
    jobs.run(WORK)
    assert (first.left, second.left) == ((WORK // 2 - 2 * CLOCK_WORK) // ITEM, 0)
    budget.clock = None
    jobs.run(WORK)
    assert (first.left, jobs.waiting) == (0, False)


class Slow(MessageHook):
    """A plug-in that takes a second for each message."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def publish(self, principal: Principal, message: Message, will: bool) -> Message:
        del principal, will
        self.seconds += 1.0
        return message


def test_the_turn_of_a_publisher_whose_plug_in_is_slow_ends() -> None:
    """The second message shows how long the plug-in takes; the others wait for the turns of other clients."""
    network = Network()
    router = network.router
    hook = Slow()
    router.counters.totals.message_hook = hook
    subscriber, publisher = network.client("s"), network.client("p")
    subscriber.subscribe("a")
    router.budget.clock = lambda: hook.seconds
    for number in range(10):
        publisher.post("a", b"%d" % number)
    publisher.wire.to_channel()
    assert hook.seconds == 2.0
    assert publisher.wire.protocol.unfinished
    network.settle()
    assert subscriber.payloads() == [b"%d" % number for number in range(10)]


class SlowRules(AccessControl):
    """Access control that takes a second for each question. Its answers may not be remembered."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, topic, qos, retain
        self.seconds += 1.0
        return True

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        del principal, topic_filter
        self.seconds += 1.0
        return qos


def slow_rules(network: Network) -> SlowRules:
    """Let slow access control decide from now on, by its own clock."""
    network.router.access_control = rules = SlowRules()
    network.router.budget.clock = lambda: rules.seconds
    return rules


def test_the_turn_of_a_publisher_whose_access_control_is_slow_ends() -> None:
    network = Network()
    publisher = network.client("p")
    rules = slow_rules(network)
    for number in range(10):
        publisher.post("a", b"%d" % number)
    publisher.wire.to_channel()
    assert (rules.seconds, publisher.wire.protocol.unfinished) == (2.0, True)
    network.settle()
    assert rules.seconds == 10.0


def test_the_turn_of_a_subscriber_whose_access_control_is_slow_ends() -> None:
    """And the check of its subscriptions when it comes back."""
    network = Network()
    client = network.client("s", expiry=100)
    rules = slow_rules(network)
    client.send(Subscribe(1, [Request(f"{number}") for number in range(10)]))
    client.wire.to_channel()
    assert (rules.seconds, len(client.session.subscriptions)) == (2.0, 2)
    network.settle()
    assert rules.seconds == len(client.session.subscriptions) == 10
    client.cut()
    client.connect(clean=False, expiry=100, settle=False)
    client.wire.to_channel()
    # The clock was read after the work of the CONNECT.
    assert (rules.seconds, client.wire.protocol.unfinished) == (11.0, True)
    network.settle()
    assert rules.seconds == 20.0


def test_a_tick_whose_wills_are_asked_about_slowly_ends() -> None:
    network = Network()
    for number in range(10):
        network.client(f"{number}", expiry=10, will=Will("will", b"", 0, delay=1)).cut()
    rules = slow_rules(network)
    network.now += 2.0
    assert network.router.tick(network.now)
    assert rules.seconds == 2.0
    while network.router.tick(network.now):
        pass
    assert rules.seconds == 10.0

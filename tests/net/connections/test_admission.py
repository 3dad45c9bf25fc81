"""Who may join: counts by address and in all, the rate of connects, and what a flood may cost.

Also which connection gives way at the listener for other nodes; what these and strangers see: `cluster/test_door`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from canopy_mqtt.net.connections.admission import (
    MAX_OF_NODE,
    MAX_OF_STRANGER,
    MAX_STRANGERS,
    TURNED_AWAY,
    UNACCEPTED_ROOM,
    Admission,
    DoorPlaces,
    admission,
)
from canopy_mqtt.net.timers import WheelItem
from canopy_mqtt.settings import Limits
from tests.support.runs import examples, for_each

NOW = 1_000.0
HERE, THERE = "192.0.2.1", "2001:db8::1"
ADDRESSES = {HERE: HERE, THERE: "2001:db8::/64"}
"""And how they are counted."""


def made(**limits: Any) -> Admission:
    found = asked(Limits(**limits))
    assert found is not None
    return found


def asked(limits: Limits) -> Admission | None:
    return admission(limits.max_connections, limits.max_connections_per_address, limits.max_connect_rate)


def test_an_ipv6_network_is_one_address() -> None:
    """Whoever has one address of a /64 has all of them; IPv4 over IPv6 is IPv4."""
    admission = made(max_connections_per_address=2)
    assert [admission.arrive(f"2001:db8::{number}", NOW) for number in range(1, 4)] == [0, 0, 0x97]
    assert admission.arrive("2001:db8:0:1::1", NOW) == 0
    assert [admission.arrive(host, NOW) for host in (HERE, f"::ffff:{HERE}", HERE)] == [0, 0, 0x97]
    for host in ("2001:db8::9", "2001:db8::1", "2001:db8:0:1::2", HERE, HERE):
        admission.leave(host)
    assert admission.by_address == {}


def test_the_rate_of_an_ipv6_network_at_a_listener() -> None:
    own = Admission(rate_of_one=1.0)
    assert [own.check(f"2001:db8::{number}", NOW) for number in range(1, 4)] == [0, 0x9F, 0x9F]
    assert own.check("2001:db8:0:1::1", NOW) == 0


def test_no_address_no_limit() -> None:
    """A Unix socket has none."""
    admission = made(max_connections_per_address=1)
    assert [admission.arrive("", NOW) for _ in range(5)] == [0] * 5
    for _ in range(5):
        admission.leave("")
    assert (admission.open, len(admission.by_address)) == (0, 0)


def test_the_rate_of_connects() -> None:
    """A burst of a second's worth, then the rate. One that is refused takes nothing from those that follow."""
    admission = made(max_connect_rate=5.0)
    assert [admission.arrive(HERE, NOW) for _ in range(7)] == [0] * 5 + [0x9F] * 2
    assert admission.arrive(HERE, NOW + 0.1) == 0x9F
    assert [admission.arrive(HERE, NOW + 0.21) for _ in range(2)] == [0, 0x9F]
    assert [admission.arrive(HERE, NOW + 100.0) for _ in range(6)] == [0] * 5 + [0x9F]


def test_less_than_one_a_second() -> None:
    """The burst is one at least."""
    admission = made(max_connect_rate=0.1)
    assert [admission.arrive(HERE, NOW) for _ in range(2)] == [0, 0x9F]
    assert [admission.arrive(HERE, NOW + 9.0), admission.arrive(HERE, NOW + 10.1)] == [0x9F, 0]


def test_an_address_that_is_full_takes_nothing_from_the_rate() -> None:
    admission = made(max_connections_per_address=1, max_connect_rate=2.0)
    assert [admission.arrive(HERE, NOW) for _ in range(5)] == [0] + [0x97] * 4
    assert [admission.arrive(THERE, NOW), admission.arrive("", NOW)] == [0, 0x9F]


class Machine(RuleBasedStateMachine):
    """Connections that come and go in any order, against a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = made(max_connections=4, max_connections_per_address=2, max_connect_rate=3.0)
        self.now = NOW
        self.counted: list[str] = []
        self.waiting: list[str] = []
        self.lingering: list[str] = []

    @rule(host=st.sampled_from((HERE, THERE, "")), count=st.integers(1, 80))
    def arrive(self, host: str, count: int) -> None:
        for _ in range(count):
            full = bool(host) and self.counted.count(host) >= 2
            no_room = len(self.counted) + len(self.waiting) >= 4 + UNACCEPTED_ROOM
            answer = self.admission.arrive(host, self.now)
            if answer == TURNED_AWAY:
                assert no_room or len(self.waiting) + len(self.lingering) >= UNACCEPTED_ROOM
            else:
                assert not no_room
                assert answer in ((0x97,) if full else (0, 0x9F))
                (self.waiting if answer else self.counted).append(host)

    @rule(seconds=st.floats(0.0, 2.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(at=st.integers(0, 1_000), gone=st.booleans())
    def refuse(self, at: int, gone: bool) -> None:
        if self.waiting:
            host = self.waiting.pop(at % len(self.waiting))
            self.admission.leave_refused()
            if gone:
                self.admission.refused_gone()
            else:
                self.lingering.append(host)

    @rule(at=st.integers(0, 1_000))
    def close(self, at: int) -> None:
        if self.lingering:
            self.lingering.pop(at % len(self.lingering))
            self.admission.refused_gone()

    @rule(at=st.integers(0, 1_000))
    def leave(self, at: int) -> None:
        if self.counted:
            self.admission.leave(self.counted.pop(at % len(self.counted)))

    @rule(at=st.integers(0, 1_000))
    def readmit(self, at: int) -> None:
        if self.waiting:
            host = self.waiting[at % len(self.waiting)]
            room = not host or self.counted.count(host) < 2
            assert self.admission.readmit(host) is room
            if room:
                self.waiting.remove(host)
                self.counted.append(host)

    @invariant()
    def adds_up(self) -> None:
        admission = self.admission
        assert admission.open == len(self.counted) + len(self.waiting)
        assert admission.refused == len(self.waiting) + len(self.lingering) <= UNACCEPTED_ROOM
        assert len(admission.by_address) == len({host for host in self.counted if host})
        for host in (HERE, THERE):
            assert admission.by_address.get(ADDRESSES[host], 0) == self.counted.count(host) <= 2


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@for_each("changes", [{"max_connections": 1}, {"max_connections_per_address": 1}, {"max_connect_rate": 0.5}])
def test_any_limit_asks_for_it(changes: dict[str, Any]) -> None:
    """Without one, a connect pays nothing for it."""
    assert asked(Limits()) is None
    assert asked(Limits(**changes)) is not None


class Came(WheelItem):
    """Stands for a connection."""


def take(places: DoorPlaces, host: str, count: int) -> tuple[list[Any], list[Any]]:
    """Connections that come from an address one after the other, and those that have lost their places for them."""
    came: list[Any] = [Came() for _ in range(count)]
    gave = [places.take(each, host) for each in came]
    return came, [each for each in gave if each is not None]


def test_the_oldest_of_an_address_gives_way() -> None:
    places = DoorPlaces()
    other, _ = take(places, "10.0.0.9", 1)
    came, gave = take(places, "10.0.0.1", MAX_OF_STRANGER + 2)
    assert gave == came[:2]
    # The whole network of an IPv6 address is one.
    came, gave = take(places, "2001:db8::1", MAX_OF_STRANGER)
    assert gave == []
    assert take(places, "2001:db8::2", 1)[1] == came[:1]
    places.leave(other[0])
    assert len(places) == 2 * MAX_OF_STRANGER


def test_the_oldest_of_all_strangers_gives_way_and_no_node() -> None:
    places = DoorPlaces()
    places.know("to b", ["10.0.0.1", "2001:db8::1"])
    nodes, _ = take(places, "10.0.0.1", 3)
    first, _ = take(places, "10.1.0.1", 1)
    gave: list[Any] = []
    for number in range(MAX_STRANGERS):
        gave += take(places, f"10.2.0.{number}", 1)[1]
    assert gave == first
    assert len(places) == MAX_STRANGERS + 3
    # A node competes with its own address alone, and so does a Unix socket.
    assert take(places, "10.0.0.1", MAX_OF_NODE - 2)[1] == nodes[:1]
    assert take(places, "", MAX_OF_NODE)[1] == []


def test_an_address_that_a_node_has_no_more_is_a_stranger_s() -> None:
    places = DoorPlaces()
    places.know("to b", ["10.0.0.1"])
    places.know("from b", ["10.0.0.3", ""])
    places.know("to b", ["10.0.0.2"])
    for host, most in (("10.0.0.1", MAX_OF_STRANGER), ("10.0.0.2", MAX_OF_NODE), ("10.0.0.3", MAX_OF_NODE)):
        came, gave = take(places, host, most + 1)
        assert gave == came[:1]


def test_nothing_is_left_of_connections_that_have_left() -> None:
    places = DoorPlaces()
    came = [*take(places, "10.0.0.1", 3)[0], *take(places, "10.0.0.2", 3)[0]]
    for each in came * 2:
        places.leave(each)
    assert (len(places), places._of_address, places._strangers) == (0, {}, {})

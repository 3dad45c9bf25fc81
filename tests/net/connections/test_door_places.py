"""Which connection gives way at the listener for other nodes. What nodes and strangers see: `cluster/test_door`."""

from __future__ import annotations

from typing import Any

from canopy_mqtt.net.connections.admission import MAX_OF_NODE, MAX_OF_STRANGER, MAX_STRANGERS, DoorPlaces


class Came:
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

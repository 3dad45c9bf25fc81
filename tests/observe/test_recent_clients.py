"""The clients to which something happened last: a bounded number, of whom no principal pushes out the others."""

from __future__ import annotations

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.net.connections.connection_log import MAX_NAME_BYTES
from canopy_mqtt.observe.recent_clients import KEPT, RecentClients


def test_the_last_ones_are_kept_with_their_counts() -> None:
    clients = RecentClients()
    who = Principal("u", host="192.0.2.1")
    clients.add("a", who, {"full-messages": 2}, 1.0)
    clients.add("b", who, {"age": 1}, 2.0)
    clients.add("a", who, {"full-messages": 3, "age": 1}, 3.0)
    a, b = clients.newest()
    assert (a.client_id, a.user_name, a.address, a.first, a.last) == ("a", "u", "192.0.2.1", 1.0, 3.0)
    assert a.counts == {"full-messages": 5, "age": 1}
    assert b.client_id == "b"


def test_one_with_many_identifiers_pushes_out_nobody_else() -> None:
    clients = RecentClients()
    for number in range(10):
        clients.add(f"few{number}", Principal(f"user{number}", authenticator="file"), {"age": 1}, float(number))
    for number in range(10 * KEPT):
        clients.add(f"many{number}", Principal("many", authenticator="file"), {"age": 1}, 100.0 + number)
    for number in range(10 * KEPT):
        clients.add(f"anonymous{number}", Principal(host="192.0.2.1"), {"age": 1}, 10_000.0 + number)
    kept = [client.client_id for client in clients.newest()]
    assert len(kept) == KEPT
    assert {name for name in kept if name.startswith("few")} == {f"few{number}" for number in range(10)}
    # Both that want more than there is have half of the rest, and the newest of theirs.
    assert next(name for name in kept if name.startswith("many")) == f"many{10 * KEPT - 1}"
    assert len([name for name in kept if name.startswith("many")]) == (KEPT - 10) // 2


def test_names_that_no_authenticator_knows_are_one_address() -> None:
    clients = RecentClients()
    clients.add("few", Principal(host="192.0.2.1"), {"age": 1}, 1.0)
    for number in range(10 * KEPT):
        clients.add("c", Principal(f"made up {number}", host="192.0.2.2"), {"age": 1}, 2.0 + number)
        clients.add(f"c{number}", Principal(f"made up {number}", host="192.0.2.2"), {"age": 1}, 2.0 + number)
    assert "few" in [client.client_id for client in clients.newest()]


def test_names_are_cut() -> None:
    clients = RecentClients()
    for last in "xy":
        clients.add("c" * 65_000 + last, Principal("u" * 65_000), {"age": 1}, 1.0)
    (client,) = clients.newest()
    assert (len(client.client_id), client.counts) == (MAX_NAME_BYTES, {"age": 2})
    assert client.user_name is not None
    assert len(client.user_name) == MAX_NAME_BYTES

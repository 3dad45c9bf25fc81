"""Workers as nodes of a mesh of machines: names, addresses, and what of the settings they cannot use."""

from __future__ import annotations

from typing import Any

import pytest

from broker.settings import Settings
from broker.workers.addresses import node_of, of_worker, unusable, worker_of


def lines(workers: int = 4, store: str = "", **mesh: Any) -> list[str]:
    settings = {"mesh": {"name": "site", "node": "a", **mesh}, "store": {"path": store}}
    return list(unusable(Settings.model_validate(settings), workers))


def test_the_node_of_a_worker_is_known_by_its_name() -> None:
    for worker in (0, 1, 9, 10, 63):
        assert worker_of(node_of("a-w1", worker), "a-w1") == worker
    for other in ("b", "b-w1", "a-w1-w", "a-w1-w01", "a-w1-w1-2", "a-w1x", "", "a"):
        assert worker_of(other, "a-w1") is None


@pytest.mark.parametrize(
    ("place", "its"),
    [
        ("tcp/0.0.0.0:7447", "tcp/0.0.0.0:7450"),
        ("tls/[::1]:7447", "tls/[::1]:7450"),
        ("tcp/a.example:7447#iface=eth0", "tcp/a.example:7450#iface=eth0"),
        ("tcp/0.0.0.0:0", "tcp/0.0.0.0:0"),
    ],
)
def test_a_worker_listens_at_ports_of_its_own(place: str, its: str) -> None:
    assert of_worker(place, 0) == place
    assert of_worker(place, 3) == its


def test_addresses_that_do_not_overlap() -> None:
    assert lines(listen=["tcp/0.0.0.0:7447", "tcp/0.0.0.0:7451"]) == []
    assert lines(listen=["tcp/10.0.0.1:7447", "tcp/10.0.0.2:7447", "tcp/10.0.0.3:7448"]) == []
    assert lines(listen=["tcp/0.0.0.0:0", "tcp/0.0.0.0:0"]) == []
    assert lines(listen=["tcp/0.0.0.0:65532"]) == []


@pytest.mark.parametrize("others", [["tcp/0.0.0.0:7450"], ["tcp/10.0.0.1:7444"]])
def test_addresses_that_overlap(others: list[str]) -> None:
    (line,) = lines(listen=["tcp/0.0.0.0:7447", *others])
    assert line.startswith("mesh.listen[1]: ")
    assert line.endswith("mesh.listen[0]; leave 4 ports to each")


@pytest.mark.parametrize("place", ["unixsock-stream/run/mesh", "tcp/a.example"])
def test_an_address_without_a_port_is_none_for_several_workers(place: str) -> None:
    (line,) = lines(listen=[place])
    assert line.startswith(f"mesh.listen[0]: {place} ")
    assert "use tcp/HOST:PORT" in line


def test_ports_beyond_the_last_one() -> None:
    (line,) = lines(listen=["tcp/0.0.0.0:65533"])
    assert line == "mesh.listen[0]: 4 workers would have ports up to 65536; use a lower one"


def test_workers_with_stores_need_a_name_that_stays() -> None:
    (line,) = lines(store="/var/lib/canopy", node="")
    assert line.startswith("mesh.node: ")
    assert line.endswith("set one")
    assert lines(node="") == lines(store="/var/lib/canopy") == []


def test_a_name_that_leaves_no_room_for_those_of_workers() -> None:
    assert lines(node="x" * 61) == []
    (line,) = lines(node="x" * 62)
    assert line.startswith("mesh.node: ")
    assert line.endswith("shorten it")


def test_without_a_mesh_of_machines_nothing_is_refused() -> None:
    assert lines(name="", listen=["unixsock-stream/run/mesh"], store="/var/lib/canopy") == []

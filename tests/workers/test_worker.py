"""What a worker says of the other nodes of its mesh."""

from __future__ import annotations

from pathlib import Path

from broker.workers.worker import Others

NODES = ["a", "a-w2", "b", "b-w1"]


def others(machine: str, *nodes: str) -> Others:
    return Others(nodes, machine, Path("/run/x"), print)


def test_streams_to_workers_of_this_machine_are_sockets() -> None:
    one = others("a")
    assert [one.socket(node) for node in ("a", "a-w1", "b", "b-w1")] == [
        Path("/run/x/w0.link"),
        Path("/run/x/w1.link"),
        None,
        None,
    ]
    # In a mesh of their own all nodes are.
    assert others("").socket("w1-3") == Path("/run/x/w1-3.link")


def test_a_node_that_a_store_knows_is_a_worker_of_now_or_on_another_machine() -> None:
    one = others("a", "a", "a-w2")
    assert [node for node in ("a", "a-w2", "a-w7", "b", "b-w7") if one.may_come(node)] == ["a", "a-w2", "b", "b-w7"]
    alone = others("", "w0", "w1")
    assert [node for node in ("w0", "w1", "w2", "b") if alone.may_come(node)] == ["w0", "w1"]


def test_sessions_stay_on_the_machine_while_only_this_worker_goes() -> None:
    one = others("a")
    one.alone = True
    assert one.takers(NODES) == ["a", "a-w2"]
    assert one.takers(["b"]) == ["b"]


def test_sessions_go_to_other_machines_where_this_one_is_drained() -> None:
    one = others("a")
    assert one.takers(NODES) == ["b", "b-w1"]
    assert one.takers(["a"]) == ["a"]
    assert others("").takers(["w0", "w2"]) == ["w0", "w2"]

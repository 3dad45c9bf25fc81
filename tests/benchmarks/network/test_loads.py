"""The loads over socket pairs."""

from __future__ import annotations

import pytest

from benchmarks.network.links import Link, LoadError, receive
from benchmarks.network.loads import QuietPairs, Shape
from benchmarks.network.paced import Churn, Paced
from benchmarks.network.streams import Ledger
from tests.benchmarks.wires import SHAPE, Wires, packets, waiting


def test_the_window_must_suit_the_burst_and_the_sequence_numbers() -> None:
    with pytest.raises(ValueError, match="window"):
        Shape(window=10, burst=4)
    with pytest.raises(ValueError, match="window"):
        Shape(window=20_000, burst=20_000)


def test_a_pair_keeps_its_window_full_and_no_fuller(wires: Wires) -> None:
    (publisher, heard), (subscriber, hearing) = wires.pair(), wires.pair()
    load = QuietPairs(wires.loop, [publisher], [subscriber], SHAPE)
    load.start()
    data = waiting(heard)
    assert len(packets(data)) == 8
    wires.turn()
    assert waiting(heard) == b""
    hearing.send(b"".join(packets(data)[:3]))
    wires.turn()
    assert waiting(heard) == b""  # three free places are no burst
    hearing.send(packets(data)[3])
    wires.turn()
    assert len(packets(waiting(heard))) == 4
    assert load.missing() == 8


def test_a_loss_at_the_end_of_the_window_does_not_stop_the_load(wires: Wires) -> None:
    (publisher, heard), (subscriber, hearing) = wires.pair(), wires.pair()
    load = QuietPairs(wires.loop, [publisher], [subscriber], SHAPE)
    load.start()
    first = packets(waiting(heard))
    hearing.send(first[0])
    wires.turn()
    due = load.tick(100.0)
    assert load.tick(due - 0.01) == due
    due = load.tick(due)  # the first look
    assert waiting(heard) == b""
    due = load.tick(due)
    probe = packets(waiting(heard))
    assert len(probe) == 4
    hearing.send(b"".join(probe))
    wires.turn()
    assert load.ledger == Ledger(delivered=5, lost=7)
    assert len(packets(waiting(heard))) == 8
    for _ in range(20):
        due = load.tick(due)
    assert load.missing() < SHAPE.cycle // 2


def test_paced_sends_by_the_clock_and_in_turn(wires: Wires) -> None:
    publishers, heard = zip(wires.pair(), wires.pair(), strict=True)
    subscribers, hearing = zip(wires.pair(), wires.pair(), strict=True)
    load = Paced(wires.loop, [*publishers], [*subscribers], rate=100.0)
    load.start()
    begin = load.tick(0.0)  # nothing is due before the start
    assert [waiting(sock) for sock in heard] == [b"", b""]
    following = load.tick(begin + 0.025)
    assert following == pytest.approx(begin + 0.03)
    sent = [packets(waiting(sock)) for sock in heard]
    assert [len(each) for each in sent] == [2, 1]
    assert load.missing() == 3
    hearing[0].send(sent[0][0][:30])
    wires.turn()
    hearing[0].send(sent[0][0][30:] + sent[0][1] + sent[0][1])
    hearing[1].send(sent[1][0])
    wires.turn()
    assert load.ledger == Ledger(delivered=3, doubled=1)
    assert load.missing() == 0
    assert len(load.latencies) == 4
    assert min(load.latencies) > 0
    load.forget()
    assert len(load.latencies) == 0


def test_churn_subscribes_anew_and_leaves_the_last(wires: Wires) -> None:
    near, far = wires.pair()
    churn = Churn(wires.loop, near, rate=10.0)
    churn.start()
    begin = churn.tick(0.0)
    churn.tick(begin + 0.15)
    sent = packets(waiting(far))
    assert [packet[0] for packet in sent] == [0x82, 0x82, 0xA2]
    assert b"churn/0/+/x" in sent[0]
    assert b"churn/1/+/x" in sent[1]
    assert b"churn/0/+/x" in sent[2]
    far.send(b"\x90\x03\x00\x01\x00\x90\x03\x00\x03\x00\xb0\x02\x00\x04")
    wires.turn()
    assert churn.answered == 3
    far.send(b"\x90\x03\x00\x05\x80")
    with pytest.raises(LoadError, match="0x80"):
        wires.turn()


def test_what_a_broker_does_to_a_connection_is_told(wires: Wires) -> None:
    ours, theirs = zip(wires.pair(), wires.pair(), strict=True)
    Link(wires.loop, ours[0])
    theirs[0].send(b"\xe0\x00")
    with pytest.raises(LoadError, match="DISCONNECT"):
        wires.turn()
    assert receive(ours[1], wires.loop.buffer) == 0
    theirs[1].close()
    with pytest.raises(LoadError, match="closed"):
        receive(ours[1], wires.loop.buffer)

"""All subscriptions told again, some in each turn, while others come and go."""

from __future__ import annotations

from pathlib import Path

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.record.recorder import Snapshot
from tests.core.harness import Network
from tests.record.scenes import stored
from tests.record.taps import listen
from tests.record.test_recorder import join, recording, rows_in
from tests.support import waiting


def test_a_turn_is_bounded_and_what_changes_meanwhile_is_told_as_it_happens() -> None:
    network = Network()
    clients = [network.client(f"c{number}", clean=False, expiry=100) for number in range(40)]
    for client in clients:
        client.subscribe(Request("a", 1), Request("b", 0))
    clients[7].subscribe(*(Request(f"many/{number}", 0) for number in range(50)))
    heard = listen(network.router)
    heard.rows()
    walk = Snapshot(network.router, heard.tap)
    first = heard.tap.seq + 1
    turns = 0
    while not walk.turn(10):
        turns += 1
        heard.take()
        if turns == 2:
            clients[0].unsubscribe("a")
            clients[39].subscribe(Request("a", 2))
            clients[1].subscribe(Request("new", 1))
            network.client("late", expiry=100).subscribe(Request("a", 1))
            network.client("c2", clean=True)
        assert turns < 50
    rows = heard.rows()
    assert rows[-1]["kind"] == "snapshot"
    assert rows[-1]["ref_seq"] == first
    assert rows[-1]["n"] == sum(row.get("reason") == "snapshot" for row in rows)
    assert turns >= rows[-1]["n"] // 10
    # What the events from `ref_seq` on come to is what the broker holds.
    held: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row.get("client_id", ""), row.get("topic_filter", "")
        if row["kind"] == "subscribe":
            held[key] = row["qos"]
        elif row["kind"] == "unsubscribe":
            held.pop(key, None)
    assert held == {
        (session.client_id, name): subscription.qos
        for session in network.router.sessions.values()
        for name, subscription in session.subscriptions.items()
    }
    assert len(held) > 100


async def test_the_recorder_tells_them_again_and_waits_for_a_slow_disk(tmp_path: Path) -> None:
    async with recording(tmp_path, snapshot_seconds=0.01, queue_events=400) as broker:
        peer = await join(broker)
        await peer.subscribe("a/#")
        recorder = broker.recorder
        assert recorder is not None
        tap = recorder.tap
        assert tap is not None
        before = tap.seq
        await waiting.until(lambda: tap.seq >= before + 4)
        # Half of the queue waits: no walk goes on.
        tap.put_events += 250
        before = tap.seq
        recorder._tell_subscriptions(tap)
        assert tap.seq == before
        tap.put_events -= 250
    rows = await rows_in(tmp_path)
    told = [row for row in rows if row["kind"] == "snapshot"]
    assert len(told) >= 2
    assert {row["n"] for row in told} <= {0, 1}
    assert told[-1]["n"] == 1
    assert rows == stored(tmp_path)

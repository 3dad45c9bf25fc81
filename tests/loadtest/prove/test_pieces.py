"""A run of several pieces: how it ends, and what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from canopy_load.prove.pieces import Place, Played, play_pieces
from canopy_load.prove.plan import Plan, make
from canopy_load.prove.summary import Settings, added
from canopy_mqtt.core.codec import packets
from tests.loadtest.prove.fake import FakeBroker, Peer
from tests.loadtest.prove.proving import RATE, jump, now


class Closing(FakeBroker):
    """It lets nobody in once it is closed."""

    closed = False

    def got(self, peer: Peer, packet: packets.Packet) -> None:
        if self.closed:
            peer.transport.abort()
        else:
            super().got(peer, packet)


def played(plans: Iterator[Plan], broker: FakeBroker, *, stopped: bool = False) -> Played:
    async def main() -> Played:
        async with broker.serving() as targets:
            return await play_pieces(
                plans,
                Place(targets, broker),
                Settings("fake", "again", "replay", unmade={"clock": "there is none"}),
                stop=now() if stopped else asyncio.Event(),
                histories=True,
            )

    return jump(main())


def plans(broker: Closing, number: int, closes: int = -1) -> Iterator[Plan]:
    for seed in range(number):
        broker.closed = seed == closes
        yield make(seed, 1, (), RATE)


def test_pieces_follow_each_other_and_are_judged_one_by_one() -> None:
    broker = Closing()
    made = played(plans(broker, 2), broker)
    assert added(made.summaries).seeds == [0, 1]
    assert added(made.summaries).code == 0
    assert added(made.summaries).settings.unmade == {"clock": "there is none"}
    assert len(made.histories) == 2
    assert made.last is not None
    assert made.last.proof.plan.seed == 1


def test_a_broker_that_lets_nobody_in_any_more_ends_the_pieces_and_there_is_a_report() -> None:
    broker = Closing()
    summary = added(played(plans(broker, 3, closes=1), broker).summaries)
    assert summary.seeds == [0]
    assert summary.verdict.startswith("could not judge: no client was accepted")
    assert summary.code == 2


def test_a_stop_ends_the_pieces() -> None:
    broker = Closing()
    summary = added(played(plans(broker, 3), broker, stopped=True).summaries)
    assert summary.seeds == [0]
    assert summary.interrupted

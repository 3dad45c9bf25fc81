"""How a proof ends: all is waited for, what is missing at the end is told, and nothing is left."""

from __future__ import annotations

import asyncio
from xml.etree import ElementTree

import pytest

from canopy_load.brokers.process import BrokerFailed
from canopy_load.engine.job import Target
from canopy_load.ledger.history import Look
from canopy_load.prove import report
from canopy_load.prove.judge import judge
from canopy_load.prove.plan import CLIENT_FAULTS, Fault, make
from canopy_load.prove.play import play
from tests.loadtest.prove.fake import FakeBroker, Peer, Planted, Session, Waiting
from tests.loadtest.prove.proving import RATE, JumpingLoop, proof


def test_a_stop_ends_the_rounds_and_there_is_a_judgement() -> None:
    judgement = judge(proof(stop=True, rounds=50))
    assert judgement.proof.interrupted
    assert judgement.proof.rounds == 0
    assert judgement.broken == []


def test_nothing_is_left_on_the_broker() -> None:
    broker = FakeBroker()
    proof(broker=broker, faults=CLIENT_FAULTS)
    assert broker.sessions == {}
    assert broker.retained == {}


class Slow(FakeBroker):
    """It sends a subscriber a message every 5 seconds."""

    behind = 0

    def _deliver(self, session: Session, each: Waiting) -> None:
        if session.client_id.endswith("-connected-0"):
            self.behind += 1
            asyncio.get_running_loop().call_later(5.0 * self.behind, super()._deliver, session, each)
        else:
            super()._deliver(session, each)


def test_what_still_comes_when_the_time_is_over_is_not_lost() -> None:
    made = proof(faults=(), broker=Slow())
    assert not made.rested
    judgement = judge(made)
    assert judgement.broken == []
    assert judgement.code == 2


def test_what_does_not_come_at_all_is_lost() -> None:
    made = proof(Planted.LOSES_SOME, faults=())
    assert made.rested
    assert judge(made).code == 1


class Gone(FakeBroker):
    """It does not come back after a kill."""

    async def heal(self) -> None:
        pass


def test_a_broker_that_does_not_come_back_is_not_cleared_and_what_is_left_there_is_told() -> None:
    made = proof(faults=[Fault.KILL], rounds=1, broker=Gone())
    assert len(made.absent) > 10
    assert judge(made).code == 2
    assert any("was not removed" in note for note in made.notes)


class Failing(FakeBroker):
    """It does not start again after a kill."""

    async def heal(self) -> None:
        raise BrokerFailed("its database is damaged")


class Crashing(FakeBroker):
    """It ends by itself in the first round."""

    def check(self) -> None:
        raise BrokerFailed("its database is damaged")


@pytest.mark.parametrize("kind", [Failing, Crashing])
def test_a_broker_that_fails_ends_the_rounds_and_there_is_a_report(kind: type[FakeBroker]) -> None:
    made = proof(faults=[Fault.KILL], rounds=3, broker=kind())
    assert made.rounds == 0
    judgement = judge(made)
    assert judgement.code == 1
    assert report.verdict(judgement) == "the broker failed: its database is damaged; 0 promises broken"
    assert ElementTree.fromstring(report.junit(judgement, "fake")).get("errors") == "1"


class Stuck(FakeBroker):
    """It does not end when it is restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def inflict(self, fault: Fault) -> None:
        del fault
        self.asked.set()
        await asyncio.Event().wait()


def test_a_proof_that_is_cancelled_does_not_wait_for_a_fault() -> None:
    async def main() -> None:
        broker = Stuck()
        await broker.start()
        plan = make(1, 1, [Fault.RESTART], RATE)
        task = asyncio.create_task(play(plan, [Target("127.0.0.1", broker.port)], broker=broker))
        await broker.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await broker.close()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main())


def test_every_node_is_looked_at() -> None:
    """Here one broker listens on two ports."""

    async def main() -> set[str]:
        broker = FakeBroker()
        await broker.start()
        second = await asyncio.get_running_loop().create_server(lambda: Peer(broker), "127.0.0.1", 0)
        ports = [broker.port, second.sockets[0].getsockname()[1]]
        try:
            made = await play(make(1, 1, [Fault.ROAM], RATE), [Target("127.0.0.1", port) for port in ports])
        finally:
            second.close()
            await broker.close()
        return {each.node for each in made.history.of(Look)}

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        assert len(runner.run(main())) == 2

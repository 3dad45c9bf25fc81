"""How a proof ends: all is waited for, what is missing at the end is told, and nothing is left."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from canopy_load.brokers.process import BrokerFailed
from canopy_load.ledger.history import Connect, Look, Publish, Subscribe
from canopy_load.prove import report
from canopy_load.prove.faults import CLIENT_FAULTS, BrokerFault, Fault
from canopy_load.prove.judge import judge
from canopy_load.prove.plan import make
from canopy_load.prove.play import play
from canopy_load.prove.steps import Act, Step
from canopy_mqtt.core.codec import packets
from canopy_mqtt.core.codec import properties as names
from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.core.codec.reason_codes import QOS_NOT_SUPPORTED
from tests.loadtest.prove.fake import FakeBroker, Peer, Session, Waiting
from tests.loadtest.prove.proving import RATE, broken, jumping, now, proof, reported


def test_a_stop_ends_the_rounds_and_there_is_a_judgement() -> None:
    judgement = judge(proof(stop=now(), rounds=50))
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
    assert reported(judgement).code == 2


class Gone(FakeBroker):
    """It does not come back after a kill."""

    async def heal(self, fault: BrokerFault) -> None:
        del fault


def test_a_broker_that_does_not_come_back_is_not_cleared_and_what_is_left_there_is_told() -> None:
    made = proof(faults=[Fault.KILL], rounds=1, broker=Gone())
    assert len(made.absent) > 10
    assert reported(judge(made)).code == 2
    assert any("was not removed" in note for note in made.notes)


class Failing(FakeBroker):
    """It does not start again after a kill."""

    async def heal(self, fault: BrokerFault) -> None:
        del fault
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
    assert reported(judgement).code == 1
    assert reported(judgement).verdict == "the broker failed: its database is damaged; 0 promises broken"
    assert ElementTree.fromstring(report.junit(reported(judgement))).get("errors") == "1"


class Stuck(FakeBroker):
    """It does not end when it is restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def inflict(self, fault: BrokerFault) -> None:
        del fault
        self.asked.set()
        await asyncio.Event().wait()


@jumping
async def test_a_proof_that_is_cancelled_does_not_wait_for_a_fault() -> None:
    broker = Stuck()
    async with broker.serving() as targets:
        task = asyncio.create_task(play(make(1, 1, [Fault.RESTART], RATE), targets, broker=broker))
        await broker.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("later", [0.0, 0.005, 0.015])
def test_a_look_names_the_node_that_was_looked_at(later: float) -> None:
    """Also where the next one is due before it is over."""
    plan = make(1, 1, [], RATE, nodes=2)
    (only,) = plan.rounds
    looks = tuple(Step(at, "looker-0", Act.LOOK) for at in (2.9, 2.9 + later))
    steps = tuple(sorted((*only.steps, *looks), key=lambda each: each.at))
    at: dict[str, str] = {}
    for each in proof(plan=replace(plan, rounds=(replace(only, steps=steps),)), nodes=2).history.events:
        if isinstance(each, Connect):
            at[each.client] = each.node
        elif isinstance(each, Look):
            assert each.node == at[each.client]


class Apart(FakeBroker):
    """Each node has sessions and share groups of its own."""

    def _connect(self, peer: Peer, packet: packets.Connect) -> None:
        packet.client_id += f" at {peer.node}"
        super()._connect(peer, packet)

    def _subscribe(self, peer: Peer, packet: packets.Subscribe) -> None:
        (asked,) = packet.requests
        asked.topic_filter = asked.topic_filter.replace("$share/", f"$share/{peer.node}-")
        super()._subscribe(peer, packet)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_whose_sessions_stay_at_their_nodes_is_judged_by_that(seed: int) -> None:
    broker = Apart()
    judgement = judge(proof(seed=seed, nodes=3, sessions_stay=True, broker=broker))

    assert broken(judgement) == set()
    assert reported(judgement).code == 0
    assert broker.sessions == {}
    nodes: dict[str, set[str]] = {}
    for each in judgement.proof.history.of(Connect):
        nodes.setdefault(each.client, set()).add(each.node)
    moved = {client for client, those in nodes.items() if len(those) > 1}
    clients = judgement.proof.plan.clients
    assert moved
    assert [client for client in moved if not clients[client].clean or clients[client].kind == "member"] == []
    assert len({each.node for each in judgement.proof.history.of(Look)}) == 3


class Shared(FakeBroker):
    """Others publish to it, too."""

    def _subscribe(self, peer: Peer, packet: packets.Subscribe) -> None:
        super()._subscribe(peer, packet)
        self._route(Waiting("others/t/0", b"a payload of others", 1))


def test_what_others_publish_is_counted_and_not_judged() -> None:
    made = proof(faults=(), rounds=1, broker=Shared())
    assert made.foreign > 0
    assert broken(judge(made)) == set()


class Brief(FakeBroker):
    """It keeps sessions of 5.0 for no second more than their connections, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.grants.integers[names.SESSION_EXPIRY_INTERVAL] = 0

    def lost(self, peer: Peer) -> None:
        peer.keeps = peer.keeps and peer.version != V5
        super().lost(peer)


def test_a_broker_that_grants_a_lower_session_expiry_interval_is_held_to_that() -> None:
    judgement = judge(proof(faults=CLIENT_FAULTS, broker=Brief()))
    assert broken(judgement) == set()
    assert reported(judgement).code == 0


class Low(FakeBroker):
    """It takes no QoS above `most` from clients of 5.0, as its CONNACK says, neither in messages nor in wills."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.grants.integers[names.MAXIMUM_QOS] = most

    def _connect(self, peer: Peer, packet: packets.Connect) -> None:
        if packet.version == V5 and packet.will is not None and packet.will.qos > self.most:
            peer.send(packets.Connack(False, QOS_NOT_SUPPORTED))
            peer.transport.close()
        else:
            super()._connect(peer, packet)

    def _publish(self, peer: Peer, packet: packets.Publish) -> None:
        if peer.version == V5 and packet.qos > self.most:
            peer.send(packets.Disconnect(QOS_NOT_SUPPORTED))
            peer.transport.close()
        else:
            super()._publish(peer, packet)


@pytest.mark.parametrize("most", [0, 1])
def test_a_broker_that_takes_no_higher_qos_is_judged_by_what_it_takes(most: int) -> None:
    judgement = judge(proof(faults=CLIENT_FAULTS, broker=Low(most)))
    assert broken(judgement) == set()
    assert reported(judgement).code == 0
    of_v5 = [
        each
        for each in judgement.proof.history.of(Publish)
        if judgement.proof.plan.clients[each.client].version == V5 and each.outcome != "fail"
    ]
    assert {each.qos for each in of_v5 if not each.will} == set(range(most + 1))
    assert {each.qos for each in of_v5 if each.will} == {most}
    assert not judgement.proof.refused


@pytest.mark.parametrize("seed", range(3))
@jumping
async def test_a_node_that_nobody_reaches_is_no_breach(seed: int) -> None:
    """Clients that give up a connection for one to a node that is not there are not connected."""
    async with FakeBroker().serving() as targets:
        async with FakeBroker().serving() as gone:
            pass
        judgement = judge(await play(make(seed, 1, rate=RATE), [*targets, *gone]))
    assert broken(judgement) == set()
    assert reported(judgement).code == 2


@pytest.mark.parametrize(
    ("grant", "refused", "promises"),
    [
        (
            names.SHARED_SUBSCRIPTION_AVAILABLE,
            "the broker takes no shared subscriptions",
            {"lost to a group", "to two members", "starved"},
        ),
        (
            names.RETAIN_AVAILABLE,
            "the broker takes no retained messages",
            set(),
        ),
    ],
)
def test_what_the_broker_does_not_offer_is_not_judged(grant: int, refused: str, promises: set[str]) -> None:
    broker = FakeBroker()
    broker.grants.integers[grant] = 0

    summary = reported(judge(proof(faults=CLIENT_FAULTS, broker=broker)))

    states = {each.promise: each.state for each in summary.promises}
    assert summary.refused[refused] > 0
    assert {promise for promise in promises if states[promise] != "not judged"} == set()
    assert summary.broken == []
    assert f"times): {refused}" in report.text(summary)


def test_a_filter_with_wildcards_is_not_asked_for_where_there_are_none() -> None:
    broker = FakeBroker()
    broker.grants.integers[names.WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
    made = proof(faults=(), rounds=1, broker=broker)
    asked = [each for each in made.history.of(Subscribe) if made.plan.clients[each.client].version == V5]
    assert asked
    assert not [each for each in asked if set("#+") & set(each.topic_filter)]
    assert reported(judge(made)).broken == []


def test_what_goes_on_is_told_twice_a_second_and_the_processes_are_looked_at() -> None:
    looked: list[int] = []
    lines: list[str] = []

    def processes() -> list[int]:
        looked.append(1)
        return [os.getpid()]

    proof(rounds=1, faults=(), tell=lines.append, live=True, processes=processes)
    assert [line for line in lines if "round 1 of 1: faults of clients alone · " in line and " connected · " in line]
    assert len(looked) > 5

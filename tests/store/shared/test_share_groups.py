"""Share groups of a cluster: a queue in the database, from which members at all nodes take."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec.packets import Unsubscribe
from tests.core.harness import Client
from tests.store.shared.brokers import Broker, client_of, connect, publish, rows, subscribe, until_empty
from tests.store.shared.nodes import Nodes
from tests.support.waiting import until

JOBS = "$share/g/a"


async def member(broker: Broker, name: str, qos: int = 2, **given: object) -> Client:
    """A member that is connected."""
    made = await client_of(broker, name, **given)
    await subscribe(made, JOBS, qos=qos)
    return made


def got(*members: Client) -> list[bytes]:
    """What has come to each, one after the other."""
    return [message.payload for each in members for message in each.inbox]


@pytest.mark.parametrize("qos", [1, 2])
async def test_each_message_comes_to_one_member_of_the_cluster(nodes: Nodes, brokers: list[Broker], qos: int) -> None:
    members = [await member(brokers[number % 2], f"m{number}") for number in range(3)]
    publisher = await client_of(brokers[0], "p")
    sent = [b"%02d" % number for number in range(20)]
    for payload in sent:
        await publish(publisher, payload, qos)
    await until(lambda: len(got(*members)) == 20)
    await until_empty(nodes, "delivery")
    assert sorted(got(*members)) == sent
    assert {each.qos for one in members for each in one.inbox} == {qos}
    assert all(each.inbox for each in members[:1] + members[2:]), "members of one node take in turn"


async def test_members_at_other_nodes_than_the_publisher_have_their_turns(brokers: list[Broker]) -> None:
    here, there = brokers
    near, far = await member(here, "near"), await member(there, "far")
    publisher = await client_of(here, "p")
    await until(lambda: here.store.node._elsewhere, "the node has heard of members elsewhere")
    for number in range(20):
        await publish(publisher, b"%d" % number)
        await until(lambda: len(got(near, far)) == number + 1)  # noqa: B023 (it is awaited here)
    assert 5 <= len(near.inbox) <= 15


async def test_a_node_hears_each_second_of_members_elsewhere_and_not_of_those_of_a_dead_node(
    brokers: list[Broker],
) -> None:
    here, there = brokers
    await member(there, "far")
    await until(lambda: here.store.node._elsewhere)
    here.store.node._elsewhere.clear()  # as after a link that was down when it was told
    await until(lambda: here.store.node._elsewhere)
    await there.kill()
    await until(lambda: not here.store.node._elsewhere)


async def test_whoever_connects_first_takes_what_has_waited(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    members = [await member(here, "m1"), await member(here, "m2")]
    for each in members:
        each.disconnect()
    publisher = await client_of(here, "p")
    sent = [b"%02d" % number for number in range(30)]
    for payload in sent:
        await publish(publisher, payload, 2)
    assert await nodes.ask("SELECT client_id FROM session WHERE node IS NULL AND expires_at IS NULL") == [(JOBS,)]
    await connect(members[1], there, receive_maximum=3)
    await until(lambda: len(members[1].inbox) == 30)
    assert got(members[1]) == sent
    await until_empty(nodes, "delivery")


async def test_a_member_takes_from_a_group_that_its_node_has_not_heard_of(brokers: list[Broker]) -> None:
    here, there = brokers
    for each in there.store.running._times:
        each.cancel()  # else it would hear within a second
    moving, publisher = await member(here, "m"), await client_of(here, "p")
    moving.disconnect()
    await publish(publisher, b"waits")
    await connect(moving, there)
    await until(lambda: got(moving) == [b"waits"])


async def test_a_member_takes_as_much_as_its_receive_maximum(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    slow, publisher = await member(here, "slow", 1, receive_maximum=1), await client_of(here, "p")
    slow.answering = False
    for payload in (b"1", b"2", b"3"):
        await publish(publisher, payload)
    await until(lambda: got(slow) == [b"1"])
    fast = await member(there, "fast", 1)
    await until(lambda: got(fast) == [b"2", b"3"])
    slow.answering = True
    slow.answer()
    await until_empty(nodes, "delivery")
    fast.disconnect()
    await publish(publisher, b"4")
    await until(lambda: got(slow) == [b"1", b"4"])


async def test_a_member_that_leaves_gives_back_what_others_may_have(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    leaving, publisher = await member(here, "leaving", receive_maximum=2), await client_of(here, "p")
    leaving.answering = False
    await publish(publisher, b"1", 2)
    await publish(publisher, b"2", 1)
    await publish(publisher, b"3", 2)
    await until(lambda: sorted(got(leaving)) == [b"1", b"2"])
    leaving.disconnect()
    other = await member(there, "other")
    await until(lambda: got(other) == [b"2", b"3"])
    leaving.answering = True
    await connect(leaving, there)
    await until_empty(nodes, "delivery")
    assert sorted(got(leaving)) == [b"1", b"2"], "QoS 2 that was sent stays with its member"


async def test_what_a_killed_node_had_comes_to_another_member(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    lost, publisher = await member(here, "lost", 1), await client_of(there, "p")
    lost.answering = False
    await publish(publisher, b"1")
    await until(lambda: got(lost) == [b"1"])
    other = await member(there, "other", 1)
    await here.kill()
    await Broker(brokers, await nodes.open("a")).open()
    await until(lambda: got(other) == [b"1"])


async def test_members_whose_sessions_end_with_their_connections_take_part(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    clean = [await member(each, name, 1, clean=True, expiry=0) for each, name in ((here, "c1"), (there, "c2"))]
    publisher = await client_of(here, "p")
    await subscribe(clean[0], "a", qos=1)
    clean[0].answering = False
    for number in range(30):
        await publish(publisher, b"%02d" % number)
    # Its own subscription is live, and not in the database.
    await until(lambda: len(clean[0].inbox) + len(clean[1].inbox) == 60)
    assert len(clean[1].inbox) < 30
    assert await rows(nodes, "subscription") == 3
    clean[0].disconnect()
    await until(lambda: len(clean[1].inbox) == 30)
    await until_empty(nodes, "delivery")


async def test_a_member_with_qos_0_takes_part(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    lower, publisher = await member(here, "lower", 0), await client_of(there, "p")
    await publish(publisher, b"1", 2)
    await until(lambda: got(lower) == [b"1"])
    assert lower.inbox[0].qos == 0
    await until_empty(nodes, "delivery")


async def test_a_client_may_subscribe_itself_and_in_groups(nodes: Nodes, brokers: list[Broker]) -> None:
    """The same message comes to it for each."""
    here, there = brokers
    client, publisher = await member(here, "m"), await client_of(there, "p")
    await subscribe(client, "a", "$share/h/a")
    client.answering = False
    await publish(publisher, b"1", 2)
    await until(lambda: got(client) == [b"1"] * 3)
    client.answering = True
    await connect(client, there)
    await until_empty(nodes, "delivery")
    assert len(client.inbox) == 3


async def test_a_group_ends_with_its_last_member(nodes: Nodes, brokers: list[Broker]) -> None:
    here, there = brokers
    first, second = await member(here, "m1"), await member(there, "m2")
    for broker, each in ((here, first), (there, second)):
        assert await rows(nodes, f"session WHERE client_id = '{JOBS}'") == 1
        each.send(Unsubscribe(each.take_id(), [JOBS]))
        broker.settle()
        await broker.store.flush()
    assert await rows(nodes, f"session WHERE client_id = '{JOBS}'") == 0
    await until_empty(nodes, "garbage", "subscription")
    again = await member(there, "m3")
    await publish(first, b"1")
    await until(lambda: got(again) == [b"1"])


async def test_an_operator_ends_a_session_and_not_the_queue_of_a_group(brokers: list[Broker]) -> None:
    here, there = brokers
    one, publisher = await member(here, "m1"), await client_of(there, "p")
    reports = there.store.reports
    assert reports is not None
    assert await reports.session(JOBS) is not None
    assert not await reports.end_session(JOBS)
    await publish(publisher, b"1")
    await until(lambda: got(one) == [b"1"])
    assert here.store.reports is not None
    assert await here.store.reports.end_session("m1")
    assert one.closed

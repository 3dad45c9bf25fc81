"""Ten thousand messages: all of them, in order, at QoS 1 and 2, also across a lost connection.

The clients' own limits are raised so that it takes seconds; the broker has its defaults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.e2e.clients.conftest import Unique
from tests.e2e.clients.python.aiomqtt_driver import Aio5
from tests.e2e.clients.python.drivers import PATIENCE, Driver, Opener, Received, within
from tests.e2e.clients.python.gmqtt_driver import Gmqtt
from tests.e2e.clients.python.paho_driver import Paho, Paho5

pytestmark = pytest.mark.long

COUNT = 10_000
MANY = 3000
"""Where the connection is cut: enough to be in the middle of it."""

PAYLOADS = [b"%d" % number for number in range(COUNT)]
LIBRARIES = pytest.mark.parametrize("kind", [Paho, Paho5, Gmqtt], ids=["paho 3.1.1", "paho 5.0", "gmqtt 5.0"])
QUALITIES = pytest.mark.parametrize("qos", [1, 2])


def first_difference(found: Sequence[int], expected: Sequence[int]) -> str:
    """Where two long lists part; empty when they do not. A comparison by assert would print them."""
    for at, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return f"{one} instead of {other} at {at} of {len(found)}, after {found[max(0, at - 5) : at]}"
    return "" if len(found) == len(expected) else f"{len(found)} instead of {len(expected)}"


def in_order(found: Sequence[Received]) -> None:
    """Messages from the first on: none lost, none twice."""
    assert first_difference([int(message.payload) for message in found], list(range(len(found)))) == ""


async def first_of(count: int, client: Driver, publishing: asyncio.Task[None]) -> list[Received]:
    """The first messages, unless publishing them fails."""
    receiving = asyncio.create_task(client.receive_all(count))
    await asyncio.wait((receiving, publishing), return_when=asyncio.FIRST_COMPLETED)
    if publishing.done():
        publishing.result()
    return await receiving


@pytest.mark.parametrize(
    ("publishers", "subscribers", "qos"),
    [(Paho, Gmqtt, 2), (Gmqtt, Paho, 1), (Gmqtt, Aio5, 2)],
    ids=["paho 3.1.1 to gmqtt 5.0-2", "gmqtt 5.0 to paho 3.1.1-1", "gmqtt 5.0 to aiomqtt 5.0-2"],
)
async def test_ten_thousand_messages_from_one_library_to_another(
    opener: Opener, unique: Unique, publishers: type[Driver], subscribers: type[Driver], qos: int
) -> None:
    topic = unique("bulk")
    subscriber = await opener(subscribers, unique("sub"))
    publisher = await opener(publishers, unique("pub"), bulk=True)
    await subscriber.subscribe(topic, qos)
    found, _ = await asyncio.gather(subscriber.receive_all(COUNT), publisher.publish_all(topic, PAYLOADS, qos))
    in_order(found)


@LIBRARIES
async def test_a_cut_in_the_middle_at_qos_1(opener: Opener, unique: Unique, kind: type[Driver]) -> None:
    """At least once, in order: what was not acknowledged comes again, after it what came meanwhile [MQTT-4.4.0-1]."""
    client_id, topic = unique("keeper"), unique("bulk")
    first = await opener(kind, client_id, keep=True)
    await first.subscribe(topic, 1)
    publisher = await opener(kind, unique("pub"), bulk=True)
    publishing = asyncio.create_task(publisher.publish_all(topic, PAYLOADS[:MANY], 1))
    found = await first_of(MANY // 4, first, publishing)
    await first.cut()
    while not first.inbox.empty():
        found.append(first.inbox.get_nowait())
    second = await opener(kind, client_id, keep=True)
    assert second.session_present
    in_order(found)
    numbers = [int(message.payload) for message in found]
    again: list[int] = []
    async with asyncio.timeout(2 * PATIENCE):
        while not again or again[-1] != MANY - 1:
            again.append(int((await second.receive()).payload))
    await within("the last acknowledgements", publishing)
    # From the first that was in doubt on without a gap.
    assert first_difference(again, list(range(again[0], MANY))) == ""
    assert again[0] <= len(numbers)
    assert second.inbox.empty()


@pytest.mark.parametrize("kind", [Paho, Paho5], ids=["3.1.1", "5.0"])
async def test_a_cut_in_the_middle_at_qos_2(opener: Opener, unique: Unique, kind: type[Paho]) -> None:
    """Exactly once, as far as the library keeps its half of the state: paho does, when the same client connects again.

    paho hands a message over when PUBREL has come. What it handed over and what comes after the cut is all, each once.
    """
    client_id, topic = unique("keeper"), unique("bulk")
    client = await opener(kind, client_id, keep=True)
    assert isinstance(client, Paho)
    await client.subscribe(topic, 2)
    publisher = await opener(kind, unique("pub"), bulk=True)
    publishing = asyncio.create_task(publisher.publish_all(topic, PAYLOADS[:MANY], 2))
    found = await first_of(MANY // 4, client, publishing)
    await client.cut()
    await client.again()
    assert client.session_present
    found += await client.receive_all(MANY - len(found))
    await within("the last acknowledgements", publishing)
    assert first_difference(sorted(int(message.payload) for message in found), list(range(MANY))) == ""
    assert client.inbox.empty()


@QUALITIES
@pytest.mark.parametrize("kind", [Paho, Paho5], ids=["3.1.1", "5.0"])
async def test_the_publisher_is_cut_in_the_middle(opener: Opener, unique: Unique, kind: type[Paho], qos: int) -> None:
    """The publisher sends again what was not acknowledged; at QoS 2 the broker knows what it has had [MQTT-4.3.3-10].

    A thousand and not more: once connected again, paho 2.2 sends all it has at once, beyond any Receive Maximum.
    """
    count = 1000
    topic = unique("bulk")
    subscriber = await opener(kind, unique("sub"))
    await subscriber.subscribe(topic, qos)
    publisher = await opener(kind, unique("pub"), bulk=True, keep=True)
    assert isinstance(publisher, Paho)
    infos = [publisher.client.publish(topic, payload, qos) for payload in PAYLOADS[:count]]
    found = await subscriber.receive_all(count // 4)
    await publisher.cut()
    await publisher.again()
    assert publisher.session_present
    for info in infos:
        if not info.is_published():
            await publisher.published(info)
    numbers = [int(message.payload) for message in found]
    while len(set(numbers)) < count:
        numbers.append(int((await subscriber.receive()).payload))
    if qos == 2:
        assert len(numbers) == count
        assert subscriber.inbox.empty()
    # In order of their first coming.
    assert first_difference(list(dict.fromkeys(numbers)), list(range(count))) == ""

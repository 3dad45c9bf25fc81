"""Upstream brokers of nodes: what goes up, what comes down, and that nothing goes round."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.links.link import UpstreamLink
from tests.cluster.nodes import Nodes, messages
from tests.support.waiting import until

VERSIONS = pytest.mark.parametrize("versions", [("5.0", "5.0"), ("3.1.1", "5.0"), ("5.0", "3.1.1"), ("3.1.1", "3.1.1")])
QOS = pytest.mark.parametrize("qos", [0, 1])


class Plant:
    """Two nodes, a and b, with a link each to one upstream broker, which is no node."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.nodes = Nodes(stack, folder)
        self._above = Nodes(stack, folder / "above")

    async def start(self, **links: dict[str, Any]) -> None:
        """`links`: the settings of the link of each node."""
        await self._above.start("up")
        url = f"mqtt://127.0.0.1:{self._above.brokers['up'].ports[0]}"
        sections = {
            name: {"upstream": [{"name": "up", "url": url, "retry_min": 0.02, "retry_max": 0.1, **each}]}
            for name, each in links.items()
        }
        await self.nodes.start("a", "b", own=sections)
        for name in links:
            await until(partial(is_up, self.link(name)), name)

    def link(self, name: str) -> UpstreamLink:
        """The link of a node to the upstream broker."""
        links = self.nodes.brokers[name].links
        assert links is not None
        return links.links["up"]

    async def join(self, name: str, client_id: str, *filters: str | tuple[str, int]) -> Any:
        """A client of a node, or of the upstream broker: `up`."""
        return await (self._above if name == "up" else self.nodes).join(name, client_id, *filters)


@pytest.fixture
def plant(stack: AsyncExitStack, tmp_path: Path) -> Plant:
    return Plant(stack, tmp_path)


def is_up(link: UpstreamLink) -> bool:
    return link.connected and link.declarer.settled


@VERSIONS
@QOS
async def test_nothing_goes_round_by_two_links_to_one_upstream(
    plant: Plant, versions: tuple[str, str], qos: int
) -> None:
    """What comes down one link crosses to the other node, and does not go up there: its path may be lost."""
    both = {"subscribe": ["t"], "publish": ["t"], "subscribe_qos": 1}
    await plant.start(a={"version": versions[0], **both}, b={"version": versions[1], **both})
    readers = [await plant.join(name, f"reader-{name}", ("t", 1)) for name in ("up", "a", "b")]
    publisher = await plant.join("up", "publisher")
    await publisher.publish("t", b"1", qos=qos)
    await publisher.publish("t", b"2", qos=qos)
    counts = []
    for reader in readers:
        found: list[bytes] = []
        # Each of the nodes gets it from above, and from the other node.
        while found.count(b"2") < (1 if reader is readers[0] else 2):
            found.append((await reader.message()).payload)
        counts.append((found.count(b"1"), found.count(b"2")))
    assert counts == [(1, 1), (2, 2), (2, 2)]
    # Behind everything that has gone up meanwhile.
    for name in "ab":
        await (await plant.join(name, f"local-{name}")).publish("t", name.encode(), qos=1)
    last = {b"a", b"b"}
    while last:
        payload = (await readers[0].message()).payload
        assert payload in last
        last.discard(payload)
    assert await readers[0].fence() == []


@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
@QOS
async def test_an_upstream_gets_what_the_clients_of_the_link_s_own_node_publish(
    plant: Plant, version: str, qos: int
) -> None:
    """Of any version, and whether clients of the node want it or not."""
    await plant.start(a={"version": version, "publish": ["t"], "subscribe": []})
    above = await plant.join("up", "above", ("t", 1))
    at_a = await plant.join("a", "at-a", ("t", 1))
    await (await plant.join("b", "of-b")).publish("t", b"of b", qos=qos)
    assert (await at_a.message()).payload == b"of b"
    await (await plant.join("a", "of-a")).publish("t", b"of a", qos=qos)
    assert (await above.message()).payload == b"of a"


@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
async def test_what_comes_down_goes_to_the_nodes_that_want_it(plant: Plant, version: str) -> None:
    await plant.start(a={"version": version, "subscribe": ["t"], "subscribe_qos": 1})
    at_b = await plant.join("b", "at-b", ("t", 1))
    publisher = await plant.join("up", "publisher")
    for payload in (b"1", b"last"):
        await publisher.publish("t", payload, qos=1)
    assert [each.payload for each in await messages(at_b, b"last")] == [b"1"]

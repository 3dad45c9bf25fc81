"""Several edges below one broker, and edges below edges: everything reaches everybody who asked for it, once.

Owns: branches under the same prefix, wildcards that reach into several branches, and trees of three levels.
"""

from __future__ import annotations

import pytest

from tests.e2e.links.network import NOBODY, V5, Net, Place, codes, link, pairs


async def test_branches_under_one_prefix_do_not_shadow_each_other(net: Net, upstream: Place) -> None:
    """Both have the same aggregate; the end of one's demand leaves the other's alone."""
    above = await net.join(upstream, "above")
    left = await net.edge(link(upstream, aggregate=["site/7/#"], client_id="left"))
    right = await net.edge(link(upstream, aggregate=["site/7/#"], client_id="right"))
    a = await net.join(left, "a", "site/7/a")
    b = await net.join(right, "b", "site/7/b")
    await net.down(above, a, b)
    await above.publish("site/7/a", b"for a", qos=1)
    await above.publish("site/7/b", b"for b", qos=1)
    found_a, found_b = await net.down(above, a, b)
    assert (pairs(found_a), pairs(found_b)) == ([("site/7/a", b"for a")], [("site/7/b", b"for b")])
    await a.unsubscribe("site/7/a")
    await net.down(above, a)
    await above.publish("site/7/b", b"again", qos=1)
    ((message,),) = await net.down(above, b)
    assert message.payload == b"again"


async def test_three_levels(net: Net, upstream: Place) -> None:
    """Leaf, mid and root: down from the root, up from the leaf, and both at the one in the middle."""
    mid = await net.edge(link(upstream, aggregate=["site/#"], publish=["#"], client_id="mid"))
    leaf = await net.edge(link(mid, aggregate=["site/7/#"], publish=["#"]))
    root_client = await net.join(upstream, "root", "report/#")
    mid_client = await net.join(mid, "mid-client", "report/#", "site/#")
    leaf_client = await net.join(leaf, "leaf-client", "site/7/cmd", "report/#")
    await net.down(root_client, leaf_client)
    await net.down(root_client, mid_client)
    for number in range(3):
        await root_client.publish("site/7/cmd", b"down %d" % number, qos=1)
    ((*got,),) = await net.down(root_client, leaf_client)
    assert pairs(got) == [("site/7/cmd", b"down %d" % number) for number in range(3)]
    ((*got,),) = await net.down(root_client, mid_client)
    assert pairs(got) == [("site/7/cmd", b"down %d" % number) for number in range(3)]
    for number in range(3):
        await leaf_client.publish("report/7", b"up %d" % number, qos=2)
    up = [("report/7", b"up %d" % number) for number in range(3)]
    # A broker may pass on a message with QoS 1 before one with QoS 2 whose PUBREL is still to come.
    for found in await net.up(leaf_client, root_client, mid_client, qos=2):
        assert pairs(found) == up
    # Its own subscription brings the publisher one copy, at its own broker; nothing comes back down.
    ((*got,),) = await net.down(root_client, leaf_client)
    assert pairs(got) == up


@pytest.mark.parametrize("kind", V5)
async def test_three_levels_take_back_what_nobody_wants(net: Net, kind: str) -> None:
    """The end of a demand at the leaf ends it at the root."""
    upstream = await net.upstream(kind)
    mid = await net.edge(link(upstream, aggregate=["site/#"], client_id="mid"))
    leaf = await net.edge(link(mid, aggregate=["site/7/#"]))
    above = await net.join(upstream, "above")
    child = await net.join(leaf, "child", "site/7/a")
    await net.down(above, child)
    assert await above.publish("site/7/a", b"x", qos=1) == 0
    await child.disconnect()
    await codes(above, NOBODY, "site/7/a")

"""Topics that are named differently on the two sides, and topics that stay on theirs.

Owns: `local_prefix` and `remote_prefix` both ways, `$SYS`, and shared subscriptions.
"""

from __future__ import annotations

from tests.e2e import wire
from tests.e2e.links.network import OFTEN, Net, Place, link, pairs
from tests.e2e.links.scripted_upstream import ScriptedUpstream

NAMES = {"local_prefix": "plant/", "remote_prefix": "acme/site/7/"}


async def test_both_ways(net: Net, upstream: Place) -> None:
    """`plant/…` here is `acme/site/7/…` there; what begins otherwise does not cross."""
    edge = await net.edge(link(upstream, **NAMES, aggregate=["plant/a/#"], publish=["#"]))
    above = await net.join(upstream, "above", "#")
    below = await net.join(edge, "below", "plant/a/x", "plant/b/+", "+/a/y", "elsewhere/#")
    await net.down(above, below, remote="acme/site/7/", local="plant/")
    if upstream.broker is not None:
        assert [name for name in upstream.filters if "a" in name] == [
            "acme/site/7/a/#",
            "acme/site/7/b/+",
            "acme/site/7/fence/1",
        ]
    for topic in ("a/x", "b/x", "a/y", "c/x"):
        await above.publish(f"acme/site/7/{topic}", b"down", qos=1)
        await above.publish(f"plant/{topic}", b"another's", qos=1)
        await above.publish(f"acme/site/8/{topic}", b"another's", qos=1)
    await above.publish("elsewhere/1", b"another's", qos=1)
    (found,) = await net.down(above, below, remote="acme/site/7/", local="plant/")
    assert sorted(pairs(found)) == [("plant/a/x", b"down"), ("plant/a/y", b"down"), ("plant/b/x", b"down")]
    await above.unsubscribe("#")
    above = await net.join(upstream, "above-2", "#")
    below = await net.join(edge, "below-2")
    for topic in ("plant/c", "plant", "elsewhere/c", "acme/site/7/c"):
        await below.publish(topic, b"up", qos=1)
    (found,) = await net.up(below, above, remote="acme/site/7/", local="plant/")
    assert [pair for pair in pairs(found) if pair[1] == b"up"] == [("acme/site/7/c", b"up")]


async def test_the_response_topic_is_named_anew(net: Net) -> None:
    """A request from here and one from there: each responder finds a topic that leads back."""
    upstream = await net.upstream("canopy")
    edge = await net.edge(link(upstream, **NAMES, publish=["#"], aggregate=["plant/#"]))
    above = await net.join(upstream, "above", "acme/site/7/svc/up")
    below = await net.join(edge, "below", "plant/svc/down", "plant/reply")
    await net.down(above, below, remote="acme/site/7/", local="plant/")
    props: wire.Properties = [(wire.RESPONSE_TOPIC, "plant/reply"), (wire.CORRELATION_DATA, b"1")]
    assert await below.publish("plant/svc/up", b"?", qos=1, props=props) == 0
    request = await above.message()
    assert request.get(wire.RESPONSE_TOPIC) == "acme/site/7/reply"
    assert request.get(wire.CORRELATION_DATA) == b"1"
    await above.publish("acme/site/7/reply", b"!", qos=1, props=[(wire.CORRELATION_DATA, b"1")])
    response = await below.message()
    assert (response.topic, response.payload) == ("plant/reply", b"!")
    # From above.
    await above.subscribe(("acme/site/7/answers", 1))
    props = [(wire.RESPONSE_TOPIC, "acme/site/7/answers"), (wire.CORRELATION_DATA, b"2")]
    assert await above.publish("acme/site/7/svc/down", b"?", qos=1, props=props) == 0
    request = await below.message()
    assert request.get(wire.RESPONSE_TOPIC) == "plant/answers"
    await below.publish("plant/answers", b"!", qos=1)
    assert (await above.message()).topic == "acme/site/7/answers"


async def test_sys_never_leaves(net: Net) -> None:
    """Nobody's `$SYS` is asked for upstream, and ours is not sent, whatever `publish` says."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream, publish=["#", "fence/#"]), sys={"interval": OFTEN})
    reader = await net.join(edge, "reader", ("$SYS/#", 0), ("$SYS/broker/uptime", 0), ("#", 0), ("+/broker/uptime", 0))
    caller = await upstream.caller()
    seen = await reader.message()
    assert seen.topic.startswith("$SYS/")
    await net.join(edge, "fence", "fence")
    await upstream.until("the fence", lambda: "fence" in caller.filters)
    assert not [name for name in caller.asked() if name.startswith("$")]
    # Ours has been published by now, several times.
    writer = await net.join(edge, "writer")
    await writer.publish("fence/up", b"x", qos=1)
    await upstream.until("the fence", lambda: caller.published("fence/up"))
    assert [heard.topic for heard in caller.said(wire.PUBLISH)] == ["fence/up"]


async def test_sys_from_above_is_not_ours(net: Net) -> None:
    """A client that reads `$SYS` here reads this broker's."""
    upstream = await net.canopy(sys={"interval": OFTEN})
    edge = await net.edge(link(upstream))
    above = await net.join(upstream, "above")
    reader = await net.join(edge, "reader", ("$SYS/#", 1))
    (found,) = await net.down(above, reader)
    assert found == []


async def test_a_share_group_asks_once_and_each_message_goes_to_one_member(net: Net, upstream: Place) -> None:
    """Three members and an ordinary subscriber of the same filter."""
    edge = await net.edge(link(upstream))
    above = await net.join(upstream, "above")
    members = [await net.join(edge, f"member{number}", "$share/group/jobs/+") for number in range(3)]
    plain = await net.join(edge, "plain", "jobs/+")
    await net.down(above, plain)
    if upstream.broker is not None:
        assert [name for name in upstream.filters if "jobs" in name] == ["jobs/+"]
    for number in range(12):
        await above.publish(f"jobs/{number}", b"%d" % number, qos=1)
    everything = [(f"jobs/{number}", b"%d" % number) for number in range(12)]
    found = await net.down(above, plain, *members)
    assert pairs(found[0]) == everything
    shared = [pair for one in found[1:] for pair in pairs(one)]
    assert sorted(shared) == sorted(everything)

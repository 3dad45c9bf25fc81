"""Who is there, across a link: one filter and one message for each, never folded into one.

Owns: `unfolded`, and the broker's own presence messages as a listener upstream or at another edge sees them.
"""

from __future__ import annotations

from tests.e2e.links.network import Net, Place, link, pairs, until
from tests.e2e.links.scripted_upstream import ScriptedUpstream

SITE = "canopy/presence/site-7"


async def test_filters_of_presence_are_not_folded(net: Net) -> None:
    """Neither into an aggregate that includes them nor into one that they overlap."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream, aggregate=["canopy/#", "#"]))
    await net.join(edge, "one", f"{SITE}/a", f"{SITE}/b", "canopy/presence/+/c")
    caller = await upstream.caller()
    keys = {f"{SITE}/a", f"{SITE}/b", "canopy/presence/+/c"}
    await upstream.until("each of them", lambda: set(caller.filters) == keys)
    await net.join(edge, "two", "canopy/other", f"{SITE}/a")
    await upstream.until("the aggregate", lambda: len(caller.filters) == 4)
    assert keys < set(caller.filters)
    assert caller.asked().count(f"{SITE}/a") == 1


async def test_filters_of_ones_own_choice(net: Net) -> None:
    """`unfolded` names what is liveness here."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream, aggregate=["site/#"], unfolded=["site/+/alive"]))
    await net.join(edge, "one", "site/1/alive", "site/2/alive", "site/+/alive", "site/1/temp", "site/2/temp")
    caller = await upstream.caller()
    expected = {"site/1/alive", "site/2/alive", "site/+/alive", "site/#"}
    await upstream.until("each of them", lambda: set(caller.filters) == expected)


async def test_a_listener_sees_each_come_and_go(net: Net, upstream: Place) -> None:
    """Above and at another edge: who is there already, who comes, who says goodbye, who is cut off."""
    edge = await net.canopy(upstream=[link(upstream, publish=[f"{SITE}/#", "fence/#"])], presence={"topic": SITE})
    far = await net.edge(link(upstream, aggregate=["canopy/#"], client_id="far"))
    early = await net.join(edge, "early")
    leaver = await net.join(edge, "leaver")
    await net.join(edge, "odd/name+#%")
    probe = await net.join(upstream, "probe")
    await net.up(early, probe)
    above = await net.join(upstream, "above", "canopy/presence/+/+")
    distant = await net.join(far, "distant", f"{SITE}/+", "canopy/presence/#")
    there = {f"{SITE}/{name}": b"online" for name in ("early", "leaver", "odd%2Fname%2B%23%25")}
    found = [await above.message() for _ in there]
    found += (await net.up(early, above))[0]
    assert dict(pairs(found)) == there
    # Neither filter is folded into the aggregate, so all three come for each of them. Aedes sends them beside each
    # other and beside what is live: one that comes after its client has gone would be as good as the client's return.
    await until("all retained ones have come", lambda: far.router.counters.messages_received == 6)
    (found,) = await net.down(probe, distant)
    assert dict(pairs(found)) == there
    await leaver.disconnect()
    lost = await net.join(edge, "lost")
    lost.abort()
    await until("it is gone", lambda: edge.router.retained.get(f"{SITE}/lost") is None)
    await net.join(edge, "late")
    (found,) = await net.up(early, above)
    came_and_went = [("leaver", b""), ("lost", b"online"), ("lost", b""), ("late", b"online")]
    assert pairs(found) == [(f"{SITE}/{name}", payload) for name, payload in came_and_went]
    (found,) = await net.down(probe, distant)
    # It has two subscriptions that match: each message once or twice, as its broker likes.
    assert list(dict.fromkeys(pairs(found))) == [(f"{SITE}/{name}", payload) for name, payload in came_and_went]
    newest = await net.join(upstream, "newest", f"{SITE}/#")
    # A live fence may overtake what aedes has retained: first all that has to come, then what else does.
    found = [await newest.message() for _ in range(3)]
    found += (await net.up(early, newest))[0]
    assert {topic.rsplit("/", 1)[1] for topic, _ in pairs(found)} == {"early", "odd%2Fname%2B%23%25", "late"}


async def test_keys_asked_for_one_by_one_bring_only_theirs(net: Net, upstream: Place) -> None:
    """A listener behind an aggregate that watches two of three."""
    edge = await net.canopy(upstream=[link(upstream, publish=[f"{SITE}/#", "fence/#"])], presence={"topic": SITE})
    far = await net.edge(link(upstream, aggregate=["canopy/#"], client_id="far"))
    peers = {name: await net.join(edge, name) for name in ("a", "b", "c")}
    probe = await net.join(upstream, "probe")
    await net.up(peers["a"], probe)
    watcher = await net.join(far, "watcher", f"{SITE}/a", f"{SITE}/b")
    (found,) = await net.down(probe, watcher, least=[2])
    assert sorted(pairs(found)) == [(f"{SITE}/a", b"online"), (f"{SITE}/b", b"online")]
    for name in ("b", "c"):
        await peers[name].disconnect()
    await net.up(peers["a"], probe)
    (found,) = await net.down(probe, watcher)
    assert pairs(found) == [(f"{SITE}/b", b"")]

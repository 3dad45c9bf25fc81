"""Links that are added, changed and removed while the broker runs.

Owns: what happens to the link in question, and that nothing happens to any other, nor to a client.
"""

from __future__ import annotations

from typing import Any

from canopy_mqtt.settings import Settings
from tests.e2e.links.network import BRIEF, Net, link, until
from tests.e2e.links.scripted_upstream import Caller, Heard, ScriptedUpstream


def settings(port: int, *links: dict[str, Any]) -> Settings:
    """Settings of a broker that listens on a port already."""
    return Settings(**{"listen": (f"mqtt://127.0.0.1:{port}",), **BRIEF, "upstream": links})


async def test_added_changed_and_removed(net: Net) -> None:
    """One link stays as it is through all of it: the same connection, nothing said twice."""
    steady, other = await net.scripted(ScriptedUpstream()), await net.scripted(ScriptedUpstream())
    stays = link(steady, "stays", publish=["up/#"])
    edge = await net.canopy(0, upstream=[stays])
    first = settings(0, stays)
    assert first.upstream == edge.settings.upstream
    client = await net.join(edge, "client", "site/1", "site/2", "else")
    caller = await steady.caller()
    await steady.until("all", lambda: len(caller.filters) == 3)

    # Added: it gets what is demanded already.
    await edge.reload(settings(0, stays, link(other, "more")))
    one = await other.caller(0)
    await other.until("all", lambda: set(one.filters) == {"site/1", "site/2", "else"})

    # Its aggregate changed: in place.
    await edge.reload(settings(0, stays, link(other, "more", aggregate=["site/#"])))
    await other.until("folded", lambda: set(one.filters) == {"site/#", "else"})
    assert not one.ended
    await edge.reload(settings(0, stays, link(other, "more", aggregate=["else", "site/+"])))
    await other.until("folded anew", lambda: set(one.filters) == {"site/+", "else"})
    assert one.asked().count("else") == 1

    # What it publishes changed: in place.
    await edge.reload(settings(0, stays, link(other, "more", aggregate=["site/#"], publish=["up/1"])))
    await client.publish("up/1", b"1", qos=1)
    await other.until("it goes up", lambda: one.published("up/1") == [b"1"])
    assert not one.ended

    # Its url changed: another connection, there.
    third = await net.scripted(ScriptedUpstream())
    await edge.reload(settings(0, stays, link(third, "more", aggregate=["site/#"], publish=["up/1"])))
    two = await third.caller(0)
    await third.until("all", lambda: set(two.filters) == {"site/#", "else"})
    await other.until("the old one is gone", lambda: one.ended)

    # Removed.
    await edge.reload(settings(0, stays))
    await third.until("gone", lambda: two.ended)
    assert len(third.callers) == 1
    await client.publish("up/2", b"2", qos=1)
    await steady.until("the steady one", lambda: caller.published() == [b"1", b"2"])
    assert len(steady.callers) == 1
    assert not caller.ended
    assert sorted(caller.asked()) == ["else", "site/1", "site/2"]
    assert caller.took_back() == []
    # All of it with the same client, who has noticed nothing.
    assert await client.fence() == []


async def test_what_waits_goes_to_the_new_address(net: Net) -> None:
    """The url changes during an outage: nothing that was accepted is lost."""
    gone = await net.scripted(ScriptedUpstream())
    port = gone.port
    await gone.shut()
    edge = await net.canopy(0, upstream=[link(port, publish=["up"])])
    writer = await net.join(edge, "writer")
    for number in range(50):
        await writer.publish("up", b"%d" % number, qos=1)
    there = await net.scripted(ScriptedUpstream())
    await edge.reload(settings(0, link(there, publish=["up"])))
    caller = await there.caller()
    await there.until("all", lambda: len(caller.published()) == 50)
    assert caller.published() == [b"%d" % number for number in range(50)]


async def test_the_first_and_the_last_link(net: Net) -> None:
    """A broker that had none gets one, and has none again."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.canopy(0)
    await net.join(edge, "client", "down")
    await edge.reload(settings(0, link(upstream)))
    caller = await upstream.caller()
    await upstream.until("subscribed", lambda: "down" in caller.filters)
    await edge.reload(settings(0))
    await upstream.until("gone", lambda: caller.ended)
    assert [name for name in edge.router.sessions if name.startswith("$upstream/")] == []
    await edge.reload(settings(0, link(upstream)))
    second = await upstream.caller(1)
    await upstream.until("subscribed", lambda: "down" in second.filters)


async def test_a_budget_is_kept_at_each_moment(net: Net) -> None:
    """Other roots, another budget: the upstream never has more than the larger of both allows."""

    class Counts(ScriptedUpstream):
        most = 0

        async def answer(self, caller: Caller, heard: Heard) -> None:
            await super().answer(caller, heard)
            self.most = max(self.most, len(caller.filters))

    upstream = await net.scripted(Counts())
    auto: dict[str, Any] = {"aggregate": "auto", "max_filters": 4, "roots": ["a/#", "b/#"]}
    edge = await net.edge(link(upstream, **auto))
    await net.join(edge, "client", *(f"{root}/{number}/x" for root in "abcd" for number in range(3)))
    caller = await upstream.caller()
    assert edge.links is not None
    made = edge.links.links["up"]
    await until("within a and b", lambda: made.declarer.settled and len(caller.filters) > 1)
    for budget, roots in ((4, "cd"), (4, "bc"), (3, "abd"), (4, "d"), (2, "ab")):
        upstream.most = 0
        before = len(caller.filters)
        auto.update(max_filters=budget, roots=[f"{root}/#" for root in roots])
        await edge.reload(settings(edge.ports[0], link(upstream, **auto)))
        await until(f"within {roots}", lambda: made.declarer.settled)
        assert {each[0] for each in caller.filters} == set(roots)
        assert set(caller.filters) == set(made.subscriber.filters.declared)
        assert upstream.most <= max(budget, before)
    assert len(upstream.callers) == 1


async def test_what_has_nothing_to_do_with_filters_leaves_them_alone(net: Net) -> None:
    """A fold that stays for a while is not opened by a reload of something else."""
    upstream = await net.scripted(ScriptedUpstream())
    keys: dict[str, Any] = {"aggregate": "auto", "max_filters": 4, "hold": 3600.0}
    edge = await net.edge(link(upstream, **keys))
    one = await net.join(edge, "one", *(f"a/{number}" for number in range(6)))
    caller = await upstream.caller()
    await upstream.until("folded", lambda: "a/+" in caller.filters)
    assert await one.unsubscribe(*(f"a/{number}" for number in range(1, 6)))
    await edge.reload(settings(edge.ports[0], link(upstream, **keys, queue_messages=50, publish=["up"])))
    await one.subscribe(("fence", 1))
    await upstream.until("the fence", lambda: "fence" in caller.filters)
    assert set(caller.filters) == {"a/+", "fence"}

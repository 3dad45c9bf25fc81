"""What an operator sees of the links between nodes: log, figures, `$SYS`, alarms and `canopy ctl`."""

from __future__ import annotations

import asyncio
import importlib

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt.command.ctl import app
from canopy_mqtt.observe.alarms.observer import Observer
from canopy_mqtt.observe.figures.catalogue import FIGURES, topics
from tests.cluster.nodes import Nodes
from tests.support.waiting import until

# A broker loads it when it is to listen for HTTP, and reads files for that.
importlib.import_module("canopy_mqtt.admin.server")


def figure(nodes: Nodes, name: str, metric: str) -> dict[tuple[str, ...], object]:
    """The samples of a figure of a node."""
    [found] = [each for each in FIGURES if each.metric == metric]
    return dict(found.samples(nodes.brokers[name].figures.read()))


async def test_the_figures_say_which_link_is_up_and_what_waits(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await nodes.join("b", "subscriber", ("t", 1))
    assert figure(nodes, "a", "canopy_cluster_link_up") == {("b",): 1}
    assert figure(nodes, "a", "canopy_cluster_link_waiting_bytes") == {("b",): 0}
    assert ("cluster/b/up", "1") in topics(nodes.brokers["a"].figures.read())
    nodes.darken("a", "b")
    await until(lambda: figure(nodes, "a", "canopy_cluster_link_up") == {("b",): 0}, "the link is down")
    await (await nodes.join("a", "publisher")).publish("t", b"x" * 1_000, qos=1)
    waiting = figure(nodes, "a", "canopy_cluster_link_waiting_bytes")[("b",)]
    assert isinstance(waiting, int)
    assert waiting > 1_000
    assert figure(nodes, "a", "canopy_cluster_link_dropped") == {("b",): 0}


async def test_a_broker_without_a_cluster_has_no_such_figure(nodes: Nodes) -> None:
    await nodes.start("a")
    assert figure(nodes, "a", "canopy_cluster_link_up") == {}


async def test_a_link_that_is_down_is_an_alarm_of_its_own(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    broker = nodes.brokers["a"]
    observer = Observer(broker.figures, broker.settings.alarms, {})
    await nodes.stop("b")
    await until(lambda: not nodes.link("a", "b").connected, "the link is down")
    later = broker.loop.time() + 61.0
    [found] = [each for each in observer.look({}, later) if each.kind == "link-down"]
    assert found.instance == "b"
    assert found.value >= found.bounds.raise_at == 60.0
    assert found.detail == nodes.link("a", "b").trouble != ""
    assert not [each for each in observer.look({}, later) if each.kind == "upstream-down"]


async def test_presence_does_not_cross(nodes: Nodes) -> None:
    """Their own node tells which clients are connected, also to those who ask later, and when it is linked anew."""
    await nodes.start("a", "b", presence={"topic": "here"})
    live = await nodes.join("b", "live", ("#", 1))
    await nodes.join("a", "elsewhere")
    connects = nodes.link("b", "a").connects
    nodes.link("b", "a").reset()
    await until(lambda: nodes.link("b", "a").connects == connects + 1, "linked anew")
    await nodes.linked()
    await (await nodes.join("a", "publisher")).publish("fence", b"x", qos=1, retain=True)
    await until(lambda: nodes.brokers["b"].router.retained.get("fence") is not None, "behind all that is retained at a")
    late = await nodes.join("b", "late", ("#", 1))
    for watcher, last in ((live, "here/late"), (late, "fence")):
        topics = {(await watcher.message()).topic}
        while last not in topics:
            topics.add((await watcher.message()).topic)
        topics |= {each.topic for each in await watcher.fence()}
        assert {each for each in topics if each.startswith("here/")} == {"here/live", "here/late"}


async def test_the_log_says_that_a_link_is_up_and_why_it_is_down(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="canopy"):
        await nodes.start("a", "b")
        assert "link up node='b'" in caplog.text
        await nodes.stop("b")
        await until(lambda: "link down node='b'" in caplog.text, "a line of the log")
    # A node is no upstream: the words fit both kinds of link.
    assert "the other broker ended the connection: the broker is stopping" in caplog.text


async def test_ctl_lists_the_links_and_resets_one(nodes: Nodes) -> None:
    await nodes.start("a", "b", http={"listen": ("http://127.0.0.1:0",)})

    async def ctl(*arguments: str) -> Result:
        url = nodes.brokers["a"].http[0]
        return await asyncio.to_thread(CliRunner().invoke, app, ["--url", url, *arguments])

    listed = await ctl("upstream")
    assert listed.exit_code == 0
    assert listed.stdout.splitlines()[-1].split()[:2] == ["$node/b", "connected"]
    before = nodes.link("a", "b").connects
    reset = await ctl("upstream", "$node/b", "--reset")
    assert (reset.exit_code, reset.stdout) == (0, "the link $node/b connects again\n")
    await until(lambda: nodes.link("a", "b").connects == before + 1, "it has connected again")
    await nodes.stop("b")
    await until(lambda: not nodes.link("a", "b").connected, "the link is down")
    assert (await ctl("upstream")).exit_code == 3

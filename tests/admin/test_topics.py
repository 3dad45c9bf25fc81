"""`/api/v5/topics`: the tree of retained topics, level by level."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from canopy_mqtt import Broker
from canopy_mqtt.admin.api import topics
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.topic_tree import TopicTree
from tests.admin.conftest import Serve
from tests.support.waiting import counted_turns


async def below(
    ask: aiohttp.ClientSession, broker: Broker, **query: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    async with ask.get(f"{broker.http[0]}/api/v5/topics", params=query) as answer:
        assert answer.status == 200
        found = await answer.json()
    return found["data"], found["meta"]


def retain(broker: Broker, *names: str) -> None:
    for name in names:
        broker.router.publish(Message(name.encode(), b"value", 0, True, b"", 0.0, ""), None)
    broker.after_batch()


async def test_a_level_says_what_is_there_and_how_much_is_below(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    retain(broker, "plant/1/temp", "plant/1", "plant/2/temp", "/lead", "other")
    found, meta = await below(ask, broker)
    assert [(each["level"], each["topic"], each["retained"], each["below"]) for each in found] == [
        ("", "", False, 1),
        ("other", "other", True, 0),
        ("plant", "plant", False, 2),
    ]
    assert not meta["hasnext"]
    found, _ = await below(ask, broker, prefix="plant")
    assert [(each["topic"], each["retained"], each["size"], each["below"]) for each in found] == [
        ("plant/1", True, 5, 1),
        ("plant/2", False, 0, 1),
    ]
    # The first level may be empty: "" is below no prefix, and the prefix "" is that level.
    assert [each["topic"] for each in (await below(ask, broker, prefix=""))[0]] == ["/lead"]
    assert (await below(ask, broker, prefix="plant/3"))[0] == []


async def test_each_level_is_on_one_page_whatever_goes_meanwhile(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    names = [f"t/{number:02}" for number in range(10)] + ["t/"]
    retain(broker, *names)
    seen: list[str] = []
    cursor = ""
    while True:
        found, meta = await below(ask, broker, prefix="t", limit=3, cursor=cursor)
        seen += [each["topic"] for each in found]
        if not meta["hasnext"]:
            break
        cursor = meta["cursor"]
        # The very entry that the cursor names.
        broker.router.publish(Message(seen[-1].encode(), b"", 0, True, b"", 0.0, ""), None)
    assert seen == sorted(names)


async def test_a_cursor_of_elsewhere_is_refused(serve: Serve, ask: aiohttp.ClientSession) -> None:
    broker = await serve()
    async with ask.get(f"{broker.http[0]}/api/v5/topics", params={"cursor": "!"}) as answer:
        assert answer.status == 400


async def test_a_wide_level_is_searched_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "SEARCHED", 100)
    tree = TopicTree()
    for number in range(1_000):
        tree.set(f"{number:04}", Message(b"t", b"", 0, True, b"", 0.0, ""))
    async with counted_turns() as turns:
        found = await topics.smallest(tree.below(None), "0499", 3)
    assert [node.level for node in found] == ["0500", "0501", "0502"]
    assert len(turns) >= 9

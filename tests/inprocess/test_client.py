"""Publishing and subscribing without a socket: what arrives, in which order, what is dropped, and what is refused."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.inprocess.client import QueueFullError, RefusedError, Subscription
from canopy_mqtt.inprocess.inbox import Message
from canopy_mqtt.inprocess.properties import Properties
from tests.e2e.wire import Peer

TURNS = 50
"""Rounds of the event loop after which everything that was published is where it belongs."""


def settings(**sections: Any) -> Settings:
    return Settings(listen=("mqtt://127.0.0.1:0",), **sections)


async def take(messages: Subscription, count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await anext(messages) for _ in range(count)]


async def payloads(messages: Subscription, count: int) -> list[bytes]:
    return [message.payload for message in await take(messages, count)]


class TestPublish:
    """`Broker.publish`."""

    async def test_clients_get_it(self) -> None:
        async with Broker(settings()) as broker:
            client = await Peer.join(broker.ports[0], "client", ("a/#", 2))
            properties = Properties(content_type="text/plain", user_properties={"a": "b"}, message_expiry_interval=60)
            assert await broker.publish("a/b", "text", 2, properties=properties) == 1
            found = await client.message()
            assert (found.topic, found.payload, found.qos) == ("a/b", b"text", 2)
            assert found.get(0x03) == "text/plain"
            assert found.all(0x26) == [("a", "b")]
            assert found.number(0x02) in (59, 60)
            assert await broker.publish("b", b"nobody") == 0
            client.abort()

    async def test_retained(self) -> None:
        async with Broker(settings()) as broker:
            await broker.publish("state", b"on", 1, retain=True)
            client = await Peer.join(broker.ports[0], "client", "state")
            found = await client.message()
            assert (found.payload, found.retain) == (b"on", True)
            client.abort()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("a/#",), "topic 'a/#': .*wildcard"),
            (("",), "topic '': .*empty"),
            (("a\x07",), "a topic name with a control character"),
            (("$SYS/broker/x",), "the topic is the broker's own"),
            (("a", b"x" * 8_388_609), "8388609 bytes; a message may have 8388608"),
            (("a", b"", 3), "qos is 3; 0, 1 or 2"),
            (("a", b"", 0, False, Properties(response_topic="a/+")), "'a/\\+' is not a topic name"),
            (("a", b"", 0, False, Properties(message_expiry_interval=-1)), "message_expiry_interval: 0 to 4294967295"),
            (("a/" * 129,), "levels"),
        ],
    )
    async def test_what_no_client_could_publish(self, arguments: tuple[Any, ...], text: str) -> None:
        async with Broker(settings()) as broker:
            with pytest.raises(ValueError, match=text):
                await broker.publish(*arguments)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("a", {"b": 1}), "payload is a dict; a message has bytes or text: json.dumps makes text of it"),
            (("a", 21), "payload is an int; a message has bytes or text"),
            (("a", None), "payload is None; a message has bytes or text"),
            (("a", object()), "payload is an object; a message has bytes or text"),
            ((b"a",), "topic is a bytes; a topic name is text"),
            (("a", b"", 0, False, {"content_type": "b"}), "properties is a dict; canopy.Properties, or None"),
            (("a", b"", 0, False, Properties(content_type=5)), "content_type is 5; text"),  # type: ignore[arg-type]
            (("a", b"", 0, False, Properties(correlation_data="b")), "correlation_data is 'b'; bytes"),  # type: ignore[arg-type]
            (
                ("a", b"", 0, False, Properties(user_properties={"b": 1})),  # type: ignore[dict-item]
                "user_properties has ('b', 1); a name and a value, both text",
            ),
            (
                ("a", b"", 0, False, Properties(message_expiry_interval="5")),  # type: ignore[arg-type]
                "message_expiry_interval is '5'; seconds",
            ),
        ],
    )
    async def test_what_is_of_another_type(self, arguments: tuple[Any, ...], text: str) -> None:
        """The error says what is wanted, and nothing is published: bytes(21) would be 21 bytes of 0."""
        async with Broker(settings()) as broker, broker.subscribe("a") as messages:
            with pytest.raises(TypeError, match=re.escape(text)):
                await broker.publish(*arguments)
            with pytest.raises(TypeError, match="topic_filter is a bytes; a topic filter is text"):
                broker.subscribe(b"a")  # type: ignore[arg-type]
            assert messages.waiting == 0

    async def test_all_kinds_of_bytes(self) -> None:
        async with Broker(settings()) as broker, broker.subscribe("a") as messages:
            payloads: list[str | bytes | bytearray | memoryview] = ["1", b"1", bytearray(b"1"), memoryview(b"1")]
            for payload in payloads:
                await broker.publish("a", payload)
                assert (await anext(messages)).payload == b"1"

    async def test_it_is_kept_when_it_returns(self, tmp_path: Path) -> None:
        """With a store: what was published with QoS 1 for one who is away, or is retained, survives a crash."""
        async with Broker(settings(store={"path": str(tmp_path / "store")})) as broker:
            client = await Peer.join(broker.ports[0], "away", ("t", 1), clean=False, props=[(0x11, 3600)])
            await client.disconnect()
            await broker.publish("t", b"queued", 1)
            await broker.publish("r", b"kept", retain=True)
            assert broker.router.commits is not None
            assert not broker.router.commits.pending()

    async def test_a_store_that_cannot_write(self, tmp_path: Path) -> None:
        store = {"path": str(tmp_path / "store"), "on_failure": "refuse"}
        async with Broker(settings(store=store)) as broker:
            commits = broker.router.commits
            assert commits is not None
            commits.fail()
            with pytest.raises(RefusedError):
                await broker.publish("t", b"x", 1)
            assert await broker.publish("t", b"x") == 0
            commits.recover()

    async def test_before_and_after_it_runs(self) -> None:
        broker = Broker(settings())
        with pytest.raises(RuntimeError, match="does not run"):
            await broker.publish("t")
        async with broker:
            pass
        with pytest.raises(RuntimeError, match="does not run"):
            await broker.publish("t")

    @pytest.mark.crowd
    async def test_whoever_publishes_without_an_end_lets_others_have_turns(self) -> None:
        """A client is answered meanwhile, though the program waits for nothing else."""
        async with Broker(settings()) as broker:
            client = await Peer.join(broker.ports[0], "client")
            answered = asyncio.create_task(client.fence())
            while not answered.done():
                await broker.publish("t", b"x")
            await answered
            client.abort()


class TestSubscribe:
    """`Broker.subscribe`."""

    async def test_in_order_and_whole(self) -> None:
        """From clients and from the program, of every QoS: as they were published."""
        async with Broker(settings()) as broker, broker.subscribe("a/+") as messages:
            client = await Peer.join(broker.ports[0], "client")
            await client.publish("a/b", b"0")
            await client.publish("a/b", b"1", qos=1)
            await client.publish("a/c", b"2", qos=2)
            await broker.publish("a/b", b"3", 1, properties=Properties(content_type="x", message_expiry_interval=9))
            await broker.publish("other", b"not for it")
            found = await take(messages, 4)
            assert [message.payload for message in found] == [b"0", b"1", b"2", b"3"]
            assert [message.qos for message in found] == [0, 1, 2, 1]
            assert [message.topic for message in found] == ["a/b", "a/b", "a/c", "a/b"]
            assert [message.publisher for message in found] == ["client"] * 3 + [""]
            assert found[3].properties.content_type == "x"
            assert found[3].properties.message_expiry_interval in (8, 9)
            assert found[0].properties == Properties()
            assert "a/b" in repr(found[0])
            client.abort()

    @pytest.mark.parametrize("wanted", [True, False])
    async def test_retained_ones_come_first(self, wanted: bool) -> None:
        async with Broker(settings()) as broker:
            for number in range(300):
                await broker.publish(f"r/{number}", b"%d" % number, retain=True)
            async with broker.subscribe("r/#", retained=wanted) as messages:
                await broker.publish("r/new", b"new")
                found = await take(messages, 301 if wanted else 1)
                assert sum(message.retained for message in found) == (300 if wanted else 0)
                assert {message.topic for message in found if not message.retained} == {"r/new"}

    async def test_a_burst_longer_than_the_queue(self) -> None:
        """The program is held back as a client is, while the subscription reads."""
        async with Broker(settings()) as broker, broker.subscribe("t", max_messages=100) as messages:
            reading = asyncio.create_task(payloads(messages, 5_000))
            for number in range(5_000):
                await broker.publish("t", b"%d" % number)
            assert await reading == [b"%d" % number for number in range(5_000)]
            assert messages.dropped == {}

    @pytest.mark.parametrize(
        ("options", "left", "cause"),
        [
            ({}, [b"0", b"1", b"2"], "full-messages"),
            ({"policy": "drop-oldest"}, [b"7", b"8", b"9"], "full-messages"),
            ({"policy": "latest"}, [b"9"], "replaced-by-latest"),
        ],
    )
    async def test_a_full_queue(self, options: dict[str, Any], left: list[bytes], cause: str) -> None:
        """As the policies of clients, and counted."""
        quiet = settings(queue={"hold_publishers": 0.0})
        async with Broker(quiet) as broker, broker.subscribe("t", max_messages=3, **options) as messages:
            for number in range(10):
                await broker.publish("t", b"%d" % number)
            assert messages.waiting == len(left)
            assert await payloads(messages, len(left)) == left
            assert messages.dropped == {cause: 10 - len(left)}
            assert sum(broker.router.counters.dropped) == 10 - len(left)

    async def test_the_policy_disconnect(self) -> None:
        """It ends with an error, and so does the iteration."""
        quiet = settings(queue={"hold_publishers": 0.0})
        async with Broker(quiet) as broker:
            async with broker.subscribe("t", max_messages=3, policy="disconnect") as messages:
                for _ in range(10):
                    await broker.publish("t")
                with pytest.raises(QueueFullError):
                    await take(messages, 10)
            assert not broker.program.subscriptions

    async def test_bounded_in_bytes(self) -> None:
        quiet = settings(queue={"hold_publishers": 0.0})
        async with Broker(quiet) as broker, broker.subscribe("t", max_bytes=5_000) as messages:
            for _ in range(10):
                await broker.publish("t", bytes(1_000))
            assert messages.waiting == 3
            assert messages.dropped == {"full-bytes": 7}

    async def test_shared(self) -> None:
        """Two of a group share what comes."""
        async with (
            Broker(settings()) as broker,
            broker.subscribe("$share/g/t") as one,
            broker.subscribe("$share/g/t") as other,
        ):
            for number in range(10):
                await broker.publish("t", b"%d" % number)
            assert (one.waiting, other.waiting) == (5, 5)

    async def test_the_end_of_the_block(self) -> None:
        """Nothing comes after it, and nothing is left of it."""
        async with Broker(settings()) as broker:
            sessions = len(broker.router.sessions)
            async with broker.subscribe("t") as messages:
                assert len(broker.router.sessions) == sessions + 1
                await broker.publish("t", b"1")
            assert await broker.publish("t", b"2") == 0
            assert [message.payload async for message in messages] == [b"1"]
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert len(broker.router.sessions) == sessions
            assert broker.router.counters.totals.messages == 0
            with pytest.raises(RuntimeError, match="entered once"):
                async with messages:
                    pass

    async def test_a_broker_that_stops(self) -> None:
        """Ends the iteration, after what waited."""
        async with Broker(settings()) as broker:
            messages = broker.subscribe("t")
            await messages.__aenter__()
            waiting = asyncio.create_task(anext(messages))
            await broker.publish("t", b"1")
            assert (await waiting).payload == b"1"
            waiting = asyncio.create_task(anext(messages))
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await waiting

    async def test_whoever_gives_up_waiting_loses_nothing(self) -> None:
        async with Broker(settings()) as broker, broker.subscribe("t") as messages:
            waiting = asyncio.create_task(anext(messages))
            await asyncio.sleep(0)
            await broker.publish("t", b"1")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await payloads(messages, 1) == [b"1"]

    @pytest.mark.parametrize(
        ("topic_filter", "options", "text"),
        [
            ("a/#/b", {}, "topic filter 'a/#/b'"),
            ("$share/g", {}, r"topic filter '\$share/g'"),
            ("a", {"policy": "block"}, "policy is 'block'; one of drop-newest"),
            ("a", {"max_age": -1.0}, "0 \\(unlimited\\) or more"),
        ],
    )
    async def test_what_cannot_be(self, topic_filter: str, options: dict[str, Any], text: str) -> None:
        broker = Broker(settings())
        with pytest.raises(ValueError, match=text):
            broker.subscribe(topic_filter, **options)

    async def test_it_is_no_client(self) -> None:
        """Neither among the connected ones nor in presence; and no rule keeps a message from it."""
        rules = [{"action": "publish", "filters": ["t"]}]
        made = settings(rule=rules, access={"default": "deny"}, presence={"topic": "clients"}, sys={"interval": 0})
        async with Broker(made) as broker, broker.subscribe("#") as messages:
            client = await Peer.join(broker.ports[0], "client")
            await client.publish("t", b"1", qos=1)
            found = [message.topic for message in await take(messages, 2)]
            assert found[-1] == "t"
            assert broker.figures.read().connected == 1
            assert broker.presence is not None
            client.abort()


async def test_links_ask_the_upstream_for_it() -> None:
    """What the program subscribes to is asked of upstream brokers as what clients subscribe to is."""
    async with Broker(settings()) as up:
        upstream = {"name": "up", "url": f"mqtt://127.0.0.1:{up.ports[0]}", "subscribe": ["cloud/#"]}
        async with Broker(settings(upstream=[upstream])) as edge, edge.subscribe("cloud/a") as messages:
            async with asyncio.timeout(10):
                while await up.publish("cloud/a", b"down") == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert (await take(messages, 1))[0].payload == b"down"

"""The life and the clock of a broker under test, what is asked of it, and what failed assertions say."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import aiomqtt
import pytest

from canopy_mqtt.core.codec.packets import V5, Ack, Connack, Connect, Disconnect, Publish, Will
from canopy_mqtt.hooks import AccessControl, Principal
from canopy_mqtt.testing import Message, RawClient, RunningBroker, record
from tests.testing.conftest import Paho

Join = Callable[..., Paho]
Connecting = Callable[..., RawClient]


class OnlyOpen(AccessControl):
    """One topic may be published on."""

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, qos, retain
        return topic == "open"


class TestRestart:
    def test_with_its_store(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        client = canopy_client("dev", session_expiry=3600)
        client.subscribe("a", qos=1)
        canopy_broker.publish("kept", "1", retain=True)
        port = canopy_broker.port
        canopy_broker.restart()
        assert client.expect(Disconnect).reason_code == 0x8B
        assert canopy_broker.port == port
        assert canopy_broker.retained() == [Message("kept", b"1", retain=True)]
        assert canopy_client("dev", clean_start=False, session_expiry=3600).subscribe("b").reason_codes == [0]
        assert canopy_broker.subscriptions("dev") == {"a": 1, "b": 0}

    def test_without(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        canopy_client("dev", session_expiry=3600)
        canopy_broker.publish("kept", "1", retain=True)
        canopy_broker.restart(keep_store=False)
        assert (canopy_broker.retained(), canopy_broker.sessions()) == ([], [])

    def test_a_session_expires_while_it_is_down(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        canopy_client("short", session_expiry=60)
        canopy_client("long", session_expiry=3600)
        canopy_broker.restart(down_for=100)
        assert canopy_broker.sessions() == ["long"]

    def test_an_outage(self, canopy_broker: RunningBroker, join: Join) -> None:
        """paho goes on when the broker is back."""
        client = join("dev", "a")
        canopy_broker.stop()
        client.disconnects.get(timeout=10)
        with pytest.raises(ConnectionRefusedError):
            RawClient(canopy_broker.port)
        with pytest.raises(RuntimeError, match="the broker is stopped"):
            canopy_broker.publish("a")
        assert not canopy_broker.connected("dev")
        canopy_broker.start()
        assert client.connects.get(timeout=10) == 0

    def test_abrupt(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        client = canopy_client("dev")
        canopy_broker.restart(abrupt=True)
        with pytest.raises(ConnectionResetError):
            client.receive()

    def test_nobody_waits_for_a_client_that_hears_nothing(
        self, canopy_broker: RunningBroker, canopy_client: Connecting
    ) -> None:
        canopy_client("dev")
        canopy_broker.half_open("dev")
        canopy_broker.restart()
        assert canopy_broker.clients() == []

    def test_twice(self, canopy_broker: RunningBroker) -> None:
        with pytest.raises(RuntimeError, match="runs already"):
            canopy_broker.start()

    def test_as_new(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        canopy_client("dev", session_expiry=60)
        canopy_broker.publish("a", "1", retain=True)
        canopy_broker.lose("PUBACK")
        canopy_broker.reset()
        assert (canopy_broker.sessions(), canopy_broker.retained(), canopy_broker.messages()) == ([], [], [])


class TestClock:
    def test_a_session_expires(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """[MQTT-3.1.2-23]"""
        canopy_client("dev", session_expiry=3600).close()
        canopy_broker.assert_disconnected("dev")
        canopy_broker.advance(3599)
        assert canopy_broker.sessions() == ["dev"]
        canopy_broker.advance(2)
        assert canopy_broker.sessions() == []

    def test_a_message_expires(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """[MQTT-3.3.2-5]"""
        client = canopy_client("dev", session_expiry=3600)
        client.subscribe("a", qos=1)
        client.close()
        canopy_broker.assert_disconnected("dev")
        canopy_broker.publish("a", "gone", qos=1, expiry=10)
        canopy_broker.publish("a", "there", qos=1, expiry=100)
        canopy_broker.advance(60)
        found = canopy_client("dev", clean_start=False, session_expiry=3600).expect(Publish)
        assert found.payload == b"there"
        assert 38 <= found.message_expiry <= 40

    def test_a_retained_message_expires(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.publish("a", "1", retain=True, expiry=10)
        assert canopy_broker.retained("+") == [Message("a", b"1", retain=True, expiry=10)]
        canopy_broker.advance(11)
        assert canopy_broker.retained() == []

    def test_a_delayed_will(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """[MQTT-3.1.3-9]"""
        canopy_client("dev", session_expiry=3600, will=Will("status", b"gone", delay=60))
        canopy_broker.cut("dev")
        canopy_broker.assert_disconnected("dev")
        canopy_broker.advance(58)
        canopy_broker.assert_not_published("status")
        canopy_broker.advance(2)
        canopy_broker.assert_published("status", "gone")

    def test_keep_alive(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """Who is named as silent is disconnected; whoever else is connected counts as heard."""
        dead, alive = canopy_client("dead", keep_alive=60), canopy_client("alive", keep_alive=60)
        canopy_broker.advance(10 * 86_400.0)
        assert canopy_broker.clients() == ["alive", "dead"]
        canopy_broker.advance(91, silent="dead")
        assert dead.expect(Disconnect).reason_code == 0x8D
        assert canopy_broker.clients() == ["alive"]
        canopy_broker.advance(91, silent=True)
        assert alive.expect(Disconnect).reason_code == 0x8D

    @pytest.mark.parametrize("silent", [True, "dev"])
    def test_a_packet_on_its_way_does_not_end_the_silence(
        self, canopy_broker: RunningBroker, canopy_client: Connecting, silent: bool | str
    ) -> None:
        """A packet that was sent before the jump arrives before it, and is published; the client is silent after it."""
        for number in range(20):
            client = canopy_client("dev", keep_alive=60)
            client.subscribe("a")
            client.publish("online", b"%d" % number)
            canopy_broker.advance(91, silent=silent)
            assert not canopy_broker.connected("dev")
            assert [each.text for each in canopy_broker.messages("online")] == [str(each) for each in range(number + 1)]
            assert client.expect(Disconnect).reason_code == 0x8D

    def test_a_client_that_goes_on_sending_can_be_silent(
        self, canopy_broker: RunningBroker, canopy_client: Connecting
    ) -> None:
        """Whatever its thread sends while the clock jumps comes after the time in which it was silent."""
        client = canopy_client("dev", keep_alive=60)
        over = threading.Event()

        def chatter() -> None:
            with contextlib.suppress(OSError):
                while not over.is_set():
                    client.publish("online")

        thread = threading.Thread(target=chatter)
        thread.start()
        try:
            canopy_broker.assert_published("online")
            canopy_broker.advance(91, silent="dev")
            assert not canopy_broker.connected("dev")
        finally:
            over.set()
            client.close()
            thread.join()

    def test_a_message_on_its_way_expires(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """[MQTT-3.3.2-5]"""
        client = canopy_client("dev")
        client.send(b"\x31\x0a\x00\x01a\x05\x02\x00\x00\x00\x0a1")
        canopy_broker.advance(11)
        assert [each.expiry for each in canopy_broker.messages()] == [10]
        assert canopy_broker.retained() == []

    def test_a_client_that_connects_is_not_late(self, canopy_broker: RunningBroker) -> None:
        """Its CONNECT was on its way, and limits.connect_timeout is less than the jump."""
        with RawClient(canopy_broker.port) as client:
            client.send(Connect("dev", V5, True, keep_alive=60))
            canopy_broker.advance(50)
            assert client.expect(Connack).reason_code == 0
            assert canopy_broker.connected("dev")

    def test_half_a_packet_is_not_late(
        self, canopy_broker_factory: Callable[..., RunningBroker], canopy_client: Connecting
    ) -> None:
        """Its library does not know that limits.packet_timeout has passed; that of a silent client has."""
        broker = canopy_broker_factory(listen=["mqtt://127.0.0.1:0"])
        client = canopy_client("dev", port=broker.other_ports[0], keep_alive=600)
        client.send(b"\x30\x05\x00\x01a")
        broker.advance(61)
        client.send(b"\x001")
        assert broker.assert_published("a")[0].payload == b"1"
        client.send(b"\x30\x05\x00\x01a")
        broker.advance(61, silent="dev")
        assert not broker.connected("dev")

    def test_all_that_is_due_has_happened(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """Also where more clients are silent than the broker ends in one turn."""
        for number in range(300):
            canopy_client(f"dev-{number}", keep_alive=60, will=Will("status", b"gone"))
        canopy_broker.advance(91, silent=True)
        assert canopy_broker.clients() == []
        assert len(canopy_broker.messages("status")) == 300

    def test_the_silence_of_nobody(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """A misspelt name must not pass for a client that stays."""
        canopy_client("dev", keep_alive=60)
        with pytest.raises(AssertionError, match=r"'def' is not connected; connected: \['dev'\]"):
            canopy_broker.advance(91, silent="def")

    @pytest.mark.parametrize("seconds", [-1.0, 31 * 86_400.0])
    def test_bounds(self, canopy_broker: RunningBroker, seconds: float) -> None:
        with pytest.raises(ValueError, match="the clock goes forward, by at most 2592000 s"):
            canopy_broker.advance(seconds)

    def test_while_it_is_stopped(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        canopy_client("dev", session_expiry=60)
        canopy_broker.stop()
        canopy_broker.advance(100)
        canopy_broker.start()
        assert canopy_broker.sessions() == []


class TestAssertions:
    def test_what_was_published(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        client = canopy_client("dev")
        client.publish("a/1", b"21", retain=True)
        found = canopy_broker.assert_published("a/+", lambda payload: int(payload) > 20, qos=0, retain=True)
        assert [(each.topic, each.text, each.publisher) for each in found] == [("a/1", "21", "dev")]
        canopy_broker.clear()
        assert canopy_broker.messages() == []

    def test_bursts_are_taken_apart(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """[MQTT-4.6.0-6]"""
        client = canopy_client("dev")
        client.send(*(Publish(b"a", b"%d" % number) for number in range(500)))
        found = canopy_broker.assert_published("a", count=500)
        assert [int(each.payload) for each in found] == list(range(500))

    def test_what_the_broker_refuses_is_not_published(
        self, canopy_broker_factory: Callable[..., RunningBroker], canopy_client: Connecting
    ) -> None:
        broker = canopy_broker_factory(access_control=OnlyOpen())
        client = canopy_client("dev", port=broker.port)
        for topic in ("secret", "open"):
            client.publish(topic, b"1", qos=1)
        assert [client.expect(Ack).reason_code for _ in range(2)] == [0x87, 0x10]
        assert [each.topic for each in broker.messages()] == ["open"]

    def test_each_message_is_looked_at_once(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        """However many come while somebody waits for the last."""
        client = canopy_client("dev")
        asked: list[bytes] = []

        def publish() -> None:
            for number in range(200):
                client.publish("a", b"%d" % number, qos=1)
                client.expect(Ack)

        def last(payload: bytes) -> bool:
            asked.append(payload)
            return payload == b"199"

        thread = threading.Thread(target=publish)
        thread.start()
        canopy_broker.assert_published("a", last, within=10)
        thread.join()
        assert asked == [b"%d" % number for number in range(200)]

    def test_properties(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        client = canopy_client("dev")
        client.send(b"\x30\x12\x00\x01a\x0e\x02\x00\x00\x00\x0a\x08\x00\x01r\x09\x00\x02cc")
        (found,) = canopy_broker.assert_published("a")
        assert (found.expiry, found.response_topic, found.correlation_data) == (10, "r", b"cc")

    def test_the_texts(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        canopy_client("dev")
        canopy_broker.publish("a", "1")
        canopy_broker.publish("a", "1", qos=1)
        with pytest.raises(AssertionError) as caught:
            canopy_broker.assert_published("a", "2", qos=1, within=0.01)
        assert str(caught.value).splitlines() == [
            "expected a message on 'a' with the payload '2' with QoS 1",
            "on this topic:",
            "  a: b'1' (qos=0)  <- another payload, QoS 0",
            "  a: b'1' (qos=1)  <- another payload",
            "connected: 'dev'",
            "(within 0.01 s)",
        ]

    def test_the_text_where_the_topic_is_wrong(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.publish("b", "1")
        with pytest.raises(AssertionError) as caught:
            canopy_broker.assert_published("a", retain=True, within=0.01)
        assert str(caught.value).splitlines()[:4] == [
            "expected a message on 'a' retained",
            "nothing was published on this topic.",
            "published on other topics:",
            "  b: 1 message",
        ]

    def test_too_many(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.publish("a", "1")
        canopy_broker.publish("a", "1")
        with pytest.raises(AssertionError, match="expected a message on 'a', 1 of them; there are 2"):
            canopy_broker.assert_published("a", count=1)
        with pytest.raises(ValueError, match="count is 1 or more"):
            canopy_broker.assert_published("a", count=0)

    def test_not_published(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.assert_not_published("a")
        canopy_broker.publish("a", "1")
        canopy_broker.assert_not_published("a", "2")
        with pytest.raises(AssertionError, match=r"(?s)did not expect a message on 'a'.*a: b'1'"):
            canopy_broker.assert_not_published("a")

    def test_connected(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        client = canopy_client("dev")
        canopy_broker.assert_connected("dev")
        with pytest.raises(AssertionError, match=r"'dev' is still connected; connected: \['dev'\]"):
            canopy_broker.assert_disconnected("dev", within=0.01)
        with pytest.raises(AssertionError, match=r"(?s)has no subscription 'a'.*its subscriptions: \[\]"):
            canopy_broker.assert_subscribed("dev", "a", within=0.01)
        client.disconnect()
        canopy_broker.assert_disconnected("dev")
        with pytest.raises(AssertionError, match="'dev' is not connected"):
            canopy_broker.assert_connected("dev", within=0.01)

    def test_a_condition_of_the_program(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.wait_for(lambda: True)
        with pytest.raises(AssertionError, match=r"not within 0.01 s: the pump runs"):
            canopy_broker.wait_for(lambda: False, "the pump runs", within=0.01)

    def test_a_payload_check_that_raises(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.publish("a", "x")
        with pytest.raises(ValueError, match="invalid literal"):
            canopy_broker.assert_published("a", int)

    def test_old_messages_are_forgotten(self, canopy_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(record, "MAX_MESSAGES", 10)
        for number in range(15):
            canopy_broker.publish("a", str(number))
        assert [each.text for each in canopy_broker.messages()] == [str(number) for number in range(5, 15)]
        with pytest.raises(AssertionError, match=r"forgotten: 5 older messages\."):
            canopy_broker.assert_published("b", within=0.01)

    def test_a_message_is_routed_when_publish_returns(
        self, canopy_broker: RunningBroker, canopy_client: Connecting
    ) -> None:
        client = canopy_client("dev")
        client.subscribe("a", qos=2)
        canopy_broker.publish("a", "1", qos=2)
        assert client.expect(Publish).qos == 2
        with pytest.raises(ValueError, match="QoS 3; 0, 1 or 2"):
            canopy_broker.publish("a", qos=3)
        with pytest.raises(TypeError, match=r"payload is a dict; a message has bytes or text: json\.dumps makes text"):
            canopy_broker.publish("a", {"b": 1})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expiry is -1; 0 or more"):
            canopy_broker.publish("a", expiry=-1)


IMPOSSIBLE = ["a/b+/c", "a#", "#/a", "", "a\0", "$share/g/a"]


class TestWhatCanNeverBe:
    """An assertion that could only pass, or only fail, is a mistake in the test, and is told as one."""

    @pytest.mark.parametrize("topic_filter", [*IMPOSSIBLE, "$SYS/#"])
    def test_filters(self, canopy_broker: RunningBroker, topic_filter: str) -> None:
        for ask in (
            canopy_broker.messages,
            canopy_broker.assert_not_published,
            canopy_broker.assert_published,
            lambda each: canopy_broker.refuse_publish(topic_filter=each),
        ):
            with pytest.raises(ValueError, match="topic filter"):
                ask(topic_filter)

    @pytest.mark.parametrize("topic_filter", IMPOSSIBLE)
    def test_filters_of_what_the_broker_publishes(self, canopy_broker: RunningBroker, topic_filter: str) -> None:
        for ask in (
            canopy_broker.retained,
            lambda each: canopy_broker.duplicate(topic_filter=each),
        ):
            with pytest.raises(ValueError, match="topic filter"):
                ask(topic_filter)

    @pytest.mark.parametrize("topic_filter", [*IMPOSSIBLE[:-1], "$share/g", "$share//a", "$share/g/a+"])
    def test_subscriptions(self, canopy_broker: RunningBroker, topic_filter: str) -> None:
        with pytest.raises(ValueError, match="topic filter"):
            canopy_broker.assert_subscribed("dev", topic_filter)
        with pytest.raises(ValueError, match="topic filter"):
            canopy_broker.refuse_subscribe(topic_filter=topic_filter)

    async def test_awaited(self, canopy_broker: RunningBroker) -> None:
        with pytest.raises(ValueError, match="topic filter"):
            await canopy_broker.aio.assert_not_published("a+")
        with pytest.raises(ValueError, match="topic filter"):
            await canopy_broker.aio.assert_published("a+")
        with pytest.raises(ValueError, match="topic filter"):
            await canopy_broker.aio.assert_subscribed("dev", "a+")

    def test_messages(self, canopy_broker: RunningBroker) -> None:
        broker: Any = canopy_broker
        with pytest.raises(TypeError, match="payload is int; bytes, text, or a function"):
            broker.assert_not_published("a", 21)
        with pytest.raises(ValueError, match="QoS 3"):
            broker.assert_not_published("a", qos=3)
        with pytest.raises(TypeError, match="retain is 1; True, False or None"):
            broker.assert_not_published("a", retain=1)

    def test_faults(self, canopy_broker: RunningBroker) -> None:
        broker: Any = canopy_broker
        with pytest.raises(ValueError, match="reader is 'foo'; one of 'broker', 'client'"):
            broker.freeze(reader="foo")
        for fault in (broker.cut, broker.lose, broker.delay):
            with pytest.raises(ValueError, match="sender is 'foo'; one of 'broker', 'client'"):
                fault(sender="foo")
        for options in ({"latency": -1}, {"bytes_per_second": float("nan")}):
            with pytest.raises(ValueError, match="0 or more"):
                broker.slow(**options)
        with pytest.raises(ValueError, match="seconds is -1; 0 or more"):
            broker.delay(seconds=-1)

    def test_a_shared_subscription_can_be(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        canopy_client("dev").subscribe("$share/g/a/+")
        canopy_broker.assert_subscribed("dev", "$share/g/a/+")


def test_a_client_says_who_it_is(canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
    client = canopy_client("dev")
    assert repr(client) == f"<RawClient 'dev' to 127.0.0.1:{canopy_broker.port}>"
    client.close()
    assert repr(client).endswith("(closed)>")


class TestAwaited:
    """In a coroutine, the loop in which the program under test runs must go on."""

    async def test_aiomqtt(self, canopy_broker: RunningBroker) -> None:
        async with aiomqtt.Client(canopy_broker.host, canopy_broker.port, identifier="dev") as client:
            await client.subscribe("commands/#", qos=1)
            await canopy_broker.aio.assert_subscribed("dev", "commands/#")
            await canopy_broker.aio.assert_connected("dev")
            later = asyncio.create_task(client.publish("a", "1", qos=1))
            assert (await canopy_broker.aio.assert_published("a", "1"))[0].publisher == "dev"
            await later
            await canopy_broker.aio.assert_not_published("a", "2")
            fault = canopy_broker.cut("dev")
            await fault.wait_async()
            await canopy_broker.aio.assert_disconnected("dev")
            with pytest.raises(aiomqtt.MqttError):
                await anext(client.messages)

    async def test_restart(self, canopy_broker: RunningBroker) -> None:
        canopy_broker.publish("a", "1", retain=True)
        await canopy_broker.aio.stop()
        await canopy_broker.aio.start()
        await canopy_broker.aio.restart(down_for=5)
        assert canopy_broker.retained() == [Message("a", b"1", retain=True)]

    async def test_what_does_not_come_about(self, canopy_broker: RunningBroker) -> None:
        with pytest.raises(AssertionError, match="nothing was published on this topic"):
            await canopy_broker.aio.assert_published("a", within=0.01)
        with pytest.raises(AssertionError, match=r"not within 0.01 s: it runs"):
            await canopy_broker.aio.wait_for(lambda: False, "it runs", within=0.01)
        canopy_broker.publish("a")
        with pytest.raises(AssertionError, match="did not expect"):
            await canopy_broker.aio.assert_not_published("a")


class TestFixtures:
    @pytest.fixture
    def canopy_settings(self) -> dict[str, object]:
        """Of these tests alone."""
        return {"mqtt": {"max_qos": 1}, "listen": ("mqtt://127.0.0.1:0",)}

    def test_settings(self, canopy_broker: RunningBroker, canopy_client: Connecting) -> None:
        client = canopy_client("dev")
        assert client.subscribe("a", qos=2).reason_codes == [1]
        (port,) = canopy_broker.other_ports
        canopy_client("direct", port=port)
        assert canopy_broker.clients() == ["dev", "direct"]

    def test_several_brokers(self, canopy_broker_factory: Callable[..., RunningBroker]) -> None:
        one, other = canopy_broker_factory(), canopy_broker_factory(limits={"max_connections": 5})
        one.publish("a", "1")
        other.assert_not_published("a")


def test_wrong_settings_leave_nothing_behind() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="max_packet_sise"):
        RunningBroker(limits={"max_packet_sise": 1})
    with pytest.raises(Exception, match=r"unknown\.invalid"):
        RunningBroker(listen=("mqtt://unknown.invalid:0",))
    assert threading.active_count() == before


def test_after_its_end_it_says_so() -> None:
    with RunningBroker() as broker:
        running = repr(broker)
        broker.stop()
        stopped = repr(broker)
        with pytest.raises(RuntimeError, match="the broker is stopped"):
            broker.retained()
    url = f"mqtt://127.0.0.1:{broker.port}"
    assert [running, stopped, repr(broker)] == [
        f"<RunningBroker {url} ({state})>" for state in ("running", "stopped", "closed")
    ]
    for use in (broker.messages, broker.start, broker.stop, broker.clients, broker.heal, broker.reset):
        with pytest.raises(RuntimeError, match="this broker is closed"):
            use()
    with pytest.raises(RuntimeError, match="this broker is closed"):
        broker.assert_published("a")


def test_close_ends_its_threads() -> None:
    before = threading.active_count()
    broker = RunningBroker()
    assert threading.active_count() > before
    broker.close()
    broker.close()
    assert threading.active_count() == before

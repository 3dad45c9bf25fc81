"""Plug-ins in a running broker: what they are asked, what they may change, and what happens when they fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from canopy_mqtt import Broker, Properties, Settings, StartupError
from canopy_mqtt.hooks import (
    Attempt,
    Authenticator,
    Connect,
    Hooks,
    PluginError,
    Principal,
    Published,
    Verdict,
    plugin_calls,
)
from canopy_mqtt.hooks.plugin_calls import PLACE
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.record.taps import listen
from tests.support.runs import for_each


def serving(*hooks: object, **sections: Any) -> Broker:
    sections.setdefault("sys", {"interval": 0})
    return Broker(Settings(listen=("mqtt://127.0.0.1:0",), **sections), hooks=hooks)


async def refused(broker: Broker) -> int:
    """The reason code with which the next client is refused."""
    peer = await Peer.open("127.0.0.1", broker.ports[0])
    await peer.send(wire.connect("refused", user="nobody"))
    code = (await peer.expect(wire.CONNACK)).code
    peer.abort()
    return code


class TestConnect:
    """Who comes in."""

    class Named(Hooks):
        def connect(self, client: Principal, connect: Connect) -> int | None:
            assert connect.client_id == client.client_id
            return 0x87 if client.user_name == "nobody" else None

    class Slow(Hooks):
        def __init__(self, code: int) -> None:
            self._code = code

        async def connect(self, client: Principal, connect: Connect) -> int:
            del client, connect
            await asyncio.sleep(0)
            return self._code

    class Broken(Hooks):
        def connect(self, client: Principal, connect: Connect) -> int:
            del client, connect
            raise ValueError

    class BrokenLater(Hooks):
        async def connect(self, client: Principal, connect: Connect) -> int:
            del client, connect
            await asyncio.sleep(0)
            raise ValueError

    class Never(Hooks):
        async def connect(self, client: Principal, connect: Connect) -> int:
            del client, connect
            await asyncio.Event().wait()
            return 0

    @pytest.mark.parametrize(
        ("hooks", "code"),
        [
            ((Named(),), 0x87),
            ((Slow(0), Named()), 0x87),
            ((Slow(0x9C), Named()), 0x9C),
            ((Broken(),), 0x88),
            ((BrokenLater(),), 0x88),
        ],
    )
    async def test_the_first_refusal_decides(self, hooks: tuple[Hooks, ...], code: int) -> None:
        async with serving(*hooks) as broker:
            assert await refused(broker) == code
            failed = any(isinstance(each, (self.Broken, self.BrokenLater)) for each in hooks)
            assert broker.faults.counts["hooks"] == failed

    @pytest.mark.parametrize("answer", ["no", -1, 300])
    @pytest.mark.parametrize("late", [False, True])
    async def test_what_is_no_reason_code_refuses(self, answer: Any, late: bool) -> None:
        class Sync(Hooks):
            def connect(self, client: Principal, connect: Connect) -> Any:
                del client, connect
                return answer

        async with serving(self.Slow(answer) if late else Sync()) as broker:
            assert await refused(broker) == 0x88
            assert broker.faults.counts["hooks"] == 1

    async def test_whom_nobody_refuses_comes_in(self) -> None:
        async with serving(self.Slow(0), self.Named()) as broker:
            peer = await Peer.join(broker.ports[0], "client", user="somebody")
            peer.abort()

    async def test_one_that_never_answers(self) -> None:
        """The client is refused when its time is over, and others come and go meanwhile."""
        async with serving(self.Never(), limits={"connect_timeout": 0.05}) as broker:
            peer = await Peer.open("127.0.0.1", broker.ports[0])
            await peer.send(wire.connect("client"))
            await peer.closed()
            peer.abort()

    async def test_a_broker_that_stops_waits_for_none(self) -> None:
        async with serving(self.Never()) as broker:
            peer = await Peer.open("127.0.0.1", broker.ports[0])
            await peer.send(wire.connect("client"))
            while not broker.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
        peer.abort()

    async def test_it_sees_whom_an_authenticator_has_found(self) -> None:
        """And nobody whom access control refuses."""

        class Badge(Authenticator):
            name = "badge"

            async def authenticate(self, attempt: Attempt) -> Verdict:
                return Principal("alice", groups=("staff",)) if attempt.user_name == "badge-7" else None

        seen: list[tuple[str | None, tuple[str, ...]]] = []

        class Seen(Hooks):
            def connect(self, client: Principal, connect: Connect) -> int:
                del connect
                seen.append((client.user_name, client.groups))
                return 0

        settings = Settings(listen=("mqtt://127.0.0.1:0",), mqtt={"allow_anonymous": False})
        async with Broker(settings, authenticators=[Badge()], hooks=[Seen()]) as broker:
            assert await refused(broker) >= 0x80
            peer = await Peer.join(broker.ports[0], "client", user="badge-7")
            peer.abort()
        assert seen == [("alice", ("staff",))]


class TestTopics:
    """Subscriptions and deliveries."""

    class Some(Hooks):
        def subscribe(self, client: Principal, topic_filter: str, qos: int) -> int:
            del client
            if topic_filter == "broken":
                raise ValueError
            return {"refused": 0x87, "less": min(qos, 1)}.get(topic_filter, qos)

        def deliver(self, client: Principal, topic: str) -> bool:
            if topic == "x/broken":
                raise ValueError
            return not (client.client_id == "client" and topic == "x/not")

    async def test_subscribe(self) -> None:
        async with serving(self.Some()) as broker:
            peer = await Peer.join(broker.ports[0], "client")
            assert await peer.subscribe(("refused", 2), ("less", 2), ("all", 2), ("broken", 0)) == (0x87, 1, 2, 0x87)
            assert broker.faults.counts["hooks"] == 1
            peer.abort()

    async def test_deliver(self) -> None:
        async with serving(self.Some()) as broker:
            peer = await Peer.join(broker.ports[0], "client", ("x/#", 1))
            other = await Peer.join(broker.ports[0], "other", ("x/#", 1))
            for name in ("not", "broken", "yes"):
                await other.publish(f"x/{name}", b"", qos=1)
            assert (await peer.message()).topic == "x/yes"
            assert [(await other.message()).topic for _ in range(2)] == ["x/not", "x/yes"]
            peer.abort()
            other.abort()


class TestPublish:
    """What clients publish."""

    class Change(Hooks):
        def publish(self, client: Principal, message: Published) -> int | None:
            match message.topic:
                case "refuse":
                    return 0x99
                case "broken":
                    raise ValueError
                case "system":
                    message.topic = "$SYS/x"
                case "wildcard":
                    message.topic = "a/#"
                case "higher":
                    message.qos = 2
                case "change":
                    message.topic = f"to/{client.client_id}"
                    message.payload = message.payload.upper()
                    message.qos = 0
                    message.retain = True
                    message.properties = Properties(content_type="changed")
            return None

    @pytest.mark.parametrize("qos", [0, 1, 2])
    async def test_a_change_is_what_is_routed(self, qos: int) -> None:
        async with serving(self.Change()) as broker:
            reader = await Peer.join(broker.ports[0], "reader", ("#", 2))
            peer = await Peer.join(broker.ports[0], "client")
            assert await peer.publish("change", b"text", qos=qos) == 0
            found = await reader.message()
            assert (found.topic, found.payload, found.qos) == ("to/client", b"TEXT", 0)
            assert found.get(0x03) == "changed"
            assert broker.router.retained.get("to/client") is not None
            await peer.publish("same", b"text", qos=qos)
            found = await reader.message()
            assert (found.topic, found.payload, found.qos) == ("same", b"text", qos)
            peer.abort()
            reader.abort()

    @pytest.mark.parametrize(
        ("topic", "code"),
        [("refuse", 0x99), ("broken", 0x83), ("system", 0x83), ("wildcard", 0x83), ("higher", 0x83)],
    )
    @pytest.mark.parametrize("qos", [1, 2])
    async def test_a_refusal(self, topic: str, code: int, qos: int) -> None:
        """Said in PUBACK or PUBREC, and the message goes nowhere; the next one is routed."""
        if topic == "higher" and qos == 2:
            code = 0
        async with serving(self.Change()) as broker:
            reader = await Peer.join(broker.ports[0], "reader", ("#", 2))
            peer = await Peer.join(broker.ports[0], "client")
            assert await peer.publish(topic, b"x", qos=qos) == code
            await peer.publish("same", b"next", qos=qos)
            found = await reader.message()
            assert found.topic == ("same" if code else "higher")
            peer.abort()
            reader.abort()

    @pytest.mark.parametrize("answer", ["no", -1, 300])
    async def test_what_is_no_reason_code_refuses(self, answer: Any) -> None:
        class Nonsense(Hooks):
            def publish(self, client: Principal, message: Published) -> Any:
                del client, message
                return answer

        async with serving(Nonsense()) as broker:
            peer = await Peer.join(broker.ports[0], "client")
            assert await peer.publish("t", b"x", qos=1) == 0x83
            peer.abort()

    async def test_wills(self) -> None:
        """Are messages of their clients."""
        seen: list[tuple[str, bool]] = []

        class Seen(Hooks):
            def publish(self, client: Principal, message: Published) -> int:
                del client
                seen.append((message.topic, message.will))
                return 0x87 if message.payload == b"refused" else 0

        async with serving(Seen()) as broker:
            reader = await Peer.join(broker.ports[0], "reader", "w/#")
            for number, payload in enumerate((b"refused", b"heard")):
                peer = await Peer.join(broker.ports[0], "client", will=wire.Will(f"w/{number}", payload))
                peer.abort()
                while len(seen) <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert (await reader.message()).payload == b"heard"
            reader.abort()
        assert seen == [("w/0", True), ("w/1", True)]


class TestTold:
    """What happens, in order."""

    async def test_a_client_s_life(self) -> None:
        told: list[tuple[Any, ...]] = []

        class All(Hooks):
            async def start(self, broker: Broker) -> None:
                told.append(("start", isinstance(broker, Broker)))

            def stop(self) -> None:
                told.append(("stop",))

            def connected(self, client: Principal) -> None:
                told.append(("connected", client.client_id))

            async def disconnected(self, client: Principal, cause: str) -> None:
                told.append(("disconnected", client.client_id, cause))

            def session(self, client_id: str, event: str) -> None:
                told.append(("session", client_id, event))

            def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
                told.append(("subscribed", client_id, topic_filter, qos))

            def unsubscribed(self, client_id: str, topic_filter: str) -> None:
                told.append(("unsubscribed", client_id, topic_filter))

            def retained(self, topic: str, payload: bytes) -> None:
                told.append(("retained", topic, payload))

            def drop(self, client_id: str, cause: str, count: int) -> None:
                told.append(("drop", client_id, cause, count))

        expiry = [(0x11, 60)]
        async with serving(All()) as broker:
            peer = await Peer.join(broker.ports[0], "a", ("t", 1), clean=False, props=expiry)
            await peer.unsubscribe("t")
            await peer.subscribe(("u", 1))
            await peer.publish("r", b"1", qos=1, retain=True)
            await peer.publish("r", b"", qos=1, retain=True)
            await peer.disconnect()
            await peer.closed()
            await broker.publish("u", b"x")
            again = await Peer.join(broker.ports[0], "a", clean=False, props=expiry)
            await again.disconnect(props=[(0x11, 0)])
            await again.closed()
        assert told == [
            ("start", True),
            ("connected", "a"),
            ("session", "a", "created"),
            ("subscribed", "a", "t", 1),
            ("unsubscribed", "a", "t"),
            ("subscribed", "a", "u", 1),
            ("retained", "r", b"1"),
            ("retained", "r", b""),
            ("disconnected", "a", "client-disconnect"),
            ("drop", "a", "disconnected", 1),
            ("connected", "a"),
            ("session", "a", "resumed"),
            ("session", "a", "ended"),
            ("disconnected", "a", "client-disconnect"),
            ("stop",),
        ]

    async def test_losses_also_when_a_recorder_has_given_up(self) -> None:
        told: list[tuple[str, str, int]] = []

        class Losses(Hooks):
            def drop(self, client_id: str, cause: str, count: int) -> None:
                told.append((client_id, cause, count))

        async with serving(Losses()) as broker:
            listen(broker.router)
            broker.router.record(None, ())
            peer = await Peer.join(broker.ports[0], "a", "t", clean=False, props=[(0x11, 60)])
            await peer.disconnect()
            await peer.closed()
            await broker.publish("t", b"x")
            assert told == [("a", "disconnected", 1)]

    async def test_links(self) -> None:
        states: list[tuple[str, str]] = []

        class Links(Hooks):
            def upstream(self, name: str, state: str) -> None:
                states.append((name, state))

        async with serving() as up:
            upstream = [{"name": "up", "url": f"mqtt://127.0.0.1:{up.ports[0]}", "subscribe": ["#"]}]
            async with serving(Links(), upstream=upstream):
                async with asyncio.timeout(10):
                    while ("up", "connected") not in states:  # noqa: ASYNC110
                        await asyncio.sleep(0)

    async def test_one_that_raises_harms_nobody(self) -> None:
        class Broken(Hooks):
            def connected(self, client: Principal) -> None:
                del client
                raise ValueError

            async def disconnected(self, client: Principal, cause: str) -> None:
                del client, cause
                raise ValueError

            def stop(self) -> None:
                raise ValueError

        async with serving(Broken()) as broker:
            peer = await Peer.join(broker.ports[0], "a", "t")
            await peer.publish("t", b"x")
            assert (await peer.message()).payload == b"x"
            await peer.disconnect()
            await peer.closed()
        assert broker.faults.counts["hooks"] == 3

    @pytest.mark.parametrize("seconds", [0.0, 0.01])
    async def test_a_broker_that_stops_waits_so_long_for_observers(self, seconds: float) -> None:
        entered = asyncio.Event()

        class Never(Hooks):
            async def connected(self, client: Principal) -> None:
                del client
                entered.set()
                await asyncio.Event().wait()

        async with asyncio.timeout(10), serving(Never(), shutdown={"flush_timeout": seconds}) as broker:
            peer = await Peer.join(broker.ports[0], "a")
            await entered.wait()
            peer.abort()

    async def test_one_that_does_not_keep_up_is_told_less(self) -> None:
        """A bounded number of its calls waits; those beyond are counted."""
        entered = asyncio.Event()
        go_on = asyncio.Event()

        class Slow(Hooks):
            async def retained(self, topic: str, payload: bytes) -> None:
                del topic, payload
                entered.set()
                await go_on.wait()

        async with serving(Slow(), limits={"max_waiting_hooks": 5}) as broker:
            await broker.publish("r", b"0", retain=True)
            await entered.wait()
            for number in range(5 + 7):
                await broker.publish("r", b"%d" % number, retain=True)
            assert broker.hooks.calls.left_out == 7
            go_on.set()


class TestWrong:
    """Plug-ins that cannot be."""

    async def test_a_name_that_is_nearly_a_hook(self) -> None:
        class Misspelt(Hooks):
            def publsh(self) -> None:
                """Nobody calls it."""

        with pytest.raises(PluginError, match=r"Misspelt.publsh: there is no such hook; did you mean 'publish'\?"):
            serving(Misspelt())

    async def test_no_hook_at_all(self) -> None:
        with pytest.raises(PluginError, match="object defines no hook; there are start, stop, connect"):
            serving(object())

    @for_each(
        ("name", "text"),
        [
            ("no_such_module:X", "there is no module 'no_such_module'"),
            ("tests.hooks.plugins:Nothing", "has no 'Nothing'; did you mean 'Noting'"),
            ("tests.hooks.plugins:Raises", "cannot be made: ValueError: no"),
            ("tests.hooks.plugins:Exits", "cannot be made: SystemExit: 2"),
            ("tests.hooks.plugins:Untold", "does not tell its hooks: ValueError: no"),
            ("tests.hooks.plugins:NONE", "object defines no hook"),
            ("tests.hooks.needy:X", "needs nothing_of_the_kind, which is not installed"),
        ],
    )
    def test_what_the_settings_name(self, name: str, text: str) -> None:
        with pytest.raises(PluginError, match=text):
            serving(hooks=[name])

    def test_what_is_no_name(self) -> None:
        with pytest.raises(
            ValueError, match=r'hooks: found \["x"\]; allowed: a list of plug-ins, like \["my_company.mqtt:Hooks"\]'
        ):
            Settings(hooks=["x"])

    async def test_a_start_that_raises(self) -> None:
        class Broken(Hooks):
            def start(self, broker: Broker) -> None:
                del broker
                raise OSError("no database")

        broker = serving(Broken())
        with pytest.raises(StartupError, match=r"^Broken\.start: OSError: no database$"):
            await broker.start()
        assert not broker.ports

    async def test_a_stop_that_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also if it does not let itself be cancelled."""

        class Stays(Hooks):
            async def stop(self) -> None:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                await ended.wait()

        ended = asyncio.Event()
        monkeypatch.setattr(plugin_calls, "STOP_TIMEOUT", 0.01)
        broker = serving(Stays(), shutdown={"flush_timeout": 0.01})
        await broker.start()
        await broker.stop()
        assert broker.faults.counts[PLACE] == 1
        ended.set()


async def test_by_the_settings() -> None:
    """The same class, named in the settings: before those of the program."""
    async with serving(hooks=["tests.hooks.plugins:Noting"]) as broker:
        assert type(broker.hooks.calls.plugins[0]).__name__ == "Noting"
        peer = await Peer.join(broker.ports[0], "a")
        peer.abort()


async def test_without_plug_ins_nothing_is_in_the_way() -> None:
    async with serving() as broker:
        assert broker.router.counters.totals.message_hook is None
        assert broker.router.access_control is None
        assert broker.router.event_listener is None

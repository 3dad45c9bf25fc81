"""The broker that a test holds in its hand: its life, its clock, what went through it, and what is to go wrong.

Owns the way into the broker's thread (`serving` is what runs there). Every method may be called from any thread but
that one; those that wait have a twin in `aio` (`waiting`) for tests that are coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, get_args

from canopy_mqtt import Settings
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.inprocess.checks import check_topic, payload_bytes
from canopy_mqtt.security import Authenticator
from canopy_mqtt.testing import faults
from canopy_mqtt.testing.checks import (
    check_amount,
    check_choice,
    check_filter,
    check_qos,
    check_subscription,
)
from canopy_mqtt.testing.clock import PATIENCE, LoopThread
from canopy_mqtt.testing.failure_texts import Payload
from canopy_mqtt.testing.proxy import ConnectionFault, PacketFault, ProxiedConnection
from canopy_mqtt.testing.record import Message, Record
from canopy_mqtt.testing.serving import ServedBroker, check_jump
from canopy_mqtt.testing.waiting import Aio, Waiter, not_published, published
from canopy_mqtt.words import counted

Sender = Literal["broker", "client"]


class Fault:
    """A fault that was asked for: how often it happened, and its end."""

    def __init__(self, broker: RunningBroker, what: str, act: ConnectionFault | PacketFault) -> None:
        self._broker = broker
        self._what = what
        self._act = act

    @property
    def happened(self) -> int:
        """The number of connections or packets that it happened to so far."""
        return self._act.happened

    def wait(self, count: int = 1, within: float = 5.0) -> None:
        """Wait until it has happened to `count` of them. Raises AssertionError after `within` seconds."""
        __tracebackhide__ = True
        self._broker.wait_until(lambda: self._act.happened >= count, within, lambda: self._late(count, within))

    async def wait_async(self, count: int = 1, within: float = 5.0) -> None:
        """The same, awaited."""
        __tracebackhide__ = True
        await self._broker.aio.wait_until(
            lambda: self._act.happened >= count, within, lambda: self._late(count, within)
        )

    def end(self) -> None:
        """End the fault: held packets go on, and it happens to no further one."""
        self._broker.end_fault(self._act)

    def _late(self, count: int, within: float) -> str:
        return f"{self._what}: happened {counted(self._act.happened, 'time')} within {within:g} s, expected {count}"

    def __repr__(self) -> str:
        return f"<Fault {self._what}: happened {counted(self._act.happened, 'time')}>"


class RunningBroker:
    """An MQTT broker in a thread of its own, on a free port of 127.0.0.1. A context manager; `close` ends it.

    Its sessions and retained messages are in memory, and outlive a `restart`.
    """

    def __init__(
        self,
        *,
        authenticators: Sequence[Authenticator] = (),
        access_control: AccessControl | None = None,
        **sections: Any,
    ) -> None:
        """`sections`: those of the settings, `mqtt={"max_qos": 1}`; `listen` adds listeners that know no faults.

        Raises:
            SettingsError: the settings are wrong.
            StartupError: it cannot start.
        """
        sections = {"sys": {"interval": 0}, **sections}
        others = sections.get("listen", ())
        # What is no list is refused by the settings.
        sections["listen"] = ("mqtt://127.0.0.1:0", *others) if isinstance(others, (list, tuple)) else others
        settings = Settings(**sections)
        self._thread = LoopThread()
        hooks = {"authenticators": authenticators, "access_control": access_control}
        self._serving = ServedBroker(settings, hooks, self._thread.loop)
        self.aio = Aio(self)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """127.0.0.1."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """The port for clients; it stays the same over restarts."""
        return self._serving.proxy.port

    @property
    def url(self) -> str:
        """`mqtt://127.0.0.1:PORT`."""
        return f"mqtt://{self.host}:{self.port}"

    @property
    def other_ports(self) -> list[int]:
        """The ports of the listeners that the settings add; they may change with a restart."""
        return self._thread.call(lambda: self._serving.broker.ports[1:])

    def start(self) -> None:
        """Serve again after `stop`. Raises RuntimeError: it runs, or is closed."""
        self._thread.submit(self._serving.start).result(PATIENCE)

    def stop(self, *, abrupt: bool = False) -> None:
        """Stop: clients are told (5.0: 0x8B) and disconnected, or, `abrupt`, cut off. No client gets in until
        `start`."""
        self._thread.submit(self._serving.stop, abrupt).result(PATIENCE)

    def restart(self, *, keep_store: bool = True, down_for: float = 0.0, abrupt: bool = False) -> None:
        """Stop and start. `keep_store` False: without sessions and retained messages.

        `down_for`: seconds by which the clock is put forward between the two.
        """
        self._thread.submit(self._serving.restart, keep_store, down_for, abrupt).result(PATIENCE)

    def close(self) -> None:
        """End for good."""
        if self._thread.closed:
            return
        try:
            self._thread.submit(self._serving.stop, True).result(PATIENCE)
        finally:
            self._thread.close()

    def __repr__(self) -> str:
        state = "closed" if self._thread.closed else "running" if self._serving.running else "stopped"
        return f"<RunningBroker {self.url} ({state})>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float, *, silent: bool | str = False) -> None:
        """Put the broker's clock forward; when this returns, what fell due meanwhile has happened.

        What clients sent before the call arrives before the jump. Clients that are connected count as heard at its end;
        `silent`: as silent all that time, so that their keep alive is over: True: all of them, or one by its client
        identifier. What such a client sends meanwhile arrives after the jump, if it is still connected.

        Raises:
            ValueError: it would go back, or by more than 30 days.
            AssertionError: the client that is to be silent is not connected.
        """
        __tracebackhide__ = True
        check_jump(seconds)
        self._thread.submit(self._serving.advance, seconds, silent).result(PATIENCE)

    # -- what there is -------------------------------------------------------------------------------------------------

    def messages(self, topic_filter: str = "#") -> list[Message]:
        """The messages published on topics that the filter matches, in order: by clients, as wills, by `publish`.

        Raises ValueError: the filter can match no message.
        """
        check_filter(topic_filter)
        return self._thread.call(self._serving.record.messages, topic_filter)

    def clear(self) -> None:
        """Forget the messages."""
        self._thread.call(self._serving.record.clear)

    def reset(self) -> None:
        """As new: cut off all clients, heal all faults, forget messages, sessions and retained messages."""
        self.heal()
        self.restart(keep_store=False, abrupt=True)
        self.clear()

    def clients(self) -> list[str]:
        """The client identifiers of the connected clients."""
        return self._thread.call(self._serving.record.clients)

    def connected(self, client_id: str) -> bool:
        """Return whether a client is connected."""
        return self._thread.call(self._serving.connected, client_id)

    def sessions(self) -> list[str]:
        """The client identifiers that have a session, connected or not."""
        return self._thread.call(lambda: sorted(self._serving.broker.router.sessions))

    def subscriptions(self, client_id: str) -> dict[str, int]:
        """Topic filters of a client's session with their QoS. No session: none."""
        return self._thread.call(self._serving.subscriptions, client_id)

    def retained(self, topic_filter: str = "#") -> list[Message]:
        """Return the retained messages on topics that the filter matches, by topic. `retain` is True, and
        `expiry` the seconds until then.

        Raises ValueError: the filter can match no topic.
        """
        check_filter(topic_filter, system=True)
        return self._thread.call(self._serving.retained, topic_filter)

    def publish(
        self, topic: str, payload: bytes | str = b"", *, qos: int = 0, retain: bool = False, expiry: int = 0
    ) -> None:
        """Publish a message as the broker's own. `expiry`: in seconds, 0: never. When this returns, it is routed.

        Raises:
            TypeError: the payload is neither bytes nor text.
            ValueError: the topic, the QoS or the expiry is invalid.
            RuntimeError: the broker is stopped.
        """
        data = payload_bytes(payload)
        check_topic(topic)
        check_qos(qos)
        check_amount("expiry", expiry)
        self._thread.call(self._serving.publish, topic, data, qos, retain, expiry)

    def disconnect(self, client_id: str, reason_code: int = 0x98) -> None:
        """End a client's connection, with a DISCONNECT in 5.0. Raises AssertionError: it is not connected."""
        __tracebackhide__ = True
        if reason_code and not 0x80 <= reason_code <= 0xA2:
            raise ValueError(f"{reason_code:#04x} is no reason code of a server's DISCONNECT")
        if not self._thread.call(self._serving.disconnect, client_id, reason_code):
            raise AssertionError(f"{client_id!r} is not connected; connected: {self.clients()}")

    # -- assertions: each raises AssertionError and says what there was instead ----------------------------------------

    def assert_published(
        self,
        topic_filter: str,
        payload: Payload | None = None,
        *,
        qos: int | None = None,
        retain: bool | None = None,
        count: int | None = None,
        within: float = 5.0,
    ) -> list[Message]:
        """Wait until a message was published, or exactly `count`, and return those that match.

        What was published before counts. `payload`: bytes, text, or a function that says whether it is right; `within`:
        seconds of real time. With `count`, more that come later are not waited for.

        Raises ValueError or TypeError: no message can be as expected.
        """
        __tracebackhide__ = True
        return published(self._serving.record, topic_filter, payload, qos, retain, count).wait(self, within)

    def assert_not_published(
        self,
        topic_filter: str,
        payload: Payload | None = None,
        *,
        qos: int | None = None,
        retain: bool | None = None,
        within: float = 0.0,
    ) -> None:
        """Check that no such message was published, nor is within `within` seconds.

        Raises ValueError or TypeError: no message can be like that.
        """
        __tracebackhide__ = True
        not_published(self._serving.record, topic_filter, payload, qos, retain).refute(self, within)

    def assert_connected(self, client_id: str, *, within: float = 5.0) -> None:
        """Wait until a client is connected."""
        __tracebackhide__ = True
        self.check_connected(client_id, True).wait(self, within)

    def assert_disconnected(self, client_id: str, *, within: float = 5.0) -> None:
        """Wait until a client is not connected."""
        __tracebackhide__ = True
        self.check_connected(client_id, False).wait(self, within)

    def assert_subscribed(self, client_id: str, topic_filter: str, *, within: float = 5.0) -> None:
        """Wait until a client has a subscription."""
        __tracebackhide__ = True
        self.check_subscribed(client_id, topic_filter).wait(self, within)

    def wait_for(self, condition: Callable[[], object], what: str = "", *, within: float = 5.0) -> None:
        """Wait until something of the program under test holds, looked at in the thread of the test."""
        __tracebackhide__ = True
        Waiter.poll(condition, what, within)

    def wait_until(self, condition: Callable[[], object], within: float, text: Callable[[], str]) -> None:
        """Wait until something in the broker's thread holds; `text` says what did not."""
        __tracebackhide__ = True
        Waiter(condition, text).wait(self, within)

    def check_connected(self, client_id: str, wanted: bool) -> Waiter[bool]:
        """For `assert_connected` and its twin."""
        serving = self._serving
        word = "not" if wanted else "still"
        return Waiter(
            lambda: serving.connected(client_id) is wanted,
            lambda: f"{client_id!r} is {word} connected; connected: {serving.record.clients()}",
        )

    def check_subscribed(self, client_id: str, topic_filter: str) -> Waiter[bool]:
        """For `assert_subscribed` and its twin. Raises ValueError: no client can subscribe to this filter."""
        check_subscription(topic_filter)
        return Waiter(
            lambda: topic_filter in self._serving.subscriptions(client_id),
            lambda: f"{client_id!r} has no subscription {topic_filter!r}\n{self._serving.state_of(client_id)}",
        )

    # -- faults of a connection: of `client_id`, now or when it connects; None: of the next connection -----------------

    def freeze(self, client_id: str | None = None, *, reader: Sender = "client") -> Fault:
        """Freeze a reader: the client takes nothing from the broker, or the broker nothing from the client."""
        check_choice("reader", reader, get_args(Sender))

        def start(link: ProxiedConnection) -> None:
            (link.down if reader == "client" else link.up).freeze()

        return self._begin(
            f"freeze the reading of {_whom(client_id)}", ConnectionFault(client_id, start, ProxiedConnection.heal)
        )

    def half_open(self, client_id: str | None = None) -> Fault:
        """Let the peer vanish: nothing passes, and neither side hears of the other's end."""
        return self._begin(
            f"half-open {_whom(client_id)}",
            ConnectionFault(client_id, ProxiedConnection.freeze, ProxiedConnection.heal),
        )

    def cut(
        self, client_id: str | None = None, *, after_bytes: int = 0, sender: Sender = "client", reset: bool = True
    ) -> Fault:
        """Cut the connection after `after_bytes` more bytes of `sender`. `reset` False: as if both had closed."""
        check_choice("sender", sender, get_args(Sender))
        check_amount("after_bytes", after_bytes)

        def start(link: ProxiedConnection) -> None:
            flow = link.down if sender == "broker" else link.up
            if after_bytes == 0:
                link.cut(reset)
            else:
                flow.cut_after, flow.cut_reset = after_bytes, reset

        def stop(link: ProxiedConnection) -> None:
            link.up.cut_after = link.down.cut_after = -1

        return self._begin(f"cut {_whom(client_id)}", ConnectionFault(client_id, start, stop))

    def slow(self, client_id: str | None = None, *, bytes_per_second: float = 0.0, latency: float = 0.0) -> Fault:
        """A slow link, each direction by itself: 0 bytes a second is any number; `latency` in seconds, one way."""
        check_amount("bytes_per_second", bytes_per_second)
        check_amount("latency", latency)

        def start(link: ProxiedConnection) -> None:
            for flow in (link.up, link.down):
                flow.rate, flow.latency = bytes_per_second, latency

        return self._begin(f"slow down {_whom(client_id)}", ConnectionFault(client_id, start, ProxiedConnection.heal))

    # -- faults of packets: of `client_id`, now and later; None: of any client -----------------------------------------

    def lose(
        self,
        packet: str = "PUBACK",
        client_id: str | None = None,
        *,
        nth: int = 1,
        count: int = 1,
        sender: Sender = "broker",
    ) -> Fault:
        """Lose the `nth` such packet from now on, and the `count - 1` after it."""
        check_choice("sender", sender, get_args(Sender))
        act = faults.Lost(client_id, sender == "broker", faults.losable(packet), nth, count)
        return self._begin(f"lose {packet} of {_whom(client_id)}", act)

    def delay(
        self,
        packet: str = "PUBACK",
        client_id: str | None = None,
        *,
        seconds: float | None = None,
        nth: int = 1,
        sender: Sender = "broker",
    ) -> Fault:
        """Hold the `nth` such packet, and those of its kind behind it, for so long, or until the fault's `end`."""
        check_choice("sender", sender, get_args(Sender))
        check_amount("seconds", seconds or 0.0)
        act = faults.Delayed(client_id, sender == "broker", faults.losable(packet), nth, seconds)
        return self._begin(f"delay {packet} of {_whom(client_id)}", act)

    def duplicate(self, client_id: str | None = None, *, nth: int = 1, topic_filter: str = "#") -> Fault:
        """Deliver the `nth` message of QoS 1 or 2 to a client twice, the second time with DUP.

        A 5.0 client gets it again after a new connection, which it has to make without Clean Start and with a session.
        """
        check_filter(topic_filter, system=True)
        return self._begin(f"duplicate for {_whom(client_id)}", faults.Duplicated(client_id, nth, topic_filter))

    def refuse_connect(self, reason_code: int, client_id: str | None = None, *, count: int = 1) -> Fault:
        """Refuse the next `count` CONNECTs. Codes of 5.0 or of 3.1.1; each client gets the nearest of its version."""
        return self._begin(f"refuse {_whom(client_id)}", faults.RefusedConnect(reason_code, client_id, count))

    def refuse_subscribe(
        self,
        reason_code: int = 0x87,
        client_id: str | None = None,
        *,
        topic_filter: str | None = None,
        nth: int = 1,
        count: int = 1,
    ) -> Fault:
        """Refuse all filters of a SUBSCRIBE; `topic_filter`: of one that asks for exactly this filter."""
        if topic_filter is not None:
            check_subscription(topic_filter)
        act = faults.RefusedSubscribe(reason_code, client_id, topic_filter, nth, count)
        return self._begin(f"refuse SUBSCRIBE of {_whom(client_id)}", act)

    def refuse_publish(
        self,
        reason_code: int = 0x87,
        client_id: str | None = None,
        *,
        topic_filter: str = "#",
        nth: int = 1,
        count: int = 1,
    ) -> Fault:
        """Refuse a PUBLISH by its PUBACK or PUBREC. 3.1.1 knows no such answer: the connection is closed."""
        check_filter(topic_filter)
        act = faults.RefusedPublish(reason_code, client_id, topic_filter, nth, count)
        return self._begin(f"refuse PUBLISH of {_whom(client_id)}", act)

    def heal(self) -> None:
        """End all faults: what is held back goes on."""
        self._thread.call(self._serving.heal)

    def end_fault(self, act: ConnectionFault | PacketFault) -> None:
        """`Fault.end`."""
        self._thread.call(self._serving.end, act)

    def _begin(self, what: str, act: ConnectionFault | PacketFault) -> Fault:
        self._thread.call(self._serving.begin, act)
        return Fault(self, what, act)

    # -- for `Fault` and `Aio` -----------------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """The published messages, for conditions."""
        return self._serving.record

    def begin_wait(self, waiter: Waiter[Any]) -> None:
        """Check the condition, before this returns and whenever something has happened."""
        self._thread.call(self._serving.waiters.add, waiter)

    def state_of(self, text: Callable[[], str]) -> str:
        """Return a description of the broker, made in its thread."""
        return self._thread.call(text)

    def coroutine(self, work: str, **options: Any) -> Any:
        """Start `start`, `stop` and the like in the broker's thread, for the twins."""
        return self._thread.submit(getattr(self._serving, work), **options)


def _whom(client_id: str | None) -> str:
    return "anybody" if client_id is None else repr(client_id)

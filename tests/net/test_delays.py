"""`queue.max_delay`: messages to a peer gather and leave in one write, in order, and never wait for nothing.

The clock of the windows is the test's: without `pass_time` no window ends by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt import Broker, Settings
from canopy_mqtt import core_limits as limits
from canopy_mqtt.admin.api.clients import details
from canopy_mqtt.core import causes
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.send_buffer import MAX_CONTROL_BYTES, SendBuffer
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.net.delays import ENDS, NOT_OPEN, RESOLUTION, Delays
from canopy_mqtt.net.rounds import Rounds
from canopy_mqtt.net.timers import Endpoint
from canopy_mqtt.observe.explain.explainer import Question
from tests.e2e import wire
from tests.e2e.wire import CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK, Packet
from tests.net.transports import Client, Embed, rounds

DELAY: Final = 0.02
SOME: Final = {"queue": {"max_delay": DELAY}}


def messages(count: int, start: int = 0, topic: str = "t") -> Iterator[bytes]:
    for number in range(start, start + count):
        yield wire.publish(topic, b"%d" % number)


class Clock:
    """The part of a loop that windows need. Its time passes when the test says so."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, when, callback)
        self.timers.append(timer)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> Timer:
        return self.call_at(self.now, callback)

    def fire(self) -> None:
        """Call the first timer, at its time or later."""
        first = min(self.timers, key=lambda each: each.when)
        self.now = max(self.now, first.when)
        self.timers.remove(first)
        first.callback()

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.timers and min(each.when for each in self.timers) <= until:
            self.fire()
        self.now = until


class Timer:
    """A timer of a clock."""

    def __init__(self, clock: Clock, when: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self.when = when
        self.callback = callback

    def cancel(self) -> None:
        self._clock.timers.remove(self)


class Stage:
    """A broker whose windows have a clock of the test's."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clock = Clock(broker.loop.time())
        self.delays = broker.rounds.delays = Delays(broker.router, cast(asyncio.AbstractEventLoop, self.clock))
        broker.rounds.time = self.clock.time

    def join(self, name: str, *filters: str, qos: int = 0, wish: str = "", **options: Any) -> Reader:
        reader = Reader(self, name, **options)
        if filters:
            reader.subscribe(*filters, qos=qos, wish=wish)
        reader.take()
        return reader


class Reader(Client):
    """A client that sees each write by itself."""

    def __init__(self, stage: Stage, name: str, **options: Any) -> None:
        self.stage = stage
        super().__init__(stage.broker, name, says=wire.connect(name, **options))

    def subscribe(self, *filters: str, qos: int = 0, wish: str = "") -> None:
        self.send(wire.subscribe(1, [(each, qos) for each in filters], asking(wish)))

    def send(self, *packets: bytes) -> None:
        """Each packet is a read of its own."""
        for packet in packets:
            self.connection.data_received(packet)

    def writes(self) -> list[list[Packet]]:
        """Return the packets of each write since the last call."""
        written = [packets(data) for data in self.transport.written]
        self.transport.written.clear()
        return written


def packets(data: bytes) -> list[Packet]:
    found = []
    while data:
        length, shift, at = 0, 0, 1
        while True:
            length |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 0x80:
                break
        found.append(wire.parse(data[0] >> 4, data[0] & 15, data[at : at + length], 5))
        data = data[at + length :]
    return found


def asking(wish: str) -> wire.Properties:
    return [(wire.USER_PROPERTY, ("canopy-delay", wish))] if wish else []


def kinds(writes: list[list[Packet]]) -> list[list[int]]:
    return [[packet.kind for packet in write] for write in writes]


def payloads(writes: list[list[Packet]]) -> list[list[bytes]]:
    return [[packet.payload for packet in write if packet.kind == PUBLISH] for write in writes]


@pytest.fixture
async def stage(embed: Embed) -> Callable[..., Any]:
    async def start(**sections: Any) -> Stage:
        return Stage(await embed(**sections))

    return start


# -- windows -----------------------------------------------------------------------------------------------------------


async def test_messages_of_a_window_leave_in_one_write_and_in_order(stage: Any) -> None:
    made = await stage(**SOME)
    reader, publisher = made.join("r", "#"), made.join("p")
    publisher.send(*messages(3))
    await rounds()
    assert reader.writes() == []
    made.clock.pass_time(DELAY)
    assert payloads(reader.writes()) == [[b"0", b"1", b"2"]]
    assert reader.connection.writer is None, "the end of a window needs no task"
    # The next one begins with the next message, wherever the last one ended.
    made.clock.pass_time(DELAY / 2)
    publisher.send(*messages(1, 3))
    made.clock.pass_time(DELAY / 2)
    assert reader.writes() == []
    made.clock.pass_time(DELAY / 2)
    assert payloads(reader.writes()) == [[b"3"]]
    assert made.clock.timers == []


async def test_without_a_delay_each_read_is_a_write_and_nothing_is_kept(stage: Any) -> None:
    made = await stage()
    reader, publisher = made.join("r", "#"), made.join("p")
    publisher.send(*messages(3))
    assert payloads(reader.writes()) == [[b"0"], [b"1"], [b"2"]]
    assert made.broker.router.peers.delays == 0
    assert reader.connection.delay is None


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (wire.PING, PINGRESP),
        (wire.subscribe(7, [("x", 0)]), SUBACK),
        (wire.unsubscribe(7, ["x"]), UNSUBACK),
        (wire.publish("x", qos=1, packet_id=7), PUBACK),
        (wire.publish("x", qos=2, packet_id=7), PUBREC),
        (wire.ack(PUBREL, 7), PUBCOMP),
    ],
    ids=["PINGRESP", "SUBACK", "UNSUBACK", "PUBACK", "PUBREC", "PUBCOMP"],
)
async def test_an_answer_comes_at_once_behind_what_waits(stage: Any, asked: bytes, answer: int) -> None:
    made = await stage(**SOME)
    reader, publisher = made.join("r", "t"), made.join("p")
    publisher.send(*messages(2))
    reader.send(asked)
    await rounds()
    assert kinds(reader.writes()) == [[PUBLISH, PUBLISH, answer]]
    made.clock.pass_time(DELAY)
    assert reader.writes() == []
    publisher.send(*messages(1))
    assert reader.writes() == [], "a new window"


@pytest.mark.parametrize("bound", [{"live_messages": 10}, {"live_bytes": 10 * len(next(messages(1)))}], ids=str)
async def test_half_a_full_queue_ends_a_window(stage: Any, bound: dict[str, int]) -> None:
    made = await stage(queue={"max_delay": DELAY, **bound})
    reader, publisher = made.join("r", "#"), made.join("p")
    publisher.send(*messages(4))
    await rounds()
    assert reader.writes() == []
    publisher.send(*messages(1, 4))
    await rounds()
    assert payloads(reader.writes()) == [[b"0", b"1", b"2", b"3", b"4"]]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_used_up_send_quota_ends_a_window(stage: Any, qos: int) -> None:
    made = await stage(**SOME)
    reader = made.join("r", "#", qos=qos, props=[(wire.RECEIVE_MAXIMUM, 2)])
    publisher = made.join("p")
    publisher.send(wire.publish("t", b"0", qos=qos, packet_id=1))
    await rounds()
    assert reader.writes() == []
    publisher.send(*[wire.publish("t", b"%d" % number, qos=qos, packet_id=1 + number) for number in (1, 2)])
    await rounds()
    (first,) = reader.writes()
    assert [packet.payload for packet in first] == [b"0", b"1"]
    if qos == 2:
        reader.send(*[wire.ack(PUBREC, packet.packet_id or 0) for packet in first])
        await rounds()
        assert kinds(reader.writes()) == [[PUBREL], [PUBREL]]
    # With room for one more that one is sent, and with room for two it waits.
    reader.send(wire.ack(PUBACK if qos == 1 else PUBCOMP, first[0].packet_id or 0))
    await rounds()
    assert payloads(reader.writes()) == [[b"2"]]


@pytest.mark.parametrize("sizes", [(6_000,), (3_000, 7_000)], ids=["half", "too much for another"])
async def test_a_used_up_room_in_flight_ends_a_window(stage: Any, sizes: tuple[int, ...]) -> None:
    made = await stage(queue={"max_delay": DELAY}, mqtt={"max_inflight_bytes": 10_000})
    reader, publisher = made.join("r", "#", qos=1), made.join("p")
    publisher.send(b"".join(wire.publish("t", bytes(size), qos=1, packet_id=size) for size in sizes))
    await rounds()
    assert payloads(reader.writes()) == [[bytes(sizes[0])]]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"canopy-depth": "4"}, 2),
        ({"canopy-queue": "drop-oldest", "canopy-depth": "2"}, 1),
        ({"canopy-max-age": "1"}, 1),
    ],
    ids=["depth", "drop-oldest", "max-age"],
)
async def test_a_subscriptions_own_queue_ends_a_window(stage: Any, options: dict[str, str], count: int) -> None:
    """Half of its depth waits, or what waits would soon be too old: a delay drops nothing."""
    made = await stage(**SOME)
    reader, publisher = made.join("r"), made.join("p")
    reader.send(wire.subscribe(1, [("#", 0)], [(wire.USER_PROPERTY, option) for option in options.items()]))
    reader.take()
    publisher.send(*messages(count - 1))
    assert reader.writes() == []
    publisher.send(*messages(1, count - 1))
    await rounds()
    assert payloads(reader.writes()) == [[b"%d" % number for number in range(count)]]
    publisher.send(*messages(count - 1))
    assert reader.writes() == [], "and no later one"


async def test_a_window_keeps_the_latest_of_a_topic(stage: Any) -> None:
    made = await stage(queue={"max_delay": DELAY, "policy": "latest"})
    reader, publisher = made.join("r", "#"), made.join("p")
    publisher.send(*messages(3), *messages(3, 3, "u"))
    made.clock.pass_time(DELAY)
    assert payloads(reader.writes()) == [[b"2", b"5"]]


async def test_retained_messages_do_not_wait_for_windows(stage: Any) -> None:
    made = await stage(**SOME)
    publisher = made.join("p")
    publisher.send(*[wire.publish(f"r/{number}", b"x" * 100, retain=True) for number in range(500)])
    reader = made.join("r")
    reader.subscribe("r/+", qos=1)
    await rounds(100)
    found = [packet for write in reader.writes() for packet in write]
    assert found[0].kind == SUBACK
    assert len({packet.topic for packet in found[1:]}) == 500


# -- who chooses -------------------------------------------------------------------------------------------------------


async def test_a_subscriber_chooses_and_is_told_and_takes_it_back(stage: Any) -> None:
    made = await stage()
    reader, other, publisher = made.join("r"), made.join("other", "#"), made.join("p")
    reader.subscribe("t", wish="20ms")
    ((suback,),) = reader.writes()
    assert suback.all(wire.USER_PROPERTY) == [("canopy-delay", "20ms")]
    publisher.send(*messages(2))
    await rounds()
    assert reader.writes() == []
    assert payloads(other.writes()) == [[b"0"], [b"1"]], "who did not ask does not wait"
    made.clock.pass_time(DELAY)
    assert payloads(reader.writes()) == [[b"0", b"1"]]
    # The same filter without it; and then the filter goes.
    for again in (wire.subscribe(2, [("t", 0)]), wire.unsubscribe(2, ["t"]) + wire.subscribe(3, [("t", 0)])):
        reader.subscribe("t", wish="20ms")
        publisher.send(*messages(1))
        reader.send(again)
        await rounds()
        reader.take()
        publisher.send(*messages(1))
        assert payloads(reader.writes()) == [[b"0"]]
    # Nobody asks any more when it has left.
    assert made.broker.router.peers.delays == 1
    reader.subscribe("t", wish="20ms")
    reader.connection.connection_lost(None)
    assert made.broker.router.peers.delays == 0


async def test_the_smallest_delay_that_a_client_asks_for_holds_for_its_connection(stage: Any) -> None:
    made = await stage(queue={"max_delay": 0.5})
    reader, publisher = made.join("r"), made.join("p")
    reader.subscribe("a", wish="100ms")
    reader.subscribe("b", wish="20ms")
    reader.subscribe("t")
    reader.take()
    publisher.send(*messages(1))
    made.clock.pass_time(DELAY)
    assert payloads(reader.writes()) == [[b"0"]]
    reader.send(wire.unsubscribe(2, ["b"]))
    reader.take()
    publisher.send(*messages(1))
    made.clock.pass_time(0.1 - RESOLUTION * 2)
    assert reader.writes() == []
    made.clock.pass_time(RESOLUTION * 2)
    assert payloads(reader.writes()) == [[b"0"]]
    # "0ms" is a wish as well.
    reader.subscribe("c", wish="0ms")
    reader.take()
    publisher.send(*messages(1))
    assert payloads(reader.writes()) == [[b"0"]]


@pytest.mark.parametrize("wish", ["20", "20 ms", "-1ms", "1001ms", "ms", "1e2ms", "2.5ms", "٣ms", "9" * 50 + "ms"])
async def test_what_means_nothing_is_refused(stage: Any, wish: str) -> None:
    made = await stage()
    reader = made.join("r")
    reader.subscribe("t", wish=wish)
    ((suback,),) = reader.writes()
    assert suback.codes == (0x83,)
    assert str(suback.get(wire.REASON_STRING)).endswith("is not 0ms to 1000ms")
    late = Reader(made, "late", props=asking(wish))
    await rounds()
    ((connack,),) = late.writes()
    assert (connack.kind, connack.code) == (CONNACK, 0x83)
    twice = Reader(made, "twice", props=[*asking("1ms"), *asking("1ms")])
    await rounds()
    assert twice.writes()[0][0].code == 0x83
    assert made.broker.router.peers.delays == 0


async def test_an_operator_can_keep_clients_from_choosing(stage: Any) -> None:
    made = await stage(queue={"subscriber_policies": []})
    reader, publisher = made.join("r", "t", wish="20ms", props=asking("20ms")), made.join("p")
    publisher.send(*messages(1))
    assert payloads(reader.writes()) == [[b"0"]]
    reader.subscribe("t", wish="20ms")
    assert reader.writes()[0][0].all(wire.USER_PROPERTY) == [("canopy-delay", "0ms")]


async def test_rules_and_listeners_have_their_own(stage: Any) -> None:
    """A rule comes before the listener, and that before the setting for all."""
    made = await stage(
        listener=[{"url": "mqtt://127.0.0.1:0", "max_delay": 0.1}],
        queue={"max_delay": 0.5, "rules": [{"client_id": "now*", "max_delay": 0}, {"user": "u", "max_delay": 0.02}]},
    )
    plain, quick, now = made.join("x", "#"), made.join("q", "#", user="u"), made.join("now1", "#")
    made.join("p").send(*messages(1))
    assert payloads(now.writes()) == [[b"0"]]
    made.clock.pass_time(DELAY)
    assert (payloads(quick.writes()), plain.writes()) == ([[b"0"]], [])
    made.clock.pass_time(0.1 - DELAY)
    assert payloads(plain.writes()) == [[b"0"]]


async def test_a_reload_holds_for_clients_that_are_there(stage: Any) -> None:
    made = await stage()
    reader, publisher = made.join("r", "#"), made.join("p")
    router = made.broker.router
    limits.change(router, Settings.model_validate(SOME))
    publisher.send(*messages(2))
    await rounds()
    assert reader.writes() == []
    made.clock.pass_time(DELAY)
    assert payloads(reader.writes()) == [[b"0", b"1"]]
    # Who waits by an earlier setting does not begin to wait anew by another.
    publisher.send(*messages(1))
    limits.change(router, Settings.model_validate({"queue": {"max_delay": 0.5}}))
    publisher.send(*messages(1, 1))
    await rounds()
    assert payloads(reader.writes()) == [[b"0", b"1"]]
    publisher.send(*messages(1, 2))
    limits.change(router, Settings())
    publisher.send(*messages(1, 3))
    await rounds()
    assert payloads(reader.writes()) == [[b"2", b"3"]]
    assert router.peers.delays == 0
    made.clock.pass_time(DELAY)
    assert reader.writes() == []


async def test_who_asks_about_a_client_is_told_its_delay(stage: Any) -> None:
    made = await stage(queue={"max_delay": 0.5})
    for name, expected in (("plain", 0.5), ("asks", 0.02)):
        made.join(name, "#", wish="20ms" if name == "asks" else "")
        assert details(made.broker, made.broker.router.sessions[name]).max_delay == expected
    told = await made.broker.explainer.answer(Question("t"), made.clock.now)
    found = {each.client_id: each for each in told.receivers}
    assert {name: each.queue.max_delay for name, each in found.items() if each.queue} == {"plain": 0.5, "asks": 0.02}
    assert found["asks"].sentence.endswith("within 20 ms, in one write with what else comes for it by then")


# -- acknowledgements --------------------------------------------------------------------------------------------------


async def test_pubacks_gather_where_the_connect_asks(stage: Any) -> None:
    made = await stage(**SOME)
    asks = Reader(made, "asks", props=asking("20ms"))
    ((connack,),) = asks.writes()
    assert connack.all(wire.USER_PROPERTY) == [("canopy-delay", "20ms")]
    plain = made.join("plain")
    for number in (1, 2, 3):
        for each in (asks, plain):
            each.send(wire.publish("t", qos=1, packet_id=number))
    assert asks.writes() == []
    assert kinds(plain.writes()) == [[PUBACK]] * 3
    made.clock.pass_time(DELAY)
    (acks,) = asks.writes()
    assert [(packet.kind, packet.packet_id) for packet in acks] == [(PUBACK, 1), (PUBACK, 2), (PUBACK, 3)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (wire.PING, PINGRESP),
        (wire.publish("x", qos=2, packet_id=7), PUBREC),
        (wire.ack(PUBREL, 7), PUBCOMP),
        (wire.subscribe(7, [("x", 0)]), SUBACK),
    ],
    ids=["PINGRESP", "PUBREC", "PUBCOMP", "SUBACK"],
)
async def test_only_pubacks_gather(stage: Any, asked: bytes, answer: int) -> None:
    """Also in the same read: the last of many that may wait is not the one to look at alone."""
    made = await stage()
    asks = made.join("asks", props=asking("20ms"))
    one, two = (wire.publish("t", qos=1, packet_id=number) for number in (1, 2))
    asks.send(one, two)
    made.clock.pass_time(DELAY)
    assert kinds(asks.writes()) == [[PUBACK, PUBACK]]
    asks.send(asked)
    assert kinds(asks.writes()) == [[answer]]
    asks.send(one, asked + two)
    await rounds()
    assert kinds(asks.writes()) == [[PUBACK, answer, PUBACK]]


async def test_pubacks_do_not_wait_until_a_publisher_has_to_stop(stage: Any) -> None:
    made = await stage(mqtt={"receive_maximum": 8})
    asks = made.join("asks", props=asking("1000ms"))
    asks.send(*[wire.publish("t", qos=1, packet_id=number) for number in (1, 2, 3)])
    assert asks.writes() == []
    asks.send(wire.publish("t", qos=1, packet_id=4))
    await rounds()
    assert kinds(asks.writes()) == [[PUBACK] * 4]


async def test_pubacks_do_not_wait_until_the_broker_stops_reading(stage: Any) -> None:
    made = await stage(mqtt={"receive_maximum": 0})
    asks = made.join("asks", props=asking("1000ms"))
    half = MAX_CONTROL_BYTES // 2 // 4
    for part in range(4):
        assert asks.writes() == []
        numbers = range(1 + part * half // 4, 1 + (part + 1) * half // 4)
        asks.send(b"".join(wire.publish("t", qos=1, packet_id=number) for number in numbers))
    assert asks.writes() == []
    asks.send(wire.publish("t", qos=1, packet_id=half + 1))
    await rounds()
    assert sum(map(len, asks.writes())) == half + 1


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_the_broker_writes_what_waits_before_its_disconnect(stage: Any) -> None:
    made = await stage(**SOME)
    reader, publisher = made.join("r", "#"), made.join("p")
    publisher.send(*messages(2))
    reader.connection.end(CLOSE, causes.ADMINISTRATIVE_ACTION, 0x98, "by an operator")
    await rounds()
    assert kinds(reader.writes()) == [[PUBLISH, PUBLISH], [wire.DISCONNECT]]
    assert made.broker.router.sessions.get("r") is None


async def test_a_window_of_a_client_that_has_gone_ends_quietly(stage: Any) -> None:
    """Also where it was the only one that had asked; what waited is counted as lost."""
    made = await stage()
    reader, publisher = made.join("r", "#", wish="20ms"), made.join("p")
    publisher.send(*messages(1))
    reader.connection.connection_lost(None)
    await rounds()
    made.clock.pass_time(DELAY)
    assert reader.writes() == []
    assert made.clock.timers == []
    assert made.broker.router.counters.dropped_in_all() == 1


@pytest.mark.parametrize("end", [wire.disconnect(), b"\xf1\x00", b""], ids=["disconnect", "error", "lost"])
async def test_a_window_ends_with_its_connection(stage: Any, end: bytes) -> None:
    """Else it would keep the connection, which nothing counts any more, in memory until its time has come."""
    made = await stage(**SOME)
    reader, publisher = made.join("r", "#"), made.join("p")
    publisher.send(*messages(1))
    if end:
        reader.send(end)
    else:
        reader.connection.connection_lost(None)
    assert reader.connection.delay.slot == NOT_OPEN


async def test_windows_that_end_together_share_the_loop_with_others(stage: Any) -> None:
    made = await stage(**SOME)
    readers = [made.join(f"r{number}", "#") for number in range(2 * ENDS)]
    made.join("p").send(*messages(1))
    await rounds(10)
    made.clock.fire()
    assert sum(bool(reader.transport.written) for reader in readers) == ENDS
    made.clock.pass_time(0.0)
    assert [payloads(reader.writes()) for reader in readers] == [[[b"0"]]] * len(readers)


async def test_a_resumed_session_has_the_delay_of_its_new_connection(stage: Any) -> None:
    made = await stage()
    keep = [(wire.SESSION_EXPIRY, 100)]
    made.join("r", "#", wish="20ms", qos=1, props=keep)
    again, publisher = made.join("r", clean=False, props=keep), made.join("p")
    publisher.send(wire.publish("t", b"0", qos=1, packet_id=1))
    await rounds()
    assert payloads(again.writes()) == [[b"0"]]
    assert made.broker.router.peers.delays == 0


# -- as any sequence has it --------------------------------------------------------------------------------------------


class Socket(Endpoint):
    """The connection of a client, which takes each write at once."""

    def __init__(self, rounds: Rounds, clock: Clock, name: str, *filters: str, delay: int = 0) -> None:
        super().__init__()
        self.rounds, self.clock = rounds, clock
        router = rounds.router
        self.send_buffer = SendBuffer(router.peers.touched, router.counters, 40, 0)
        self.send_buffer.owner = self
        self.protocol = ServerProtocol(router, self.send_buffer, Origin(name))
        self.written: list[tuple[float, bytes]] = []
        props = [*asking(f"{delay}ms" if delay else ""), (wire.RECEIVE_MAXIMUM, 5)]
        self.send(wire.connect(name, props=props))
        if filters:
            self.send(wire.subscribe(1, [(each, 2) for each in filters]))
        self.written.clear()

    def send(self, data: bytes) -> None:
        self.protocol.receive(data, self.clock.now)
        self.rounds.after_batch(self.clock.now)

    def wake(self, now: float) -> None:
        while data := self.send_buffer.take(100, now):
            self.written.append((now, data))
            self.protocol.refill(now)
        self.send_buffer.listed = False

    def write_turn(self) -> None:
        self.wake(self.clock.now)

    def failed(self, error: Exception) -> None:
        raise error


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 2), st.integers(1, 12)),
    st.tuples(st.just("pass"), st.sampled_from([0.0005, 0.002, 0.0131, 0.05, 0.3])),
    st.tuples(st.sampled_from(["acknowledge", "ping", "send", "reload"])),
)


@given(delay=st.sampled_from([1, 2, 3, 20, 100, 1000]), steps=st.lists(STEPS, max_size=40))
def test_nothing_waits_longer_than_its_window_and_nothing_is_reordered(delay: int, steps: list[Any]) -> None:
    """For any sequence of offers, time steps and acknowledgements; and what may not wait does not."""
    clock = Clock(1_000.0)
    router = Router(limits.limits(Settings()))
    loop = cast(asyncio.AbstractEventLoop, clock)
    rounds = Rounds(router, loop, lambda: None, lambda place, error: pytest.fail(f"{place}: {error}"))
    reader, publisher = Socket(rounds, clock, "r", "#", delay=delay), Socket(rounds, clock, "p")
    sent = 0
    packet_id = 0
    published: dict[bytes, float] = {}  # when; QoS 0 alone is in time whatever the client acknowledges
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    unacknowledged: list[Packet] = []
    acknowledgements: list[tuple[float, int]] = []  # when each PUBLISH of QoS 1 was sent by the reader
    seen: list[tuple[float, Packet]] = []

    def look() -> None:
        for at, data in reader.written:
            for packet in packets(data):
                seen.append((at, packet))
                if packet.kind == PUBLISH and packet.packet_id is not None:
                    unacknowledged.append(packet)
        reader.written.clear()

    for step in [*steps, ("pass", 2.0)]:
        if step[0] == "publish":
            _, qos, count = step
            for _ in range(count):
                payload = b"%d" % sent
                sent += 1
                expected[qos].append(payload)
                published[payload] = clock.now
                packet_id = packet_id % 60_000 + 1
                publisher.send(wire.publish(f"t{qos}", payload, qos=qos, packet_id=packet_id if qos else None))
                if qos == 2:
                    publisher.send(wire.ack(PUBREL, packet_id))
        elif step[0] == "pass":
            clock.pass_time(step[1])
        elif step[0] == "acknowledge":
            for packet in unacknowledged[:]:
                if packet.qos == 1:
                    reader.send(wire.ack(PUBACK, packet.packet_id or 0))
                else:
                    reader.send(wire.ack(PUBREC, packet.packet_id or 0))
                    reader.send(wire.ack(PUBCOMP, packet.packet_id or 0))
            unacknowledged.clear()
        elif step[0] == "ping":
            reader.send(wire.PING)
            look()
            assert seen[-1][0] == clock.now
            assert seen[-1][1].kind == PINGRESP
        elif step[0] == "reload":
            limits.change(router, Settings())
        else:
            packet_id = packet_id % 60_000 + 1
            acknowledgements.append((clock.now, packet_id))
            reader.send(wire.publish("$none", qos=1, packet_id=packet_id))
        look()
        # The publisher asked for nothing.
        assert all(at == clock.now for at, _ in publisher.written)
        publisher.written.clear()
    for qos in (0, 1, 2):
        came = [packet.payload for _, packet in seen if packet.kind == PUBLISH and packet.qos == qos]
        assert came == expected[qos][: len(came)]
        if qos == 0:
            assert len(came) == len(expected[0])
    late = delay / 1_000 + 1e-6
    for at, packet in seen:
        if packet.kind == PUBLISH and packet.qos == 0:
            assert at - published[packet.payload] <= late
    answers = [(at, packet.packet_id) for at, packet in seen if packet.kind == PUBACK]
    assert [number for _, number in answers] == [number for _, number in acknowledgements]
    assert all(at - asked <= late for (at, _), (asked, _) in zip(answers, acknowledgements, strict=True))
    # A peer that has room in its send quota has everything; one that has none has as much as that.
    assert len(unacknowledged) == 5 or len(seen) >= sent
    assert clock.timers == []

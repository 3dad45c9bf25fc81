"""A broker with random clients: catalogue, `$SYS`, the queues' ledger and a model of it agree after each step."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canopy_mqtt import Broker, Settings
from canopy_mqtt.observe.figures.catalogue import FIGURES
from canopy_mqtt.settings import Queue, Sys
from tests.e2e import wire
from tests.net.transports import Client, rounds
from tests.support.runs import examples

SELDOM = 86_400.0
NAMES = ("a", "b", "c")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("leave"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("subscribe"), st.sampled_from(NAMES), st.integers(0, 2)),
        st.tuples(st.just("publish"), st.sampled_from(NAMES), st.integers(0, 2)),
    ),
    max_size=30,
)


class Model:
    """What the broker should have counted."""

    def __init__(self) -> None:
        self.received = [0, 0, 0]
        self.packets = 0
        self.connects = 0
        self.bytes = 0


def figures(broker: Broker) -> dict[str, dict[tuple[str, ...], object]]:
    reading = broker.figures.read()
    return {figure.name: dict(figure.samples(reading)) for figure in FIGURES if figure.exported}


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_all_agree(steps: list[tuple[str, str, int]]) -> None:
    asyncio.run(run(steps))


async def run(steps: list[tuple[str, str, int]]) -> None:
    wanted = Settings(
        listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=SELDOM), queue=Queue(live_messages=3, report_interval=0.0)
    )
    async with Broker(wanted) as broker:
        model = Model()
        clients: dict[str, Client] = {}
        identifier = 0
        for what, name, qos in steps:
            client = clients.get(name)
            if what == "connect" and client is None:
                clients[name] = Client(broker, name)
                model.connects += 1
                model.packets += 1
            elif client is None:
                continue
            elif what == "leave":
                client.connection.connection_lost(None)
                del clients[name]
            elif what == "subscribe":
                client.connection.data_received(wire.subscribe(1, [("t/#", qos)]))
                model.packets += 1
            else:
                identifier += 1
                frame = wire.publish("t/x", b"payload", qos=qos, packet_id=identifier if qos else None)
                client.connection.data_received(frame)
                model.packets += 1
                model.received[qos] += 1
                model.bytes += len(frame)
            await rounds(3)
            found = figures(broker)
            assert found["messages_received"] == {(str(each),): count for each, count in enumerate(model.received)}
            assert found["publish_received"] == {(): model.bytes}
            assert found["packets_received"] == {(): model.packets}
            assert found["connects"] == {(): model.connects}
            assert found["clients_connected"] == {(): len(clients)}
            ledgers = [session.ledger for session in broker.router.sessions.values()]
            dropped = found["messages_dropped"].values()
            assert sum(int(str(count)) for count in dropped) >= sum(ledger.in_all() for ledger in ledgers)
            counters = broker.router.counters
            sent = found["messages_sent"]
            assert sum(int(str(count)) for count in sent.values()) == counters.messages_sent
            assert all(int(str(count)) >= 0 for count in sent.values())
            shown = broker._sys.values(broker.loop.time())
            assert shown["publish/messages/received"] == str(sum(model.received))
            assert [shown[f"publish/messages/received/qos{each}"] for each in range(3)] == [
                str(count) for count in model.received
            ]
        for client in clients.values():
            client.connection.connection_lost(None)
        await rounds(3)

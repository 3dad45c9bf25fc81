"""The plug-in's fixtures, also where the installed package does not announce them yet; and no thread or file stays."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from canopy_mqtt.testing import RunningBroker
from canopy_mqtt.testing.plugin import (
    canopy_broker,
    canopy_broker_factory,
    canopy_client,
    canopy_session_broker,
    canopy_settings,
)
from tests.support.paho_client import close_wakeup_sockets

__all__ = ["canopy_broker", "canopy_broker_factory", "canopy_client", "canopy_session_broker", "canopy_settings"]


class Paho:
    """A paho client as programs use it: a thread of its own, which reconnects at once. What it saw, in queues."""

    def __init__(self, port: int, client_id: str, *, version: int = 5, keep: bool = False, **options: Any) -> None:
        clean = {} if version == 5 else {"clean_session": not keep}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, **clean)  # type: ignore[arg-type]
        self.connects: Queue[int] = Queue()
        self.disconnects: Queue[int] = Queue()
        self.messages: Queue[paho.MQTTMessage] = Queue()
        self.client.on_connect = lambda _c, _u, _f, code, _p: self.connects.put(code.value)
        self.client.on_disconnect = lambda _c, _u, _f, code, _p: self.disconnects.put(code.value)
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.reconnect_delay_set(0.05, 0.05)  # type: ignore[arg-type]
        if version == 5 and keep:
            held = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            held.SessionExpiryInterval = 3600
            options |= {"clean_start": False, "properties": held}
        will = options.pop("will", None)
        if will is not None:
            self.client.will_set(*will)
        self.client.connect("127.0.0.1", port, **options)
        self.client.loop_start()

    def close(self) -> None:
        """Disconnect and end the thread."""
        self.client.disconnect()
        self.client.loop_stop()
        close_wakeup_sockets(self.client)


@pytest.fixture
def join(canopy_broker: RunningBroker) -> Iterator[Callable[..., Paho]]:
    """Connect paho clients to the broker; with `*filters` subscribed when they are returned."""
    clients: list[Paho] = []

    def start(client_id: str, *filters: str, qos: int = 1, **options: Any) -> Paho:
        clients.append(Paho(canopy_broker.port, client_id, **options))
        if filters:
            assert clients[-1].connects.get(timeout=10) == 0
            for topic_filter in filters:
                clients[-1].client.subscribe(topic_filter, qos)
                canopy_broker.assert_subscribed(client_id, topic_filter)
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(canopy_session_broker: RunningBroker) -> Iterator[None]:
    """Threads and open files after the test, and after its brokers, are those of before."""
    del canopy_session_broker  # it was there before
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    left = set(threading.enumerate()) - threads
    assert not {thread for thread in left if thread.name == "canopy-testing"}
    assert len(os.listdir("/proc/self/fd")) <= files

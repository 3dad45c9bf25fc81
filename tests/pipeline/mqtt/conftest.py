"""Brokers in processes of their own: Canopy, and mosquitto where it is installed."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

from canopy_pipeline import mqtt as source
from tests.support.daemon import Daemon
from tests.support.mosquitto import mosquitto as started
from tests.support.paho_client import close_wakeup_sockets

PATIENCE = 100.0
"""Seconds until a test gives up waiting: a Spark on a busy machine takes its time."""


@contextmanager
def canopy() -> Iterator[int]:
    """A Canopy broker; the port."""
    with Daemon("--log-level", "error", patience=PATIENCE) as daemon:
        yield daemon.port


@contextmanager
def mosquitto(folder: Path) -> Iterator[int]:
    """A mosquitto with its own defaults: 20 messages in flight to a client. The port."""
    with started(folder, "log_dest none", "max_queued_messages 1000000") as port:
        yield port


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def until(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait for something that another process does, for which there is no event."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)


@contextmanager
def client(port: int, name: str = "") -> Iterator[paho.Client]:
    """paho of MQTT 5.0, connected, with its thread."""
    it = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    it.max_inflight_messages_set(1000)
    it.connect("127.0.0.1", port)
    it.loop_start()
    try:
        until("CONNACK", it.is_connected)
        yield it
    finally:
        it.disconnect()
        it.loop_stop()
        close_wakeup_sockets(it)


def publish(port: int, topic: str, payloads: list[bytes], qos: int = 1, retain: bool = False) -> None:
    """Publish, and wait until all are acknowledged."""
    with client(port) as it:
        for sent in [it.publish(topic, payload, qos, retain) for payload in payloads]:
            sent.wait_for_publish(PATIENCE)
            assert sent.is_published()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], int]]:
    """Ports by name: one broker of each kind for the tests of a module, started when it is needed."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        ports: dict[str, int] = {}

        def port(name: str) -> int:
            if name not in ports:
                start = canopy() if name == "canopy" else mosquitto(tmp_path_factory.mktemp("mosquitto"))
                ports[name] = stack.enter_context(start)
            return ports[name]

        yield port


@pytest.fixture
def mqtt(spark: SparkSession) -> SparkSession:
    """The session of all tests, with the format "mqtt"."""
    spark.sparkContext.pythonExec = sys.executable
    source.register(spark)
    return spark

"""A broker, a subscriber and a publisher, for a few seconds: what `make demo` shows.

Owns: a short walk through what MQTT is for: a live message, a retained one, and a will. Everything is real: the
installed `canopy` command on a free port, and paho's client over a socket.

Refuses: to test anything. It fails when something does not arrive, and proves no more than that.
"""

from __future__ import annotations

import queue
import subprocess
import sys
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

HOST = "127.0.0.1"
PATIENCE = 10.0
"""Seconds to wait for anything before the demo has failed."""


class Person:
    """A client that says on the terminal what it does and what reaches it."""

    def __init__(self, name: str, port: int, will: tuple[str, str] | None = None) -> None:
        self.name = name
        self._connected: queue.Queue[str] = queue.Queue()
        self._subscribed: queue.Queue[int] = queue.Queue()
        self._received: queue.Queue[MQTTMessage] = queue.Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = lambda _client, _userdata, message: self._received.put(message)
        if will:
            self._client.will_set(*will, qos=1)
        self._client.connect(HOST, port, keepalive=10)
        self._client.loop_start()
        print(f"{name:>10}  connects: {self._connected.get(timeout=PATIENCE)}")

    def _on_connect(self, _client: Client, _userdata: Any, _flags: Any, reason: ReasonCode, _props: Any) -> None:
        self._connected.put(str(reason))

    def _on_subscribe(
        self, _client: Client, _userdata: Any, mid: int, _reasons: list[ReasonCode], _props: Properties | None
    ) -> None:
        self._subscribed.put(mid)

    def subscribe(self, topic_filter: str) -> None:
        self._client.subscribe(topic_filter, qos=1)
        self._subscribed.get(timeout=PATIENCE)
        print(f"{self.name:>10}  subscribes to {topic_filter}")

    def publish(self, topic: str, payload: str, retain: bool = False) -> None:
        self._client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(PATIENCE)
        print(f"{self.name:>10}  publishes {topic} = {payload}{' (retained)' if retain else ''}")

    def expect(self) -> None:
        message = self._received.get(timeout=PATIENCE)
        kind = " (retained)" if message.retain else ""
        print(f"{self.name:>10}  receives  {message.topic} = {message.payload.decode()}{kind}")

    def vanish(self) -> None:
        """Lose the connection without a DISCONNECT."""
        print(f"{self.name:>10}  vanishes without a word")
        self._client.loop_stop()
        connection = self._client.socket()
        if connection is not None:
            connection.close()

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def show(port: int) -> None:
    reader = Person("reader", port)
    reader.subscribe("house/+/temperature")
    reader.subscribe("house/status")
    sensor = Person("sensor", port, will=("house/status", "the sensor is gone"))
    sensor.publish("house/kitchen/temperature", "21.5")
    reader.expect()
    sensor.publish("house/cellar/temperature", "12.0", retain=True)
    reader.expect()
    late = Person("latecomer", port)
    late.subscribe("house/#")
    late.expect()
    sensor.vanish()
    reader.expect()
    for person in (reader, late):
        person.leave()


def main() -> int:
    command = [sys.executable, "-P", "-m", "broker", "serve", "--listen", f"mqtt://{HOST}:0", "--log-level", "warning"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = None
            for line in process.stderr:
                print(line, end="")
                if line.startswith("listening on "):
                    port = int(line.rsplit(":", 1)[1])
                if line.startswith("stop it"):
                    break
            if port is None:
                return 1
            print()
            show(port)
        except queue.Empty:
            print(f"canopy: nothing arrived within {PATIENCE:g} s", file=sys.stderr)
            return 1
        finally:
            process.terminate()
            status = process.wait(PATIENCE)
        print(f"\nthe broker stopped, exit code {status}")
        return status


if __name__ == "__main__":
    sys.exit(main())

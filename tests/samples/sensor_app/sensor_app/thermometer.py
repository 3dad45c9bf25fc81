"""A thermometer, by paho: each reading is published until the broker has acknowledged it."""

from __future__ import annotations

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion


class Thermometer:
    """Publishes to `sensors/NAME/temperature`; `sensors/NAME/state` says whether it is online."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.topic = f"sensors/{name}"
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self.client.will_set(f"{self.topic}/state", "offline", qos=1, retain=True)
        self.client.on_connect = self._connected
        self.client.reconnect_delay_set(0.05, 1)  # type: ignore[arg-type]
        self.client.connect(host, port, keepalive=30)
        self.client.loop_start()

    def _connected(self, client: mqtt.Client, *_: object) -> None:
        client.publish(f"{self.topic}/state", "online", qos=1, retain=True)

    def read(self, celsius: float) -> mqtt.MQTTMessageInfo:
        """Publish a reading."""
        return self.client.publish(f"{self.topic}/temperature", f"{celsius:.1f}", qos=1)

    def close(self) -> None:
        """End in order: nobody is told that it is offline."""
        self.client.disconnect()
        self.client.loop_stop()

"""A relay, by gmqtt (MQTT 5.0): switches by command, and ignores commands that come twice."""

from __future__ import annotations

from typing import Any

import gmqtt


class Relay:
    """Obeys `relays/NAME/set` with the payload on or off; counts how often it switched."""

    def __init__(self, name: str) -> None:
        self.topic = f"relays/{name}"
        self.on = False
        self.switched = 0
        self.client = gmqtt.Client(name, clean_session=False, session_expiry_interval=3600)
        self.client.set_config({"reconnect_retries": 100, "reconnect_delay": 0})
        self.client.on_connect = self._connected
        self.client.on_message = self._message

    async def start(self, host: str, port: int) -> None:
        """Connect."""
        await self.client.connect(host, port, version=gmqtt.constants.MQTTv50)

    async def stop(self) -> None:
        """Disconnect."""
        await self.client.disconnect()

    def _connected(self, client: Any, *_: object) -> None:
        client.subscribe(f"{self.topic}/set", qos=1)

    def _message(self, client: Any, topic: str, payload: bytes, *_: object) -> int:
        del topic
        wanted = payload == b"on"
        if wanted is not self.on:
            self.on = wanted
            self.switched += 1
            client.publish(f"{self.topic}/state", payload, qos=1)
        return 0

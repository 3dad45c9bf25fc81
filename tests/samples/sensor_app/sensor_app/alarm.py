"""An alarm, by aiomqtt: hears the readings, publishes those that are too high, and reconnects."""

from __future__ import annotations

import asyncio

import aiomqtt


async def watch(host: str, port: int, limit: float, pause: float = 0.05) -> None:
    """Run until it is cancelled."""
    while True:
        try:
            async with aiomqtt.Client(host, port, identifier="alarm", clean_session=False) as client:
                await client.subscribe("sensors/+/temperature", qos=1)
                async for message in client.messages:
                    if float(bytes(message.payload)) > limit:
                        await client.publish("alarms/" + message.topic.value.split("/")[1], message.payload, qos=1)
        except aiomqtt.MqttError:
            await asyncio.sleep(pause)

"""The alarm, which runs in the event loop of the test: what waits is awaited by way of `aio`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sensor_app.alarm import watch

from canopy_mqtt.testing import RunningBroker

READINGS = "sensors/+/temperature"


@pytest.fixture
async def alarm(canopy_broker: RunningBroker) -> AsyncIterator[None]:
    task = asyncio.create_task(watch(canopy_broker.host, canopy_broker.port, 30.0))
    await canopy_broker.aio.assert_subscribed("alarm", READINGS)
    yield
    # asyncio.wait_for of Python 3.11, by which aiomqtt waits, loses a cancellation that comes together with the answer.
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


@pytest.mark.usefixtures("alarm")
async def test_too_hot(canopy_broker: RunningBroker) -> None:
    canopy_broker.publish("sensors/cellar/temperature", "30.0")
    canopy_broker.publish("sensors/roof/temperature", "31.5")
    await canopy_broker.aio.assert_published("alarms/roof", "31.5", count=1)
    canopy_broker.assert_not_published("alarms/cellar")


@pytest.mark.usefixtures("alarm")
async def test_nothing_is_missed_while_it_reconnects(canopy_broker: RunningBroker) -> None:
    """Its session is kept: the reading waits for it, over a restart of the broker."""
    await canopy_broker.aio.stop(abrupt=True)
    await canopy_broker.aio.start()
    canopy_broker.publish("sensors/roof/temperature", "31.5", qos=1)
    await canopy_broker.aio.assert_published("alarms/roof", "31.5")


@pytest.mark.usefixtures("alarm")
async def test_a_slow_link(canopy_broker: RunningBroker) -> None:
    slow = canopy_broker.slow("alarm", latency=600)
    canopy_broker.publish("sensors/roof/temperature", "31.5")
    await canopy_broker.aio.assert_not_published("alarms/#", within=0.05)
    slow.end()
    await canopy_broker.aio.assert_published("alarms/roof", "31.5")

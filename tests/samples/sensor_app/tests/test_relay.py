"""The relay: a command that comes twice switches once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sensor_app.relay import Relay

from canopy_mqtt.testing import RunningBroker


@pytest.fixture
async def relay(canopy_broker: RunningBroker) -> AsyncIterator[Relay]:
    made = Relay("pump")
    await made.start(canopy_broker.host, canopy_broker.port)
    await canopy_broker.aio.assert_subscribed("pump", "relays/pump/set")
    yield made
    await made.stop()


async def test_a_command(canopy_broker: RunningBroker, relay: Relay) -> None:
    canopy_broker.publish("relays/pump/set", "on", qos=1)
    await canopy_broker.aio.assert_published("relays/pump/state", "on", qos=1)
    assert relay.on


async def test_a_command_that_comes_twice(canopy_broker: RunningBroker, relay: Relay) -> None:
    """gmqtt speaks 5.0: the second copy comes with a new connection."""
    twice = canopy_broker.duplicate("pump")
    canopy_broker.publish("relays/pump/set", "on", qos=1)
    await twice.wait_async()
    canopy_broker.publish("relays/pump/set", "off", qos=1)
    await canopy_broker.aio.assert_published("relays/pump/state", "off")
    assert relay.switched == 2


async def test_an_old_command_is_not_obeyed(canopy_broker: RunningBroker, relay: Relay) -> None:
    await relay.stop()
    await canopy_broker.aio.assert_disconnected("pump")
    canopy_broker.publish("relays/pump/set", "on", qos=1, expiry=60)
    canopy_broker.advance(61)
    canopy_broker.publish("relays/pump/set", "off", qos=1)
    await relay.start(canopy_broker.host, canopy_broker.port)
    canopy_broker.publish("relays/pump/set", "on", qos=1)
    await canopy_broker.aio.assert_published("relays/pump/state", "on")
    assert relay.switched == 1

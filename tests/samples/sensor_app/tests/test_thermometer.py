"""The thermometer loses no reading, whatever the link does. paho runs in threads of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sensor_app.thermometer import Thermometer

from canopy_mqtt.testing import RunningBroker


@pytest.fixture
def thermometer(canopy_broker: RunningBroker) -> Iterator[Thermometer]:
    made = Thermometer("cellar", canopy_broker.host, canopy_broker.port)
    canopy_broker.assert_published("sensors/cellar/state", "online")
    yield made
    made.close()


def test_a_reading(canopy_broker: RunningBroker, thermometer: Thermometer) -> None:
    thermometer.read(21.5)
    canopy_broker.assert_published("sensors/cellar/temperature", "21.5", qos=1)


def test_a_lost_acknowledgement(canopy_broker: RunningBroker, thermometer: Thermometer) -> None:
    lost = canopy_broker.lose("PUBACK", "cellar")
    reading = thermometer.read(21.5)
    lost.wait()
    canopy_broker.cut("cellar")
    reading.wait_for_publish(10)
    canopy_broker.assert_published("sensors/cellar/temperature", "21.5", count=2)


def test_an_outage(canopy_broker: RunningBroker, thermometer: Thermometer) -> None:
    canopy_broker.stop()
    canopy_broker.wait_for(lambda: not thermometer.client.is_connected())
    thermometer.read(22.0)
    canopy_broker.start()
    canopy_broker.assert_published("sensors/cellar/temperature", "22.0", within=10)


def test_the_network_vanishes(canopy_broker: RunningBroker, thermometer: Thermometer) -> None:
    """After one and a half keep alive times the will tells that it is gone."""
    assert thermometer.client.is_connected()
    canopy_broker.half_open("cellar")
    canopy_broker.advance(46, silent="cellar")
    canopy_broker.assert_published("sensors/cellar/state", "offline")
    assert [each.text for each in canopy_broker.retained("sensors/cellar/state")] == ["offline"]


def test_a_broker_that_is_too_busy(canopy_broker: RunningBroker) -> None:
    refused = canopy_broker.refuse_connect(0x89, "attic", count=2)
    thermometer = Thermometer("attic", canopy_broker.host, canopy_broker.port)
    refused.wait(2)
    canopy_broker.assert_connected("attic")
    thermometer.close()

"""Brokers for the client's shells: Canopy in a thread of its own, and mosquitto where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.testing import RunningBroker
from tests.support.mosquitto import mosquitto, needed


@pytest.fixture(params=["canopy", pytest.param("mosquitto", marks=needed)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerAddress]:
    """Where a broker with its usual limits listens."""
    if request.param == "canopy":
        with RunningBroker() as broker:
            yield BrokerAddress(port=broker.port)
        return
    with mosquitto(tmp_path) as port:
        yield BrokerAddress(port=port)

"""What a client sends at once reaches the broker, though the proxy's own connection to the broker opens later."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.client.machine import connect_packet
from canopy_mqtt.core.codec.packets import Connack
from canopy_mqtt.testing import RawClient, RunningBroker


def add_reader(transport: Any, *watched: Any) -> None:
    """What asyncio does in Python 3.11.2, which Debian 12 has: it reads even where `connection_made` paused reading."""
    if not transport.is_closing():
        transport._loop._add_reader(*watched)


def test_a_connect_that_is_there_before_the_connection_is_accepted(
    canopy_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.selector_events._SelectorTransport._add_reader", add_reader)

    def connect() -> RawClient:
        client = RawClient(canopy_broker.port)
        client.send(connect_packet("meter"))
        return client

    # In the thread of the proxy: it accepts the connection when the packet has come already.
    with canopy_broker._thread.call(connect) as client:
        assert client.expect(Connack).reason_code == 0

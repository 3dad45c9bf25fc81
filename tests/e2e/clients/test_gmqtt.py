"""gmqtt against the broker: both versions of the protocol, and what only 5.0 has."""

from __future__ import annotations

from tests.e2e.clients.contract import Contract
from tests.e2e.clients.gmqtt_driver import Gmqtt, Gmqtt311


class TestGmqtt(Contract):
    """MQTT 5.0 by gmqtt."""

    driver = Gmqtt


class TestGmqtt311(Contract):
    """MQTT 3.1.1 by gmqtt."""

    driver = Gmqtt311

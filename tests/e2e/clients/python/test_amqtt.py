"""amqtt's client against the broker: MQTT 3.1.1."""

from __future__ import annotations

from tests.e2e.clients.python.amqtt_driver import Amqtt
from tests.e2e.clients.python.contract import Contract, UnicodeIdentifiers


class TestAmqtt(Contract, UnicodeIdentifiers):
    """MQTT 3.1.1 by amqtt."""

    driver = Amqtt

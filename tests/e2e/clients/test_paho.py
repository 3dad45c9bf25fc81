"""paho-mqtt against the broker: both versions of the protocol, and what only 5.0 has."""

from __future__ import annotations

from tests.e2e.clients.contract import Contract, UnicodeIdentifiers
from tests.e2e.clients.paho_driver import Paho, Paho5


class TestPaho(Contract, UnicodeIdentifiers):
    """MQTT 3.1.1 by paho."""

    driver = Paho


class TestPaho5(Contract, UnicodeIdentifiers):
    """MQTT 5.0 by paho."""

    driver = Paho5

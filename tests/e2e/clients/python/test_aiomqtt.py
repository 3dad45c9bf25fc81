"""aiomqtt against the broker: both versions of the protocol."""

from __future__ import annotations

from tests.e2e.clients.python.aiomqtt_driver import Aio, Aio5
from tests.e2e.clients.python.contract import Contract, UnicodeIdentifiers


class TestAio(Contract, UnicodeIdentifiers):
    """MQTT 3.1.1 by aiomqtt."""

    driver = Aio


class TestAio5(Contract, UnicodeIdentifiers):
    """MQTT 5.0 by aiomqtt."""

    driver = Aio5


class TestAioWeb(Contract, UnicodeIdentifiers):
    """MQTT 5.0 over WebSocket by aiomqtt."""

    class AioWeb(Aio5):
        web = True

    driver = AioWeb

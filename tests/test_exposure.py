"""What looks safer than it is."""

from __future__ import annotations

import pytest

from broker.exposure import exposed
from broker.settings import Mqtt, Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "[::1]"])
def test_this_machine_alone(host: str) -> None:
    assert list(exposed(Settings(listen=(f"mqtt://{host}:1883",)))) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.168.1.5", "broker.example.org"])
def test_other_machines(host: str) -> None:
    (line,) = exposed(Settings(listen=("mqtt://127.0.0.1:1883", f"mqtt://{host}:1883")))
    assert line.startswith(f'listen "mqtt://{host}:1883": other machines may reach it')


def test_a_user_name_proves_nothing() -> None:
    (line,) = exposed(Settings(mqtt=Mqtt(allow_anonymous=False)))
    assert line.startswith("mqtt.allow_anonymous = false keeps nobody out")


def test_where_somebody_checks_who_clients_are() -> None:
    settings = Settings(listen=("mqtt://0.0.0.0:1883",), mqtt=Mqtt(allow_anonymous=False))
    assert list(exposed(settings, authenticated=True)) == []

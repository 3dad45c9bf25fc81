"""What of a URL is shown in messages."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.settings.urls import shown
from tests.support.runs import for_each


@for_each(
    ("url", "expected"),
    [
        ("https://hooks.example.org/services/T0/B0/hunter2", "https://hooks.example.org/***"),
        ("https://a.example?key=hunter2", "https://a.example/***"),
        ("https://a.example/?key=hunter2", "https://a.example/***"),
        ("http://u:hunter2@127.0.0.1:8080/x#hunter2", "http://***@127.0.0.1:8080/***"),
        ("postgresql://u:hunter2@db/canopy?password=hunter2", "postgresql://***@db/canopy?***"),
        ("postgresql://canopy@localhost/canopy", "postgresql://***@localhost/canopy"),
        ("https://0.0.0.0:8443", "https://0.0.0.0:8443"),
        ("https://example.org/", "https://example.org/"),
        ("http+unix:///run/canopy/http.sock", "http+unix:///run/canopy/http.sock"),
        ("mqtt://[::1]:1883", "mqtt://[::1]:1883"),
        ("sensors/#", "sensors/#"),
    ],
)
def test_secrets_are_hidden(url: str, expected: str) -> None:
    assert shown(url) == expected


def test_check_config_repeats_none(tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(
        '[alarms]\nwebhook = "https://hooks.example.org/services/hunter2"\n'
        '[[authenticator]]\ntype = "http"\nurl = "https://auth.example.org/mqtt/hunter2?key=hunter2"\n'
    )
    told = CliRunner().invoke(app, ["check-config", str(file)]).output
    assert "https://hooks.example.org/***" in told
    assert "https://auth.example.org/***" in told
    assert "hunter2" not in told
    file.write_text('[alarms]\nwebhook = "https://hooks.example.org/hunter2 x"\n')
    assert "hunter2" not in CliRunner().invoke(app, ["check-config", str(file)]).output

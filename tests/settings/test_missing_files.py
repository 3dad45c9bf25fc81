"""Files that settings name and that do not exist yet: `canopy serve` names all of them in one line."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.settings.loader import load_settings
from canopy_mqtt.settings.missing_files import PEM, missing_files
from tests.conftest import ROOT

FIRST = "missing: "


def test_the_secure_example_says_what_is_to_be_made_first(tmp_path: Path) -> None:
    text = (ROOT / "config/secure.toml").read_text(encoding="utf-8")
    config = tmp_path / "secure.toml"
    config.write_text(text.replace("/etc/canopy/", f"{tmp_path}/"), encoding="utf-8")
    result = CliRunner().invoke(app, ["serve", f"--config={config}"])
    assert result.exit_code == 1
    assert result.stderr == (
        f"canopy: missing: {tmp_path}/server.pem and {tmp_path}/server.key (PEM files of TLS: "
        f"docs/listeners.md shows how to make some for a test); {tmp_path}/passwd (canopy passwd --create "
        f"{tmp_path}/passwd USER)\n"
    )


def test_every_file_that_keeps_a_broker_from_starting_is_told_of_once(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    config = tmp_path / "canopy.toml"
    listener = f"""
        [[listener]]
        url = "mqtts://127.0.0.1:PORT"
        [listener.tls]
        certificate = "{there}"
        key = "{tmp_path}/key"
        client_certificates = "required"
        client_ca = "{there}/below"
    """
    config.write_text(
        f"""
        {listener.replace("PORT", "1")}
        {listener.replace("PORT", "2")}
        [[authenticator]]
        type = "scram-sha-256"
        path = "{tmp_path}/with space"
        [[authenticator]]
        type = "jwt"
        algorithms = ["HS256"]
        secret_file = "{tmp_path}/secret"
        [access]
        acl_file = "{tmp_path}/acl"
        [http]
        listen = ["https://127.0.0.1:0"]
        certificate = "{there}"
        key = "{tmp_path}/http.key"
        password_file = "{tmp_path}/http users"
        viewer_token_file = "{tmp_path}/viewer"
        operator_token_file = "{tmp_path}/operator"
        """,
        encoding="utf-8",
    )
    told = missing_files(load_settings(config, environ={}))
    assert told.split("; ") == [
        f"{FIRST}{tmp_path}/key and {there}/below and {tmp_path}/http.key ({PEM})",
        f"{tmp_path}/with space (canopy passwd --scram --create '{tmp_path}/with space' USER)",
        f'{tmp_path}/secret (the key to the tokens of the authenticator "jwt")',
        f"{tmp_path}/http users (canopy passwd --create '{tmp_path}/http users' USER)",
        f"{tmp_path}/viewer and {tmp_path}/operator (openssl rand -hex 32 makes a token)",
        f"{tmp_path}/acl (access rules as mosquitto's acl_file: docs/rules.md)",
    ]


def test_where_all_are_there_nothing_is_said() -> None:
    assert missing_files(load_settings(None, environ={})) == ""

"""The brokers: what is said where one is missing, and what is written down for one that is there."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from canopy_load.brokers import registry
from canopy_load.brokers.listeners import TLS, WEBSOCKET, Listener
from canopy_load.brokers.registry import LISTENERS, PEERS
from canopy_mqtt.settings.loader import load_settings
from tests.support.runs import for_each


def test_a_missing_broker_says_in_a_line_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setenv("NODE_PATH", "")
    for name, word in (("mosquitto", "apt-get"), ("aedes", "node"), ("nats", "apt-get"), ("flashmq", "flashmq")):
        reason = PEERS[name].missing()
        assert reason is not None
        assert word in reason
        assert "\n" not in reason


def test_aedes_is_found_where_node_path_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/node")
    monkeypatch.setattr(registry, "NODE_FOLDERS", ())
    monkeypatch.setenv("NODE_PATH", f"{tmp_path / 'nothing'}:{tmp_path}")
    assert "NODE_PATH" in (PEERS["aedes"].missing() or "")
    (tmp_path / "aedes").mkdir()
    (tmp_path / "aedes" / "package.json").write_text(json.dumps({"version": "9.8.7"}))
    assert PEERS["aedes"].missing() is None
    assert PEERS["aedes"].version().startswith("aedes 9.8.7, node ")
    command = PEERS["aedes"].command(4711, tmp_path)
    script = Path(command[1]).read_text()
    assert f"{tmp_path}/aedes/" in script
    assert "listen(4711, '127.0.0.1'" in script


@for_each("name", ["mosquitto", "nats", "flashmq"])
def test_a_configuration_names_the_port_on_this_machine_alone(name: str, tmp_path: Path) -> None:
    command = PEERS[name].command(4711, tmp_path)
    (file,) = (Path(part) for part in command if part.startswith(str(tmp_path)))
    text = file.read_text()
    assert "4711" in text
    assert "127.0.0.1" in text
    assert "0.0.0.0" not in text


def test_a_second_listener_with_tls_or_websocket(tmp_path: Path) -> None:
    secured, web = Listener(TLS, 4712, "/c.pem", "/c.key"), Listener(WEBSOCKET, 4712)
    (file,) = (Path(part) for part in PEERS["mosquitto"].command(4711, tmp_path, listener=secured) if "conf" in part)
    assert "listener 4712 127.0.0.1\ncertfile /c.pem\nkeyfile /c.key\ntls_version tlsv1.3\n" in file.read_text()
    PEERS["mosquitto"].command(4711, tmp_path, listener=web)
    assert "listener 4712 127.0.0.1\nprotocol websockets\n" in file.read_text()
    for listener, url in ((secured, "mqtts://127.0.0.1:4712"), (web, "ws://127.0.0.1:4712")):
        command = PEERS["canopy"].command(4711, tmp_path, listener=listener)
        sets = [value for flag, value in pairwise(command) if flag == "--set"]
        (table,) = load_settings(sets=sets).listener
        assert table.url == url
        assert (table.tls.min_version if table.tls else "") == ("1.3" if listener is secured else "")
    for name in ("amqtt", "aedes", "nats", "flashmq"):
        assert PEERS[name].lacks >= LISTENERS

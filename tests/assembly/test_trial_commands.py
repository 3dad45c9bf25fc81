"""The commands that a started broker prints for trying it: mosquitto's clients run them as they are printed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.assembly.trial_commands import lines_to_try
from tests.support.runs import for_each
from tests.support.waiting import PATIENCE, until

TOOLS = shutil.which("mosquitto_sub") is not None and shutil.which("mosquitto_pub") is not None
ANYWHERE = "mqtt://127.0.0.1:0"


PASSWORDS = {"type": "password-file", "path": "/nowhere"}

WORKING: dict[str, dict[str, Any]] = {
    "the defaults, on another port": {"listen": [ANYWHERE]},
    "every interface": {"listen": ["mqtt://0.0.0.0:0"]},
    "a plain listener beside others": {"listener": [{"url": "ws://127.0.0.1:0"}, {"url": ANYWHERE}]},
    "a Unix socket": {"listener": [{"url": "mqtt+unix://FOLDER/mqtt.sock", "mode": "0600"}]},
    "only 5.0": {"listen": [ANYWHERE], "mqtt": {"versions": ["5.0"]}},
    "a mount": {"listener": [{"url": ANYWHERE, "mount": "site/"}]},
}

NOTHING: dict[str, dict[str, Any]] = {
    "WebSocket alone": {"listen": ["ws://127.0.0.1:1"]},
    "TLS": {"listener": [{"url": "mqtts://127.0.0.1:1", "tls": {"certificate": "/c", "key": "/k"}}]},
    "a proxy in front": {"listener": [{"url": ANYWHERE, "proxy_protocol": "v2", "proxy_from": ["127.0.0.1/32"]}]},
    "users": {"listen": [ANYWHERE], "authenticator": [PASSWORDS]},
    "no anonymous clients": {"listen": [ANYWHERE], "mqtt": {"allow_anonymous": False}},
    "rules": {"listen": [ANYWHERE], "rule": [{"filters": ["a/#"]}]},
    "mosquitto's rules": {"listen": [ANYWHERE], "access": {"acl_file": "/acl"}},
    "identifiers that clients have to have": {"listen": [ANYWHERE], "mqtt": {"allow_empty_client_id": False}},
}


async def shell(line: str) -> asyncio.subprocess.Process:
    """What a reader does with a line."""
    return await asyncio.create_subprocess_exec(
        "bash", "-c", f"exec {line}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent"},
    )  # fmt: skip


@pytest.mark.skipif(not TOOLS, reason="the mosquitto clients are not installed")
@pytest.mark.parametrize("name", WORKING)
async def test_the_lines_work_as_they_are_printed(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # short enough for a Unix socket
        settings = Settings(**json.loads(json.dumps(WORKING[name]).replace("FOLDER", folder)))
        async with Broker(settings) as broker:
            lines = lines_to_try(settings, broker.listening)
            # It ends with the first message.
            sub = await shell(f"{lines[0]} -C 1")
            try:
                sessions = broker.router.sessions
                await until(lambda: any(each.subscriptions for each in sessions.values()), lines[0])
                async with asyncio.timeout(PATIENCE):
                    pub = await shell(lines[1])
                    assert (await pub.communicate())[0] == b""
                    assert pub.returncode == 0
                    output, _ = await sub.communicate()
                    assert output.endswith(b" hello world\n")
            finally:
                if sub.returncode is None:
                    sub.kill()
                await sub.wait()


@for_each("name", NOTHING)
def test_there_are_no_lines_that_would_not_work(name: str) -> None:
    settings = Settings(**NOTHING[name])
    assert lines_to_try(settings, [each.url for each in settings.listeners]) == []


def test_how_they_look() -> None:
    assert lines_to_try(Settings(), ["mqtt://127.0.0.1:1883"]) == [
        "mosquitto_sub -h 127.0.0.1 -t 'demo/#' -v",
        "mosquitto_pub -h 127.0.0.1 -t demo/hello -m 'hello world'",
    ]

"""config/secure.toml as it is shipped, but for paths and ports, with clients that nobody here wrote; certificates as
users; and bans of clients that come through a proxy."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from canopy_mqtt import Broker, Settings
from canopy_mqtt.security.passwords.hashes import make
from canopy_mqtt.security.passwords.password_file import edit
from canopy_mqtt.settings.loader import load_settings
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.certificates import Authority
from tests.support.paho_client import close_wakeup_sockets
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def running() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def secure(folder: Path, authority: Authority) -> Settings:
    """The settings of config/secure.toml, with certificates and users of the test, on free ports."""
    certificate, key = authority.issue("localhost", "127.0.0.1")
    users = folder / "passwd"
    for user in ("alice", "admin"):
        edit(users, user, make(b"hunter2", "pbkdf2-sha512", 10), create=True)
    text = (ROOT / "config/secure.toml").read_text(encoding="utf-8")
    for path, real in (
        ("/etc/canopy/server.pem", certificate),
        ("/etc/canopy/server.key", key),
        ("/etc/canopy/passwd", str(users)),
    ):
        assert path in text
        text = text.replace(path, real)
    text = re.sub(r"://(0\.0\.0\.0|127\.0\.0\.1):\d+", "://127.0.0.1:0", text)
    text = text.replace("[security]", "[security]\nfailure_delay = 0.0")
    file = folder / "secure.toml"
    file.write_text(text)
    return load_settings(file, environ={})


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub and mosquitto_sub are not installed")
async def test_the_secure_example_with_mosquitto_and_paho(
    tmp_path: Path, authority: Authority, running: AsyncExitStack
) -> None:
    settings = await asyncio.to_thread(secure, tmp_path, authority)
    broker = await running.enter_async_context(Broker(settings))
    port = str(broker.ports[0])

    async def publishes(*arguments: str) -> bool:
        process = await asyncio.create_subprocess_exec(
            *("mosquitto_pub", "-h", "127.0.0.1", "-p", port, "--cafile", authority.file),
            *("-V", "mqttv5", "-q", "1", "-m", "x", *arguments),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, errors = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode == 0 and errors == b""

    # paho hears what mosquitto_pub says.
    heard: list[Any] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "alice-1", protocol=paho.MQTTv5)
    client.username_pw_set("alice", "hunter2")
    client.tls_set(authority.file)
    client.on_message = lambda *each: heard.append(each[-1].topic)

    def subscribe(*_: Any) -> None:
        client.subscribe([("users/alice/#", 1), ("users/bob/#", 1)])

    client.on_connect = subscribe
    granted: list[Any] = []
    client.on_subscribe = lambda *each: granted.extend(code.value for code in each[3])
    client.connect_async("127.0.0.1", int(port))
    client.loop_start()
    try:
        await until(lambda: granted, "SUBACK")
        assert granted == [1, 0x87]
        alice = ("-u", "alice", "-P", "hunter2")
        assert await publishes(*alice, "-i", "alice-2", "-t", "users/alice/a")
        await until(lambda: heard, "the message")
        assert heard == ["users/alice/a"]
        assert not await publishes(*alice, "-i", "alice-2", "-t", "users/bob/a")
        assert not await publishes(*alice, "-i", "bob-2", "-t", "users/alice/a")
        assert not await publishes("-u", "alice", "-P", "hunter3", "-i", "alice-2", "-t", "users/alice/a")
        assert not await publishes("-t", "users/alice/a")
        assert await publishes("-u", "admin", "-P", "hunter2", "-i", "admin", "-t", "users/alice/b")
        await until(lambda: len(heard) == 2, "the second message")
    finally:
        client.disconnect()
        client.loop_stop()
        close_wakeup_sockets(client)


async def test_a_client_certificate_is_the_user(authority: Authority, running: AsyncExitStack) -> None:
    certificate, key = authority.issue("localhost", "127.0.0.1")
    tls = {
        "certificate": certificate,
        "key": key,
        "client_certificates": "optional",
        "client_ca": authority.file,
    }
    sections: Any = {
        "listener": [{"url": "mqtts://127.0.0.1:0", "tls": tls}],
        "authenticator": [{"type": "certificate", "user": "cn"}],
        "security": {"client_ids": ["{user}"]},
        "mqtt": {"allow_anonymous": False},
        "shutdown": {"flush_timeout": 0.0},
    }
    broker = await running.enter_async_context(Broker(Settings(**sections)))
    shown = authority.issue("sensor.site", common_name="sensor-7")

    async def code(context: Any, client_id: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports[0], ssl=context)
        peer = Peer(reader, writer, 5)
        await peer.send(wire.connect(client_id, keep_alive=0))
        answer = (await peer.expect(wire.CONNACK)).code
        if answer == 0:
            assert broker.router.sessions[client_id].principal.user_name == "sensor-7"
        peer.abort()
        return answer

    trusting, showing = authority.client(), authority.client(shown)
    assert await code(showing, "sensor-7") == 0
    assert await code(showing, "sensor-8") == 0x85
    assert await code(trusting, "sensor-7") == 0x87


async def test_a_ban_counts_the_client_behind_a_proxy(tmp_path: Path, running: AsyncExitStack) -> None:
    file = tmp_path / "passwd"
    await asyncio.to_thread(edit, file, "alice", make(b"hunter2", "pbkdf2-sha512", 1), create=True)
    sections: Any = {
        "listener": [{"url": "mqtt://127.0.0.1:0", "proxy_protocol": "v1", "proxy_from": ["127.0.0.1/32"]}],
        "authenticator": [{"type": "password-file", "path": str(file)}],
        "security": {"failure_delay": 0.0, "ban_after": 2},
        "shutdown": {"flush_timeout": 0.0},
    }
    broker = await running.enter_async_context(Broker(Settings(**sections)))

    async def code(client: str, password: bytes) -> int:
        peer = await Peer.open("127.0.0.1", broker.ports[0], 5)
        await peer.send(b"PROXY TCP4 %b 127.0.0.1 40000 1883\r\n" % client.encode())
        await peer.send(wire.connect("c", user="alice", password=password, keep_alive=0))
        answer = (await peer.expect(wire.CONNACK)).code
        peer.abort()
        return answer

    assert [await code("10.9.9.9", guess) for guess in (b"a", b"b", b"hunter2")] == [0x86, 0x86, 0x8A]
    assert await code("10.9.9.8", b"hunter2") == 0

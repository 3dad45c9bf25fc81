"""Clients that nobody here wrote, over TLS with and without certificates of their own, and over a Unix socket."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiomqtt
import gmqtt
import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt import Broker, Settings
from canopy_mqtt.command.cli import app
from tests.e2e.clients.javascript.test_mqttjs import NODE, SCRIPTS
from tests.e2e.clients.javascript.test_mqttjs import run as mqttjs
from tests.e2e.clients.python.drivers import within
from tests.support.certificates import Authority
from tests.support.daemon import Daemon

PUB, SUB = shutil.which("mosquitto_pub"), shutil.which("mosquitto_sub")

MOSQUITTO = pytest.mark.skipif(not PUB or not SUB, reason="mosquitto_pub and mosquitto_sub are not installed")

Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def start(authority: Authority) -> AsyncIterator[Start]:
    """Start a broker with one TLS listener; keys of [listener.tls] as keywords."""
    async with AsyncExitStack() as stack:

        async def begin(*names: str, not_after: Any = None, **keys: Any) -> Broker:
            certificate, key = authority.issue(*(names or ("localhost", "127.0.0.1")), not_after=not_after)
            tls = {"certificate": certificate, "key": key, **keys}
            settings = Settings.model_validate({"listener": [{"url": "mqtts://127.0.0.1:0", "tls": tls}]})
            return await stack.enter_async_context(Broker(settings))

        yield begin


async def mosquitto_pub(*arguments: str) -> tuple[int, str]:
    """Publish a retained message; the exit code, and what the client complained of."""
    assert PUB is not None
    process = await asyncio.create_subprocess_exec(
        *(PUB, *arguments, "-t", "t", "-m", "hello", "-r", "-q", "1"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaints = await within("mosquitto_pub", process.communicate())
    assert process.returncode is not None
    return process.returncode, complaints.decode()


async def mosquitto_sub(*arguments: str) -> str:
    """The retained message that another client has left."""
    assert SUB is not None
    process = await asyncio.create_subprocess_exec(
        *(SUB, *arguments, "-t", "t", "-C", "1", "-W", "20"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await within("mosquitto_sub", process.communicate())
    return out.decode().strip()


def reach(broker: Broker, authority: Authority, host: str = "localhost") -> list[str]:
    return ["-h", host, "-p", str(broker.ports[0]), "--cafile", authority.file]


@MOSQUITTO
class TestMosquitto:
    @pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
    async def test_tls(self, start: Start, authority: Authority, version: str) -> None:
        broker = await start()
        options = [*reach(broker, authority), "-V", version]
        assert await mosquitto_pub(*options) == (0, "")
        assert await mosquitto_sub(*options) == "hello"

    async def test_a_certificate_of_its_own(self, start: Start, authority: Authority) -> None:
        broker = await start(client_certificates="required", client_ca=authority.file)
        certificate, key = authority.issue("sensor-7.example.org")
        options = reach(broker, authority)
        assert await mosquitto_pub(*options, "--cert", certificate, "--key", key) == (0, "")
        assert await mosquitto_sub(*options, "--cert", certificate, "--key", key) == "hello"
        status, _ = await mosquitto_pub(*options)
        assert status != 0

    async def test_a_revoked_one(self, start: Start, authority: Authority) -> None:
        bad = authority.issue("bad.example.org")
        broker = await start(client_certificates="required", client_ca=authority.file, crl=authority.revoke(bad[0]))
        status, _ = await mosquitto_pub(*reach(broker, authority), "--cert", bad[0], "--key", bad[1])
        assert status != 0

    async def test_a_unix_socket(self, tmp_path: Path) -> None:
        path = str(tmp_path / "s")
        settings = Settings.model_validate({"listener": [{"url": f"mqtt+unix://{path}"}]})
        async with Broker(settings):
            assert await mosquitto_pub("--unix", path) == (0, "")
            assert await mosquitto_sub("--unix", path) == "hello"


async def test_aiomqtt_and_paho(start: Start, authority: Authority) -> None:
    broker = await start(client_certificates="required", client_ca=authority.file)
    context = authority.client(authority.issue("app.example.org"))
    async with (
        asyncio.timeout(20),
        aiomqtt.Client("localhost", broker.ports[0], tls_context=context) as client,
    ):
        await client.subscribe("t", qos=2)
        await client.publish("t", bytes(300_000), qos=2)
        async for message in client.messages:
            assert message.payload == bytes(300_000)
            break


async def test_gmqtt(start: Start, authority: Authority) -> None:
    broker = await start()
    client = gmqtt.Client("gmqtt-over-tls")
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def on_message(_: Any, topic: str, payload: bytes, *rest: Any) -> int:
        del topic, rest
        came.set_result(payload)
        return 0

    client.on_message = on_message
    client.on_subscribe = lambda *_: client.publish("t", b"hello", qos=1)
    await within("connect", client.connect("localhost", broker.ports[0], ssl=authority.client()))
    client.subscribe("t", qos=1)
    assert await within("a message", came) == b"hello"
    await client.disconnect()


@pytest.mark.skipif(not NODE or not (SCRIPTS / "node_modules" / "mqtt").is_dir(), reason="mqtt.js is not installed")
async def test_mqttjs(start: Start, authority: Authority) -> None:
    broker = await start()
    url = broker.listening[0].replace("127.0.0.1", "localhost")
    seen = await mqttjs(url, 5, "js-tls", "big", "session", NODE_EXTRA_CA_CERTS=authority.file)
    assert seen["big"] == [1_048_000, 2]
    assert seen["session"][:2] == [False, True]


def test_a_process_with_a_tls_listener(authority: Authority, tmp_path: Path) -> None:
    """`canopy serve` says where it listens, `canopy health` finds it, and SIGHUP has it show another certificate."""
    path = tmp_path / "s"
    config = tmp_path / "canopy.toml"
    certificate, key = authority.issue("localhost", file="door")
    config.write_text(
        f'[[listener]]\nurl = "mqtt+unix://{path}"\n[security]\nwatch_files = false\n'
        f'[[listener]]\nurl = "mqtts://127.0.0.1:0"\n[listener.tls]\ncertificate = "{certificate}"\nkey = "{key}"\n',
        encoding="utf-8",
    )
    with Daemon("--config", str(config)) as running:
        _, unix, tls = running.urls
        assert unix == f"mqtt+unix://{path}"
        assert _health("--target", unix).exit_code == 0
        trusted = ("--target", tls.replace("127.0.0.1", "localhost"), "--ca", authority.file)
        assert _health(*trusted).exit_code == 0
        assert "its certificate is not trusted" in _health(*trusted[:2]).stderr
        authority.issue("localhost", "renewed.example.org", file="door")
        named = (*trusted, "--server-name", "renewed.example.org")
        assert _health(*named).exit_code == 1
        running.process.send_signal(signal.SIGHUP)
        running.until("settings reloaded")
        assert _health(*named).exit_code == 0
        code, _ = running.end()
        assert code == 0
    assert not path.exists()


def _health(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["health", *arguments])

"""Links over TLS: whom they trust, what they show of themselves, and what is told when it does not fit."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker, Settings
from canopy_mqtt.settings import Federation
from tests.links import test_link
from tests.links.test_link import PATIENCE, Call, Played, client, link_of, played
from tests.support.certificates import Authority, encrypt
from tests.support.waiting import until

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Keys:
    """An authority, another one, a server's certificate for 127.0.0.1, and a client's; each with its key."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self.ca = authority.file
        self.other = Authority(folder, "other").file
        self.server = authority.issue("127.0.0.1")
        self.client = authority.issue(common_name="client")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def settings(port: int, host: str = "127.0.0.1", **upstream: Any) -> Settings:
    return test_link.settings(port, f"mqtts://{host}", version="5.0", **upstream)


@asynccontextmanager
async def secured(keys: Keys, asks: bool = False) -> AsyncIterator[Played]:
    """An upstream that is played by hand, behind TLS. `asks`: for a certificate of the client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*keys.server)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(keys.ca)
    async with played(context=context) as made:
        yield made


async def test_a_ca_of_ones_own(keys: Keys) -> None:
    async with secured(keys) as upstream, Broker(settings(upstream.port, ca_file=keys.ca)) as edge:
        call: Call = await upstream.call()
        assert (await call.accept()).client_id == "canopy-here-up"
        await until(lambda: link_of(edge).connected)


async def test_a_certificate_that_nobody_vouches_for(keys: Keys) -> None:
    for terms in ({}, {"ca_file": keys.other}):
        async with secured(keys) as upstream, Broker(settings(upstream.port, **terms)) as edge:
            await until(lambda: link_of(edge).trouble != "")
            assert "certificate is not trusted" in link_of(edge).trouble
            assert link_of(edge).connects == 0


async def test_a_certificate_of_somebody_else(keys: Keys) -> None:
    async with secured(keys) as upstream:
        given = settings(upstream.port, "localhost", ca_file=keys.ca)
        async with Broker(given) as edge:
            await until(lambda: link_of(edge).trouble != "")
            assert "localhost" in link_of(edge).trouble
            assert link_of(edge).connects == 0


async def test_a_certificate_of_the_clients(keys: Keys) -> None:
    ca = {"ca_file": keys.ca}
    mine = dict(zip(("cert_file", "key_file"), keys.client, strict=True))
    async with secured(keys, asks=True) as upstream:
        async with Broker(settings(upstream.port, **ca)) as edge:
            await until(lambda: link_of(edge).trouble != "")
            assert link_of(edge).connects == 0
        while not upstream.calls.empty():
            upstream.calls.get_nowait()
        async with Broker(settings(upstream.port, **ca, **mine)) as edge:
            call = await upstream.call()
            await call.accept()
            await until(lambda: link_of(edge).connected)


async def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    async with Broker(settings(1, ca_file=str(tmp_path / "nothing.crt"))) as edge:
        await until(lambda: link_of(edge).trouble != "")
        assert "ca_file" in link_of(edge).trouble


async def test_an_encrypted_key(keys: Keys) -> None:
    """The broker says so, and asks nobody on its terminal for the password."""
    certificate, key = keys.client
    mine = {"cert_file": certificate, "key_file": encrypt(key, "secret")}
    async with Broker(settings(1, ca_file=keys.ca, **mine)) as edge:
        await until(lambda: link_of(edge).trouble != "")
        assert ".encrypted: the private key is encrypted" in link_of(edge).trouble


async def test_a_handshake_that_hangs_does_not_hold_up_a_stop() -> None:
    came = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writers.append(writer)
        came.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    edge = Broker(settings(server.sockets[0].getsockname()[1]))
    await edge.start()
    async with asyncio.timeout(PATIENCE):
        await came.wait()
    async with asyncio.timeout(PATIENCE / 2):
        await edge.stop()
    server.close()
    for writer in writers:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
async def test_against_mosquitto(keys: Keys, tmp_path: Path) -> None:
    assert MOSQUITTO is not None
    port = free_port()
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\ncafile {keys.ca}\ncertfile {keys.server[0]}\n"
        f"keyfile {keys.server[1]}\nrequire_certificate true\nuser root\n"
    )
    process = await asyncio.create_subprocess_exec(
        MOSQUITTO, "-c", str(conf), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        mine = dict(zip(("cert_file", "key_file"), keys.client, strict=True))
        given = settings(port, ca_file=keys.ca, publish=["up/#"], **mine)
        second = given.model_copy(update={"federation": Federation(broker_id="two")})
        async with Broker(given) as edge, Broker(second) as other:
            await until(lambda: link_of(edge).connected and link_of(other).connected)
            async with client(edge, "below") as below, client(other, "above") as above:
                await above.subscribe(("up/#", 1))
                await until(lambda: link_of(other).declarer.settled and len(link_of(other).declarer.held) == 1)
                # Larger than what TLS takes in one piece, and than the transport's buffer.
                payload = bytes(300_000)
                await below.publish("up/1", payload, qos=1)
                assert (await above.message()).payload == payload
    finally:
        process.terminate()
        await process.wait()

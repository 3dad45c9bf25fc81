"""Links over TLS: whom they trust, what they show of themselves, and what is told when it does not fit."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker, Settings
from canopy_mqtt.settings import Federation, Shutdown, Sys, Upstream
from tests.e2e.wire import Peer, connect
from tests.links.test_link import PATIENCE, Call, Played, link_of
from tests.support.waiting import until

OPENSSL = shutil.which("openssl")
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")


def openssl(folder: Path, *arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA `ca`, another one `other`, a server's certificate for 127.0.0.1, and a client's."""
    folder = tmp_path_factory.mktemp("keys")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        made = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
        openssl(folder, *new, "-x509", "-days", "2", "-subj", f"/CN={name}", *made)
    for name, extension in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        (folder / "extension").write_text(extension)
        openssl(folder, *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "extension", "-out", f"{name}.crt",
        )  # fmt: skip
    return folder


def settings(port: int, host: str = "127.0.0.1", **upstream: Any) -> Settings:
    terms: dict[str, Any] = {"retry_min": 0.01, "retry_max": 0.02, "version": "5.0", **upstream}
    return Settings(
        listen=("mqtt://127.0.0.1:0",),
        sys=Sys(interval=0.0),
        shutdown=Shutdown(flush_timeout=0.0),
        federation=Federation(broker_id="here"),
        upstream=(Upstream(name="up", url=f"mqtts://{host}:{port}", **terms),),
    )


@asynccontextmanager
async def secured(keys: Path, asks: bool = False) -> AsyncIterator[Played]:
    """An upstream that is played by hand, behind TLS. `asks`: for a certificate of the client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(keys / "ca.crt")
    made = Played()
    server = await asyncio.start_server(made.came, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for call in made.all:
            call.writer.transport.abort()
        await asyncio.sleep(0)


async def test_a_ca_of_ones_own(keys: Path) -> None:
    async with secured(keys) as upstream, Broker(settings(upstream.port, ca_file=str(keys / "ca.crt"))) as edge:
        call: Call = await upstream.call()
        assert (await call.accept()).client_id == "canopy-here-up"
        await until(lambda: link_of(edge).connected)


async def test_a_certificate_that_nobody_vouches_for(keys: Path) -> None:
    for terms in ({}, {"ca_file": str(keys / "other.crt")}):
        async with secured(keys) as upstream, Broker(settings(upstream.port, **terms)) as edge:
            await until(lambda: link_of(edge).trouble != "")
            assert "certificate is not trusted" in link_of(edge).trouble
            assert link_of(edge).connects == 0


async def test_a_certificate_of_somebody_else(keys: Path) -> None:
    async with secured(keys) as upstream:
        given = settings(upstream.port, "localhost", ca_file=str(keys / "ca.crt"))
        async with Broker(given) as edge:
            await until(lambda: link_of(edge).trouble != "")
            assert "localhost" in link_of(edge).trouble
            assert link_of(edge).connects == 0


async def test_a_certificate_of_the_clients(keys: Path) -> None:
    ca = {"ca_file": str(keys / "ca.crt")}
    mine = {"cert_file": str(keys / "client.crt"), "key_file": str(keys / "client.key")}
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


async def test_files_that_cannot_be_used(keys: Path) -> None:
    missing = str(keys / "nothing.crt")
    async with Broker(settings(1, ca_file=missing)) as edge:
        await until(lambda: link_of(edge).trouble != "")
        assert "ca_file" in link_of(edge).trouble


async def test_an_encrypted_key(keys: Path) -> None:
    """The broker says so, and asks nobody on its terminal for the password."""
    openssl(keys, "ec", "-aes256", "-in", "client.key", "-passout", "pass:secret", "-out", "locked.key")
    mine = {"cert_file": str(keys / "client.crt"), "key_file": str(keys / "locked.key")}
    async with Broker(settings(1, ca_file=str(keys / "ca.crt"), **mine)) as edge:
        await until(lambda: link_of(edge).trouble != "")
        assert "locked.key: the private key is encrypted" in link_of(edge).trouble


async def test_a_handshake_that_hangs_does_not_hold_up_a_stop(keys: Path) -> None:
    del keys
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
async def test_against_mosquitto(keys: Path, tmp_path: Path) -> None:
    assert MOSQUITTO is not None
    port = free_port()
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\ncafile {keys / 'ca.crt'}\ncertfile {keys / 'server.crt'}\n"
        f"keyfile {keys / 'server.key'}\nrequire_certificate true\nuser root\n"
    )
    process = await asyncio.create_subprocess_exec(
        MOSQUITTO, "-c", str(conf), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        given = settings(
            port,
            ca_file=str(keys / "ca.crt"),
            cert_file=str(keys / "client.crt"),
            key_file=str(keys / "client.key"),
            publish=["up/#"],
        )
        second = given.model_copy(update={"federation": Federation(broker_id="two")})
        async with Broker(given) as edge, Broker(second) as other:
            await until(lambda: link_of(edge).connected and link_of(other).connected)
            below = await Peer.open("127.0.0.1", edge.ports[0])
            above = await Peer.open("127.0.0.1", other.ports[0])
            for peer, name in ((below, "below"), (above, "above")):
                await peer.send(connect(name))
                await peer.expect(2)
            await above.subscribe(("up/#", 1))
            await until(lambda: link_of(other).declarer.settled and len(link_of(other).declarer.held) == 1)
            # Larger than what TLS takes in one piece, and than the transport's buffer.
            payload = bytes(300_000)
            await below.publish("up/1", payload, qos=1)
            assert (await above.message()).payload == payload
            below.abort()
            above.abort()
    finally:
        process.terminate()
        await process.wait()

"""TLS on a listener: handshakes, client certificates, names, what is refused and what the log says of it.

Clients are Python's own TLS over real sockets, on asyncio's event loop and on uvloop.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, cast

import pytest
from pydantic import ValidationError

from canopy_mqtt import Broker, Settings, certificates
from canopy_mqtt.assembly import watching
from canopy_mqtt.command import health
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.net.listening import handshakes
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Certificate, Listener, Log, Tls
from canopy_mqtt.settings.errors import SettingsError
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.certificates import DAY, Authority, encrypt, now
from tests.support.gate import Gate
from tests.support.waiting import until

HOST: Final = "127.0.0.1"

Start = Callable[..., Awaitable[Broker]]
Lines = list[dict[str, Any]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


_peers: Final[list[Peer]] = []


@pytest.fixture
async def start(authority: Authority, lines: Lines) -> AsyncIterator[Start]:
    """Start a broker with one TLS listener; keys of [listener.tls] as keywords, others under `listener`, `sections`."""
    del lines
    server = authority.issue("localhost", HOST)
    async with AsyncExitStack() as stack:

        async def begin(
            listener: dict[str, Any] | None = None,
            sections: dict[str, Any] | None = None,
            access_control: AccessControl | None = None,
            **keys: Any,
        ) -> Broker:
            settings = Tls(**{"certificate": server[0], "key": server[1], **keys})
            made = Listener(**{"url": f"mqtts://{HOST}:0", "name": "door", "tls": settings, **(listener or {})})
            wanted = {"shutdown": {"flush_timeout": 0.0}, **(sections or {})}
            broker = Broker(Settings(listener=[made], **wanted), access_control=access_control)
            return await stack.enter_async_context(broker)

        yield begin
        for peer in _peers:
            peer.abort()
        _peers.clear()


async def peer_of(broker: Broker, context: ssl.SSLContext, name: str = "localhost", version: int = 5) -> Peer:
    async with asyncio.timeout(wire.TIMEOUT):
        reader, writer = await asyncio.open_connection(HOST, broker.ports[0], ssl=context, server_hostname=name)
    peer = Peer(reader, writer, version)
    _peers.append(peer)
    return peer


async def join(broker: Broker, context: ssl.SSLContext, client_id: str = "c", name: str = "localhost") -> Peer:
    peer = await peer_of(broker, context, name)
    await peer.send(wire.connect(client_id, keep_alive=0))
    peer.connack = await peer.expect(wire.CONNACK)
    assert peer.connack.code == 0
    return peer


async def refused(broker: Broker, context: ssl.SSLContext, name: str = "localhost") -> str:
    """Return the TLS error of a client that is not let in, at the latest when it reads."""
    try:
        peer = await peer_of(broker, context, name)
        await peer.send(wire.connect("c"))
        read = await peer.reader.read(1)
    except ssl.SSLError as error:
        return error.reason or str(error)
    assert read == b""
    return "closed"


async def alive(peer: Peer) -> None:
    await peer.send(b"\xc0\x00")
    await peer.expect(wire.PINGRESP)


def reasons(lines: Lines) -> list[str]:
    return [line["reason"] for line in lines if line["event"] == "handshake failed"]


def shown(peer: Peer) -> ssl.SSLObject:
    found = peer.writer.get_extra_info("ssl_object")
    assert isinstance(found, ssl.SSLObject)
    return found


class TestServed:
    async def test_alpn(self, start: Start, authority: Authority) -> None:
        broker = await start()
        context = authority.client()
        context.set_alpn_protocols(["x-other", "mqtt"])
        assert shown(await join(broker, context)).selected_alpn_protocol() == "mqtt"
        other = await start(alpn=["x-other"])
        assert shown(await join(other, context)).selected_alpn_protocol() == "x-other"


class TestHandshakes:
    """Handshakes before the first packet: bounded in number, in time, and in the work of one turn."""

    async def test_silent_connections_keep_nobody_out_and_are_bounded(
        self, start: Start, authority: Authority, lines: Lines
    ) -> None:
        broker = await start(sections={"limits": {"max_handshakes": 5}})
        silent = [await asyncio.open_connection(HOST, broker.ports[0]) for _ in range(12)]
        turned_away = broker.admission
        assert turned_away is not None
        # What was counted is told with the other connections that were turned away.
        await until(lambda: broker.handshakes.evicted + turned_away.turned_away == 7)
        assert len(broker.handshakes) == 5
        await join(broker, authority.client())
        assert broker.handshakes.evicted + turned_away.turned_away == 8
        for reader, _ in silent[:8]:
            assert await reader.read() == b""
        for _, writer in silent:
            writer.close()
        await until(lambda: len(broker.handshakes) == 0)
        assert reasons(lines) == []

    async def test_failed_ones_count_until_they_are_closed(self, start: Start) -> None:
        """The oldest of them goes first, and before one that is in progress."""
        broker = await start(sections={"limits": {"max_handshakes": 5}})
        begun = await asyncio.open_connection(HOST, broker.ports[0])
        await until(lambda: len(broker.handshakes) == 1)
        failed = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
            writer.write(wire.connect("plain"))
            # The broker has closed its half; the connection stays until the client closes the other.
            await reader.read()
            failed.append((reader, writer))
            assert len(broker.handshakes) <= 5
        await until(lambda: len(broker.connections) == 5)
        assert len(broker.handshakes) == 5
        assert broker.handshakes.evicted == 0
        for _, writer in [begun, *failed]:
            writer.close()
        await until(lambda: len(broker.handshakes) == 0)

    async def test_garbage_is_refused_and_disturbs_nobody(
        self, start: Start, authority: Authority, lines: Lines
    ) -> None:
        broker = await start()
        peer = await join(broker, authority.client())
        cut_short = b"\x16\x03\x01\xff\xff" + bytes(70_000)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", wire.connect("plain"), bytes(300), cut_short):
            reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
            writer.write(garbage)
            assert (await reader.read())[:1] in (b"", b"\x15")  # nothing, or an alert
            writer.close()
        await until(lambda: len(broker.connections) == 1)
        told = reasons(lines)
        assert told[0] == "the client does not speak TLS but HTTP"
        assert told[1] == "the client does not speak TLS"
        assert all(
            line["listener"] == "door" and line["address"].startswith(HOST) for line in lines if "reason" in line
        )
        await alive(peer)

    async def test_a_handshake_that_stalls_ends_in_time(self, start: Start, authority: Authority, lines: Lines) -> None:
        broker = await start(handshake_timeout=0.2)
        reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
        writer.write(b"\x16\x03\x01\x02\x00\x01")
        assert await reader.read() == b""
        writer.close()
        assert reasons(lines) == ["it took too long"]
        assert len(broker.handshakes) == 0
        # It is the handshake's time, and not the connection's.
        peer = await join(broker, authority.client())
        await asyncio.sleep(0)
        await alive(peer)

    async def test_a_warning_for_each_of_many_would_fill_the_disk(self, start: Start, lines: Lines) -> None:
        broker = await start(sections={"log": {"client_warnings": 30}})
        for _ in range(10):
            reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
            writer.write(b"garbage")
            await reader.read()
            writer.close()
        await until(lambda: not broker.connections)
        assert len(reasons(lines)) == 3
        broker.connection_log.finish()
        assert lines[-1]["handshakes_failed"] == 7

    async def test_one_address_ends_no_handshake_of_others(self) -> None:
        """However many it begins while the message of a client far away is on its way."""
        line = handshakes.Handshakes(10, asyncio.get_running_loop())
        ended: list[str] = []

        class Under(handshakes.Handshake):
            def __init__(self, host: str) -> None:
                super().__init__()
                self.host = host

            def evict(self) -> None:
                ended.append(self.host)

        for host in [
            *(f"192.0.2.{number}" for number in range(3)),
            *(f"2001:db8::{number:x}" for number in range(100)),
        ]:
            line.begin(Under(host))
        assert ended == [f"2001:db8::{number:x}" for number in range(93)]

    async def test_few_of_them_have_their_turn_at_once(self) -> None:
        """A signature each: a thousand at once would keep everybody waiting for a second."""
        loop = asyncio.get_running_loop()
        line = handshakes.Handshakes(0, loop)
        stepped: list[int] = []

        class Under(handshakes.Handshake):
            def step(self) -> None:
                stepped.append(1)

        some = [Under() for _ in range(3 * handshakes.STEPS)]
        for each in some:
            line.begin(each)
            line.ready(each)
            line.ready(each)
        line.end(some[0])
        for rounds in range(1, 4):
            await asyncio.sleep(0)
            assert len(stepped) == rounds * handshakes.STEPS - 1
        assert line.steps == len(stepped)

    async def test_one_that_is_at_fault_holds_up_no_other(self) -> None:
        line = handshakes.Handshakes(0, asyncio.get_running_loop())
        told: list[str] = []

        class Under(handshakes.Handshake):
            def step(self) -> None:
                raise OSError(107, "not connected")

            def check_failed(self, error: Exception) -> None:
                told.append(str(error))

        for _ in range(2):
            under = Under()
            line.begin(under)
            line.ready(under)
            await asyncio.sleep(0)
        assert told == ["[Errno 107] not connected"] * 2

    async def test_clients_that_reset_the_connection_hold_up_no_other(
        self, start: Start, authority: Authority, tmp_path: Path
    ) -> None:
        broker = await start()
        stranger = Authority(tmp_path, "stranger").client()
        for _ in range(20):
            with pytest.raises(ssl.SSLError):
                await peer_of(broker, stranger)
            with socket.create_connection((HOST, broker.ports[0])) as abrupt:
                abrupt.send(b"nonsense")
                abrupt.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await join(broker, authority.client())
        await until(lambda: len(broker.connections) == 1)

    async def test_a_client_cannot_negotiate_again_and_again(self, start: Start, authority: Authority) -> None:
        broker = await start()
        process = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-tls1_2", "-connect", f"{HOST}:{broker.ports[0]}", "-CAfile", authority.file,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(wire.TIMEOUT):
            while b"Verify return code" not in await process.stdout.readline():
                pass
            process.stdin.write(b"R\n")
            await process.stdin.drain()
            told = await process.stdout.read()
            await process.wait()
        assert b"RENEGOTIATING" in told
        assert b"no renegotiation" in told

    async def test_a_connection_over_the_rate_has_no_handshake(self, start: Start, authority: Authority) -> None:
        broker = await start(listener={"max_connect_rate": 1.0})
        await join(broker, authority.client())
        before = broker.handshakes.steps
        reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
        assert await reader.read() == b""
        writer.close()
        assert broker.handshakes.steps == before
        assert broker.admission is not None
        assert broker.admission.turned_away == 1
        await until(lambda: len(broker.connections) == 1)
        assert (broker.admission.open, broker.admission.refused) == (1, 0)


class TestVersions:
    @pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
    async def test_old_ones_are_refused(self, start: Start, authority: Authority, lines: Lines, version: str) -> None:
        broker = await start()
        assert await _s_client(broker, authority, version, "-cipher", "DEFAULT@SECLEVEL=0") != 0
        await until(lambda: reasons(lines))
        assert reasons(lines) == ["the client speaks only versions of TLS that are not allowed here"]

    async def test_the_least_is_a_setting(self, start: Start, authority: Authority, lines: Lines) -> None:
        context = authority.client()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        broker = await start()
        assert shown(await join(broker, context)).version() == "TLSv1.2"
        strict = await start(min_version="1.3")
        assert "VERSION" in await refused(strict, context)
        assert len(reasons(lines)) == 1

    async def test_cipher_suites_are_a_setting(self, start: Start, authority: Authority) -> None:
        broker = await start(ciphers="ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384")
        context = authority.client()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        cipher = shown(await join(broker, context)).cipher()
        assert cipher is not None
        assert cipher[0].endswith("AES256-GCM-SHA384")


async def _s_client(broker: Broker, authority: Authority, *options: str) -> int:
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"{HOST}:{broker.ports[0]}", "-CAfile", authority.file, *options,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(wire.TIMEOUT):
        return await process.wait()


class TestNames:
    async def test_the_certificate_is_chosen_by_the_name(self, start: Start, authority: Authority) -> None:
        exact = authority.issue("mqtt.example.org", "second.example.org")
        wild = authority.issue("*.example.com")
        more = [Certificate(certificate=pair[0], key=pair[1]) for pair in (exact, wild)]
        broker = await start(more=more)
        for name in ("localhost", "mqtt.example.org", "second.example.org", "a.example.com"):
            # The client checks that the certificate is for the name.
            await join(broker, authority.client(), name=name)
        loaded = broker.listeners.open[0].certificates
        assert loaded is not None
        assert loaded.choose("MQTT.example.ORG.") is loaded.exact["mqtt.example.org"]
        for other in ("x.mqtt.example.org", "a.b.example.com", "example.com", "", "*"):
            assert loaded.choose(other) is loaded.first
        assert await refused(broker, authority.client(), "a.b.example.com") == "CERTIFICATE_VERIFY_FAILED"

    def test_a_name_that_is_not_ascii_is_no_matter_where_there_is_no_choice(
        self, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Python would write such a name to standard error, with each handshake."""
        context = authority.client()
        outgoing = ssl.MemoryBIO()
        client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="xxxx.example")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        ignored: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", ignored.append)
        certificate, key = authority.issue("localhost")
        for more, expected in (((), ssl.SSLWantReadError), ((authority.issue("other.example"),), ssl.SSLError)):
            pairs = tuple(Certificate(**_pair(pair)) for pair in more)
            server = certificates.load(Tls(certificate=certificate, key=key, more=pairs), "mqtts").first
            incoming = ssl.MemoryBIO()
            incoming.write(hello.replace(b"xxxx", b"\xff\xfe\xfd\xfc"))
            ignored.clear()
            with pytest.raises(expected) as caught:
                server.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
            assert len(ignored) == len(more)
            if more:
                assert certificates.reason_of(caught.value) == "the client asks for a host name that is not ASCII"

    async def test_a_client_that_names_no_host_gets_the_first(self, start: Start, authority: Authority) -> None:
        broker = await start(more=[Certificate(**_pair(authority.issue("*.example.com")))])
        context = authority.client()
        context.check_hostname = False
        certificate = shown(await join(broker, context, name="")).getpeercert()
        assert certificate is not None
        assert ("DNS", "localhost") in certificate["subjectAltName"]


def _pair(files: tuple[str, str]) -> dict[str, Any]:
    return {"certificate": files[0], "key": files[1]}


class TestChain:
    @pytest.mark.parametrize("version", ["1.2", "1.3"])
    async def test_the_chain_may_be_a_file_of_its_own(self, start: Start, authority: Authority, version: str) -> None:
        """As in the layout of Let's Encrypt: cert.pem and chain.pem."""
        certificate, key, chain = authority.issue_below("localhost", HOST)
        lacking = await start(certificate=certificate, key=key, min_version=version)
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            await peer_of(lacking, authority.client())
        whole = await start(certificate=certificate, key=key, chain=chain, min_version=version)
        await join(whole, authority.client())

    async def test_the_chain_makes_no_authority_of_clients(self, authority: Authority) -> None:
        with pytest.raises(ValidationError, match='only with client_certificates = "none"'):
            Tls(certificate="/c", key="/k", client_certificates="optional", client_ca="/ca", chain=authority.file)

    async def test_a_file_without_a_certificate_is_named(self, start: Start, authority: Authority) -> None:
        pair = authority.issue("localhost", HOST)
        with pytest.raises(StartupError, match=re.escape(f"{pair[1]}: no certificate (PEM) in it")):
            await start(chain=pair[1])


class TestClientCertificates:
    async def test_who_shows_a_good_one_is_known_by_it(
        self, start: Start, authority: Authority, tmp_path: Path
    ) -> None:
        doorman = Gate()
        clients = Authority(tmp_path, "clients")
        pair = clients.issue("sensor-7.example.org", "ops@example.org", common_name="sensor-7")
        broker = await start(client_certificates="required", client_ca=clients.file, access_control=doorman)
        context = authority.client()
        context.load_cert_chain(*pair)
        await join(broker, context)
        (origin,) = doorman.origins
        assert (origin.secure, origin.listener, origin.host) == (True, "door", HOST)
        assert origin.certificate is not None
        assert origin.certificate.common_name == "sensor-7"
        assert origin.certificate.dns == ("sensor-7.example.org",)
        assert origin.certificate.emails == ("ops@example.org",)
        assert "CN=sensor-7" in origin.certificate.subject
        assert origin.certificate.fingerprint == hashlib.sha256(_der(pair[0])).hexdigest()

    async def test_optional_lets_in_who_shows_none_and_nobody_who_shows_a_bad_one(
        self, start: Start, authority: Authority, tmp_path: Path, lines: Lines
    ) -> None:
        doorman = Gate()
        strangers = Authority(tmp_path, "strangers")
        broker = await start(client_certificates="optional", client_ca=authority.file, access_control=doorman)
        await join(broker, authority.client())
        assert doorman.origins[0].certificate is None
        context = authority.client()
        context.load_cert_chain(*strangers.issue("me.example.org"))
        assert "UNKNOWN_CA" in await refused(broker, context)
        (told,) = reasons(lines)
        assert told == "the client's certificate is not accepted: unable to get local issuer certificate"

    async def test_none_is_refused_where_one_is_required(
        self, start: Start, authority: Authority, lines: Lines
    ) -> None:
        broker = await start(client_certificates="required", client_ca=authority.file)
        assert "CERTIFICATE_REQUIRED" in await refused(broker, authority.client())
        assert reasons(lines) == ["the client showed no certificate"]

    async def test_one_that_has_expired_is_refused(self, start: Start, authority: Authority, lines: Lines) -> None:
        broker = await start(client_certificates="required", client_ca=authority.file)
        context = authority.client(authority.issue("old.example.org", not_after=now() - DAY))
        assert "CERTIFICATE_EXPIRED" in await refused(broker, context)
        assert reasons(lines) == ["the client's certificate is not accepted: certificate has expired"]

    async def test_one_that_was_revoked_is_refused(self, start: Start, authority: Authority, lines: Lines) -> None:
        bad, good = authority.issue("bad.example.org"), authority.issue("good.example.org")
        crl = authority.revoke(bad[0])
        broker = await start(client_certificates="required", client_ca=authority.file, crl=crl)
        await join(broker, authority.client(good))
        assert "REVOKED" in await refused(broker, authority.client(bad))
        assert reasons(lines) == ["the client's certificate is not accepted: certificate revoked"]

    async def test_a_list_of_the_revoked_that_is_too_old_is_told_of(
        self, start: Start, authority: Authority, lines: Lines
    ) -> None:
        """OpenSSL then lets in nobody of that authority."""
        crl = authority.revoke(good_until=now() - DAY)
        broker = await start(client_certificates="required", client_ca=authority.file, crl=crl)
        (line,) = [line["detail"] for line in lines if line["event"] == "certificate"]
        assert line.startswith(f"{crl}: the list of revoked certificates of")
        assert await refused(broker, authority.client(authority.issue("good.example.org")))
        assert reasons(lines) == ["the client's certificate is not accepted: CRL has expired"]

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_a_session_that_is_taken_up_again_has_its_certificate(
        self, start: Start, authority: Authority, version: ssl.TLSVersion
    ) -> None:
        doorman = Gate()
        broker = await start(client_certificates="required", client_ca=authority.file, access_control=doorman)
        context = authority.client(authority.issue("good.example.org", common_name="good"))
        context.maximum_version = context.minimum_version = version
        assert await asyncio.to_thread(_twice, broker.ports[0], context) == [False, True]
        assert [origin.certificate and origin.certificate.common_name for origin in doorman.origins] == ["good", "good"]

    def test_a_session_does_not_outlive_its_certificate(self, authority: Authority) -> None:
        """OpenSSL looks at the time when it first sees a certificate, and not when a session is taken up again."""
        certificate, _ = authority.issue("old.example.org", not_after=now() - DAY)
        with pytest.raises(ValueError, match="has expired"):
            certificates.peer_certificate(cast(ssl.SSLObject, Shown(_der(certificate))))


class Shown:
    """A client's certificate as TLS reports it."""

    def __init__(self, der: bytes) -> None:
        self._der = der

    def getpeercert(self, binary_form: bool) -> bytes:
        assert binary_form
        return self._der


def _der(file: str) -> bytes:
    end = "-----END CERTIFICATE-----\n"
    return ssl.PEM_cert_to_DER_cert(Path(file).read_text(encoding="utf-8").partition(end)[0] + end)


def _once(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession]:
    """Connect with the session of an earlier connection: whether it was taken up again, and the session now."""
    with (
        socket.create_connection((HOST, port), wire.TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as secured,
    ):
        secured.sendall(wire.connect("c"))
        assert secured.recv(100)
        assert secured.session is not None
        return bool(secured.session_reused), secured.session


def _twice(port: int, context: ssl.SSLContext) -> list[bool]:
    """Connect two times, the second with the session of the first; whether it was taken up again, each time."""
    first, session = _once(port, context, None)
    second, _ = _once(port, context, session)
    return [first, second]


class TestFiles:
    """A fault in a file is one line that names it."""

    def pair(self, authority: Authority) -> dict[str, Any]:
        return dict(_pair(authority.issue("localhost")))

    def fault(self, **keys: Any) -> str:
        with pytest.raises(certificates.TlsError) as caught:
            certificates.load(Tls(**keys), "mqtts")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_one_that_is_not_there(self, authority: Authority, tmp_path: Path) -> None:
        pair, gone = self.pair(authority), str(tmp_path / "gone")
        assert self.fault(**{**pair, "key": gone}) == f"{gone}: cannot be read: No such file or directory"
        assert self.fault(**{**pair, "certificate": gone}).startswith(f"{gone}: cannot be read")
        asked = {**pair, "client_certificates": "required"}
        assert self.fault(**asked, client_ca=gone).startswith(f"{gone}: cannot be read")
        assert self.fault(**asked, client_ca=authority.file, crl=gone).startswith(f"{gone}: cannot be read")
        assert self.fault(**{**pair, "certificate": str(tmp_path)}) == f"{tmp_path}: cannot be read: Is a directory"

    def test_one_that_is_something_else(self, authority: Authority, tmp_path: Path) -> None:
        pair = self.pair(authority)
        other = tmp_path / "other"
        other.write_text("nothing of the kind\n")
        assert self.fault(**{**pair, "certificate": str(other)}) == f"{other}: no certificate (PEM) in it"
        assert self.fault(**{**pair, "key": str(other)}) == f"{other}: no private key (PEM) in it"
        asked = {**pair, "client_certificates": "required"}
        assert self.fault(**asked, client_ca=str(other)) == f"{other}: no certificate (PEM) in it"
        crl = self.fault(**asked, client_ca=authority.file, crl=str(other))
        assert crl == f"{other}: no list of revoked certificates (PEM) in it"
        # A file of authorities is none of revocations.
        crl = self.fault(**asked, client_ca=authority.file, crl=authority.file)
        assert crl == f"{authority.file}: no list of revoked certificates (PEM) in it"

    def test_a_key_to_another_certificate(self, authority: Authority) -> None:
        pair, other = self.pair(authority), authority.issue("other")
        found = self.fault(certificate=pair["certificate"], key=other[1])
        assert found == f"{other[1]}: not the private key to the certificate in {pair['certificate']}"

    def test_an_encrypted_key(self, authority: Authority) -> None:
        pair = self.pair(authority)
        key = encrypt(pair["key"], "right")
        certificates.load(Tls(certificate=pair["certificate"], key=key, key_password="right"), "mqtts")
        found = self.fault(certificate=pair["certificate"], key=key, key_password="wrong-secret")
        assert found == f"{key}: the private key is encrypted, and its password (key_password) is wrong"
        found = self.fault(certificate=pair["certificate"], key=key)
        assert found == f"{key}: the private key is encrypted, and key_password is missing"

    def test_cipher_suites_that_nobody_knows(self, authority: Authority) -> None:
        assert self.fault(**self.pair(authority), ciphers="NONSENSE").startswith('tls.ciphers = "NONSENSE"')

    def test_a_certificate_that_expires_or_has_expired_is_told_of(self, authority: Authority) -> None:
        for until_then, told in ((-DAY, "has expired on"), (3 * DAY, "expires on"), (30 * DAY, "")):
            pair = _pair(authority.issue("localhost", not_after=now() + until_then))
            warnings = certificates.load(Tls(**pair), "mqtts").warnings
            assert [told in line for line in warnings] == ([True] if told else [])

    async def test_a_broker_that_cannot_use_them_does_not_start(self, start: Start, tmp_path: Path) -> None:
        gone = str(tmp_path / "gone")
        with pytest.raises(StartupError) as caught:
            await start(key=gone)
        assert str(caught.value) == (
            f'cannot listen on mqtts://{HOST}:0 (listener "door"): {gone}: cannot be read: No such file or directory'
        )


class TestRenewal:
    """Certificates are read again: connections to come have the new ones, those that there are keep theirs."""

    async def test_under_load_nobody_is_disconnected_and_nothing_is_lost(
        self, start: Start, authority: Authority, lines: Lines
    ) -> None:
        pair = authority.issue("localhost", file="door")
        broker = await start(**_pair(pair))
        context = authority.client()
        subscriber, publisher = await join(broker, context, "s"), await join(broker, context, "p")
        await subscriber.subscribe(("t", 1))
        before = _serial(publisher)

        async def renew() -> None:
            for _ in range(5):
                authority.issue("localhost", file="door")
                assert await broker.reload(broker.settings) == []
                await join(broker, context)

        renewing = asyncio.create_task(renew())
        sent = 0
        while not renewing.done():
            await publisher.publish("t", b"%d" % sent, qos=1)
            # Acknowledged at once: how many come depends on the machine, and `mqtt.max_inflight` bounds what is not.
            assert (await subscriber.message()).payload == b"%d" % sent
            sent += 1
        await renewing
        assert _serial(publisher) == before
        assert _serial(await join(broker, context)) != before
        # The first three, and those who joined meanwhile, each of whom took the place of the one before.
        assert not [line for line in lines if line.get("cause") not in (None, "taken-over")]

    async def test_a_file_that_changes_is_enough(
        self, start: Start, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "LOOK", 100)
        broker = await start(**_pair(authority.issue("localhost", file="door")))
        before = _serial(await join(broker, authority.client()))
        loaded = broker.listeners.open[0].certificates
        authority.issue("localhost", file="door")
        await until(lambda: broker.listeners.open[0].certificates is not loaded)
        assert _serial(await join(broker, authority.client())) != before

    async def test_other_files_and_keys(self, start: Start, tmp_path: Path) -> None:
        """Whatever [listener.tls] says may change; anything else about a listener takes a restart, and is named."""
        broker = await start()
        other = Authority(tmp_path, "other")
        (table,) = broker.settings.listener
        assert table.tls is not None
        changed = table.tls.model_copy(update={**_pair(other.issue("localhost")), "min_version": "1.3"})
        new = broker.settings.model_copy(update={"listener": (table.model_copy(update={"tls": changed}),)})
        assert await broker.reload(new) == []
        assert broker.settings.listener == new.listener
        await join(broker, other.client())
        fewer = table.model_copy(update={"tls": changed, "max_connections": 5})
        (line,) = await broker.reload(broker.settings.model_copy(update={"listener": (fewer,)}))
        assert line == f'listener "{table.label}".max_connections: 0 stays in force; 5 takes a restart'

    async def test_a_bad_file_changes_nothing_and_is_named(
        self, start: Start, authority: Authority, lines: Lines
    ) -> None:
        pair = authority.issue("localhost", file="door")
        broker = await start(**_pair(pair))
        stranger = authority.issue("localhost", file="stranger")
        await asyncio.to_thread(shutil.copy, stranger[1], pair[1])
        new = broker.settings.model_copy(update={"log": Log(client_warnings=7)})
        with pytest.raises(SettingsError) as caught:
            await broker.reload(new)
        assert caught.value.problems == (
            f'listener "door": {pair[1]}: not the private key to the certificate in {pair[0]}',
        )
        assert broker.settings.log.client_warnings == 100
        await join(broker, authority.client())
        assert "settings reloaded" not in [line["event"] for line in lines]

    async def test_who_is_revoked_does_not_come_in_by_an_old_session(self, start: Start, authority: Authority) -> None:
        certificate = authority.issue("sensor.example.org")
        crl = authority.revoke()
        broker = await start(client_certificates="required", client_ca=authority.file, crl=crl)
        context = authority.client(certificate)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        reused, session = await asyncio.to_thread(_once, broker.ports[0], context, None)
        reused, session = await asyncio.to_thread(_once, broker.ports[0], context, session)
        assert reused
        authority.revoke(certificate[0])
        await broker.reload(broker.settings)
        with pytest.raises((ssl.SSLError, ConnectionError), match=r"(?i)revoked"):
            await asyncio.to_thread(_once, broker.ports[0], context, session)


def _serial(peer: Peer) -> str:
    certificate = shown(peer).getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


class TestHealth:
    """`canopy health` against a TLS listener."""

    async def test_a_broker_whose_certificate_is_trusted(
        self, start: Start, authority: Authority, tmp_path: Path
    ) -> None:
        broker = await start()
        at = broker.listeners.open[0].endpoint
        trusted = health.context(authority.file)
        await asyncio.to_thread(health.check, at, 5.0, None, None, trusted)
        await asyncio.to_thread(health.check, at, 5.0, None, None, trusted, "localhost")
        with pytest.raises(health.UnhealthyError, match="its certificate is not trusted: Hostname mismatch"):
            await asyncio.to_thread(health.check, at, 5.0, None, None, trusted, "example.org")
        stranger = health.context(Authority(tmp_path, "stranger").file)
        with pytest.raises(health.UnhealthyError, match="its certificate is not trusted: unable to get local issuer"):
            await asyncio.to_thread(health.check, at, 5.0, None, None, stranger)

    async def test_one_that_asks_for_certificates(self, start: Start, authority: Authority) -> None:
        """Without one it refuses a stranger, as it should."""
        broker = await start(client_certificates="required", client_ca=authority.file)
        at = broker.listeners.open[0].endpoint
        trusted = health.context(authority.file)
        await asyncio.to_thread(health.check, at, 5.0, None, None, trusted)
        with pytest.raises(health.UnhealthyError, match="it asks for a certificate"):
            await asyncio.to_thread(health.check, at, 5.0, "probe", None, trusted)
        known = health.context(authority.file, *authority.issue("probe.example.org"))
        await asyncio.to_thread(health.check, at, 5.0, "probe", None, known)

    def test_files_that_cannot_be_used(self, authority: Authority, tmp_path: Path) -> None:
        for files in ((str(tmp_path / "gone"),), (authority.file, str(tmp_path / "gone"))):
            with pytest.raises(health.UnhealthyError, match=r"gone: cannot be used: No such file"):
                health.context(*files)


def test_check_config_reads_the_files(authority: Authority, tmp_path: Path) -> None:
    good, old = authority.issue("localhost"), authority.issue("old", not_after=now() - DAY)
    tables = [
        Listener(url="mqtts://h:1", name="good", tls=Tls(**_pair(good))),
        Listener(url="mqtts://h:2", name="old", tls=Tls(**_pair(old))),
        Listener(url="mqtts://h:3", name="gone", tls=Tls(certificate=good[0], key=str(tmp_path / "gone"))),
    ]
    faults, soon = certificates.check(Settings(listener=tables))
    assert faults == [f'listener "gone": {tmp_path / "gone"}: cannot be read: No such file or directory']
    (line,) = soon
    assert line.startswith(f'listener "old": {old[0]}: the certificate has expired on')

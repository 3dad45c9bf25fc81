"""TLS between a transport that the test holds and a protocol that it watches: reads, turns, ends. No socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.attack.forged_tls import CIPHERS, NewKeys, asked_handshakes
from canopy_mqtt import certificates
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.net.listening import tls_transport
from canopy_mqtt.net.listening.handshakes import Handshakes
from canopy_mqtt.net.listening.tls_transport import TlsTransport
from canopy_mqtt.net.stream import FULL_READ, LINGER
from canopy_mqtt.net.timers import TimerWheel
from canopy_mqtt.settings import Tls
from tests.net.transports import Transport, rounds
from tests.support.certificates import Authority


class Upper:
    """The connection above: what it was told."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.lost: list[Exception | None] = []
        self.transport: Any = None
        # What it writes after each read.
        self.answer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reads.append(data)
        self.transport.write(self.answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Server(Authority):
    """An authority, and the context of a server that it has certified."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        certificate, key = self.issue("localhost")
        self.context = certificates.load(Tls(certificate=certificate, key=key), "mqtts").first


class Both:
    """Both ends of one connection."""

    def __init__(self, authority: Server, *, timeout: float = 10.0) -> None:
        loop = asyncio.get_running_loop()
        self.upper = Upper()
        self.socket = Transport()
        self.socket.half = True
        self.handshakes = Handshakes(0, loop)
        self.wheel = TimerWheel(loop)
        self.secured: list[TlsTransport] = []
        self.failed: list[Exception | None] = []
        self.tls = TlsTransport(
            self.upper,
            self.secured.append,
            lambda _, error: self.failed.append(error),
            authority.context,
            self.handshakes,
            self.wheel,
            loop,
            timeout,
            Origin(host="192.0.2.1"),
        )
        self.taken = b""
        # The client's end.
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = authority.client().wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.tls.connection_made(cast(asyncio.Transport, self.socket))

    def paused(self) -> bool:
        """True if the socket is not read from."""
        return not self.socket.reading

    def take(self) -> bytes:
        """Return the bytes that the broker's end has written."""
        data = b"".join(self.socket.written)
        self.socket.written.clear()
        self.taken += data
        return data

    async def shake_hands(self) -> None:
        for _ in range(5):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            if self.outgoing.pending:
                self.tls.data_received(self.outgoing.read())
            await rounds()
            self.incoming.write(self.take())
        assert self.secured == [self.tls]

    def say(self, *records: bytes) -> bytes:
        """Return the bytes that the client's end sends, a record each where they are short."""
        for record in records:
            self.client.write(record)
        return self.outgoing.read()

    def heard(self) -> bytes:
        self.incoming.write(self.take())
        pieces = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self.client.read(100_000):
                pieces.append(piece)
        return b"".join(pieces)


@pytest.fixture
def authority(tmp_path: Path) -> Server:
    return Server(tmp_path)


async def test_one_read_is_one_piece(authority: Server) -> None:
    both = Both(authority)
    await both.shake_hands()
    both.tls.data_received(both.say(*[b"%d" % number for number in range(100)]))
    assert both.upper.reads == [b"".join(b"%d" % number for number in range(100))]
    assert not both.paused()


async def test_any_cut_of_the_bytes_comes_to_the_same(authority: Server) -> None:
    both = Both(authority)
    await both.shake_hands()
    data = both.say(b"first", bytes(20_000), b"last")
    for at in range(0, len(data), 7):
        both.tls.data_received(data[at : at + 7])
    assert b"".join(both.upper.reads) == b"first" + bytes(20_000) + b"last"


async def test_a_read_of_many_records_has_several_turns_and_stays_in_order(authority: Server) -> None:
    both = Both(authority)
    await both.shake_hands()
    count = tls_transport.RECORDS * 2 + 10
    both.tls.data_received(both.say(*[b"%05d" % number for number in range(count)]))
    assert [len(read) // 5 for read in both.upper.reads] == [tls_transport.RECORDS]
    assert both.paused()
    await rounds(2)
    assert [len(read) // 5 for read in both.upper.reads] == [tls_transport.RECORDS] * 2 + [10]
    await rounds()
    assert not both.paused()
    assert b"".join(both.upper.reads) == b"".join(b"%05d" % number for number in range(count))


async def test_a_connection_that_does_not_read_is_told_nothing_more(authority: Server) -> None:
    """Also where the rest of a read waits for its turn."""
    both = Both(authority)
    await both.shake_hands()
    both.tls.data_received(both.say(*[b"%05d" % number for number in range(tls_transport.RECORDS + 1)]))
    both.tls.pause_reading()
    await rounds(5)
    assert len(both.upper.reads) == 1
    assert both.paused()
    both.tls.resume_reading()
    await rounds(3)
    assert both.upper.reads[1] == b"%05d" % tls_transport.RECORDS
    assert not both.paused()


async def test_after_a_full_read_others_have_their_turn(authority: Server) -> None:
    both = Both(authority)
    await both.shake_hands()
    data = both.say(*[bytes(16_384) for _ in range(20)])
    both.tls.data_received(data[:FULL_READ])
    assert both.paused()
    await rounds(2)
    assert not both.paused()
    both.tls.data_received(data[FULL_READ:])
    assert sum(len(read) for read in both.upper.reads) == 20 * 16_384


async def test_no_more_than_a_step_is_read_while_a_handshake_waits_for_its_turn(authority: Server) -> None:
    both = Both(authority)
    both.tls.data_received(b"\x16\x03\x01\0\1\1" * (tls_transport.STEP_BYTES // 6))
    assert not both.paused()
    both.tls.data_received(b"\x16\x03\x01\0\1\1")
    assert both.paused()
    await rounds()
    assert not both.paused()
    assert both.handshakes.steps == 2
    assert both.failed == []


async def test_a_handshake_in_very_many_fragments_has_several_turns(authority: Server) -> None:
    both = Both(authority)
    # A ClientHello of 131,000 bytes, a byte in each record.
    both.tls.data_received(b"\x16\x03\x01\0\1\1" + b"\x16\x03\x01\0\1\1" + b"\x16\x03\x01\0\1\0" * 40_000)
    size = 6 * 40_002
    for steps in range(-(-size // tls_transport.STEP_BYTES)):
        assert both.handshakes.steps == steps
        assert both.paused()
        await rounds(1)
    assert not both.paused()
    assert both.failed == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_end_of_the_handshake_is_answered_at_once(authority: Server, version: ssl.TLSVersion) -> None:
    """By the ticket: its system may keep what the client says next until its last message is acknowledged."""
    both = Both(authority)
    context = authority.client()
    context.maximum_version = version
    both.client = context.wrap_bio(both.incoming, both.outgoing, server_hostname="localhost")
    writes = []
    for _ in range(3):
        with contextlib.suppress(ssl.SSLWantReadError):
            both.client.do_handshake()
        if both.outgoing.pending:
            both.tls.data_received(both.outgoing.read())
        await rounds()
        writes.append(len(both.socket.written))
        both.incoming.write(both.take())
    assert writes == [1, 1, 0]
    with contextlib.suppress(ssl.SSLWantReadError):
        both.client.read()
    assert both.client.session is not None
    assert both.client.session.has_ticket


async def test_the_ticket_goes_with_the_answer_to_a_client_that_has_said_something_by_then(authority: Server) -> None:
    both = Both(authority)
    both.upper.answer = b"pong"
    with contextlib.suppress(ssl.SSLWantReadError):
        both.client.do_handshake()
    both.tls.data_received(both.outgoing.read())
    await rounds()
    both.incoming.write(both.take())
    both.client.do_handshake()
    both.tls.data_received(both.say(b"ping"))
    await rounds()
    assert both.upper.reads == [b"ping"]
    assert len(both.socket.written) == 1
    assert both.heard() == b"pong"
    assert both.client.session is not None
    assert both.client.session.has_ticket


async def test_a_forged_record_ends_the_connection_and_what_came_before_it_counts(authority: Server) -> None:
    both = Both(authority)
    await both.shake_hands()
    forged = bytearray(both.say(b"bad"))
    good = both.say(b"")  # nothing
    forged[-1] ^= 1
    both.tls.data_received(bytes(forged) + good)
    assert both.upper.reads == []
    assert both.socket.is_closing()


class Stranger:
    """The client's end of a connection with TLS 1.2 that then makes its records itself."""

    def __init__(self, authority: Server, keys: Path) -> None:
        self._keys = keys
        self.context = authority.client()
        self.context.maximum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers(CIPHERS)
        self.context.keylog_filename = str(keys)
        # The client's Finished was the first.
        self._sent = 1

    def asks_for_handshakes(self, both: Both, count: int) -> bytes:
        """So many records, each with a ClientHello that is none."""
        self._sent += count
        return asked_handshakes(self._keys.read_text(), both.taken, self._sent - count, count)


OWN_IN_A_TURN = tls_transport.AT_ONCE
"""Records of TLS's own that are worked off in a turn."""


class TestNewHandshakes:
    """Requests for them are refused, with an alert each."""

    async def begin(self, authority: Server, tmp_path: Path) -> tuple[Both, Stranger]:
        both = Both(authority)
        stranger = Stranger(authority, tmp_path / "keys")
        both.client = stranger.context.wrap_bio(both.incoming, both.outgoing, server_hostname="localhost")
        await both.shake_hands()
        return both, stranger

    async def test_who_asks_and_takes_the_answers_goes_on(self, authority: Server, tmp_path: Path) -> None:
        both, stranger = await self.begin(authority, tmp_path)
        for _ in range(20):
            both.tls.data_received(stranger.asks_for_handshakes(both, 100))
            await rounds(1)
            assert both.take()
        assert not both.socket.is_closing()
        assert both.upper.reads == []

    async def test_who_does_not_take_them_ends(
        self, authority: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else they would fill the memory: nobody above the transport knows of them."""
        both, stranger = await self.begin(authority, tmp_path)
        written = both.socket.written
        monkeypatch.setattr(both.socket, "get_write_buffer_size", lambda: sum(map(len, written)))
        for _ in range(20):
            both.tls.data_received(stranger.asks_for_handshakes(both, 100))
            await rounds(1)
        assert both.socket.aborted
        assert sum(map(len, written)) <= tls_transport.OWN_BYTES

    async def test_a_read_of_very_many_has_several_turns(self, authority: Server, tmp_path: Path) -> None:
        both, stranger = await self.begin(authority, tmp_path)
        both.tls.data_received(stranger.asks_for_handshakes(both, 8_000))
        answers = len(both.take())
        # An alert each.
        assert 0 < answers <= OWN_IN_A_TURN * 31
        assert both.paused()
        await rounds(1)
        assert 0 < len(both.take()) <= OWN_IN_A_TURN * 31


class TestNewKeys:
    """A client asks for new keys as often as it likes, and may tell of new ones of its own."""

    async def begin(self, authority: Server, tmp_path: Path) -> tuple[Both, Path]:
        both = Both(authority)
        keys = tmp_path / "keys"
        context = authority.client()
        context.keylog_filename = str(keys)
        both.client = context.wrap_bio(both.incoming, both.outgoing, server_hostname="localhost")
        return both, keys

    @pytest.mark.parametrize("cut", [0, 1, 4, 100_000])
    async def test_a_read_of_very_many_has_several_turns(self, authority: Server, tmp_path: Path, cut: int) -> None:
        """However the first record is cut by the read before."""
        both, keys = await self.begin(authority, tmp_path)
        await both.shake_hands()
        asked = NewKeys(keys.read_text(), asking=True).records(2_000)
        both.tls.write(b"and the ticket")
        both.take()
        both.tls.data_received(asked[:cut])
        if cut < len(asked):
            both.tls.data_received(asked[cut:])
        turns = 1
        while both.paused():
            # 27 bytes each.
            assert 0 < len(both.take()) <= OWN_IN_A_TURN * 27
            await rounds(1)
            turns += 1
        assert turns == -(-2_000 // OWN_IN_A_TURN)
        assert not both.socket.is_closing()

    async def test_behind_the_end_of_a_handshake_too(self, authority: Server, tmp_path: Path) -> None:
        """Else a stranger would have thousands made in one call."""
        both, keys = await self.begin(authority, tmp_path)
        for _ in range(5):
            with contextlib.suppress(ssl.SSLWantReadError):
                both.client.do_handshake()
                break
            both.tls.data_received(both.outgoing.read())
            await rounds()
            both.incoming.write(both.take())
        both.tls.data_received(both.outgoing.read() + NewKeys(keys.read_text(), asking=False).records(2_000))
        assert both.secured == []
        await rounds(1)
        assert both.secured == [both.tls]
        for _ in range(2_000 // OWN_IN_A_TURN):
            assert both.paused()
            await rounds(1)
        assert not both.paused()


@pytest.mark.parametrize("how", ["garbage", "closed by us", "closed by the client", "gone"])
async def test_who_lingers_has_no_tls_any_more(authority: Server, how: str) -> None:
    """It takes 50 KB, and very many may linger."""
    both = Both(authority)
    if how == "garbage":
        both.tls.data_received(b"\x10\x0c\0\4MQTT\5\2\0\0\0\0")
        await rounds()
        assert len(both.failed) == 1
        assert not both.socket.is_closing()
    else:
        await both.shake_hands()
        if how == "closed by us":
            both.tls.write_eof()
        elif how == "closed by the client":
            with contextlib.suppress(ssl.SSLWantReadError):
                both.client.unwrap()
            both.tls.data_received(both.outgoing.read())
        else:
            both.tls.connection_lost(None)
    assert both.tls.tls is None
    assert both.tls._inner is None
    assert both.tls._incoming is both.tls._outgoing is tls_transport.NOTHING
    both.tls.data_received(b"more")
    both.tls.write(b"more")
    assert tls_transport.NOTHING.pending == 0


async def test_a_record_of_tls_itself_that_comes_alone(authority: Server, tmp_path: Path) -> None:
    """It is answered, and nothing goes up; so is the client's goodbye."""
    both = Both(authority)
    keys = tmp_path / "keys"
    context = authority.client()
    context.keylog_filename = str(keys)
    both.client = context.wrap_bio(both.incoming, both.outgoing, server_hostname="localhost")
    await both.shake_hands()
    made = NewKeys(keys.read_text(), asking=True)
    both.tls.write(b"and the ticket")
    both.take()
    for _ in range(3):
        both.tls.data_received(made.records(1))
    # OpenSSL answers one when it next has to do.
    assert len(both.take()) in (2 * 27, 3 * 27)
    assert both.upper.reads == []
    assert not both.socket.is_closing()
    other = Both(authority)
    await other.shake_hands()
    other.tls.data_received(other.say(b"last"))
    with contextlib.suppress(ssl.SSLWantReadError):
        other.client.unwrap()
    other.tls.data_received(other.outgoing.read())
    assert other.upper.reads == [b"last"]
    assert other.socket.is_closing()


async def test_our_goodbye_is_the_last_and_what_still_comes_is_not_looked_at(authority: Server) -> None:
    both = Both(authority)
    await both.shake_hands()
    both.tls.write(b"goodbye")
    assert both.tls.can_write_eof()
    both.tls.write_eof()
    both.tls.write(b"and another thing")
    both.tls.data_received(both.say(b"wait"))
    assert both.heard() == b"goodbye"
    assert both.upper.reads == []


async def test_closing_in_the_middle_of_a_handshake(authority: Server) -> None:
    both = Both(authority)
    both.tls.close()
    assert both.socket.aborted
    both.tls.connection_lost(None)
    assert both.upper.lost == [None]
    assert (len(both.handshakes), len(both.wheel)) == (0, 0)


async def test_a_failed_handshake_lingers_for_its_alert_and_not_for_ever(authority: Server) -> None:
    both = Both(authority)
    both.tls.data_received(b"GET / HTTP/1.1\r\n\r\n")
    await rounds()
    (error,) = both.failed
    assert isinstance(error, ssl.SSLError)
    assert not both.socket.aborted
    assert both.tls.check_at > 0.0
    assert both.tls.check_at <= asyncio.get_running_loop().time() + LINGER + 1.0
    both.tls.check(both.tls.check_at)
    assert both.socket.aborted


async def test_nothing_refers_to_what_has_ended(authority: Server) -> None:
    gc.disable()
    try:
        both = Both(authority)
        await both.shake_hands()
        both.tls.connection_lost(None)
        gone, tls = weakref.ref(both.upper), both.tls
        both.upper.transport = None
        del both
        assert gone() is None
        assert tls.host == "192.0.2.1"
    finally:
        gc.enable()

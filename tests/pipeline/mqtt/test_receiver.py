"""The receiver: nothing is acknowledged before it is on disk, nothing is lost, and what cannot heal is told."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.client.failures import LostError
from canopy_mqtt.core.codec import encoder, packets
from canopy_mqtt.core.codec.packets import Publish
from canopy_pipeline.mqtt.link import broker_client
from canopy_pipeline.mqtt.mqtt_options import StreamOptions, chosen
from canopy_pipeline.mqtt.receiver import Receiver
from canopy_pipeline.mqtt.rows import MAX_LOST
from canopy_pipeline.mqtt.spool import Spool, read
from tests.pipeline.mqtt.conftest import client, publish, until
from tests.pipeline.mqtt.scripted import CONNACK, SESSION_PRESENT, Peer, scripted
from tests.pipeline.mqtt.scripted import publish as sent
from tests.support.runs import for_each

NUMBERS = {0: 100, 1: 100, 2: 15}
"""Messages by QoS. mosquitto 2.0.11 stops for good, whoever the client is, when more of QoS 2 wait than the 20 that it
has in flight."""

BROKERS = pytest.mark.parametrize("broker", ["canopy", "mosquitto"])


@contextmanager
def receiving(port: int, folder: Path, kind: type[Spool] = Spool, **options: str) -> Iterator[tuple[Receiver, Spool]]:
    said = {
        "url": f"mqtt://127.0.0.1:{port}",
        "filters": "t/#",
        "client_id": f"receiver-{folder.name}",
        "spool": str(folder / "spool"),
        "connect_timeout": "10",
    } | options
    wanted = chosen(StreamOptions, said)
    spool = kind(wanted.spool, wanted.client_id)
    receiver = Receiver(wanted, spool)
    receiver.start()
    try:
        yield receiver, spool
    finally:
        receiver.stop()
        assert not receiver._thread.is_alive()
        spool.close()


def payloads(spool: Spool) -> list[bytes]:
    slices = spool.slices(spool.committed, spool.next)
    return [each for piece in slices for got in read(piece) for each in got.column("payload").to_pylist()]


@BROKERS
@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_every_message_lands_in_the_spool(
    brokers: Callable[[str], int], tmp_path: Path, broker: str, version: str
) -> None:
    port = brokers(broker)
    with receiving(port, tmp_path, version=version, qos="2") as (receiver, spool):
        until("SUBACK", lambda: receiver._subscribed)
        for qos, number in NUMBERS.items():
            publish(port, f"t/{qos}", [b"%d:%d" % (qos, each) for each in range(number)], qos)
        until("all rows", lambda: spool.next >= sum(NUMBERS.values()))
        assert sorted(payloads(spool)) == sorted(b"%d:%d" % (q, each) for q, n in NUMBERS.items() for each in range(n))
        assert receiver.error is None
    # What was acknowledged does not come again, and what was published meanwhile does come.
    publish(port, "t/later", [b"later"])
    with receiving(port, tmp_path, version=version, qos="2") as (receiver, spool):
        receiver.settle(0.3)
        assert payloads(spool)[sum(NUMBERS.values()) :] == [b"later"]


@BROKERS
def test_a_full_spool_leaves_the_messages_with_the_broker(
    brokers: Callable[[str], int], tmp_path: Path, broker: str
) -> None:
    port = brokers(broker)
    with receiving(port, tmp_path, spool_bytes="65536", receive_maximum="50") as (receiver, spool):
        until("SUBACK", lambda: receiver._subscribed)
        publish(port, "t/full", [b"%04d" % each + b"x" * 2000 for each in range(400)])
        until("the spool is full", lambda: receiver.full)
        assert spool.next < 400
        assert spool.bytes < 65_536 * 3
        got: list[bytes] = []
        while len(got) < 400:
            until("more rows", lambda: spool.next > spool.committed)
            end = spool.next
            got += [each for s in spool.slices(len(got), end) for b in read(s) for each in b["payload"].to_pylist()]
            spool.commit(end)
        assert [each[:4] for each in got] == [b"%04d" % each for each in range(400)]
        assert receiver.error is None


def test_a_filter_that_is_not_wanted_any_more(brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    with receiving(port, tmp_path, filters="t/old,t/kept") as (receiver, _):
        receiver.settle(0.01)
    with receiving(port, tmp_path, filters="t/kept,t/new") as (receiver, spool):
        receiver.settle(0.01)
        for each in ("old", "kept", "new"):
            publish(port, f"t/{each}", [each.encode()])
        until("two rows", lambda: spool.next >= 2)
        receiver.settle(0.2)
        assert payloads(spool) == [b"kept", b"new"]
        assert spool.filters == ("t/kept", "t/new")


def test_retained_messages_come_once(brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    publish(port, "t/retained", [b"r"], retain=True)
    for _ in range(2):
        with receiving(port, tmp_path) as (receiver, spool):
            receiver.settle(0.2)
            assert payloads(spool) == [b"r"]
    publish(port, "t/retained", [b""], retain=True)


def test_another_client_with_the_same_identifier(brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    with receiving(port, tmp_path, client_id="twice") as (receiver, _):
        until("SUBACK", lambda: receiver._subscribed)
        with client(port, "twice"):
            until("the end", lambda: receiver.error)
        assert "Session taken over (0x8E)" in str(receiver.error)
        assert "; each query needs its own client_id" in str(receiver.error)


class Watched(Spool):
    """Tells what a broker has heard when rows become durable."""

    silent: Callable[[], bool]
    heard: list[bool]
    written: threading.Event

    def append(self, rows: Any) -> int:
        self.heard.append(self.silent())
        end = super().append(rows)
        self.heard.append(self.silent())
        self.written.set()
        return end


@for_each(("qos", "answer"), [(1, 0x40), (2, 0x50)])
def test_acknowledged_only_when_on_disk(tmp_path: Path, qos: int, answer: int) -> None:
    Watched.heard, Watched.written = [], threading.Event()

    def script(peer: Peer) -> None:
        Watched.silent = staticmethod(peer.silent)
        peer.welcome()
        peer.subscribed()
        peer.send(sent(7, qos))
        got = peer.receive()
        assert Watched.heard == [True, True], "it was acknowledged before it was durable"
        assert (got[0], got[2:4]) == (answer, b"\x00\x07")
        if qos == 2:
            # Repeated, as a sender may that had no PUBREC: PUBREC again, and no second row.
            peer.send(sent(7, qos))
            assert peer.receive()[:4] == b"\x50\x02\x00\x07"
            peer.send(b"\x62\x02\x00\x07")
            assert peer.receive()[:4] == b"\x70\x02\x00\x07"
        done.set()
        assert peer.receive()[:1] in (b"\xe0", b"")

    done = threading.Event()
    with scripted(script) as port, receiving(port, tmp_path, Watched) as (_, spool):
        assert done.wait(30)
        assert payloads(spool) == [b"x"]


def test_a_lost_connection_is_made_again(tmp_path: Path) -> None:
    def first(peer: Peer) -> None:
        peer.welcome()
        peer.subscribed()
        peer.send(sent(1, 1, b"a"))
        peer.receive()
        # Lost with a message that the client may have.
        peer.send(sent(2, 1, b"b"))

    def busy(peer: Peer) -> None:
        peer.welcome(b"\x20\x03\x00\x89\x00")

    def second(peer: Peer) -> None:
        peer.welcome(SESSION_PRESENT)
        # No SUBSCRIBE: the session has it. The message comes again, and is acknowledged on this connection.
        peer.send(b"\x3a" + sent(2, 1, b"b")[1:])
        assert peer.receive()[:4] == b"\x40\x02\x00\x02"
        done.set()
        peer.receive()

    done = threading.Event()
    with scripted(first, busy, second) as port, receiving(port, tmp_path) as (receiver, spool):
        assert done.wait(30)
        # At least once: the row may be there twice.
        assert sorted(set(payloads(spool))) == [b"a", b"b"]
        assert receiver.error is None


def test_what_cannot_heal_is_told(tmp_path: Path) -> None:
    def credentials(peer: Peer) -> None:
        peer.welcome(b"\x20\x03\x00\x86\x00")
        peer.receive()

    def topic_filter(peer: Peer) -> None:
        peer.welcome()
        peer.subscribed(0x87)
        peer.receive()

    cases = [
        (credentials, "the broker refuses the connection: Bad User Name or Password (0x86)"),
        (topic_filter, "the broker refuses the filter 't/#': Not authorized (0x87)"),
    ]
    for script, told in cases:
        with scripted(script) as port, receiving(port, tmp_path, client_id="c1") as (receiver, _):
            receiver.settle(30)
            assert str(receiver.error) == f"mqtt://127.0.0.1:{port}: {told}"


def test_no_broker_at_the_start(tmp_path: Path) -> None:
    with receiving(1, tmp_path, connect_timeout="0.1") as (receiver, _):
        receiver.settle(30)
        assert str(receiver.error) == "mqtt://127.0.0.1:1: connection refused"


class Full(Spool):
    """For ever."""

    @property
    def bytes(self) -> int:
        return 1 << 62


def test_the_broker_hears_of_a_receiver_that_reads_nothing(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def script(peer: Peer) -> None:
        # Server Keep Alive: a second.
        peer.welcome(b"\x20\x06\x00\x00\x03\x13\x00\x01")
        peer.subscribed()
        for _ in range(3):
            peer.send(sent(0, 0))
        # The first may be from before they came.
        asked.extend(peer.receive() for _ in range(2))

    with scripted(script) as port, receiving(port, tmp_path, Full, receive_maximum="1") as (receiver, _):
        until("it is asked for", lambda: len(asked) == 2 or receiver.error)
    assert asked == [b"\xc0\x00"] * 2


def test_a_failing_disk_ends_the_receiver_and_acknowledges_nothing(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.welcome(CONNACK)
        peer.subscribed()
        (tmp_path / "spool").rename(tmp_path / "moved")
        peer.send(sent(7, 1))
        assert peer.receive()[:1] in (b"\xe0", b""), "a message was acknowledged that is nowhere"

    with scripted(script) as port, receiving(port, tmp_path) as (receiver, _):
        until("the end", lambda: receiver.error)
        assert str(receiver.error) == f"{tmp_path / 'spool'}: cannot be written (No such file or directory)"


def test_a_connection_that_comes_after_stop_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Looking up a name, or connecting, may take longer than ``stop`` waits, and nothing can interrupt it.
    connecting, go_on = threading.Event(), threading.Event()
    asked: list[object] = []
    monkeypatch.setattr("canopy_pipeline.mqtt.receiver.PATIENCE", 0.1)
    options = {"url": "mqtt://127.0.0.1:1", "filters": "t/#", "client_id": "late", "spool": str(tmp_path)}
    wanted = chosen(StreamOptions, options)
    spool = Spool(wanted.spool, wanted.client_id)
    receiver = Receiver(wanted, spool)

    def connect() -> None:
        connecting.set()
        assert go_on.wait(30)
        # What the session has follows CONNACK at once.
        receiver._arrived(Publish(b"t/x", b"late", 1, packet_id=1))

    monkeypatch.setattr(receiver._link, "connect", connect)
    monkeypatch.setattr("canopy_pipeline.mqtt.receiver.subscribe", lambda *args: asked.append(args))
    receiver.start()
    try:
        assert connecting.wait(30)
        receiver.stop()
        assert receiver._thread.is_alive()
        spool.close()
        other = Spool(wanted.spool, wanted.client_id)
    finally:
        go_on.set()
        receiver._thread.join(30)
    assert not receiver._thread.is_alive()
    assert not asked
    assert not list(tmp_path.glob("seg-*"))
    assert not other.filters
    other.close()


def test_stop_does_not_wait_for_connack(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        assert peer.receive()[0] == 0x10
        connecting.set()
        assert peer.receive()[:1] in (b"\xe0", b"")

    connecting = threading.Event()
    with scripted(script) as port, receiving(port, tmp_path) as (receiver, _):
        assert connecting.wait(30)
        # Leaving this block stops it, and asserts that its thread has ended.
    assert receiver.error is None


def test_an_abandoned_link_takes_no_session_over(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        assert peer.receive() == b"", "a CONNECT ends the connection of the query that has the client id now"

    with scripted(script) as port:
        options = {"url": f"mqtt://127.0.0.1:{port}", "filters": "t", "client_id": "c", "spool": str(tmp_path)}
        link = broker_client(chosen(StreamOptions, options), "c", session_expiry=10)
        link.abandoned = True
        with pytest.raises(LostError, match="is not wanted any more"):
            link.connect()


def test_a_count_of_losses_that_fits_no_column_does_not_end_the_stream(tmp_path: Path) -> None:
    packet = Publish(b"t", b"x", 0, False)
    packet.properties = (b"\x26\x00\x0bcanopy-lost\x00\x12" + b"9" * 18) * 10

    def script(peer: Peer) -> None:
        peer.welcome()
        peer.subscribed()
        for _ in range(2):
            peer.send(encoder.publish(packet, packets.V5))
        peer.receive()

    with scripted(script) as port, receiving(port, tmp_path) as (receiver, spool):
        until("they are rows", lambda: spool.next == 2 or receiver.error)
        assert receiver.error is None
        until("they are counted", lambda: spool.lost)
        assert spool.lost == MAX_LOST
        found = [each for piece in spool.slices(0, 2) for got in read(piece) for each in got.column("lost").to_pylist()]
        assert found == [MAX_LOST, MAX_LOST]


def test_what_the_broker_lost_is_in_the_rows_and_counted_over_restarts(tmp_path: Path) -> None:
    def user(*pairs: tuple[bytes, bytes]) -> bytes:
        found = b"".join(b"\x26" + len(k).to_bytes(2, "big") + k + len(v).to_bytes(2, "big") + v for k, v in pairs)
        rest = b"\x00\x01t" + b"\x00\x09" + bytes([len(found)]) + found + b"y"
        return bytes([0x32, len(rest)]) + rest

    def script(peer: Peer) -> None:
        peer.welcome()
        peer.subscribed()
        peer.send(sent(7, 1) + user((b"canopy-lost", b"17;full"), (b"canopy-lost", b"3;expired"), (b"other", b"5;x")))
        assert peer.receive() + peer.receive() == b"\x40\x02\x00\x07\x40\x02\x00\x09"
        peer.receive()

    for session, lost in ((1, 20), (2, 40)):
        # The second broker has forgotten the session: that is counted too.
        with scripted(script) as port, receiving(port, tmp_path, client_id="c") as (receiver, spool):
            until("two rows", functools.partial(_holds, spool, session * 2, lost))
            assert receiver.lost == lost
            found = [each for piece in spool.slices(spool.committed, spool.next) for each in read(piece)]
            rows = [each for one in found for each in one.to_pylist()][-2:]
            assert [(each["lost"], each["session"]) for each in rows] == [(0, session), (20, session)]
            assert [each["seq"] for each in rows] == [spool.next - 2, spool.next - 1]


def _holds(spool: Spool, rows: int, lost: int) -> bool:
    return spool.next == rows and spool.lost == lost


def test_a_message_of_qos_2_that_is_on_disk_is_no_second_row_on_the_next_connection(tmp_path: Path) -> None:
    def first(peer: Peer) -> None:
        peer.welcome()
        peer.subscribed()
        peer.send(sent(7, 2))
        assert peer.receive()[:4] == b"\x50\x02\x00\x07"

    def second(peer: Peer) -> None:
        peer.welcome(SESSION_PRESENT)
        # It had no PUBREC, which was lost with the connection [MQTT-4.4.0-1].
        peer.send(b"\x3c" + sent(7, 2)[1:])
        assert peer.receive()[:4] == b"\x50\x02\x00\x07"
        peer.send(b"\x62\x02\x00\x07")
        assert peer.receive()[:4] == b"\x70\x02\x00\x07"
        # Released: the same identifier is another message now.
        peer.send(sent(7, 2, b"z"))
        assert peer.receive()[:4] == b"\x50\x02\x00\x07"
        done.set()
        peer.receive()

    done = threading.Event()
    with scripted(first, second) as port, receiving(port, tmp_path) as (_, spool):
        assert done.wait(30)
        assert payloads(spool) == [b"x", b"z"]

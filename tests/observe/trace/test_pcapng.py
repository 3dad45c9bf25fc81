"""A trace as a file for Wireshark, as its own tshark reads it; and what the fields of packets are called."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.observe.trace import as_json
from canopy_mqtt.observe.trace.entries import CLOSED, OPENED, PACKET, Entry, TracedConnection
from canopy_mqtt.observe.trace.fields import fields
from canopy_mqtt.observe.trace.pcapng import blocks
from tests.e2e import wire
from tests.support.runs import examples, for_each

TSHARK = shutil.which("tshark")
FIELDS = (
    "frame.time_epoch", "ip.src", "ipv6.src", "tcp.srcport", "tcp.dstport", "tcp.stream", "mqtt.msgtype", "mqtt.ver",
    "mqtt.topic", "mqtt.clientid", "mqtt.passwd", "mqtt.prop_key", "frame.comment", "tcp.analysis.flags",
    "tcp.checksum.status", "ip.checksum.status", "_ws.malformed",
)  # fmt: skip


def traced(number: int = 1, host: str = "192.0.2.7", here: str = "10.0.0.1", version: int = 5) -> TracedConnection:
    address = f"[{host}]:4711" if ":" in host else f"{host}:4711" if host else "unix"
    return TracedConnection(number, host, address, (here, 8_883) if here else None, "door", "sensor-7", version, True)


def packet(whose: TracedConnection, inward: bool, data: bytes, kept: int = 1_000_000) -> Entry:
    return Entry(PACKET, 1_700_000_000_123_456_789, whose, inward, data[:kept], len(data), whose.version)


def conversation(whose: TracedConnection) -> list[Entry]:
    version = whose.version
    return [
        Entry(OPENED, 1_700_000_000_000_000_000, whose),
        packet(whose, True, wire.connect("sensor-7", version=version, user="bob", password=b"****")),
        packet(whose, False, wire.packet(wire.CONNACK, 0, b"\0\0\0" if version == 5 else b"\0\0")),
        packet(whose, True, wire.subscribe(1, [("a/#", 1)], version=version)),
        packet(whose, False, wire.packet(wire.SUBACK, 0, b"\0\1\0\1" if version == 5 else b"\0\1\1")),
        packet(whose, False, wire.publish("a/b", b"x" * 100_000, version=version, qos=1, packet_id=7)),
        packet(whose, True, wire.ack(wire.PUBACK, 7, version=version)),
        Entry(CLOSED, 1_700_000_001_000_000_000, whose, note="client-disconnect"),
    ]


def dissected(entries: list[Entry], folder: Path) -> list[dict[str, list[str]]]:
    """What tshark says of each frame, checksums looked at."""
    if TSHARK is None:
        pytest.skip("tshark is not installed")
    file = folder / "trace.pcapng"
    file.write_bytes(b"".join(blocks(entries)))
    asked = [part for name in FIELDS for part in ("-e", name)]
    checks = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    run = subprocess.run(
        [TSHARK, "-r", str(file), "-T", "json", *checks, *asked], capture_output=True, check=True, timeout=60
    )
    return [frame["_source"]["layers"] for frame in json.loads(run.stdout)]


def kinds(frames: list[dict[str, list[str]]]) -> list[int]:
    return [int(kind) for frame in frames for kind in frame.get("mqtt.msgtype", [])]


@for_each("version", [4, 5])
def test_tshark_decodes_every_packet(tmp_path: Path, version: int) -> None:
    frames = dissected(conversation(traced(version=version)), tmp_path)
    assert kinds(frames) == [1, 2, 8, 9, 3, 4]
    assert not any("_ws.malformed" in frame or "tcp.analysis.flags" in frame for frame in frames)
    assert {status for frame in frames for status in frame["tcp.checksum.status"]} == {"1"}
    assert {status for frame in frames for status in frame["ip.checksum.status"]} == {"1"}
    ports = {(frame["tcp.srcport"][0], frame["tcp.dstport"][0]) for frame in frames}
    assert ports == {("4711", "1883"), ("1883", "4711")}
    assert {frame["ip.src"][0] for frame in frames} == {"192.0.2.7", "10.0.0.1"}
    (connect,) = [frame for frame in frames if frame.get("mqtt.msgtype") == ["1"]]
    assert connect["mqtt.ver"] == [str(version)]
    assert connect["mqtt.clientid"] == ["sensor-7"]
    assert connect["mqtt.passwd"] == ["****"]
    assert frames[3]["frame.time_epoch"][0].startswith(("1700000000.123456789", "2023-11-14T22:13:20.123456789"))
    assert frames[-3]["frame.comment"] == ["client-disconnect"]


@pytest.mark.parametrize(
    ("host", "here"),
    [("2001:db8::7", "2001:db8::1"), ("2001:db8::7", "10.0.0.1"), ("fe80::1%eth0", "fe80::2"), ("", "")],
)
def test_every_kind_of_address(tmp_path: Path, host: str, here: str) -> None:
    frames = dissected(conversation(traced(host=host, here=here)), tmp_path)
    assert kinds(frames) == [1, 2, 8, 9, 3, 4]
    assert {status for frame in frames for status in frame["tcp.checksum.status"]} == {"1"}
    assert all(("ipv6.src" in frame) == bool(host) for frame in frames)


def test_a_connection_that_was_there_before_is_decoded_in_its_version(tmp_path: Path) -> None:
    whose = traced()
    publish = wire.publish("a/b", b"x", props=[(wire.USER_PROPERTY, ("name", "value"))])
    frames = dissected([packet(whose, False, publish)], tmp_path)
    assert kinds(frames) == [1, 3]
    assert frames[-1]["mqtt.prop_key"] == ["name"]
    (connect,) = [frame for frame in frames if frame.get("mqtt.msgtype") == ["1"]]
    assert connect["frame.comment"] == ["made up: the trace has no CONNECT"]


def test_a_packet_of_which_only_the_beginning_was_kept_spoils_nothing(tmp_path: Path) -> None:
    whose = traced(version=4)
    frames = dissected(
        [
            *conversation(whose)[:3],
            packet(whose, True, wire.publish("long", b"x" * 3_000_000, version=4), kept=2_000),
            packet(whose, True, wire.publish("next", b"y", version=4)),
        ],
        tmp_path,
    )
    assert [frame["mqtt.topic"] for frame in frames if "mqtt.topic" in frame] == [["long"], ["next"]]
    assert not any("_ws.malformed" in frame for frame in frames)
    assert [frame["frame.comment"] for frame in frames if "frame.comment" in frame] == [["3000011 bytes, 2000 kept"]]


def test_connections_are_told_apart(tmp_path: Path) -> None:
    one, other = traced(1, ""), traced(2, "")
    mixed = [entry for pair in zip(conversation(one), conversation(other), strict=True) for entry in pair]
    frames = dissected(mixed, tmp_path)
    assert sorted(kinds(frames)) == sorted([1, 2, 8, 9, 3, 4] * 2)
    assert {frame["tcp.stream"][0] for frame in frames} == {"0", "1"}


class TestFields:
    @given(st.binary(min_size=1, max_size=80), st.booleans(), st.sampled_from([0, 3, 4, 5]), st.integers(0, 100))
    @settings(max_examples=examples(1_000), deadline=None)
    def test_whatever_was_kept_has_a_line_and_a_place_in_a_file(
        self, data: bytes, inward: bool, version: int, more: int
    ) -> None:
        entry = Entry(PACKET, 0, traced(version=version), inward, data, len(data) + more, version)
        (line,) = as_json.lines([entry])
        assert line.count(b"\n") == 1
        assert json.loads(line)["bytes"] == data.hex()
        assert b"".join(blocks([entry])).startswith(b"\x0a\x0d\x0d\x0a")

    def test_a_connect(self) -> None:
        will = wire.Will("w", b"\xff", 1, True, [(wire.WILL_DELAY, 5), (wire.CONTENT_TYPE, "x")])
        data = wire.connect("c", user="u", password=b"**", will=will, props=[(wire.RECEIVE_MAXIMUM, 9)], keep_alive=60)
        assert fields(packet(traced(), True, data)) == {
            "version": "5.0", "client_id": "c", "clean_start": True, "keep_alive": 60, "user_name": "u",
            "password": "***",
            "will": {
                "topic": "w", "qos": 1, "retain": True,
                "properties": {"will_delay_interval": 5, "content_type": "x"}, "payload_hex": "ff",
            },
            "properties": {"receive_maximum": 9},
        }  # fmt: skip

    @for_each(
        ("inward", "version", "data", "expected"),
        [
            (False, 4, wire.packet(wire.CONNACK, 0, b"\0\5"), {"reason_code": 5, "reason": "not authorized"}),
            (False, 5, wire.packet(wire.CONNACK, 0, b"\0\x87\0"), {"reason_code": 0x87, "reason": "Not authorized"}),
            (True, 5, wire.ack(wire.PUBACK, 3, 0x10), {"packet_id": 3, "reason": "No matching subscribers"}),
            (False, 4, wire.packet(wire.SUBACK, 0, b"\0\1\0\x80"), {"reason_codes": [0, 128]}),
            (True, 5, wire.disconnect(4), {"reason_code": 4, "reason": "Disconnect with Will Message"}),
            (True, 4, wire.disconnect(version=4), {}),
            (True, 5, b"\x30\x02\x00\x05", {"malformed": "a field runs past the end of the packet"}),
        ],
    )
    def test_reason_codes_have_their_names(
        self, inward: bool, version: int, data: bytes, expected: dict[str, object]
    ) -> None:
        assert fields(packet(traced(version=version), inward, data)).items() >= expected.items()

"""The HTTP request of a WebSocket: what is agreed on, and what each request that is none gets for an answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.net.websocket.upgrade import PAGE, Upgrade, UpgradeTerms
from tests.net.websocket.framing import ACCEPT, request
from tests.support.runs import for_each

MOST = 2000
ANY = UpgradeTerms("", (), MOST)


def answer(data: bytes, terms: UpgradeTerms = ANY) -> Upgrade:
    upgrade = Upgrade(terms)
    assert upgrade.feed(data)
    return upgrade


@given(st.data(), st.binary(max_size=100))
def test_a_request_is_read_however_it_is_split(data: st.DataObject, behind: bytes) -> None:
    """Bytes behind it are frames already."""
    asked = request()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(asked) - 1), max_size=8)))
    upgrade = Upgrade(ANY)
    for start, end in zip([0, *cuts], cuts, strict=False):
        assert not upgrade.feed(asked[start:end])
        assert upgrade.held_size == end
    assert upgrade.feed(asked[cuts[-1] if cuts else 0 :] + behind)
    assert (upgrade.status, upgrade.rest, upgrade.held_size) == (101, behind, 0)


def test_the_answer_is_that_of_the_rfc() -> None:
    """Section 1.3 has this key and its answer; nothing is said of extensions, so there is no compression."""
    upgrade = answer(request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"))
    lines = upgrade.response.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 101 Switching Protocols"
    assert set(lines[1:]) == {
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: " + ACCEPT,
        b"Sec-WebSocket-Protocol: mqtt",
        b"",
    }


@for_each(
    ("offered", "chosen"),
    [
        ("mqtt", "mqtt"),
        ("mqttv3.1", "mqttv3.1"),
        ("mqttv3.1, mqtt", "mqttv3.1"),
        ("chat,mqtt ,mqttv3.1", "mqtt"),
    ],
)
def test_one_of_the_offered_sub_protocols_is_returned(offered: str, chosen: str) -> None:
    """[MQTT-6.0.0-3] [MQTT-6.0.0-4]: without it, Chrome ends the connection."""
    assert b"\r\nSec-WebSocket-Protocol: " + chosen.encode() + b"\r\n" in answer(request(protocols=offered)).response


@for_each("connection", ["Upgrade", "upgrade", "keep-alive, Upgrade", "keep-alive,upgrade"])
def test_browsers_and_proxies_write_the_header_connection_in_their_ways(connection: str) -> None:
    assert answer(request(connection=connection)).status == 101


REFUSED = [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 426, "does not ask for a WebSocket"),
    (request(leave_out=("Upgrade",)), 426, "does not ask for a WebSocket"),
    (request(Upgrade="h2c"), 426, "does not ask for a WebSocket"),
    (request(Sec_WebSocket_Version="8"), 426, "other than 13"),
    (request(leave_out=("Sec-WebSocket-Version",)), 426, "other than 13"),
    (request(connection="close"), 400, "no Connection: Upgrade"),
    (request(protocols=None), 400, "the sub-protocol mqtt was not offered"),
    (request(protocols="chat, mqttx"), 400, "the sub-protocol mqtt was not offered"),
    (request(Sec_WebSocket_Key="c2hvcnQ="), 400, "no valid Sec-WebSocket-Key"),
    (request(Sec_WebSocket_Key="!" * 24), 400, "no valid Sec-WebSocket-Key"),
    (request(leave_out=("Sec-WebSocket-Key",)), 400, "no valid Sec-WebSocket-Key"),
    (request(Content_Length="5"), 400, "a request with a body"),
    (request(Transfer_Encoding="chunked"), 400, "a request with a body"),
    (b"POST /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 405, "other than GET"),
    (b"GET /mqtt HTTP/1.0\r\n\r\n", 400, "not an HTTP/1.1 request"),
    (b"GET  /mqtt HTTP/1.1\r\n\r\n", 400, "not an HTTP/1.1 request"),
    (b"GET /mqtt\r\n\r\n", 400, "not an HTTP/1.1 request"),
    (b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", 400, "a malformed HTTP header"),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, "a malformed HTTP header"),
    (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "a malformed HTTP header"),
    (b"GET / HTTP/1.1\r\nHost: x\ny: z\r\n\r\n", 400, "a malformed HTTP header"),
    (b"\x16\x03\x01\x02\x00", 400, "looks like TLS"),
    (b"\x10\x0c\x00\x04MQTT", 400, "looks like MQTT without WebSocket"),
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", 400, "looks like the PROXY protocol"),
    (b"\0", 400, "not an HTTP request"),
    (b"GETAWAYWITHIT", 400, "not an HTTP request"),
    (b"GET /" + b"x" * MOST, 431, f"larger than {MOST} bytes"),
    (request(Cookie="x" * MOST), 431, f"larger than {MOST} bytes"),
]


@for_each(("data", "status", "why"), REFUSED)
def test_what_is_no_upgrade_gets_its_status_and_a_line(data: bytes, status: int, why: str) -> None:
    upgrade = answer(data)
    assert upgrade.status == status
    assert why in upgrade.reason
    head, _, body = upgrade.response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Length: %d" % len(body) in head
    assert b"close" in head
    assert body.count(b"\n") == 1


def test_a_person_who_opens_the_port_reads_what_it_is() -> None:
    assert PAGE.encode() in answer(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").response


@for_each(
    ("path", "status"),
    [
        *(("/mqtt", 101), ("/mqtt?token=1", 101), ("/mqtt/", 101), ("/mqtt/?token=1", 101)),
        *(("/", 404), ("/mqtt//", 404), ("/mqtt/x", 404), ("/MQTT", 404)),
    ],
)
@for_each("ours", ["/mqtt", "/mqtt/"])
def test_a_listener_may_have_one_path(path: str, ours: str, status: int) -> None:
    """With or without a slash at its end: clients and proxies add one, and mosquitto takes any path."""
    assert answer(request(path), UpgradeTerms(ours, (), MOST)).status == status
    assert answer(request(path), ANY).status == 101


@for_each(
    ("origin", "status"),
    [
        ("https://example.org", 101),
        ("https://EXAMPLE.org", 101),
        ("http://localhost:8080", 101),
        ("http://example.org", 403),
        ("https://example.org.evil.test", 403),
        ("null", 403),
        ("", 101),
    ],
)
def test_only_the_listed_pages_may_connect(origin: str, status: int) -> None:
    """A client that is no browser sends no Origin, and could send any."""
    terms = UpgradeTerms("", ("https://example.org/", "http://LOCALHOST:8080"), MOST)
    assert answer(request(Origin=origin) if origin else request(), terms).status == status
    assert answer(request(Origin=origin)).status == 101


@given(st.binary(max_size=3 * MOST), st.integers(1, 500))
def test_whatever_comes_is_answered_or_waits_within_the_bound(data: bytes, step: int) -> None:
    upgrade = Upgrade(ANY)
    for start in range(0, len(data), step):
        if upgrade.feed(data[start : start + step]):
            assert upgrade.status in (101, 400, 405, 426, 431)
            break
        assert upgrade.held_size < MOST
    assert upgrade.held_size < MOST

"""Control characters in names: refused by default, let in by a setting (section 1.5.4 of both specifications)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, V5, V31, V311, Will
from canopy_mqtt.core.codec.topic_names import has_control, scan_filter
from tests.core.harness import Network, limits
from tests.support.runs import for_each
from tests.support.tries import filters_of

CONTROLS = ("\x01", "\t", "\n", "\x1b", "\x1f", "\x7f", "\x80", "\x9f")
PLAIN = (" ", "~", "\xa0", "é", "\u200b", "\ufeff", "\ue000", "😀")


@pytest.mark.crowd
@given(st.text(max_size=12))
def test_what_a_control_character_is(text: str) -> None:
    """U+0001 to U+001F and U+007F to U+009F, and no other."""
    assert has_control(text) == any("\x01" <= sign <= "\x1f" or "\x7f" <= sign <= "\x9f" for sign in text)


@for_each("number", [*range(1, 32), 127])
def test_a_scan_has_them_looked_at_again(number: int) -> None:
    """The quick way through a SUBSCRIBE does not let one pass."""
    raw = b"a/" + bytes((number,))
    assert scan_filter(raw, 0, len(raw)) == 0


class TestRefused:
    """The default."""

    @for_each("sign", CONTROLS)
    @for_each("version", [V311, V5])
    @for_each(("qos", "retain"), [(0, False), (0, True), (1, False), (2, True)])
    def test_topic_names(self, sign: str, version: int, qos: int, retain: bool) -> None:
        """A malformed packet: the connection ends, and nobody hears of it."""
        network = Network()
        witness = network.client("w")
        witness.subscribe("#", qos=2)
        client = network.client("c", version)
        client.publish(f"a/{sign}", b"x", qos, retain=retain)
        assert client.closed
        assert client.end == (0x81 if version == V5 else -1)
        assert witness.take() == []
        assert len(network.router.retained) == 0

    @for_each("sign", CONTROLS)
    @for_each("before", ["", "$share/g/", "+/"])
    @for_each("unsubscribe", [False, True])
    def test_topic_filters(self, sign: str, before: str, unsubscribe: bool) -> None:
        """None of the packet's filters is acted on."""
        network = Network()
        client = network.idle("c")
        client.connect()
        names = ["good", f"{before}a/{sign}"]
        client.send(
            p.Unsubscribe(1, names) if unsubscribe else p.Subscribe(1, [p.SubscriptionRequest(n) for n in names])
        )
        network.settle()
        assert client.end == 0x81
        assert list(filters_of(network.router.trie)) == []

    @for_each("sign", CONTROLS)
    @for_each(("version", "code"), [(V31, 2), (V311, 2), (V5, 0x85)])
    def test_client_identifiers(self, sign: str, version: int, code: int) -> None:
        """The code that says which part is wrong [MQTT3-3.1.3-9]."""
        assert Network().idle(f"c{sign}", version).connect().reason_code == code

    @for_each("sign", CONTROLS)
    @for_each(("version", "code"), [(V311, 4), (V5, 0x86)])
    def test_user_names(self, sign: str, version: int, code: int) -> None:
        """Bad user name or password."""
        assert Network().idle("c", version).connect(user_name=f"u{sign}").reason_code == code

    @for_each("sign", CONTROLS)
    def test_wills(self, sign: str) -> None:
        """As any topic name."""
        assert Network().idle("c").connect(will=Will(f"a{sign}", b"")).reason_code == 0x81


@for_each("sign", PLAIN)
def test_everything_else_may_stand_in_names(sign: str) -> None:
    """Also what no terminal shows."""
    network = Network()
    client = network.client(f"c{sign}", user_name=f"u{sign}", will=Will(f"w{sign}", b""))
    assert client.subscribe(f"a{sign}/#", qos=1) == [1]
    client.publish(f"a{sign}/b", b"x", 1)
    assert client.payloads() == [b"x"]


@for_each("sign", CONTROLS)
def test_a_setting_lets_them_in(sign: str) -> None:
    """Everywhere."""
    network = Network(limits(control_characters=True))
    client = network.client(f"c{sign}", user_name=f"u{sign}", will=Will(f"w{sign}", b""))
    assert client.subscribe(f"a{sign}/#", qos=1) == [1]
    for _ in range(2):
        client.publish(f"a{sign}/b", b"x")
    assert client.payloads() == [b"x", b"x"]
    assert f"a{sign}/b".encode() in network.router.cache.routes


def test_a_known_topic_is_not_asked_about_again() -> None:
    """Only what the match cache does not know is looked at: counted by what it asks itself."""
    network = Network()
    cache = network.router.cache
    client = network.client("c")
    for _ in range(3):
        client.publish("a", b"x", 1, retain=True)
    assert (cache.misses, cache.hits) == (1, 2)
    assert [ack.reason_code for ack in client.acks(PUBACK)] == [0x10] * 3

"""`canopy_mqtt.core.codec.packets`: numbers, names and equality of the packet classes."""

from __future__ import annotations

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Publish
from tests.support.runs import for_each

BASE = Publish(b"t", b"x", 1, False, False, 7, b"\x01\x01", 2, 60, (1,))
OTHERS = [
    Publish(b"u", b"x", 1, False, False, 7, b"\x01\x01", 2, 60, (1,)),
    Publish(b"t", b"y", 1, False, False, 7, b"\x01\x01", 2, 60, (1,)),
    Publish(b"t", b"x", 2, False, False, 7, b"\x01\x01", 2, 60, (1,)),
    Publish(b"t", b"x", 1, True, False, 7, b"\x01\x01", 2, 60, (1,)),
    Publish(b"t", b"x", 1, False, True, 7, b"\x01\x01", 2, 60, (1,)),
    Publish(b"t", b"x", 1, False, False, 8, b"\x01\x01", 2, 60, (1,)),
    Publish(b"t", b"x", 1, False, False, 7, b"", 2, 60, (1,)),
    Publish(b"t", b"x", 1, False, False, 7, b"\x01\x01", 3, 60, (1,)),
    Publish(b"t", b"x", 1, False, False, 7, b"\x01\x01", 2, 61, (1,)),
    Publish(b"t", b"x", 1, False, False, 7, b"\x01\x01", 2, 60, (1, 2)),
]


def test_names_stand_at_their_numbers() -> None:
    """Section 2.1.2."""
    assert p.NAMES[0] == "RESERVED"
    for name in p.NAMES[1:]:
        assert p.NAMES[getattr(p, name)] == name
    assert [getattr(p, name) for name in p.NAMES[1:]] == list(range(1, 16))


def test_publish_is_a_value() -> None:
    same = Publish(b"t", b"x", 1, False, False, 7, b"\x01\x01", 2, 60, (1,))
    assert same == BASE
    assert hash(same) == hash(BASE)
    assert same != "something else"
    assert repr(same) == repr(BASE)


@for_each("other", OTHERS)
def test_every_field_of_publish_counts(other: Publish) -> None:
    assert other != BASE
    assert repr(other) != repr(BASE)


def test_defaults_are_not_shared() -> None:
    first, second = p.Subscribe(), p.Subscribe()
    first.requests.append(p.SubscriptionRequest("a"))
    first.properties.user.append(("a", "b"))
    assert second == p.Subscribe()

"""One tree of errors, each with its reason code; causes of ends, and which of them spare the will."""

from __future__ import annotations

import pytest

from broker.core import causes
from broker.core.codec import errors, reasons

ENDS = {name: value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.MalformedPacket, 0x81),
        (errors.ProtocolViolation, 0x82),
        (errors.PacketTooLarge, 0x95),
        (errors.ReceiveMaximumExceeded, 0x93),
        (errors.TopicAliasInvalid, 0x94),
    ],
)
def test_each_carries_its_code(kind: type[errors.ProtocolError], code: int) -> None:
    """Whoever catches a ProtocolError knows what to answer [MQTT-4.13.1-1]."""
    error = kind("why")
    assert isinstance(error, errors.ProtocolError)
    assert isinstance(error, errors.CanopyError)
    assert (str(error), error.reason_code) == ("why", code)


def test_refused_carries_any_code() -> None:
    """The settings' refusals name their own."""
    error = errors.Refused("no room", reasons.QUOTA_EXCEEDED)
    assert isinstance(error, errors.ProtocolError)
    assert (str(error), error.reason_code) == ("no room", 0x97)


def test_default_code() -> None:
    """A plain ProtocolError is a Protocol Error."""
    assert errors.ProtocolError("why").reason_code == 0x82


def test_causes_are_distinct() -> None:
    """Logs and totals tell them apart."""
    assert len(set(ENDS.values())) == len(ENDS) > 5


@pytest.mark.parametrize("cause", sorted(ENDS.values()))
def test_which_end_spares_the_will(cause: str) -> None:
    """Only the client's DISCONNECT 0x00 does [MQTT-3.1.2-8] [MQTT-3.14.4-3]."""
    assert causes.publishes_will(cause) == (cause != "client-disconnect")

"""Checks the arguments of assertions. An impossible expectation is refused: an assertion about it could only pass, or
only fail.

Each function returns, or raises ValueError or TypeError with what is wrong and what would be right.
"""

from __future__ import annotations

from collections.abc import Collection

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import is_system, parse_shared, validate_filter
from canopy_mqtt.testing.failure_texts import Payload


def check_filter(topic_filter: str, *, system: bool = False) -> None:
    """Check a topic filter that can match the topic of a message. `system`: also one below $SYS."""
    _check_text("topic_filter", topic_filter)
    if topic_filter.startswith("$share/"):
        raise ValueError(f"topic filter {topic_filter!r}: no topic begins with $share/; leave out $share/NAME/")
    try:
        validate_filter(topic_filter)
    except ProtocolError as error:
        raise ValueError(f"topic filter {topic_filter!r}: {error}") from None
    if not system and is_system(topic_filter.encode()):
        raise ValueError(f"topic filter {topic_filter!r}: messages below $SYS are not remembered; retained() has them")


def check_subscription(topic_filter: str) -> None:
    """Check a topic filter that a client can subscribe to, also a shared one."""
    _check_text("topic_filter", topic_filter)
    try:
        validate_filter(parse_shared(topic_filter)[1])
    except ProtocolError as error:
        raise ValueError(f"topic filter {topic_filter!r}: {error}") from None


def check_expected(topic_filter: str, payload: Payload | None, qos: int | None, retain: bool | None) -> None:
    """Check the parts of a message that can be published."""
    check_filter(topic_filter)
    if payload is not None and not isinstance(payload, (bytes, str)) and not callable(payload):
        raise TypeError(f"payload is {type(payload).__name__}; bytes, text, or a function that takes the bytes")
    if qos is not None:
        check_qos(qos)
    if retain is not None and not isinstance(retain, bool):
        raise TypeError(f"retain is {retain!r}; True, False or None")


def check_qos(qos: int) -> None:
    """Check that a QoS is 0, 1 or 2."""
    if qos not in (0, 1, 2):
        raise ValueError(f"QoS {qos!r}; 0, 1 or 2")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Check that a value is one of a few words."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; one of {', '.join(map(repr, choices))}")


def check_amount(name: str, value: float) -> None:
    """Check that a number is 0 or more."""
    if not value >= 0:
        raise ValueError(f"{name} is {value!r}; 0 or more")


def _check_text(name: str, value: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; text")

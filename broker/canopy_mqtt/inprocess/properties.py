"""The properties of a message, as a program sets and reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from canopy_mqtt.core.codec.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    decode_forward,
    encode_forward,
)
from canopy_mqtt.core.queues.message import MAX_EXPIRY

KINDS: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "payload_format_indicator": (int, "0 or 1"),
    "content_type": (str, "text"),
    "response_topic": (str, "text"),
    "correlation_data": ((bytes, bytearray), "bytes"),
    "message_expiry_interval": ((int, float), "seconds"),
}
"""The types of the properties, except for the user properties, and their names in errors."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of MQTT 5.0 that a message may carry (section 3.3.2.3). Clients of 3.1.1 do not see them."""

    payload_format_indicator: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    """In order. A received message always has pairs, because a name may occur more than once."""
    message_expiry_interval: int | None = None
    """Seconds until it expires; for a received message, the remaining ones."""

    def encoded(self) -> bytes:
        """Encode the properties for a PUBLISH, without the message expiry interval.

        Raises:
            TypeError: a property is of another type than its own.
            ValueError: its value is not allowed.
        """
        try:
            return self._encoded()
        except (TypeError, ValueError):
            self._check_types()
            raise

    def _check_types(self) -> None:
        """Raise TypeError for the first property of a wrong type."""
        for name, (kind, words) in KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} is {value!r:.60}; {words}")
        user = self.user_properties
        pairs: Iterable[object] = user.items() if isinstance(user, Mapping) else user
        for pair in pairs:
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(each, str) for each in pair)):
                raise TypeError(f"user_properties has {pair!r:.60}; a name and a value, both text")

    def _encoded(self) -> bytes:
        user = self.user_properties
        pairs = list(user.items() if isinstance(user, Mapping) else user)
        if self.message_expiry_interval is not None and not 0 <= self.message_expiry_interval <= MAX_EXPIRY:
            raise ValueError(f"message_expiry_interval: 0 to {MAX_EXPIRY} seconds")
        return encode_forward(
            self.payload_format_indicator, self.content_type, self.response_topic, self.correlation_data, pairs or None
        )

    @classmethod
    def decoded(cls, raw: bytes, expiry: int) -> Self:
        """Decode the properties of a message in the broker; `expiry`: the remaining seconds, -1: it does not expire."""
        found = decode_forward(raw)
        return cls(
            found.integers.get(PAYLOAD_FORMAT_INDICATOR),
            found.strings.get(CONTENT_TYPE),
            found.strings.get(RESPONSE_TOPIC),
            found.binaries.get(CORRELATION_DATA),
            tuple(found.user),
            None if expiry < 0 else expiry,
        )

"""The kinds of values of settings, each with its bounds; topic filters among them.

Owns the checks of single values, and `Section`, the base class of all groups of settings. A failed check raises an
error of the type "rule" whose text names the allowed values (`wrong`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

DEFAULT_PORT: Final = 1883
DEFAULT_TLS_PORT: Final = 8883

MAX_REMAINING_LENGTH: Final = 268_435_455
"""The largest remaining length that four bytes can encode (section 2.1.4 of the MQTT 5.0 specification)."""

MAX_PACKET: Final = MAX_REMAINING_LENGTH + 5 - 1_048_576
"""The largest packet that can be accepted: the protocol's largest, less the bytes that forwarding may add to a message
(the property section of 5.0 with its subscription identifiers)."""

MAX_STORED_NAME: Final = 2_048
"""Bytes of a topic filter, the topic of a retained message or a client identifier that a database keeps at most: its
indexes have rows of up to 2,704 bytes."""

NEVER: Final = 0xFFFF_FFFF
"""The session expiry interval that means "does not expire" (MQTT 5.0, section 3.1.2.11.2)."""

# Bounds that no broker reaches: they find a slip of the keyboard in a number.
MAX_MESSAGES: Final = 2_000_000_000
MAX_BYTES: Final = 1 << 40
MAX_TIME: Final = 86_400.0
MAX_COMMIT_WINDOW: Final = 1.0

MAX_STRING_BYTES: Final = 65_535
"""Bytes of UTF-8 in a string of the protocol, topic filters among them (MQTT 5.0, section 1.5.4)."""

MAX_ID_PREFIX_BYTES: Final = 200
"""Bytes before the unique part of a client identifier; both together stay below the default limit on identifiers."""

Policy: TypeAlias = Literal["drop-newest", "drop-oldest", "disconnect", "latest"]
"""The policies of a full queue, in the order of the core, which counts them."""


class HasName(Protocol):
    """A table of a list, with the key `name`."""

    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=HasName)


def wrong(wanted: str, at: str = "", found: str | float | Sequence[str] | None = "") -> PydanticCustomError:
    """Make the error of a value that is not allowed, with the allowed ones in words.

    `at` and `found`: the place below the validated value (`[1].name`), and the value there, if it is only a part (None:
    it is missing).
    """
    return PydanticCustomError("rule", "{wanted}", {"wanted": wanted, "at": at, "found": found})


def readable(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Make the validator of a text that `parse` reads. The text of its ValueError says what is allowed."""

    def checked(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise wrong(str(error)) from None
        return text

    return checked


def only(wanted: str, *keys: str, where: Callable[[Mapping[str, Any]], bool]) -> Any:
    """Make the validator of keys that may be given only `where` the keys before them are so.

    A key that is wrong itself is missing there: it was told already. `wanted`: the text of the error.
    """

    def checked(value: Any, info: ValidationInfo) -> Any:
        if value is not None and value not in ("", ()) and not where(info.data):
            raise wrong(wanted)
        return value

    return field_validator(*keys)(checked)


def distinct(what: str) -> Callable[[Sequence[Named]], tuple[Named, ...]]:
    """Make the validator of tables of which no two have one name. `what`: the tables' name in the error."""

    def checked(tables: Sequence[Named]) -> tuple[Named, ...]:
        seen: set[str] = set()
        for at, table in enumerate(tables):
            if table.name in seen:
                raise wrong(f"a name that no other {what} has", f"[{at}].name", table.name)
            seen.add(table.name)
        return tuple(tables)

    return checked


def web_url(allowed: str) -> Callable[[str], str]:
    """Make the validator of a service's URL; empty: no service. `allowed`: the text of its error."""

    def checked(text: str) -> str:
        if not text:
            return text
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise wrong(allowed) from None
        unfit = "@" in parts.netloc or parts.fragment or any(letter <= " " for letter in text) or port == 0
        if parts.scheme not in ("http", "https") or not parts.hostname or unfit:
            raise wrong(allowed)
        return text

    return checked


def networks(value: Sequence[str]) -> tuple[str, ...]:
    """Validate IP addresses and networks. Raises PydanticCustomError: see `wrong`."""
    for at, text in enumerate(value):
        try:
            ipaddress.ip_network(text)
        except ValueError:
            raise wrong('an IP address or network, like "10.0.0.0/8"', f"[{at}]", text) from None
    return tuple(value)


def filter_fault(value: str) -> str:
    """Return the fault of a topic filter, or an empty text.

    Holds a topic filter against section 4.7, as the core does with those of clients; a test compares the two."""
    levels = value.split("/")
    if not 0 < len(value.encode()) <= MAX_STRING_BYTES:
        return f"of 1 to {MAX_STRING_BYTES} bytes"
    if "\0" in value:
        return "without U+0000"
    if "#" in value and (levels[-1] != "#" or value.count("#") > 1):
        return "in which # is only the last level"
    if any("+" in level and level != "+" for level in levels):
        return "in which + has its level to itself"
    return ""


def _filter(why_not_shared: str) -> Callable[[str], str]:
    def checked(value: str) -> str:
        fault = (
            f"without $share/name/ before it{why_not_shared}" if value.startswith("$share/") else filter_fault(value)
        )
        if fault:
            raise wrong(f"a topic filter {fault}")
        return value

    return checked


def _name_fault(value: str) -> str:
    if not 0 < len(value.encode()) <= MAX_STRING_BYTES:
        return f"of 1 to {MAX_STRING_BYTES} bytes"
    if "\0" in value:
        return "without U+0000"
    if "+" in value or "#" in value:
        return "without wildcards"
    return ""


def _topic_or_none(value: str) -> str:
    fault = _name_fault(value) if value else ""
    if fault:
        raise wrong(f'a topic name {fault}, or "" for none')
    return value


def _string(value: str) -> str:
    if len(value.encode()) > MAX_STRING_BYTES or "\0" in value:
        raise wrong(f"text of at most {MAX_STRING_BYTES} bytes without U+0000")
    return value


# The numbers that occur again and again, each with its bounds.
CountOrUnlimited: TypeAlias = Annotated[int, Field(ge=0, le=MAX_MESSAGES)]
Size: TypeAlias = Annotated[int, Field(ge=1, le=MAX_BYTES)]
SizeOrUnlimited: TypeAlias = Annotated[int, Field(ge=0, le=MAX_BYTES)]
SecondsOrOff: TypeAlias = Annotated[float, Field(ge=0, le=MAX_TIME, allow_inf_nan=False)]
Delay: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
RateOrUnlimited: TypeAlias = Annotated[float, Field(ge=0, le=MAX_MESSAGES, allow_inf_nan=False)]
SixteenBits: TypeAlias = Annotated[int, Field(ge=0, le=65_535)]
Pattern: TypeAlias = Annotated[str, Field(min_length=1)]

# What the protocol has for strings (section 1.5.4) and topics (section 4.7).
String: TypeAlias = Annotated[str, AfterValidator(_string)]
TopicOrNone: TypeAlias = Annotated[str, AfterValidator(_topic_or_none)]
RuleFilter: TypeAlias = Annotated[str, AfterValidator(_filter("; the rule holds for shared subscriptions too"))]
PlainFilter: TypeAlias = Annotated[str, AfterValidator(_filter(""))]


class Section(BaseModel):
    """The base class of all groups of settings: strict types, no unknown names, no changes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def _no_nul(cls, value: object) -> object:
        """No name of a file, topic, user or address has a NUL, and the system refuses it where it is first used."""
        if isinstance(value, str) and "\0" in value:
            raise wrong("text without U+0000")
        return value

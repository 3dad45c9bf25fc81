"""The kinds of values of settings, each with its bounds; addresses and topic filters among them.

Owns the checks of single values, and `Section`, the base class of all groups of settings. A failed check raises an
error of the type "rule" whose text names the allowed values (`wrong`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
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

PLAIN_PORTS: Final = {"mqtt": DEFAULT_PORT, "ws": 8080}
"""The schemes of listeners without further settings, and the default port of each."""

TABLES_ONLY: Final = ("mqtts", "ssl", "tls", "wss", "unix", "mqtt+unix")
"""Schemes of listeners that need further settings: certificates, or the mode of a file."""


class Address(NamedTuple):
    """An address to bind. With port 0 the system chooses a free one."""

    host: str
    port: int
    scheme: str = "mqtt"

    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def overlaps(self, other: Address) -> bool:
        """Return whether the system would bind only one of the two: `0.0.0.0` has the port of every IPv4 address."""
        if self.port != other.port or self.port == 0:
            return False
        return self.host == other.host or self._is_wild_for(other.host) or other._is_wild_for(self.host)

    def _is_wild_for(self, host: str) -> bool:
        return self.host == "*" or self.host == ("::" if ":" in host else "0.0.0.0")


def parse_listen(url: str) -> Address:
    """Read ``mqtt://HOST[:PORT]`` (1883) or ``ws://HOST[:PORT]`` (8080); an IPv6 address stands in brackets.

    Raises:
        ValueError: the text says what is wrong and what would be right, without repeating the URL.
    """
    form = "mqtt://HOST:PORT or ws://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL of the form {form} ({error})") from None
    if parts.scheme in TABLES_ONLY:
        needs = "certificates" if "unix" not in parts.scheme else "the mode of its file"
        raise ValueError(f'the scheme "{parts.scheme}" takes a [[listener]] table, for {needs}; here it is {form}')
    if parts.scheme not in PLAIN_PORTS or not parts.netloc:
        raise ValueError(f"not a URL of the form {form}")
    if not parts.hostname:
        raise ValueError(
            "the host is missing; mqtt://*:PORT listens on every interface (0.0.0.0: IPv4 alone, [::]: IPv6 alone)"
        )
    if "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"a listener takes no user, path, query or fragment: only {form}")
    return Address(parts.hostname, PLAIN_PORTS[parts.scheme] if port is None else port, parts.scheme)


def wrong(wanted: str, at: str = "", found: str | float | Sequence[str] | None = "") -> PydanticCustomError:
    """Make the error of a value that is not allowed, with the allowed ones in words.

    `at` and `found`: the place below the validated value (`[1].name`), and the value there, if it is only a part (None:
    it is missing).
    """
    return PydanticCustomError("rule", "{wanted}", {"wanted": wanted, "at": at, "found": found})


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


def _rule_filter(value: str) -> str:
    fault = filter_fault(value)
    if value.startswith("$share/"):
        fault = "without $share/name/ before it; the rule holds for shared subscriptions too"
    if fault:
        raise wrong(f"a topic filter {fault}")
    return value


def _plain_filter(value: str) -> str:
    fault = filter_fault(value)
    if value.startswith("$share/"):
        fault = "without $share/name/ before it"
    if fault:
        raise wrong(f"a topic filter {fault}")
    return value


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
RuleFilter: TypeAlias = Annotated[str, AfterValidator(_rule_filter)]
PlainFilter: TypeAlias = Annotated[str, AfterValidator(_plain_filter)]


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

"""The sections about other brokers: `[[upstream]]`, `[federation]` and `[presence]`.

Owns the keys of a link, and the checks of their combinations. All topic filters are local: as clients of this broker
use them, before `local_prefix` is replaced by `remote_prefix`.

Promises: a password appears in no `repr` and in no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from canopy_mqtt.settings.values import (
    DEFAULT_PORT,
    DEFAULT_TLS_PORT,
    MAX_STRING_BYTES,
    MAX_TIME,
    NEVER,
    CountOrUnlimited,
    Pattern,
    PlainFilter,
    SecondsOrOff,
    Section,
    SixteenBits,
    SizeOrUnlimited,
    String,
    TopicOrNone,
    only,
    readable,
    wrong,
)

MAX_FILTERS: Final = 65_535
"""Topic filters that a budget may allow: far more than any link needs."""

A_WORD: Final = "(word)"
A_LIST: Final = "(list)"
"""Marks the list form of a key that may be one of two types. Errors leave it out."""

Seconds: TypeAlias = Annotated[float, Field(gt=0, le=MAX_TIME, allow_inf_nan=False)]
Patterns: TypeAlias = Annotated[Sequence[Pattern], AfterValidator(tuple)]
Filters: TypeAlias = Annotated[Sequence[PlainFilter], AfterValidator(tuple)]


def _word_or_list(value: Any) -> str:
    return A_WORD if isinstance(value, str) else A_LIST


class Remote(NamedTuple):
    """The address of an upstream broker."""

    host: str
    port: int
    tls: bool


def parse_upstream(url: str) -> Remote:
    """Read ``mqtt://HOST[:PORT]`` or ``mqtts://HOST[:PORT]``; an IPv6 address stands in brackets.

    Raises:
        ValueError: the text says what would be right, without repeating the URL, which might hold a password.
    """
    form = "mqtt://HOST[:PORT] or mqtts://HOST[:PORT]"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(form) from None
    if "@" in parts.netloc:
        raise ValueError(f"{form}, without a user: username and password are settings of their own")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{form}, with a port from 1 to 65535") from None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or any(char.isspace() for char in url):
        raise ValueError(form)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{form}, without path, query or fragment")
    if port == 0:
        raise ValueError(f"{form}, with a port from 1 to 65535")
    tls = parts.scheme == "mqtts"
    if port is None:
        port = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
    return Remote(parts.hostname, port, tls)


def _password(value: str) -> str:
    # Binary data of the protocol (section 3.1.3.6): any bytes, but not more of them.
    if len(value.encode()) > MAX_STRING_BYTES:
        raise wrong(f"text of at most {MAX_STRING_BYTES} bytes")
    return value


def _prefix(value: str) -> str:
    if not value:
        return value
    if not value.endswith("/"):
        raise wrong('"", or whole levels that end in "/", like "site/7/"')
    if "+" in value or "#" in value:
        raise wrong("levels without wildcards")
    if value.startswith(("$SYS/", "$share/")):
        raise wrong("levels that do not begin with $SYS/ or $share/")
    if len(value.encode()) > MAX_STRING_BYTES or "\0" in value:
        raise wrong(f"text of at most {MAX_STRING_BYTES} bytes without U+0000")
    return value


def _presence_topic(value: str) -> str:
    if value.endswith("/") or value.startswith(("$SYS/", "$share/")) or value in ("$SYS", "$share"):
        raise wrong('a topic name that neither ends in "/" nor begins with $SYS or $share, or "" for none')
    return value


class Upstream(Section):
    """One link: this broker as a client of another one."""

    # An error that repeats what it was given would repeat passwords.
    model_config = ConfigDict(hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}\z")]
    url: Annotated[str, AfterValidator(readable(parse_upstream))]
    username: String = ""
    password: Annotated[str, AfterValidator(_password), Field(repr=False)] = ""
    password_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: Annotated[str, Field(validate_default=True)] = ""
    client_id: String = ""
    version: Literal["auto", "5.0", "3.1.1"] = "auto"
    keep_alive: SixteenBits = 60
    session_expiry: Annotated[int, Field(ge=0, le=NEVER)] = 86_400
    clean_start: bool = True
    subscribe: Annotated[
        Annotated[Literal["demand"], Tag(A_WORD)] | Annotated[Filters, Tag(A_LIST)], Discriminator(_word_or_list)
    ] = "demand"
    aggregate: Annotated[
        Annotated[Literal["auto"], Tag(A_WORD)] | Annotated[Filters, Tag(A_LIST)], Discriminator(_word_or_list)
    ] = ()
    max_filters: Annotated[int, Field(ge=1, le=MAX_FILTERS)] = 64
    hold: SecondsOrOff = 30.0
    packet_filters: Annotated[int, Field(ge=1, le=MAX_FILTERS)] = 256
    roots: Filters = ()
    unfolded: Filters = ("canopy/presence/#",)
    publish: Filters = ()
    local_prefix: Annotated[str, AfterValidator(_prefix)] = ""
    remote_prefix: Annotated[str, AfterValidator(_prefix)] = ""
    subscribe_qos: Literal[0, 1, 2] = 1
    publish_qos: Literal[0, 1, 2] = 2
    policy: Literal["drop-newest", "drop-oldest", "latest"] = "drop-newest"
    queue_messages: CountOrUnlimited = 100_000
    queue_bytes: SizeOrUnlimited = 67_108_864
    queue_qos0: bool = False
    retry_min: Seconds = 1.0
    retry_max: Annotated[Seconds, Field(validate_default=True)] = 60.0
    status_topic: TopicOrNone = ""

    @property
    def remote(self) -> Remote:
        """The parsed `url`."""
        return parse_upstream(self.url)

    _one_password = only("only without password", "password_file", where=lambda given: not given.get("password"))
    _with_tls = only(
        "only with an mqtts:// url",
        "ca_file",
        "cert_file",
        "key_file",
        where=lambda given: given.get("url", "mqtts:").startswith("mqtts:"),
    )

    @field_validator("key_file")
    @classmethod
    def _certificate_and_key(cls, value: str, info: ValidationInfo) -> str:
        certificate = info.data.get("cert_file")
        if certificate and not value:
            raise wrong("the file of the private key, with cert_file")
        if value and certificate == "":
            raise wrong("only with cert_file")
        return value

    @field_validator("roots")
    @classmethod
    def _within_budget(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        most = info.data.get("max_filters", MAX_FILTERS)
        if info.data.get("aggregate") == "auto" and len(value) > most:
            raise wrong(f'at most max_filters, {most}, topic filters with aggregate = "auto"')
        return value

    @field_validator("retry_max")
    @classmethod
    def _not_below(cls, value: float, info: ValidationInfo) -> float:
        least = info.data.get("retry_min", 0.0)
        if value < least:
            raise wrong(f"a number from retry_min, {least}, to {MAX_TIME}")
        return value

    @model_validator(mode="after")
    def _user_beside_password(self) -> Upstream:
        # [MQTT3-3.1.2-22] Without the user name flag there is no password in 3.1.1.
        if self.version == "3.1.1" and not self.username and (self.password or self.password_file):
            raise wrong("a user name: MQTT 3.1.1 has no password without one", ".username")
        return self


class Federation(Section):
    """The place of this broker among others."""

    broker_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,32}\z")] = ""
    hop_limit: Annotated[int, Field(ge=0, le=255)] = 8
    link_users: Patterns = ()
    link_client_ids: Patterns = ()
    answer_timeout: SecondsOrOff = 5.0


class Presence(Section):
    """Publishes connected clients as retained messages."""

    topic: Annotated[TopicOrNone, AfterValidator(_presence_topic)] = ""
    delay: SecondsOrOff = 0.0

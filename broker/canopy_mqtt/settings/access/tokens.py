"""The `[[authenticator]]` tables for tokens, for a service over HTTP, and for SCRAM.

Promises: a secret appears in no `repr` and in no error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from canopy_mqtt.settings.access.authenticator_table import AuthenticatorTable, FilePath
from canopy_mqtt.settings.http import is_loopback
from canopy_mqtt.settings.values import MAX_BYTES, MAX_TIME, CountOrUnlimited, SecondsOrOff, String, only, wrong

Algorithm: TypeAlias = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]

MIN_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The least length of a shared secret in bytes: that of the hash (RFC 7518, section 3.2). A shorter one can be found by
trial."""

HEADER_NAME: Final = re.compile("[A-Za-z0-9-]+")

Seconds: TypeAlias = Annotated[float, Field(gt=0, le=MAX_TIME, allow_inf_nan=False)]
Texts: TypeAlias = Annotated[Sequence[String], AfterValidator(tuple)]
Bytes: TypeAlias = Annotated[int, Field(ge=256, le=MAX_BYTES)]


def _url_fault(url: str) -> str:
    """Return the fault in the URL of a service; empty: none. It does not repeat the URL."""
    form = "https://HOST[:PORT]/PATH or http://HOST[:PORT]/PATH"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return form
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or any(char.isspace() for char in url):
        return form
    if "@" in parts.netloc:
        return f"{form}, without a user: headers can hold a credential"
    return f"{form}, without a fragment" if parts.fragment else ""


def is_url(text: str) -> bool:
    """Return True if a setting that may be a file or a URL is a URL."""
    return text.lower().startswith(("http://", "https://"))


def in_clear(url: str) -> bool:
    """Return True if requests to this URL are readable on the way: http, to another machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _url(value: str) -> str:
    fault = _url_fault(value)
    if fault:
        raise wrong(fault)
    return value


def _file_or_url(value: str) -> str:
    fault = _url_fault(value) if is_url(value) else ""
    if fault:
        raise wrong(f"a file, or {fault}")
    return value


def _algorithms(value: Sequence[str]) -> tuple[str, ...]:
    shared = [name for name in value if name.startswith("HS")]
    if not value or (shared and len(shared) < len(value)):
        raise wrong("one or more algorithms, either all with a shared secret (HS…) or none of them")
    return tuple(value)


def _headers(value: Sequence[str]) -> tuple[str, ...]:
    for header in value:
        name, colon, text = header.partition(":")
        if not colon or not HEADER_NAME.fullmatch(name) or not text.isprintable():
            raise wrong('a list of headers, like ["Authorization: Bearer …"]')
        if name.lower() in ("host", "content-length", "content-type", "transfer-encoding", "accept-encoding"):
            raise wrong("headers other than Host, Content-Type, Content-Length, and those of encodings")
    return tuple(value)


class JwtTable(AuthenticatorTable):
    """Accepts signed tokens (RFC 7519)."""

    type: Literal["jwt"]
    algorithms: Annotated[Sequence[Algorithm], AfterValidator(_algorithms)]
    secret: Annotated[str, Field(repr=False)] = ""
    secret_file: str = ""
    key_file: str = ""
    jwks: Annotated[str, AfterValidator(_file_or_url)] = ""
    jwks_ca_file: str = ""
    jwks_refresh: Seconds = 300.0
    jwks_min_interval: Seconds = 10.0
    jwks_timeout: Seconds = 5.0
    jwks_max_bytes: Bytes = 262_144
    token_in: Literal["password", "user-name"] = "password"
    max_token_bytes: Bytes = 8_192
    audience: Texts = ()
    issuer: Texts = ()
    leeway: SecondsOrOff = 0.0
    require_expiry: bool = True
    user_claim: String = "sub"
    same_user: bool = False
    client_id_claim: String = ""
    groups_claim: String = "groups"
    rules_claim: String = "acl"

    _one_secret = only("only without secret", "secret_file", where=lambda given: not given.get("secret"))

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, value: str, info: ValidationInfo) -> str:
        least = max((MIN_SECRET_BYTES.get(name, 0) for name in info.data.get("algorithms", ())), default=0)
        if value and len(value.encode()) < least:
            raise wrong(f"text of at least {least} bytes, as the hash has")
        return value

    @model_validator(mode="after")
    def _one_key(self) -> JwtTable:
        shared = self.algorithms[0].startswith("HS")
        given = [name for name in ("secret", "secret_file", "key_file", "jwks") if getattr(self, name)]
        fitting = ("secret", "secret_file", "jwks") if shared else ("key_file", "jwks")
        if len(given) != 1 or given[0] not in fitting:
            raise wrong(f"one of {', '.join(fitting)} with algorithms = {list(self.algorithms)}")
        if self.token_in == "user-name" and (self.same_user or not self.user_claim):
            raise wrong('a user_claim, and not same_user, with token_in = "user-name"')
        return self


class HttpTable(AuthenticatorTable):
    """Asks a service over HTTP."""

    type: Literal["http"]
    url: Annotated[str, AfterValidator(_url)]
    headers: Annotated[Sequence[str], AfterValidator(_headers), Field(repr=False)] = ()
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout: Seconds = 3.0
    max_requests: Annotated[int, Field(ge=1, le=65_535)] = 32
    max_waiting: CountOrUnlimited = 1_000
    max_answer_bytes: Bytes = 65_536
    cache_time: SecondsOrOff = 0.0
    cache_entries: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    on_error: Literal["deny", "ignore", "allow"] = "deny"

    _certificate_and_key = only("only with cert_file", "key_file", where=lambda given: bool(given.get("cert_file")))


class ScramTable(AuthenticatorTable):
    """Lets clients prove their password without sending it: SCRAM-SHA-256, only with MQTT 5.0."""

    type: Literal["scram-sha-256"]
    path: FilePath
    """The file with users and salted keys, as `canopy passwd --scram` writes it."""

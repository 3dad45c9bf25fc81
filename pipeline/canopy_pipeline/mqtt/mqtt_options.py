"""The options of the data source "mqtt", checked before anything is connected.

Owns: names, defaults and bounds of the options, for streams, for one read, and for the sink.

Promises: everything unknown, missing or out of bounds is a ``MisuseError`` of one line that names the option and says
what to write instead. A password is shown nowhere: in no message, and in no ``repr``.

Refuses: a user name or password in the url, which others log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, FilePath, ValidationError, field_validator, model_validator

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_filter, validate_topic
from canopy_pipeline.errors import MisuseError

MAX_EXPIRY: Final = 0xFFFFFFFF
"""Seconds; as Session Expiry Interval it means: never."""

_ADDRESS: Final = "give mqtt://HOST:PORT or mqtts://HOST:PORT"
_MISSING: Final = {
    "url": _ADDRESS,
    "filters": "give topic filters with commas between them, as in plant/#,other/+",
    "client_id": "give a name that stays the same over restarts, as in spark-1",
    "spool": "give a folder of this query alone, as in /var/spool/canopy/spark-1",
}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark hands its own options of a streaming query to the sink."""

Options = TypeVar("Options", bound="Broker")


class Broker(BaseModel):
    """The options of all uses: where the broker is, and who connects."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    url: str
    version: Literal["5", "3.1.1"] = "5"
    user_name: str | None = None
    password: str | None = Field(None, repr=False)
    password_file: str | None = None
    tls_ca: FilePath | None = None
    tls_cert: FilePath | None = None
    tls_key: FilePath | None = None
    tls_insecure: bool = False
    connect_timeout: float = Field(30.0, ge=0.1, le=3600)
    keep_alive: int = Field(60, ge=5, le=65_535)

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def tls(self) -> bool:
        return self.url.startswith("mqtts:")

    @field_validator("url")
    @classmethod
    def _with_port(cls, text: str) -> str:
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError(f"is no address: {_ADDRESS}") from None
        if "@" in parts.netloc:
            raise ValueError("has a user name in it: give it as options user_name and password_file")
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"is {text!r}: {_ADDRESS}")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}:{port or (8883 if parts.scheme == 'mqtts' else 1883)}"

    @model_validator(mode="before")
    @classmethod
    def _read_password(cls, given: dict[str, Any]) -> dict[str, Any]:
        file = given.get("password_file")
        if file is not None:
            if "password" in given:
                raise ValueError("options 'password' and 'password_file' are both set: give one of them")
            try:
                given = {**given, "password": Path(file).read_text(encoding="utf-8-sig").rstrip("\r\n")}
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"option 'password_file' is {file!r}: it cannot be read ({error})") from error
        return given

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if getattr(self, name) is not None and not self.tls:
                raise ValueError(f"option {name!r} is set and the url is no mqtts: give mqtts://HOST:PORT")
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("option 'tls_key' is set without 'tls_cert': give the certificate too")
        if self.password is not None and self.user_name is None:
            raise ValueError("option 'password' is set without 'user_name': give both")
        return self


class _Reading(Broker):
    filters: tuple[str, ...]
    qos: int = Field(1, ge=0, le=2)
    receive_maximum: int = Field(10_000, ge=1, le=65_535)

    @field_validator("filters", mode="before")
    @classmethod
    def _split(cls, text: str) -> tuple[str, ...]:
        found = [each.strip() for each in text.split(",")]
        if text.lstrip().startswith("["):
            try:
                found = json.loads(text)
            except ValueError:
                found = []
            if not found or not all(isinstance(each, str) for each in found):
                raise ValueError(f'is {text!r}: as JSON, give a list of strings, as in ["a,b/#"]')
        for each in found:
            if (why := wrong_filter(each)) is not None:
                raise ValueError(f"has {each!r}: {why}")
        return tuple(dict.fromkeys(found))


class StreamOptions(_Reading):
    """The options of `readStream`."""

    client_id: str
    session_expiry: int = Field(86_400, ge=1, le=MAX_EXPIRY)
    spool: Path
    spool_bytes: int = Field(1 << 30, ge=1 << 16, le=1 << 50)
    max_rows: int = Field(1_000_000, ge=1, le=1 << 40)
    segment_rows: int = Field(50_000, ge=1, le=1_000_000)
    segment_ms: int = Field(200, ge=1, le=60_000)
    segment_idle_ms: int = Field(10, ge=1, le=60_000)
    available_now_wait: float = Field(2.0, ge=0.01, le=3600)
    partitions: int = Field(8, ge=1, le=10_000)

    @field_validator("spool")
    @classmethod
    def _is_absolute(cls, folder: Path) -> Path:
        if not folder.is_absolute():
            raise ValueError(f"is a relative path ({folder}): give an absolute one")
        return folder


class BatchOptions(_Reading):
    """The options of `read`."""

    client_id: str = ""
    max_rows: int = Field(100_000, ge=1, le=100_000_000)
    duration: float = Field(10.0, ge=0.01, le=86_400)
    idle: float = Field(1.0, ge=0.01, le=86_400)


class SinkOptions(Broker):
    """The options of `write` and `writeStream`."""

    client_id: str = "spark-sink"
    qos: int = Field(1, ge=0, le=2)
    window: int = Field(1000, ge=1, le=65_535)


_STREAM, _BATCH, _SINK = (frozenset(kind.model_fields) for kind in (StreamOptions, BatchOptions, SinkOptions))
_USES: Final = {"readStream": _STREAM, "read": _BATCH, "write and writeStream": _SINK}


def check_options(options: Mapping[str, str]) -> None:
    """Refuse wrong options as early as possible, before the use of the source is known.

    Raises:
        MisuseError: an option is unknown, or those of a read are wrong.
    """
    _known(options, frozenset().union(*_USES.values()))
    names = {name.lower() for name in options}
    if names & (_STREAM - _BATCH):
        chosen(StreamOptions, options)
    elif names & (_BATCH - _STREAM):
        chosen(BatchOptions, options)
    elif "filters" in names:
        _made(_Reading, options)


def chosen(kind: type[Options], options: Mapping[str, str]) -> Options:
    """Return the options of a use.

    Raises:
        MisuseError: one of them is missing, unknown or wrong.
    """
    _known(options, frozenset(kind.model_fields))
    return _made(kind, options)


def _known(options: Mapping[str, str], names: frozenset[str]) -> None:
    for name in options:
        if name.lower() in names | _SPARKS_OWN:
            continue
        for use, others in _USES.items():
            if name.lower() in others:
                raise MisuseError(f"option {name!r} is for {use} alone: leave it out here")
        raise MisuseError(f"option {name!r} is unknown to the source mqtt; there are: {', '.join(sorted(names))}")


def _made(kind: type[Options], options: Mapping[str, str]) -> Options:
    try:
        return kind.model_validate({name.lower(): value for name, value in options.items() if value != ""})
    except ValidationError as error:
        [first, *_] = error.errors()
    said, name = first["msg"].removeprefix("Value error, "), first["loc"][0] if first["loc"] else ""
    if first["type"] == "missing":
        raise MisuseError(f"option {name!r} is missing: {_MISSING[str(name)]}")
    if first["type"] != "value_error":
        said = f"is {first['input']!r}: {said[0].lower()}{said[1:]}"
    raise MisuseError(f"option {name!r} {said}" if name else said)


def wrong_topic(topic: str) -> str | None:
    """Return the fault of a topic name; None if it has none."""
    return _fault(validate_topic, topic)


def wrong_filter(topic_filter: str) -> str | None:
    """Return the fault of a topic filter; None if it has none."""
    return _fault(validate_filter, topic_filter)


def _fault(check: Callable[[str], None], text: str) -> str | None:
    try:
        text.encode()
        check(text)
    except UnicodeEncodeError:
        return "it is no UTF-8"
    except ProtocolError as error:
        return str(error)
    return None

"""The options of the data source "mqtt", checked before anything is connected.

Owns: names, defaults and bounds of the options, for streams, for one read, and for the sink.

Promises: everything unknown, missing or out of bounds is a ``MisuseError`` of one line that names the option and says
what to write instead. A password is shown nowhere: in no message, and in no ``repr``.

Refuses: a user name or password in the url, which others log.
"""

from __future__ import annotations

import json
import math
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_filter, validate_topic
from canopy_pipeline.errors import MisuseError

MAX_EXPIRY: Final = 0xFFFFFFFF
"""Seconds; as Session Expiry Interval it means: never."""

_COMMON: Final = frozenset(
    {
        *("url", "version", "client_id", "user_name", "password", "password_file"),
        *("tls_ca", "tls_cert", "tls_key", "tls_insecure", "connect_timeout", "keep_alive"),
    }
)
_STREAM: Final = _COMMON | {
    *("filters", "qos", "session_expiry", "receive_maximum", "spool", "spool_bytes", "max_rows"),
    *("segment_rows", "segment_ms", "segment_idle_ms", "available_now_wait", "partitions"),
}
_BATCH: Final = _COMMON | {"filters", "qos", "max_rows", "duration", "idle", "receive_maximum"}
_SINK: Final = _COMMON | {"topic", "qos", "retain", "window", "payload_json"}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark hands its own options of a streaming query to the sink."""
_USES: Final = {"readStream": _STREAM, "read": _BATCH, "write and writeStream": _SINK}


@dataclass(frozen=True)
class Broker:
    host: str
    port: int
    tls: bool
    version: str
    user_name: str | None
    password: str | None = field(repr=False)
    ca: str | None
    cert: str | None
    key: str | None
    insecure: bool
    connect_timeout: float
    keep_alive: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


@dataclass(frozen=True)
class StreamOptions:
    broker: Broker
    filters: tuple[str, ...]
    qos: int
    client_id: str
    session_expiry: int
    receive_maximum: int
    spool: Path
    spool_bytes: int
    max_rows: int
    segment_rows: int
    segment_s: float
    segment_idle_s: float
    available_now_wait: float
    partitions: int


@dataclass(frozen=True)
class BatchOptions:
    broker: Broker
    filters: tuple[str, ...]
    qos: int
    client_id: str
    receive_maximum: int
    max_rows: int
    duration: float
    idle: float


@dataclass(frozen=True)
class SinkOptions:
    broker: Broker
    client_id: str
    topic: str | None
    qos: int
    retain: bool
    window: int
    payload_json: bool


def check_options(options: Mapping[str, str]) -> None:
    """Refuse wrong options as early as possible, before the use of the source is known.

    Raises:
        MisuseError: an option is unknown, or those of a read are wrong.
    """
    _known(options, frozenset().union(*_USES.values(), _SPARKS_OWN))
    names = {name.lower() for name in options}
    if names & (_STREAM - _BATCH):
        stream_options(options)
    elif names & (_BATCH - _STREAM):
        batch_options(options)
    elif "filters" in names:
        values = _Values(options, _STREAM | _BATCH)
        _broker(values)
        values.filters()


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of `readStream`.

    Raises:
        MisuseError: one of them is missing, unknown or wrong.
    """
    values = _Values(options, _STREAM | _SPARKS_OWN)
    chosen = StreamOptions(
        broker=_broker(values),
        filters=values.filters(),
        qos=values.integer("qos", 1, 0, 2),
        client_id=values.required("client_id", "a name that stays the same over restarts, as in spark-1"),
        session_expiry=values.integer("session_expiry", 86_400, 1, MAX_EXPIRY, "seconds"),
        receive_maximum=values.integer("receive_maximum", 10_000, 1, 65_535, "messages"),
        spool=Path(values.required("spool", "a folder of this query alone, as in /var/spool/canopy/spark-1")),
        spool_bytes=values.integer("spool_bytes", 1 << 30, 1 << 16, 1 << 50, "bytes"),
        max_rows=values.integer("max_rows", 1_000_000, 1, 1 << 40, "rows"),
        segment_rows=values.integer("segment_rows", 50_000, 1, 1_000_000, "rows"),
        segment_s=values.integer("segment_ms", 200, 1, 60_000, "milliseconds") / 1000,
        segment_idle_s=values.integer("segment_idle_ms", 10, 1, 60_000, "milliseconds") / 1000,
        available_now_wait=values.seconds("available_now_wait", 2.0, 0.01, 3600),
        partitions=values.integer("partitions", 8, 1, 10_000),
    )
    if not chosen.spool.is_absolute():
        raise MisuseError(f"option 'spool' is a relative path ({chosen.spool}): give an absolute one")
    return chosen


def batch_options(options: Mapping[str, str]) -> BatchOptions:
    """The options of `read`.

    Raises:
        MisuseError: one of them is missing, unknown or wrong.
    """
    values = _Values(options, _BATCH)
    return BatchOptions(
        broker=_broker(values),
        filters=values.filters(),
        qos=values.integer("qos", 1, 0, 2),
        client_id=values.text("client_id", ""),
        receive_maximum=values.integer("receive_maximum", 10_000, 1, 65_535, "messages"),
        max_rows=values.integer("max_rows", 100_000, 1, 100_000_000, "rows"),
        duration=values.seconds("duration", 10.0, 0.01, 86_400),
        idle=values.seconds("idle", 1.0, 0.01, 86_400),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of `write` and `writeStream`.

    Raises:
        MisuseError: one of them is missing, unknown or wrong.
    """
    values = _Values(options, _SINK | _SPARKS_OWN)
    topic = values.text("topic", "")
    if topic:
        why = wrong_topic(topic)
        if why is not None:
            raise MisuseError(f"option 'topic' is {topic!r}: {why}")
    return SinkOptions(
        broker=_broker(values),
        client_id=values.text("client_id", "spark-sink"),
        topic=topic or None,
        qos=values.integer("qos", 1, 0, 2),
        retain=values.flag("retain"),
        window=values.integer("window", 1000, 1, 65_535, "messages"),
        payload_json=values.flag("payload_json"),
    )


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


def _known(options: Mapping[str, str], names: frozenset[str]) -> None:
    for name in options:
        if name.lower() in names:
            continue
        for use, others in _USES.items():
            if name.lower() in others:
                raise MisuseError(f"option {name!r} is for {use} alone: leave it out here")
        known = ", ".join(sorted(names - _SPARKS_OWN))
        raise MisuseError(f"option {name!r} is unknown to the source mqtt; there are: {known}")


class _Values:
    """Options read one by one; each method refuses what is wrong in one line."""

    def __init__(self, options: Mapping[str, str], names: frozenset[str]) -> None:
        _known(options, names)
        self._options = {name.lower(): value for name, value in options.items()}

    def text(self, name: str, default: str) -> str:
        return self._options.get(name, default)

    def maybe(self, name: str) -> str | None:
        return self._options.get(name)

    def required(self, name: str, remedy: str) -> str:
        value = self._options.get(name, "")
        if not value:
            raise MisuseError(f"option {name!r} is missing: give {remedy}")
        return value

    def integer(self, name: str, default: int, low: int, high: int, unit: str = "") -> int:
        value = self._options.get(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise MisuseError(f"option {name!r} is {value!r}: give {f'{unit}, ' if unit else ''}from {low} to {high}")
        return number

    def seconds(self, name: str, default: float, low: float, high: float) -> float:
        value = self._options.get(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise MisuseError(f"option {name!r} is {value!r}: give seconds, from {low:g} to {high:g}")
        return number

    def flag(self, name: str) -> bool:
        value = self._options.get(name, "false")
        if value.lower() not in ("true", "false"):
            raise MisuseError(f"option {name!r} is {value!r}: give true or false")
        return value.lower() == "true"

    def filters(self) -> tuple[str, ...]:
        text = self.required("filters", "topic filters with commas between them, as in plant/#,other/+")
        found: list[str]
        if text.lstrip().startswith("["):
            try:
                found = json.loads(text)
            except ValueError:
                found = []
            if not found or not all(isinstance(each, str) for each in found):
                raise MisuseError(f"option 'filters' is {text!r}: as JSON, give a list of strings, as in [\"a,b/#\"]")
        else:
            found = [each.strip() for each in text.split(",")]
        for each in found:
            why = wrong_filter(each)
            if why is not None:
                raise MisuseError(f"option 'filters' has {each!r}: {why}")
        return tuple(dict.fromkeys(found))


def _broker(values: _Values) -> Broker:
    url = values.required("url", "mqtt://HOST:PORT or mqtts://HOST:PORT")
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        raise MisuseError("option 'url' is no address: give mqtt://HOST:PORT or mqtts://HOST:PORT") from None
    if "@" in parts.netloc:
        raise MisuseError("option 'url' has a user name in it: give it as options user_name and password_file")
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise MisuseError(f"option 'url' is {url!r}: give mqtt://HOST:PORT or mqtts://HOST:PORT")
    tls = parts.scheme == "mqtts"
    files = {name: values.maybe(name) for name in ("tls_ca", "tls_cert", "tls_key")}
    for name, file in files.items():
        if file is not None and not tls:
            raise MisuseError(f"option {name!r} is set and the url is no mqtts: give mqtts://HOST:PORT")
        if file is not None and not Path(file).is_file():
            raise MisuseError(f"option {name!r} is {file!r}: there is no such file")
    if files["tls_key"] is not None and files["tls_cert"] is None:
        raise MisuseError("option 'tls_key' is set without 'tls_cert': give the certificate too")
    version = values.text("version", "5")
    if version not in ("5", "5.0", "3.1.1"):
        raise MisuseError(f"option 'version' is {version!r}: give 5 or 3.1.1")
    return Broker(
        host=parts.hostname,
        port=port or (8883 if tls else 1883),
        tls=tls,
        version="5" if version[0] == "5" else version,
        user_name=values.maybe("user_name"),
        password=_password(values),
        ca=files["tls_ca"],
        cert=files["tls_cert"],
        key=files["tls_key"],
        insecure=values.flag("tls_insecure"),
        connect_timeout=values.seconds("connect_timeout", 30.0, 0.1, 3600),
        keep_alive=values.integer("keep_alive", 60, 5, 65_535, "seconds"),
    )


def _password(values: _Values) -> str | None:
    password, file = values.maybe("password"), values.maybe("password_file")
    if file is not None:
        if password is not None:
            raise MisuseError("options 'password' and 'password_file' are both set: give one of them")
        try:
            password = Path(file).read_text(encoding="utf-8-sig").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise MisuseError(f"option 'password_file' is {file!r}: it cannot be read ({error})") from error
    if password is not None and values.maybe("user_name") is None:
        raise MisuseError("option 'password' is set without 'user_name': give both")
    return password

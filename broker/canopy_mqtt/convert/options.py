"""Lists every option of mosquitto 2.0 and 2.1 (mosquitto.conf(5) and src/conf.c), with its conversion.

Owns one table, `OPTIONS`: an option becomes one setting of Canopy (`Setting`), or none (`NotConverted`), or a module
converts it together with others (`ConvertedBy`). A test compares the table with the manual page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from canopy_mqtt.convert.draft import Kind, Value
from canopy_mqtt.settings import NEVER

SECONDS: Final = {"s": 1, "h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
"""The units of `persistent_client_expiration`: a month has 30 days, a year 365."""

VERSIONS: Final = {"3": "3.1", "4": "3.1.1", "5": "5.0"}

NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}|0[xX][0-9a-fA-F]{1,15}")


def first_word(text: str) -> str:
    """Return the first word: mosquitto ignores the rest of a value that is one word."""
    return text.partition(" ")[0]


def yes_or_no(text: str) -> bool:
    """Parse `true` or `false`, or 1 or 0, as mosquitto does. Raises ValueError."""
    word = first_word(text).lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise ValueError("true or false")


def number(text: str) -> int:
    """Parse a whole number. Raises ValueError."""
    word = first_word(text)
    if not NUMBER.fullmatch(word):
        raise ValueError("a whole number")
    return int(word, 16 if "x" in word.lower() else 10)


def number_or_none(text: str) -> int:
    """Parse a whole number; a negative one means no limit, which is 0 in Canopy. Raises ValueError."""
    return max(number(text), 0)


def any_text(text: str) -> str:
    """Return a text that is not empty. Raises ValueError."""
    if not text:
        raise ValueError("a value")
    return text


def _keep_alive(text: str) -> int:
    # 65535 is all that a client can ask for: no limit.
    return number_or_none(text) % 65_535


def _expiry(text: str) -> int:
    word = first_word(text)
    unit = SECONDS.get(word[-1:])
    if unit is None or not NUMBER.fullmatch(word[:-1]) or int(word[:-1]) <= 0:
        raise ValueError("a number above 0 behind which s, h, d, w, m or y stands")
    return min(int(word[:-1]) * unit, NEVER - 1)


def _versions(text: str) -> list[str]:
    listed = [VERSIONS.get(each, "") for each in re.split(r"[, \t]+", text.strip(", \t"))]
    if "" in listed:
        raise ValueError("3, 4 and 5, with commas between them")
    return [each for each in VERSIONS.values() if each in listed]


def _every(values: Sequence[list[str]]) -> list[str]:
    return [each for each in values[0] if all(each in others for others in values)]


class Setting(NamedTuple):
    """Canopy's setting for an option. `strictest`: selects the strictest of several values."""

    name: str
    read: Callable[[str], Value]
    strictest: Callable[[Any], Any] | None = None


class NotConverted(NamedTuple):
    """The reason why an option becomes no setting. `idle`: values without effect."""

    kind: Kind
    text: str
    idle: str = ""


class ConvertedBy(Enum):
    """The code that converts an option together with others."""

    LISTENER = "listeners"
    ACCESS = "access"
    BRIDGE = "bridges"
    WHOLE = "mosquitto"


Meaning: TypeAlias = Setting | NotConverted | ConvertedBy

ALIASES: Final = {
    "addresses": "address",
    "auth_plugin": "plugin",
    "clientid": "remote_clientid",
    "maximum_qos": "max_qos",
    "password": "remote_password",
    "retained_persistence": "persistence",
    "username": "remote_username",
    "websockets_headers_size": "packet_buffer_size",
}
"""Other names of options."""

SHARED: Final[Mapping[str, Setting]] = {
    "accept_protocol_versions": Setting("mqtt.versions", _versions, _every),
    "listener_auto_id_prefix": Setting("mqtt.auto_id_prefix", str),
    "max_qos": Setting("mqtt.max_qos", number, min),
    "max_topic_alias": Setting("mqtt.topic_alias_maximum", number, min),
    "max_topic_alias_broker": Setting("mqtt.topic_alias_outbound", number, min),
}
"""Options of a listener that Canopy has for all listeners together."""

SHARED_OR_GLOBAL: Final[Mapping[str, Setting]] = {
    "allow_zero_length_clientid": Setting("mqtt.allow_empty_client_id", yes_or_no, min),
    "auto_id_prefix": Setting("mqtt.auto_id_prefix", str),
}
"""Options of the whole broker, or of a listener with `per_listener_settings`."""

_SAVED: Final = NotConverted(Kind.NOTHING, "whatever is acknowledged is on disk by then, where persistence is on")
_STDERR: Final = NotConverted(
    Kind.INSTEAD, "the log goes to standard error; systemd, Docker or a shell send it on; log.format"
)
_OLD: Final = NotConverted(Kind.NOTHING, "mosquitto ignores it too")
_LAZY: Final = NotConverted(Kind.MISSING, "a link connects at the start, and stays connected")
_TCP: Final = NotConverted(Kind.INSTEAD, "keep_alive and queue.stall_timeout notice a connection that is dead")
_LINK_TLS: Final = NotConverted(Kind.MISSING, "links use TLS 1.2 and 1.3 with the cipher suites of OpenSSL")
_LOCAL: Final = NotConverted(Kind.MISSING, "a link is part of the broker, and logs in nowhere here")

OPTIONS: Final[Mapping[str, Meaning]] = {
    # The whole broker.
    **SHARED_OR_GLOBAL,
    **dict.fromkeys(
        (
            "clientid_prefixes", "log_type", "max_inflight_bytes", "max_packet_size", "max_queued_bytes",
            "message_size_limit", "persistence", "persistence_file", "persistence_location",
        ),
        ConvertedBy.WHOLE,
    ),
    "allow_duplicate_messages": NotConverted(
        Kind.MISSING, "a client gets a message once, however many of its filters match", "false"
    ),
    "autosave_interval": _SAVED,
    "autosave_on_changes": _SAVED,
    "connection_messages": NotConverted(
        Kind.INSTEAD, 'log.level = "warning" leaves out clients that come and go', "true"
    ),
    "enable_control_api": NotConverted(Kind.MISSING, "there is no $CONTROL", "false"),
    "global_max_clients": Setting("session.max_sessions", number_or_none),
    "global_max_connections": Setting("limits.max_connections", number_or_none),
    "include_dir": NotConverted(Kind.MISSING, "mosquitto takes it in the main file alone, with a folder"),
    "log_dest": _STDERR,
    "log_facility": _STDERR,
    "log_timestamp": NotConverted(Kind.MISSING, "each line of the log has its time", "true"),
    "log_timestamp_format": NotConverted(Kind.MISSING, "times are written as in ISO 8601"),
    "max_inflight_messages": Setting("mqtt.max_inflight", number_or_none),
    "max_keepalive": Setting("mqtt.max_keep_alive", _keep_alive),
    "max_queued_messages": Setting("queue.session_messages", number_or_none),
    "memory_limit": NotConverted(
        Kind.INSTEAD, "queue.total_bytes, retained.max_bytes, session.max_bytes, limits.max_filter_bytes", "0"
    ),
    "packet_buffer_size": NotConverted(Kind.NOTHING, "Canopy reads with buffers of its own"),
    "persistent_client_expiration": Setting("session.max_expiry", _expiry),
    "pid_file": NotConverted(Kind.INSTEAD, "a service manager knows the process; canopy health asks whether it serves"),
    "queue_qos0_messages": Setting("session.queue_qos0", yes_or_no),
    "retain_available": Setting("mqtt.retain_available", yes_or_no),
    "retain_expiry_interval": NotConverted(
        Kind.MISSING, "a retained message stays until the expiry that its publisher gave it, if any"
    ),
    "retry_interval": _OLD,
    "set_tcp_nodelay": NotConverted(Kind.NOTHING, "Canopy always sends small packets at once"),
    "store_clean_interval": _OLD,
    "sys_interval": Setting("sys.interval", number_or_none),
    "upgrade_outgoing_qos": Setting("mqtt.upgrade_outgoing_qos", yes_or_no),
    "user": NotConverted(Kind.INSTEAD, "start the broker as this user: User= of systemd"),
    "websockets_log_level": NotConverted(Kind.INSTEAD, "log.level"),
    # Who comes in, and who may do what.
    **dict.fromkeys(
        (
            "check_retain_source", "acl_file", "allow_anonymous", "global_plugin", "password_file",
            "per_listener_settings", "plugin", "plugin_load",
        ),
        ConvertedBy.ACCESS,
    ),
    "auth_plugin_deny_special_chars": NotConverted(Kind.MISSING, "it is an option of a plug-in"),
    "plugin_use": NotConverted(Kind.INSTEAD, "authenticators of a [[listener]] names those that are asked there"),
    "psk_file": NotConverted(Kind.MISSING, "there is no TLS with pre-shared keys; listeners with psk_hint are off"),
    # Listeners.
    **dict.fromkeys(SHARED, ConvertedBy.LISTENER),
    **dict.fromkeys(
        (
            "bind_address", "bind_interface", "cafile", "capath", "certfile", "ciphers", "ciphers_tls1.3", "crlfile",
            "dhparamfile", "disable_client_cert_date_checks", "enable_proxy_protocol", "http_dir", "keyfile",
            "listener", "listener_allow_anonymous", "max_connections", "mount_point", "port", "protocol",
            "proxy_protocol_v2_require_tls", "psk_hint", "require_certificate", "socket_domain", "tls_engine",
            "tls_engine_kpass_sha1", "tls_keyform", "tls_version", "use_identity_as_username",
            "use_subject_as_username", "use_username_as_clientid", "websockets_origin",
        ),
        ConvertedBy.LISTENER,
    ),
    # Bridges.
    **dict.fromkeys(
        (
            "address", "bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_identity", "bridge_keyfile",
            "bridge_protocol_version", "bridge_psk", "bridge_require_ocsp", "bridge_session_expiry_interval",
            "bridge_tls_use_os_certs", "cleansession", "connection", "keepalive_interval", "notification_topic",
            "notifications", "notifications_local_only", "remote_clientid", "remote_password", "remote_username",
            "restart_timeout", "topic",
        ),
        ConvertedBy.BRIDGE,
    ),
    "bridge_alpn": NotConverted(Kind.MISSING, "a link offers no protocol by ALPN"),
    "bridge_attempt_unsubscribe": NotConverted(Kind.NOTHING, "a link subscribes to what stands in its table"),
    "bridge_bind_address": NotConverted(Kind.MISSING, "the system chooses the local address"),
    "bridge_ciphers": _LINK_TLS,
    "bridge_ciphers_tls1.3": _LINK_TLS,
    "bridge_insecure": NotConverted(
        Kind.MISSING, "the host name of the upstream's certificate is always checked", "false"
    ),
    "bridge_max_packet_size": NotConverted(
        Kind.INSTEAD, "the upstream's Maximum Packet Size holds, and limits.max_packet_size", "0"
    ),
    "bridge_max_topic_alias": NotConverted(Kind.MISSING, "a link lets its upstream set no topic alias", "0"),
    "bridge_outgoing_retain": NotConverted(Kind.MISSING, "a link sends RETAIN on", "true"),
    "bridge_receive_maximum": NotConverted(Kind.INSTEAD, "mqtt.receive_maximum"),
    "bridge_reload_type": NotConverted(Kind.INSTEAD, "links change with a reload, and reconnect only where they must"),
    "bridge_tcp_keepalive": _TCP,
    "bridge_tcp_user_timeout": _TCP,
    "bridge_tls_version": _LINK_TLS,
    "idle_timeout": _LAZY,
    "local_cleansession": NotConverted(
        Kind.INSTEAD, "what waits for the link waits while it is away: queue_messages", "false"
    ),
    "local_clientid": _LOCAL,
    "local_password": _LOCAL,
    "local_username": _LOCAL,
    "round_robin": NotConverted(Kind.MISSING, "a link has one address", "false"),
    "start_type": NotConverted(Kind.MISSING, "a link connects at the start, and again whenever it has to", "automatic"),
    "threshold": _LAZY,
    "try_private": NotConverted(Kind.MISSING, "a link tries the bridge bit by itself", "true"),
    # What mosquitto 2.0 takes from files of older brokers, and does nothing with.
    **dict.fromkeys(("ffdc_output", "max_log_entries", "trace_level", "trace_output"), _OLD),
}  # fmt: skip
"""Every option by its first name, except for those that begin with `OF_PLUGINS`."""

OF_PLUGINS: Final = ("auth_opt_", "plugin_opt_")


def canonical(option: str) -> str:
    return ALIASES.get(option, option)


def meaning(option: str) -> Meaning | None:
    """Return the conversion of an option; None: mosquitto 2.0 and 2.1 do not know it."""
    return ConvertedBy.ACCESS if option.startswith(OF_PLUGINS) else OPTIONS.get(canonical(option))


def idles(left: NotConverted, text: str) -> bool:
    word = {"1": "true", "0": "false"} if left.idle in ("true", "false") else {}
    value = first_word(text).lower()
    return bool(left.idle) and word.get(value, value) == left.idle

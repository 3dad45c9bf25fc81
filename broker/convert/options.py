"""Every option of mosquitto 2.0 and 2.1 (mosquitto.conf(5) and src/conf.c), and what becomes of it.

Owns one table, `OPTIONS`: an option is one setting of Canopy's (`Setting`), or none (`Left`), or is converted together
with others by the module that its `Place` names. A test holds the table against the manual page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from broker.convert.draft import Kind, Value
from broker.settings import NEVER

SECONDS: Final = {"s": 1, "h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
"""The units of `persistent_client_expiration`: a month has 30 days, a year 365."""

VERSIONS: Final = {"3": "3.1", "4": "3.1.1", "5": "5.0"}

NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}|0[xX][0-9a-fA-F]{1,15}")


def first_word(text: str) -> str:
    """What mosquitto reads of a value that is one word: the rest may be a remark."""
    return text.partition(" ")[0]


def yes_or_no(text: str) -> bool:
    """`true` or `false`, or 1 or 0, as mosquitto reads them. Raises ValueError."""
    word = first_word(text).lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise ValueError("true or false")


def number(text: str) -> int:
    """A whole number. Raises ValueError."""
    word = first_word(text)
    if not NUMBER.fullmatch(word):
        raise ValueError("a whole number")
    return int(word, 16 if "x" in word.lower() else 10)


def number_or_none(text: str) -> int:
    """A whole number; a negative one means no limit, which is 0 in Canopy. Raises ValueError."""
    return max(number(text), 0)


def any_text(text: str) -> str:
    """Text, which must not be missing. Raises ValueError."""
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
    """What an option is in Canopy. `strictest`: which of several values lets in least."""

    name: str
    read: Callable[[str], Value]
    strictest: Callable[[Any], Any] | None = None


class Left(NamedTuple):
    """Why an option is no setting of Canopy's. `idle`: values with which it asks for nothing."""

    kind: Kind
    text: str
    idle: str = ""


class Place(Enum):
    """What converts an option that is more than one setting, or one only beside others."""

    LISTENER = "listeners"
    ACCESS = "access"
    BRIDGE = "bridges"
    WHOLE = "mosquitto"


Meaning: TypeAlias = Setting | Left | Place

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

_SAVED: Final = Left(Kind.NOTHING, "whatever is acknowledged is on disk by then, where persistence is on")
_STDERR: Final = Left(Kind.INSTEAD, "the log goes to standard error; systemd, Docker or a shell send it on; log.format")
_OLD: Final = Left(Kind.NOTHING, "mosquitto ignores it too")
_LAZY: Final = Left(Kind.MISSING, "a link connects at the start, and stays connected")
_TCP: Final = Left(Kind.INSTEAD, "keep_alive and queue.stall_timeout notice a connection that is dead")
_LINK_TLS: Final = Left(Kind.MISSING, "links use TLS 1.2 and 1.3 with the cipher suites of OpenSSL")
_LOCAL: Final = Left(Kind.MISSING, "a link is part of the broker, and logs in nowhere here")

OPTIONS: Final[Mapping[str, Meaning]] = {
    # The whole broker.
    **SHARED_OR_GLOBAL,
    "allow_duplicate_messages": Left(
        Kind.MISSING, "a client gets a message once, however many of its filters match", "false"
    ),
    "autosave_interval": _SAVED,
    "autosave_on_changes": _SAVED,
    "check_retain_source": Place.ACCESS,
    "clientid_prefixes": Place.WHOLE,
    "connection_messages": Left(Kind.INSTEAD, 'log.level = "warning" leaves out clients that come and go', "true"),
    "enable_control_api": Left(Kind.MISSING, "there is no $CONTROL", "false"),
    "global_max_clients": Setting("session.max_sessions", number_or_none),
    "global_max_connections": Setting("limits.max_connections", number_or_none),
    "include_dir": Left(Kind.MISSING, "mosquitto takes it in the main file alone, with a folder"),
    "log_dest": _STDERR,
    "log_facility": _STDERR,
    "log_timestamp": Left(Kind.MISSING, "each line of the log has its time", "true"),
    "log_timestamp_format": Left(Kind.MISSING, "times are written as in ISO 8601"),
    "log_type": Place.WHOLE,
    "max_inflight_bytes": Place.WHOLE,
    "max_inflight_messages": Setting("mqtt.max_inflight", number_or_none),
    "max_keepalive": Setting("mqtt.max_keep_alive", _keep_alive),
    "max_packet_size": Place.WHOLE,
    "max_queued_bytes": Place.WHOLE,
    "max_queued_messages": Setting("queue.session_messages", number_or_none),
    "memory_limit": Left(
        Kind.INSTEAD, "queue.total_bytes, retained.max_bytes, session.max_bytes, limits.max_filter_bytes", "0"
    ),
    "message_size_limit": Place.WHOLE,
    "packet_buffer_size": Left(Kind.NOTHING, "Canopy reads with buffers of its own"),
    "persistence": Place.WHOLE,
    "persistence_file": Place.WHOLE,
    "persistence_location": Place.WHOLE,
    "persistent_client_expiration": Setting("session.max_expiry", _expiry),
    "pid_file": Left(Kind.INSTEAD, "a service manager knows the process; canopy health asks whether it serves"),
    "queue_qos0_messages": Setting("session.queue_qos0", yes_or_no),
    "retain_available": Setting("mqtt.retain_available", yes_or_no),
    "retain_expiry_interval": Left(
        Kind.MISSING, "a retained message stays until the expiry that its publisher gave it, if any"
    ),
    "retry_interval": _OLD,
    "set_tcp_nodelay": Left(Kind.NOTHING, "Canopy always sends small packets at once"),
    "store_clean_interval": _OLD,
    "sys_interval": Setting("sys.interval", number_or_none),
    "upgrade_outgoing_qos": Setting("mqtt.upgrade_outgoing_qos", yes_or_no),
    "user": Left(Kind.INSTEAD, "start the broker as this user: User= of systemd"),
    "websockets_log_level": Left(Kind.INSTEAD, "log.level"),
    # Who comes in, and who may do what.
    "acl_file": Place.ACCESS,
    "allow_anonymous": Place.ACCESS,
    "auth_plugin_deny_special_chars": Left(Kind.MISSING, "it is an option of a plug-in"),
    "global_plugin": Place.ACCESS,
    "password_file": Place.ACCESS,
    "per_listener_settings": Place.ACCESS,
    "plugin": Place.ACCESS,
    "plugin_load": Place.ACCESS,
    "plugin_use": Left(Kind.INSTEAD, "authenticators of a [[listener]] names those that are asked there"),
    "psk_file": Left(Kind.MISSING, "there is no TLS with pre-shared keys; listeners with psk_hint are off"),
    # Listeners.
    **dict.fromkeys(SHARED, Place.LISTENER),
    "bind_address": Place.LISTENER,
    "bind_interface": Place.LISTENER,
    "cafile": Place.LISTENER,
    "capath": Place.LISTENER,
    "certfile": Place.LISTENER,
    "ciphers": Place.LISTENER,
    "ciphers_tls1.3": Place.LISTENER,
    "crlfile": Place.LISTENER,
    "dhparamfile": Place.LISTENER,
    "disable_client_cert_date_checks": Place.LISTENER,
    "enable_proxy_protocol": Place.LISTENER,
    "http_dir": Place.LISTENER,
    "keyfile": Place.LISTENER,
    "listener": Place.LISTENER,
    "listener_allow_anonymous": Place.LISTENER,
    "max_connections": Place.LISTENER,
    "mount_point": Place.LISTENER,
    "port": Place.LISTENER,
    "protocol": Place.LISTENER,
    "proxy_protocol_v2_require_tls": Place.LISTENER,
    "psk_hint": Place.LISTENER,
    "require_certificate": Place.LISTENER,
    "socket_domain": Place.LISTENER,
    "tls_engine": Place.LISTENER,
    "tls_engine_kpass_sha1": Place.LISTENER,
    "tls_keyform": Place.LISTENER,
    "tls_version": Place.LISTENER,
    "use_identity_as_username": Place.LISTENER,
    "use_subject_as_username": Place.LISTENER,
    "use_username_as_clientid": Place.LISTENER,
    "websockets_origin": Place.LISTENER,
    # Bridges.
    "address": Place.BRIDGE,
    "bridge_alpn": Left(Kind.MISSING, "a link offers no protocol by ALPN"),
    "bridge_attempt_unsubscribe": Left(Kind.NOTHING, "a link subscribes to what stands in its table"),
    "bridge_bind_address": Left(Kind.MISSING, "the system chooses the local address"),
    "bridge_cafile": Place.BRIDGE,
    "bridge_capath": Place.BRIDGE,
    "bridge_certfile": Place.BRIDGE,
    "bridge_ciphers": _LINK_TLS,
    "bridge_ciphers_tls1.3": _LINK_TLS,
    "bridge_identity": Place.BRIDGE,
    "bridge_insecure": Left(Kind.MISSING, "the host name of the upstream's certificate is always checked", "false"),
    "bridge_keyfile": Place.BRIDGE,
    "bridge_max_packet_size": Left(
        Kind.INSTEAD, "the upstream's Maximum Packet Size holds, and limits.max_packet_size", "0"
    ),
    "bridge_max_topic_alias": Left(Kind.MISSING, "a link lets its upstream set no topic alias", "0"),
    "bridge_outgoing_retain": Left(Kind.MISSING, "a link sends RETAIN on", "true"),
    "bridge_protocol_version": Place.BRIDGE,
    "bridge_psk": Place.BRIDGE,
    "bridge_receive_maximum": Left(Kind.INSTEAD, "mqtt.receive_maximum"),
    "bridge_reload_type": Left(Kind.INSTEAD, "links change with a reload, and reconnect only where they must"),
    "bridge_require_ocsp": Place.BRIDGE,
    "bridge_session_expiry_interval": Place.BRIDGE,
    "bridge_tcp_keepalive": _TCP,
    "bridge_tcp_user_timeout": _TCP,
    "bridge_tls_use_os_certs": Place.BRIDGE,
    "bridge_tls_version": _LINK_TLS,
    "cleansession": Place.BRIDGE,
    "connection": Place.BRIDGE,
    "idle_timeout": _LAZY,
    "keepalive_interval": Place.BRIDGE,
    "local_cleansession": Left(Kind.INSTEAD, "what waits for the link waits while it is away: queue_messages", "false"),
    "local_clientid": _LOCAL,
    "local_password": _LOCAL,
    "local_username": _LOCAL,
    "notification_topic": Place.BRIDGE,
    "notifications": Place.BRIDGE,
    "notifications_local_only": Place.BRIDGE,
    "remote_clientid": Place.BRIDGE,
    "remote_password": Place.BRIDGE,
    "remote_username": Place.BRIDGE,
    "restart_timeout": Place.BRIDGE,
    "round_robin": Left(Kind.MISSING, "a link has one address", "false"),
    "start_type": Left(Kind.MISSING, "a link connects at the start, and again whenever it has to", "automatic"),
    "threshold": _LAZY,
    "topic": Place.BRIDGE,
    "try_private": Left(Kind.MISSING, "a link tries the bridge bit by itself", "true"),
    # What mosquitto 2.0 takes from files of older brokers, and does nothing with.
    **dict.fromkeys(("ffdc_output", "max_log_entries", "trace_level", "trace_output"), _OLD),
}
"""Every option by its first name, but for those that begin with `OF_PLUGINS`."""

OF_PLUGINS: Final = ("auth_opt_", "plugin_opt_")


def canonical(option: str) -> str:
    return ALIASES.get(option, option)


def meaning(option: str) -> Meaning | None:
    """What an option becomes; None: mosquitto 2.0 and 2.1 have none of this name."""
    return Place.ACCESS if option.startswith(OF_PLUGINS) else OPTIONS.get(canonical(option))


def idles(left: Left, text: str) -> bool:
    word = {"1": "true", "0": "false"} if left.idle in ("true", "false") else {}
    value = first_word(text).lower()
    return bool(left.idle) and word.get(value, value) == left.idle

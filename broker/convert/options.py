"""Every option of mosquitto 2.0 and 2.1 (mosquitto.conf(5)), and what becomes of it.

Owns two tables: the options that are one setting of Canopy's each, whatever stands around them, and those that are
none. All others are converted by `listeners`, `access` and `bridges`. A test holds the tables against the manual page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.convert.draft import Kind, Value
from broker.settings import NEVER

SECONDS: Final = {"s": 1, "h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
"""The units of `persistent_client_expiration`: a month has 30 days, a year 365."""

VERSIONS: Final = {"3": "3.1", "4": "3.1.1", "5": "5.0"}


def yes_or_no(text: str) -> bool:
    """`true` or `false`, or 1 or 0, as mosquitto reads them. Raises ValueError."""
    lower = text.lower()
    if lower in ("true", "1"):
        return True
    if lower in ("false", "0"):
        return False
    raise ValueError("true or false")


def number(text: str) -> int:
    """A whole number. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


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
    unit = SECONDS.get(text[-1:])
    if unit is None or not text[:-1].isdigit():
        raise ValueError("a number behind which s, h, d, w, m or y stands")
    return min(int(text[:-1]) * unit, NEVER - 1)


def _versions(text: str) -> list[str]:
    listed = [VERSIONS.get(each.strip(), "") for each in text.split(",")]
    if "" in listed:
        raise ValueError("3, 4 and 5, with commas between them")
    return listed


class Setting(NamedTuple):
    """What an option is in Canopy."""

    name: str
    read: Callable[[str], Value]


GLOBAL: Final[Mapping[str, Setting]] = {
    "allow_zero_length_clientid": Setting("mqtt.allow_empty_client_id", yes_or_no),
    "auto_id_prefix": Setting("mqtt.auto_id_prefix", str),
    "global_max_clients": Setting("session.max_sessions", number_or_none),
    "global_max_connections": Setting("limits.max_connections", number_or_none),
    "max_inflight_bytes": Setting("mqtt.max_inflight_bytes", number_or_none),
    "max_inflight_messages": Setting("mqtt.max_inflight", number_or_none),
    "max_keepalive": Setting("mqtt.max_keep_alive", _keep_alive),
    "max_packet_size": Setting("limits.max_packet_size", number_or_none),
    "max_queued_bytes": Setting("queue.session_bytes", number_or_none),
    "max_queued_messages": Setting("queue.session_messages", number_or_none),
    "message_size_limit": Setting("limits.max_payload_size", number_or_none),
    "persistent_client_expiration": Setting("session.max_expiry", _expiry),
    "queue_qos0_messages": Setting("session.queue_qos0", yes_or_no),
    "retain_available": Setting("mqtt.retain_available", yes_or_no),
    "set_tcp_nodelay": Setting("runtime.tcp_nodelay", yes_or_no),
    "sys_interval": Setting("sys.interval", number_or_none),
    "upgrade_outgoing_qos": Setting("mqtt.upgrade_outgoing_qos", yes_or_no),
}
"""Options of the whole broker that are one setting each."""

STORE: Final = frozenset({"persistence", "persistence_location"})
"""Options that are `store.path` together."""

SHARED: Final[Mapping[str, Setting]] = {
    "accept_protocol_versions": Setting("mqtt.versions", _versions),
    "listener_auto_id_prefix": Setting("mqtt.auto_id_prefix", str),
    "max_qos": Setting("mqtt.max_qos", number),
    "max_topic_alias": Setting("mqtt.topic_alias_maximum", number),
    "max_topic_alias_broker": Setting("mqtt.topic_alias_outbound", number),
}
"""Options of a listener that Canopy has for all listeners together: converted where all listeners agree."""


class Left(NamedTuple):
    """Why an option is no setting of Canopy's."""

    kind: Kind
    text: str


_SAVED: Final = Left(Kind.NOTHING, "whatever is acknowledged is on disk by then, where persistence is on")
_STDERR: Final = Left(Kind.INSTEAD, "the log goes to standard error; systemd, Docker or a shell send it on; log.format")
_OLD: Final = Left(Kind.NOTHING, "mosquitto ignores it too")
_FAST: Final = Left(Kind.NOTHING, "Canopy reads with buffers of its own")
_ENGINE: Final = Left(Kind.MISSING, "private keys are PEM files")
_LAZY: Final = Left(Kind.MISSING, "a link connects at the start, and stays connected")
_PROXY_TLS: Final = Left(Kind.GUARD, "a client that reaches the proxy without TLS is let in; have the proxy refuse it")
_LOCAL: Final = Left(Kind.NOTHING, "a link is part of the broker, and logs in nowhere here")
_TCP: Final = Left(Kind.INSTEAD, "keep_alive and queue.stall_timeout notice a connection that is dead")
_LINK_TLS: Final = Left(Kind.MISSING, "links use TLS 1.2 and 1.3 with the cipher suites of OpenSSL")

UNCONVERTED: Final[Mapping[str, Left]] = {
    # The whole broker.
    "allow_duplicate_messages": Left(Kind.NOTHING, "a client gets a message once, however many of its filters match"),
    "autosave_interval": _SAVED,
    "autosave_on_changes": _SAVED,
    "check_retain_source": Left(Kind.MISSING, "who may read a retained message is asked, who wrote it is not"),
    "connection_messages": Left(Kind.INSTEAD, 'log.level = "warning" leaves out clients that come and go'),
    "enable_control_api": Left(Kind.MISSING, "there is no $CONTROL"),
    "log_dest": _STDERR,
    "log_facility": _STDERR,
    "log_timestamp": Left(Kind.NOTHING, "each line has its time"),
    "log_timestamp_format": Left(Kind.NOTHING, "times are written as in ISO 8601"),
    "memory_limit": Left(
        Kind.INSTEAD, "queue.total_bytes, retained.max_bytes, session.max_bytes, limits.max_filter_bytes"
    ),
    "packet_buffer_size": _FAST,
    "persistence_file": Left(Kind.NOTHING, "the file is called canopy.db, in the folder of store.path"),
    "pid_file": Left(Kind.INSTEAD, "a service manager knows the process; canopy health asks whether it serves"),
    "retain_expiry_interval": Left(Kind.NOTHING, "a retained message goes when it expires"),
    "retry_interval": _OLD,
    "store_clean_interval": _OLD,
    "user": Left(Kind.INSTEAD, "start the broker as this user: User= of systemd"),
    "websockets_headers_size": _FAST,
    "websockets_log_level": Left(Kind.INSTEAD, "log.level"),
    # Plug-ins.
    "auth_plugin_deny_special_chars": Left(Kind.NOTHING, "a user name with + or # never widens a rule"),
    # Listeners.
    "ciphers_tls1.3": Left(Kind.MISSING, "the cipher suites of TLS 1.3 are OpenSSL's own"),
    "dhparamfile": Left(Kind.NOTHING, "keys are exchanged over elliptic curves"),
    "disable_client_cert_date_checks": Left(Kind.MISSING, "a client certificate that has expired is refused"),
    "proxy_protocol_v2_require_tls": _PROXY_TLS,
    "tls_engine": _ENGINE,
    "tls_engine_kpass_sha1": _ENGINE,
    "tls_keyform": _ENGINE,
    "use_username_as_clientid": Left(
        Kind.INSTEAD, 'security.client_ids = ["{user}"] has clients come with their user name as identifier'
    ),
    # Bridges.
    "bridge_alpn": Left(Kind.MISSING, "a link offers no protocol by ALPN"),
    "bridge_attempt_unsubscribe": Left(Kind.NOTHING, "a link subscribes to what stands in its table"),
    "bridge_bind_address": Left(Kind.MISSING, "the system chooses the local address"),
    "bridge_ciphers": _LINK_TLS,
    "bridge_ciphers_tls1.3": _LINK_TLS,
    "bridge_insecure": Left(Kind.MISSING, "the host name of the upstream's certificate is always checked"),
    "bridge_max_packet_size": Left(
        Kind.INSTEAD, "the upstream's Maximum Packet Size holds, and limits.max_packet_size"
    ),
    "bridge_max_topic_alias": Left(Kind.MISSING, "a link lets its upstream set no topic alias"),
    "bridge_outgoing_retain": Left(Kind.MISSING, "a link sends RETAIN on"),
    "bridge_receive_maximum": Left(Kind.INSTEAD, "mqtt.receive_maximum"),
    "bridge_reload_type": Left(Kind.NOTHING, "links change with a reload, and reconnect only where they must"),
    "bridge_require_ocsp": Left(Kind.MISSING, "whether the upstream's certificate was revoked is not asked"),
    "bridge_tcp_keepalive": _TCP,
    "bridge_tcp_user_timeout": _TCP,
    "bridge_tls_version": _LINK_TLS,
    "idle_timeout": _LAZY,
    "local_clientid": _LOCAL,
    "local_cleansession": Left(Kind.NOTHING, "what waits for the link waits while the broker runs: queue_messages"),
    "local_password": _LOCAL,
    "local_username": _LOCAL,
    "notifications_local_only": Left(Kind.INSTEAD, "$SYS/broker/upstream/NAME/ says how a link is"),
    "round_robin": Left(Kind.MISSING, "a link has one address"),
    "threshold": _LAZY,
    "try_private": Left(Kind.NOTHING, "a link tries the bridge bit by itself"),
}
"""Options that are no setting, wherever they stand."""

UNLESS_ON: Final = frozenset(
    {
        "bridge_insecure",
        "bridge_require_ocsp",
        "check_retain_source",
        "disable_client_cert_date_checks",
        "enable_control_api",
        "proxy_protocol_v2_require_tls",
    }
)
"""Those of them that ask for nothing where they are `false`."""

LISTENER: Final = frozenset(
    {
        "bind_address",
        "bind_interface",
        "cafile",
        "capath",
        "certfile",
        "ciphers",
        "clientid_prefixes",
        "crlfile",
        "enable_proxy_protocol",
        "http_dir",
        "keyfile",
        "listener",
        "listener_allow_anonymous",
        "max_connections",
        "mount_point",
        "port",
        "protocol",
        "psk_hint",
        "require_certificate",
        "socket_domain",
        "tls_version",
        "use_identity_as_username",
        "use_subject_as_username",
        "websockets_origin",
    }
)
"""Options that `listeners` converts, beside those of `SHARED`."""

ACCESS: Final = frozenset(
    {
        "acl_file",
        "allow_anonymous",
        "auth_plugin",
        "global_plugin",
        "password_file",
        "per_listener_settings",
        "plugin",
        "plugin_load",
        "plugin_use",
        "psk_file",
    }
)
"""Options that `access` converts, and all that begin with `OF_PLUGINS`."""

OF_PLUGINS: Final = ("auth_opt_", "plugin_opt_")

BRIDGE: Final = frozenset(
    {
        "address",
        "addresses",
        "bridge_cafile",
        "bridge_capath",
        "bridge_certfile",
        "bridge_identity",
        "bridge_keyfile",
        "bridge_protocol_version",
        "bridge_psk",
        "bridge_session_expiry_interval",
        "bridge_tls_use_os_certs",
        "cleansession",
        "clientid",
        "connection",
        "keepalive_interval",
        "notification_topic",
        "notifications",
        "password",
        "remote_clientid",
        "remote_password",
        "remote_username",
        "restart_timeout",
        "start_type",
        "topic",
        "username",
    }
)
"""Options that `bridges` converts."""

OTHERS: Final = frozenset({"include_dir", "log_type"})
"""Options that `source` and `mosquitto` convert."""


def known(option: str) -> bool:
    """Whether mosquitto 2.0 or 2.1 has an option of this name."""
    return (
        option in GLOBAL
        or option in SHARED
        or option in UNCONVERTED
        or option in LISTENER | ACCESS | BRIDGE | STORE | OTHERS
        or option.startswith(OF_PLUGINS)
    )

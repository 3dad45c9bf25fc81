"""Which settings a broker takes up while it runs, and which take a restart.

Owns the list. A setting that is not in it takes a restart: what it sizes was made at the start (tables, a store, a
recorder), or clients were told of it when they connected (`mqtt.max_qos`, say) and rely on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.settings import Section, Settings

LIMITS: Final = frozenset(
    {
        *(
            f"limits.{name}"
            for name in (
                "max_connections",
                "max_connections_per_address",
                "max_connect_rate",
                "max_handshakes",
                "max_packet_size",
                "max_connect_size",
                "max_partial_bytes",
                "packet_timeout",
                "connect_timeout",
                "max_payload_size",
                "max_client_id_length",
                "max_topic_levels",
                "max_subscriptions_per_client",
                "max_shared_subscriptions_per_client",
                "max_client_bytes",
                "max_user_bytes",
                "max_filter_bytes",
                "max_alias_bytes",
                "max_user_properties",
                "max_publish_rate",
                "max_publish_bytes",
                "publish_patience",
                "max_loop_lag",
                "max_waiting_hooks",
            )
        ),
        *(
            f"mqtt.{name}"
            for name in (
                "max_inflight",
                "max_inflight_bytes",
                "topic_alias_outbound",
                "max_keep_alive",
                "allow_anonymous",
                "allow_empty_client_id",
                "auto_id_prefix",
                "versions",
            )
        ),
        *(f"session.{name}" for name in ("max_expiry", "queue_qos0", "max_sessions", "max_bytes", "takeover")),
        *(
            f"queue.{name}"
            for name in (
                "policy",
                "max_age",
                "live_messages",
                "live_bytes",
                "session_messages",
                "session_bytes",
                "total_messages",
                "total_bytes",
                "hold_publishers",
                "on_full",
                "tell_loss",
                "subscriber_policies",
                "slow_after",
                "report_interval",
                "write_batch_bytes",
                "stall_timeout",
                "rules",
            )
        ),
        "retained.max_messages",
        "retained.max_bytes",
        "retained.check_publisher",
        "store.on_failure",
        "federation.hop_limit",
        "federation.link_users",
        "federation.link_client_ids",
        "federation.answer_timeout",
    }
)
"""What `Server.apply_limits` puts in force. Bounds that a connection has of its own hold from its next CONNECT on."""

OTHERS: Final = frozenset(
    {
        "sys.interval",
        "shutdown.flush_timeout",
        "alarms.raise_after",
        "alarms.interval",
        "alarms.loop_lag",
        "alarms.room",
        "alarms.disk_used",
        "alarms.certificate_days",
        "alarms.upstream_down",
        "alarms.drop_rate",
        "alarms.authentication_failures",
        "alarms.history",
        "alarms.webhook",
        "alarms.webhook_timeout",
        "tracing.max_bytes",
        "tracing.max_seconds",
        "tracing.directory",
        "tracing.mask_user_properties",
        "log.level",
        "log.client_bytes",
        "log.client_warnings",
    }
)
"""What others of the broker put in force."""

WHOLE: Final = ("upstream", "authenticator", "rule", "access", "security")
"""Tables and sections of which everything is taken up."""

SWITCHES: Final = frozenset({"sys.interval", "alarms.interval"})
"""Intervals that can be changed and not be switched on or off."""


def taken_up(before: Settings, new: Settings, unlimited: bool = False) -> Settings:
    """The settings in force, with what a running broker takes up of others.

    `unlimited`: there is no count of connections, and so no limit on them can begin.
    """
    update: dict[str, object] = {name: getattr(new, name) for name in WHOLE}
    for section, names in _by_section(LIMITS | OTHERS).items():
        there: Section = getattr(before, section)
        wanted = getattr(new, section)
        changes = {
            name: getattr(wanted, name)
            for name in names
            if not _takes_a_restart(f"{section}.{name}", getattr(there, name), getattr(wanted, name), unlimited)
        }
        update[section] = there.model_copy(update=changes)
    return before.model_copy(update=update)


def _takes_a_restart(name: str, before: object, wanted: object, unlimited: bool) -> bool:
    if name in SWITCHES:
        return bool(before) != bool(wanted)
    return unlimited and name in (
        "limits.max_connections",
        "limits.max_connections_per_address",
        "limits.max_connect_rate",
    )


def _by_section(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        section, _, key = name.partition(".")
        found.setdefault(section, []).append(key)
    return found

"""Settings that earlier versions had, and what to do in place of each.

Owns the advice. `reading` refuses these names with it, so that a file of an earlier version does not start a broker
that does something else than the file says.
"""

from __future__ import annotations

from typing import Final

ONE_PROCESS: Final = "Canopy runs as one process; to serve more clients, start several brokers and join them by links"
ONE_BROKER: Final = "Canopy has no clusters; join two brokers by links"
WHERE: Final = "(docs/cluster.md)"

OFFERED: Final = "Canopy always offers this; a [[rule]] can deny subscriptions"
NO_CHOICE: Final = "there is no choice any more"

REMOVED: Final = {
    "mesh": f"{ONE_BROKER} {WHERE}; remove the section [mesh]",
    "workers": f"{ONE_PROCESS} {WHERE}; remove the section [workers]",
    "alarms.node_down": "there is no such alarm any more; remove the setting",
    # One setting bounds what two did.
    "limits.max_upgrade_size": "now limits.max_connect_size, which bounds the request for a WebSocket, too",
    "limits.max_filter_bytes_per_client": "now limits.max_client_bytes, which bounds all that one client keeps",
    "limits.max_alias_bytes_per_client": "now a 256th of limits.max_alias_bytes",
    "retained.max_bytes_per_client": "now limits.max_client_bytes, which bounds all that one client keeps",
    "session.max_empty": "now a fifth of session.max_sessions",
    "security.ban_window": "now security.ban_time, for which a failure counts, too",
    "security.max_guessers": "now security.max_bans, which bounds bans by operators, too",
    "store.removed_link_expiry": "now session.max_expiry, for which messages of a removed link are kept, too",
    "http.max_event_streams": "now an eighth of http.max_connections",
    "http.idle_timeout": "now twice http.timeout",
    "alarms.clear_after": "now six times alarms.raise_after",
    "alarms.queue_memory": "now alarms.room, which is about queued messages, too",
    "alarms.webhook_queue": "now alarms.history, which bounds alarms that wait to be posted, too",
    "otel.queue_spans": "now four times otel.max_rate",
    "log.client_bytes_per_address": "now 68 % of log.client_bytes",
    "log.client_warnings_per_address": "now a tenth of log.client_warnings",
    "shutdown.hooks_timeout": "now shutdown.flush_timeout, which bounds the wait for plug-ins, too",
    "top.enabled": "now top.counters, where 0 counts nothing",
    # What had one good value.
    "mqtt.wildcard_subscriptions": f"{OFFERED}; remove the setting",
    "mqtt.shared_subscriptions": f"{OFFERED}, and limits.max_shared_subscriptions_per_client bounds them; remove it",
    "mqtt.subscription_identifiers": "Canopy always offers this; remove the setting",
    "session.persistent": "clients decide this; session.max_expiry = 1 ends sessions a second after their connections",
    "queue.standstill": "now half a second; queue.hold_publishers = 0 holds nobody; remove the setting",
    "security.ban_by": "bans are by address; remove the setting",
    "sys.slow_clients": "now the 10 slowest; `canopy ctl clients --min-lag` shows all; remove the setting",
    "alarms.clear_ratio": "now 0.8; remove the setting",
    "alarms.store": f"{NO_CHOICE}: a store that fails is an alarm; remove the setting",
    "alarms.recorder": f"{NO_CHOICE}: a recorder that fails is an alarm; remove the setting",
    "alarms.webhook_retries": "now 5; remove the setting",
    "top.samples": "now 200 messages a second; top.counters = 0 counts nothing; remove the setting",
    "top.windows": "now a minute and an hour; remove the setting",
    "top.interval": "now 10 seconds; remove the setting",
    "top.places": "now 3; `canopy ctl top` shows more; remove the setting",
    "tracing.max_traces": "now 8, each of tracing.max_bytes; remove the setting",
    "tracing.packet_bytes": "now 64 KiB, within tracing.max_bytes; remove the setting",
    "tracing.max_files": "now 32, each of about tracing.max_bytes; remove the setting",
    "otel.service_name": "now canopy; federation.broker_id tells brokers apart in traces; remove the setting",
    "runtime.uvloop": "uvloop is used where it is installed; remove the setting",
    "runtime.gc_freeze": f"{NO_CHOICE}; remove the setting",
    "runtime.tcp_backlog": "now 1024, within the system's net.core.somaxconn; remove the setting",
    "runtime.tcp_nodelay": "small packets are always sent at once; remove the setting",
    "runtime": "there is no such section any more; remove the section [runtime]",
}
"""By a section's name, or a setting's full name."""


def removed(name: str) -> str | None:
    """What to do about a setting of an earlier version, by its full name; None: there was no such setting."""
    return REMOVED.get(name) or REMOVED.get(name.partition(".")[0])

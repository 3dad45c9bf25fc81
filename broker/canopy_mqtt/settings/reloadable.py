"""The settings that a running broker can change; all others take a restart.

Owns the list. A setting that is not in it sizes something that was made at the start (tables, a store, a recorder), or
clients were told its value when they connected (`mqtt.max_qos`, for example) and rely on it.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.settings import Section, Settings

TABLES: Final = ("upstream", "authenticator", "rule", "access", "security")
"""Tables and sections that a reload replaces as a whole, by other code than `Server.apply_limits`."""

SECTIONS: Final = ("limits", "session", "queue", "retained", "sys", "alarms", "tracing", "shutdown")
"""Sections that a reload changes, except for switches. Bounds of a connection apply from its next CONNECT on."""

PARTS: Final = {
    "mqtt": (
        "max_inflight", "max_inflight_bytes", "topic_alias_outbound", "max_keep_alive", "allow_anonymous",
        "allow_empty_client_id", "auto_id_prefix", "versions",
    ),
    "store": ("on_failure",),
    "federation": ("hop_limit", "link_users", "link_client_ids", "answer_timeout"),
    "log": ("level", "client_bytes", "client_warnings"),
}  # fmt: skip
"""Section → the settings of it that a reload changes."""

SWITCHES: Final = ("sys.interval", "alarms.interval")
"""Intervals that can be changed, but not be switched on or off."""

COUNTED: Final = ("limits.max_connections", "limits.max_connections_per_address", "limits.max_connect_rate")
"""Limits that need a count of connections, which exists only if one was set at the start."""


def with_reloadable(before: Settings, new: Settings, unlimited: bool = False) -> Settings:
    """Return the settings in force, changed by the reloadable settings of `new`.

    `unlimited`: connections are not counted, so that no limit on them can begin.
    """
    update: dict[str, object] = {name: getattr(new, name) for name in (*TABLES, *SECTIONS)}
    for section, names in PARTS.items():
        wanted = getattr(new, section)
        update[section] = getattr(before, section).model_copy(update={name: getattr(wanted, name) for name in names})
    for name in (*SWITCHES, *(COUNTED if unlimited else ())):
        section, _, key = name.partition(".")
        there: Section = getattr(before, section)
        old, wanted = getattr(there, key), getattr(getattr(new, section), key)
        if name in COUNTED or bool(old) != bool(wanted):
            taken = update[section]
            assert isinstance(taken, Section)
            update[section] = taken.model_copy(update={key: old})
    return before.model_copy(update=update)

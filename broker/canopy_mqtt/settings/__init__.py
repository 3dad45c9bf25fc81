"""Every setting: its name, unit, bounds and default.

Owns the models, which are frozen, and the checks of single values. A value of the wrong type is refused, and so is an
unknown name. `Settings()` reads no file and no environment variable: a program that embeds the broker gets exactly what
it passes in. A limit of 0 means unlimited; if 0 switches something off, its text says so. Sizes are bytes, times are
seconds, rates are per second. `config/default.toml` explains each setting. `loader` finds values in files, environment
and flags. `values` has the kinds of values, `root` all sections, `settings` the class for programs.
"""

from __future__ import annotations

from canopy_mqtt.settings.access.authenticator_table import AuthenticatorTable
from canopy_mqtt.settings.access.authenticators import (
    AnonymousTable,
    CertificateTable,
    PasswordFileTable,
    RejectTable,
    TrustTable,
    called,
)
from canopy_mqtt.settings.access.rules import Access, Rule
from canopy_mqtt.settings.access.security import Security
from canopy_mqtt.settings.access.tokens import HttpTable, JwtTable, ScramTable
from canopy_mqtt.settings.brokers.cluster import Cluster, ClusterNode
from canopy_mqtt.settings.brokers.upstream import Federation, Presence, Remote, Upstream, parse_upstream
from canopy_mqtt.settings.brokers.workers import Workers
from canopy_mqtt.settings.http import Http, is_loopback, parse_http
from canopy_mqtt.settings.listeners import Certificate, Endpoint, Listener, Tls, parse_endpoint, parse_listen
from canopy_mqtt.settings.root import defaults, flatten, section_models
from canopy_mqtt.settings.sections import (
    EFFECTS,
    Alarms,
    Limits,
    Log,
    Mqtt,
    Otel,
    Queue,
    QueueRuleSettings,
    Recorder,
    Retained,
    Routing,
    Session,
    Shutdown,
    Sys,
    Top,
    Tracing,
)
from canopy_mqtt.settings.settings import Settings
from canopy_mqtt.settings.store import DATABASES, Store
from canopy_mqtt.settings.values import (
    DEFAULT_PORT,
    DEFAULT_TLS_PORT,
    MAX_PACKET,
    MAX_REMAINING_LENGTH,
    MAX_STORED_NAME,
    NEVER,
    Policy,
    Section,
)

__all__ = [
    "DATABASES",
    "DEFAULT_PORT",
    "DEFAULT_TLS_PORT",
    "EFFECTS",
    "MAX_PACKET",
    "MAX_REMAINING_LENGTH",
    "MAX_STORED_NAME",
    "NEVER",
    "Access",
    "Alarms",
    "AnonymousTable",
    "AuthenticatorTable",
    "Certificate",
    "CertificateTable",
    "Cluster",
    "ClusterNode",
    "Endpoint",
    "Federation",
    "Http",
    "HttpTable",
    "JwtTable",
    "Limits",
    "Listener",
    "Log",
    "Mqtt",
    "Otel",
    "PasswordFileTable",
    "Policy",
    "Presence",
    "Queue",
    "QueueRuleSettings",
    "Recorder",
    "RejectTable",
    "Remote",
    "Retained",
    "Routing",
    "Rule",
    "ScramTable",
    "Section",
    "Security",
    "Session",
    "Settings",
    "Shutdown",
    "Store",
    "Sys",
    "Tls",
    "Top",
    "Tracing",
    "TrustTable",
    "Upstream",
    "Workers",
    "called",
    "defaults",
    "flatten",
    "is_loopback",
    "parse_endpoint",
    "parse_http",
    "parse_listen",
    "parse_upstream",
    "section_models",
]

"""Every setting: its name, unit, bounds and default.

Owns the models, which are frozen, and what makes a single value good or bad; `configuration` finds values in files,
environment and flags. A value of the wrong type is refused, and so is an unknown name. `Settings()` reads no file and
no environment variable: a program that embeds the broker gets exactly what it passes in. A limit of 0 means unlimited;
where 0 switches something off, its text says so. Sizes are bytes, times are seconds, rates are per second.
`config/default.toml` explains each of them.
`values` has the kinds of values and their bounds, `sections` and `store` the sections, `listeners` where clients come
in, `access` who does and what they may do, `brokers` the other brokers, `root` the whole, `given` what programs make.
"""

from __future__ import annotations

from broker.settings.access.authenticator_table import AuthenticatorTable
from broker.settings.access.authenticators import (
    AnonymousTable,
    CertificateTable,
    PasswordFileTable,
    RejectTable,
    TrustTable,
    called,
)
from broker.settings.access.rules import Access, Rule
from broker.settings.access.security import Security
from broker.settings.access.tokens import HttpTable, JwtTable, ScramTable
from broker.settings.brokers.upstream import Federation, Presence, Remote, Upstream, parse_upstream
from broker.settings.given import Settings
from broker.settings.http import Http, is_loopback, parse_http
from broker.settings.listeners import Certificate, Endpoint, Listener, Tls, parse_endpoint
from broker.settings.root import defaults, flatten, section_models
from broker.settings.sections import (
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
from broker.settings.store import DATABASES, Store
from broker.settings.values import (
    DEFAULT_PORT,
    DEFAULT_TLS_PORT,
    LARGEST_PACKET,
    MAX_REMAINING_LENGTH,
    NEVER,
    Address,
    Policy,
    Section,
    parse_listen,
)

__all__ = [
    "DATABASES",
    "DEFAULT_PORT",
    "DEFAULT_TLS_PORT",
    "EFFECTS",
    "LARGEST_PACKET",
    "MAX_REMAINING_LENGTH",
    "NEVER",
    "Access",
    "Address",
    "Alarms",
    "AnonymousTable",
    "AuthenticatorTable",
    "Certificate",
    "CertificateTable",
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

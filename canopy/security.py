"""Who clients are and what they may do, decided by the program that embeds the broker: docs/embedding.md.

`Authenticator` finds out who a client is, and the settings' rules say what it may do; `AccessControl` decides both.
`AuthMethod` answers enhanced authentication (MQTT 5.0, section 4.12).
"""

from __future__ import annotations

from broker.core.codec.packets import Connect
from broker.core.hooks import (
    FORBIDDEN,
    LATER,
    UNSTEADY,
    AccessControl,
    AuthExchange,
    AuthMethod,
    Origin,
    PeerCertificate,
    Ticket,
)
from broker.security import ASK, Attempt, Authenticator, Principal, Refusal, Verdict

__all__ = [
    "ASK",
    "FORBIDDEN",
    "LATER",
    "UNSTEADY",
    "AccessControl",
    "Attempt",
    "AuthExchange",
    "AuthMethod",
    "Authenticator",
    "Connect",
    "Origin",
    "PeerCertificate",
    "Principal",
    "Refusal",
    "Ticket",
    "Verdict",
]

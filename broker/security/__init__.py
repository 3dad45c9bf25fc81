"""Who comes in, and who may do what: authenticators and the rules about topics, behind the core's hooks.

Imports `broker.core` and `broker.settings`, never the network; `broker.app` puts it together with the server. An
embedding program implements `Authenticator`: see docs/security.md.
"""

from __future__ import annotations

from broker.core.principal import Principal
from broker.security.authenticator import ASK, Attempt, Authenticator, Refusal, Verdict

__all__ = ["ASK", "Attempt", "Authenticator", "Principal", "Refusal", "Verdict"]

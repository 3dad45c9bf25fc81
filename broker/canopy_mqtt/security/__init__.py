"""Authentication and authorization: authenticators, and the rules about topics, behind the core's hooks.

Imports `canopy_mqtt.core` and `canopy_mqtt.settings`, never the network; `canopy_mqtt.assembly.app` connects it with
the server. An embedding program implements `Authenticator`: see docs/security.md.
"""

from __future__ import annotations

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import ASK, Attempt, Authenticator, Refusal, Verdict

__all__ = ["ASK", "Attempt", "Authenticator", "Principal", "Refusal", "Verdict"]

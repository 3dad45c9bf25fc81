"""Who a client is to this broker, and what follows from that: whose session it may take up.

Owns each of these comparisons, once. Today a client is known by its user name; whoever makes it a principal changes
this file and no other.

Promises: what is refused here has changed nothing: no connection was ended, and no session was looked into.
"""

from __future__ import annotations

from broker.core.codec import reasons
from broker.core.codec.errors import Refused
from broker.core.limits import Limits
from broker.core.session.session import Session


def check_owner(session: Session | None, user_name: str | None, limits: Limits, now: float) -> None:
    """Hold a client against the session that stands under its client identifier, connected or not.

    A session belongs to the user name that made it; clients without one share what was made without one. That holds
    for a clean start too: it would end the session.

    Raises:
        Refused: the session is another user's: 0x85 Client Identifier not valid, in 3.1.1 code 2. The credentials are
            good, so that 0x86 and 0x87 would mislead: with another identifier the client is welcome [MQTT-3.1.3-8]
            [MQTT3-3.1.3-9].
    """
    if session is None or limits.any_user_takes_over or session.user_name == user_name:
        return
    if session.outbox is None and 0.0 < session.expires_at <= now:
        # It is over, and will be gone before this client has its own [MQTT-4.1.0-2].
        return
    raise Refused("the session of this client identifier is another user's", reasons.CLIENT_IDENTIFIER_NOT_VALID)

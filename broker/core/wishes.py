"""What a 5.0 subscriber asks of its queue, in user properties of SUBSCRIBE, and what it is granted.

Owns the three names, their values, and the bounds that the settings put on them:

    canopy-queue    drop-newest, drop-oldest, disconnect or latest
    canopy-max-age  seconds that a message may wait, such as 5 or 0.5; 0: no bound
    canopy-depth    messages that may wait; 0: no bound

They hold for each filter of the packet. Promises: a value that means nothing, a name that begins like these and is
none, and a name that comes twice are told, not passed over; what is asked beyond what the administrator allows is
granted as far as that goes, and the SUBACK says how far. Other user properties are none of our business.
"""

from __future__ import annotations

from typing import Final

from broker.core.limits import Limits
from broker.core.policy import POLICIES, LaneTerms, QueueTerms, Wish

PREFIX: Final = "canopy-"
QUEUE: Final = "canopy-queue"
MAX_AGE: Final = "canopy-max-age"
DEPTH: Final = "canopy-depth"

LONGEST: Final = 4_294_967_295
"""The largest number of seconds, or messages, that may be asked for."""

LONGEST_NUMBER: Final = 16
"""Characters of a number."""

LONGEST_SHOWN: Final = 40
"""Characters of a bad name or value that the reason string repeats."""


class BadWish(Exception):
    """A wish that cannot be understood; the text is for the client."""


def read(user: list[tuple[str, str]]) -> Wish | None:
    """The wish among a packet's user properties; None when there is none.

    Raises:
        BadWish: a value, or a name, that means nothing.
    """
    wish: Wish | None = None
    seen: list[str] = []
    for name, value in user:
        if not name.startswith(PREFIX):
            continue
        if wish is None:
            wish = Wish()
        if name in seen:
            raise BadWish(f"{name} stands there twice")
        seen.append(name)
        if name == QUEUE:
            if value not in POLICIES:
                raise BadWish(f"{QUEUE}: {_shown(value)} is none of {', '.join(POLICIES)}")
            wish.policy = POLICIES.index(value)
        elif name == MAX_AGE:
            wish.max_age = _number(name, value, True)
        elif name == DEPTH:
            wish.depth = int(_number(name, value, False))
        else:
            raise BadWish(f"{_shown(name)} is none of {QUEUE}, {MAX_AGE}, {DEPTH}")
    return wish


def _number(name: str, value: str, fraction: bool) -> float:
    whole, point, rest = value.partition(".")
    digits = whole + rest
    good = digits.isascii() and digits.isdigit() and len(value) <= LONGEST_NUMBER
    if not good or not whole or (point and (not fraction or not rest)) or float(value) > LONGEST:
        kind = "a number of seconds" if fraction else "a number of messages"
        raise BadWish(f"{name}: {_shown(value)} is not {kind} from 0 to {LONGEST}")
    return float(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")


def grant(wish: Wish, limits: Limits, terms: QueueTerms, base: LaneTerms) -> LaneTerms:
    """What a subscription gets. `terms` are the client's, `base` what it would have without a wish.

    The bounds of `base` can be tightened and not loosened; the policy is the client's choice among those allowed.
    """
    if not limits.subscriber_policies:
        return base
    policy = wish.policy if wish.policy in limits.subscriber_policies else base.policy
    max_age = base.max_age
    if wish.max_age > 0.0 and (max_age == 0.0 or wish.max_age < max_age):
        max_age = wish.max_age
    depth = base.depth if base.depth > 0 else terms.live_messages
    if wish.depth > 0 and (depth == 0 or wish.depth < depth):
        depth = wish.depth
    return LaneTerms(policy, max_age, depth)


def tell(granted: LaneTerms) -> list[tuple[str, str]]:
    """The user properties that tell what was granted."""
    # In no form that `read` would refuse.
    max_age = f"{granted.max_age:.6f}".rstrip("0").rstrip(".")
    return [(QUEUE, POLICIES[granted.policy]), (MAX_AGE, max_age), (DEPTH, str(granted.depth))]

"""The queue options of a 5.0 subscriber, in user properties of SUBSCRIBE, and what is granted.

Owns the three names, their values, and the limits that the settings put on them:

    canopy-queue    drop-newest, drop-oldest, disconnect or latest
    canopy-max-age  seconds that a message may wait, such as 5 or 0.5; 0: no limit
    canopy-depth    messages that may wait; 0: no limit

They apply to each filter of the packet. Promises: an invalid value, an unknown name that begins like these, and a
repeated name are reported and not ignored; requests above the administrator's limits are reduced to them, and the
SUBACK says so. Other user properties are ignored.
"""

from __future__ import annotations

from typing import Final

from broker.core.limits import Limits
from broker.core.queues.policies.queue_policy import POLICIES, QueueOptions, QueueTerms, SubscriptionQueueTerms

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


class BadQueueOptions(Exception):
    """Queue options that cannot be understood; the text is for the client."""


def read(user: list[tuple[str, str]]) -> QueueOptions | None:
    """The queue options among a packet's user properties; None when there is none.

    Raises:
        BadQueueOptions: a value, or a name, that means nothing.
    """
    options: QueueOptions | None = None
    seen: list[str] = []
    for name, value in user:
        if not name.startswith(PREFIX):
            continue
        if options is None:
            options = QueueOptions()
        if name in seen:
            raise BadQueueOptions(f"{name} stands there twice")
        seen.append(name)
        if name == QUEUE:
            if value not in POLICIES:
                raise BadQueueOptions(f"{QUEUE}: {_shown(value)} is none of {', '.join(POLICIES)}")
            options.policy = POLICIES.index(value)
        elif name == MAX_AGE:
            options.max_age = _number(name, value, True)
        elif name == DEPTH:
            options.depth = int(_number(name, value, False))
        else:
            raise BadQueueOptions(f"{_shown(name)} is none of {QUEUE}, {MAX_AGE}, {DEPTH}")
    return options


def _number(name: str, value: str, fraction: bool) -> float:
    whole, point, rest = value.partition(".")
    digits = whole + rest
    good = digits.isascii() and digits.isdigit() and len(value) <= LONGEST_NUMBER
    if not good or not whole or (point and (not fraction or not rest)) or float(value) > LONGEST:
        kind = "a number of seconds" if fraction else "a number of messages"
        raise BadQueueOptions(f"{name}: {_shown(value)} is not {kind} from 0 to {LONGEST}")
    return float(value)


def _shown(text: str) -> str:
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")


def grant(
    options: QueueOptions, limits: Limits, terms: QueueTerms, base: SubscriptionQueueTerms
) -> SubscriptionQueueTerms:
    """What a subscription gets. `terms` are the client's, `base` what it would have without options.

    The bounds of `base` can be tightened and not loosened; the policy is the client's choice among those allowed.
    """
    if not limits.subscriber_policies:
        return base
    policy = options.policy if options.policy in limits.subscriber_policies else base.policy
    max_age = base.max_age
    if options.max_age > 0.0 and (max_age == 0.0 or options.max_age < max_age):
        max_age = options.max_age
    depth = base.depth if base.depth > 0 else terms.live_messages
    if options.depth > 0 and (depth == 0 or options.depth < depth):
        depth = options.depth
    return SubscriptionQueueTerms(policy, max_age, depth)


def tell(granted: SubscriptionQueueTerms) -> list[tuple[str, str]]:
    """The user properties that tell what was granted."""
    # In no form that `read` would refuse.
    max_age = f"{granted.max_age:.6f}".rstrip("0").rstrip(".")
    return [(QUEUE, POLICIES[granted.policy]), (MAX_AGE, max_age), (DEPTH, str(granted.depth))]

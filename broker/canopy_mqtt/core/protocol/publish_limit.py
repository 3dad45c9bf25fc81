"""Holds back a client while it publishes faster than the settings allow, by token buckets of messages and of bytes."""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.limits import Limits

BREAK: Final = 1.0
"""Seconds for which a client must not have been held back for its patience to begin anew."""

MIN_HOLD: Final = 0.005
"""Seconds for which a client is held back at least: a high rate is not kept by one timer for each packet."""


class TokenBucket:
    """Saves `rate` tokens a second (above 0), at most `burst` of them. It begins full."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = 0.0

    def take(self, count: float, now: float) -> None:
        """Take `count` tokens, those that are not there on credit."""
        self._fill(now)
        self._level -= count

    def ready_in(self, now: float) -> float:
        """Return the seconds until the bucket is out of debt; 0.0 when it is not in debt."""
        self._fill(now)
        return -self._level / self.rate if self._level < 0.0 else 0.0

    def try_take(self, now: float, count: float = 1.0) -> bool:
        """Take tokens if all of them are there; False, and nothing was taken, if not."""
        self._fill(now)
        if self._level < count:
            return False
        self._level -= count
        return True

    def _fill(self, now: float) -> None:
        passed = now - self._at
        if passed > 0.0:
            self._at = now
            self._level += passed * self.rate
            if self._level > self.burst:
                self._level = self.burst


class PublishLimit:
    """Limits one client's publishes, in PUBLISH packets and in their bytes a second.

    The burst is what a second allows, and one packet at least. A limit of 0 is none. `patience`: seconds that the
    client may be held back without a break of `BREAK` seconds; 0: for ever.
    """

    def __init__(self, rate: float, size: int, patience: float) -> None:
        self._messages = TokenBucket(rate, max(rate, 1.0)) if rate > 0.0 else None
        self._bytes = TokenBucket(float(size), float(size)) if size > 0 else None
        self._rate = rate
        self._size = size
        self._patience = patience
        self._held_since = 0.0
        self._free_since = -BREAK
        # Which of the two is further in debt, as `_wait` found last.
        self._too_large = False

    def published(self, count: int, size: int, now: float) -> float:
        """Count `count` PUBLISH packets of `size` bytes in all. Return the time until which no more is taken, or 0.0.

        Raises ProtocolError with 0x96 (messages) or 0x97 (bytes) when the client has been held back for too long.
        """
        messages = self._messages
        if messages is not None:
            messages.take(float(count), now)
        octets = self._bytes
        if octets is not None:
            octets.take(float(size), now)
        wait = self._wait(now)
        if wait == 0.0:
            return 0.0
        if now - self._free_since >= BREAK:
            self._held_since = now
        self._check_patience(now)
        until = now + max(wait, MIN_HOLD)
        if self._patience > 0.0:
            until = min(until, self._held_since + self._patience)
        return until

    def released(self, now: float) -> None:
        """Go on at the time that `published` gave. Raises ProtocolError, like it, when patience came to its end."""
        self._free_since = now
        if self._wait(now) > 0.0:
            self._check_patience(now)

    def _wait(self, now: float) -> float:
        """Return the seconds until both buckets are out of debt."""
        messages = self._messages
        octets = self._bytes
        wait = messages.ready_in(now) if messages is not None else 0.0
        longer = octets.ready_in(now) if octets is not None else 0.0
        self._too_large = longer > wait
        return longer if self._too_large else wait

    def _check_patience(self, now: float) -> None:
        patience = self._patience
        if patience <= 0.0 or now < self._held_since + patience:
            return
        if self._too_large:
            raise ProtocolError(
                f"more than {self._size} bytes of PUBLISH packets a second for {patience:g} s",
                reason_codes.QUOTA_EXCEEDED,
            )
        raise ProtocolError(
            f"more than {self._rate:g} PUBLISH packets a second for {patience:g} s", reason_codes.MESSAGE_RATE_TOO_HIGH
        )


def publish_limit(limits: Limits) -> PublishLimit | None:
    """Return the limit to which the settings hold a client; None: there is none."""
    if limits.max_publish_rate <= 0.0 and limits.max_publish_bytes <= 0:
        return None
    return PublishLimit(limits.max_publish_rate, limits.max_publish_bytes, limits.publish_patience)

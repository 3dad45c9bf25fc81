"""Who guesses credentials: what failed is counted by address, and an address that fails too often is banned.

Owns both tables. Different credentials count, so that a device that comes again and again with an old password bans
nobody; what is kept of them is a number under a random key. A client identifier is never banned: anybody who knows one
could have its client banned. Promises: at most `max_bans` addresses are counted, and as many banned; the oldest are
forgotten first. IPv6 counts by /64.

Callers pass `now` in seconds of a monotonic clock.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from typing import Final

from broker.core.addresses import network
from broker.settings import Security

ADDRESS: Final = "address "
"""How the keys of the tables begin, and how a ban is named in the log."""


class Guessing:
    """What failed, and who is banned."""

    def __init__(self, settings: Security) -> None:
        self._settings = settings
        self._exempt = tuple(ipaddress.ip_network(each) for each in settings.ban_exempt)
        self._key = secrets.token_bytes(16)
        # Address → what failed there, and when it did last. The one that failed last stands at the end.
        self._failed: OrderedDict[str, dict[int, float]] = OrderedDict()
        # → when its ban ends; the newest at the end.
        self._banned: OrderedDict[str, float] = OrderedDict()
        self.failures = 0
        """Refused credentials."""
        self.bans = 0
        """Bans that there have been."""
        self.refused = 0
        """CONNECTs of the banned."""

    def change(self, settings: Security) -> None:
        """Other settings. Who is banned stays so, unless nobody is any more."""
        self._settings = settings
        self._exempt = tuple(ipaddress.ip_network(each) for each in settings.ban_exempt)
        if settings.ban_after == 0:
            self._banned.clear()
            self._failed.clear()

    def banned(self, host: str, now: float) -> str:
        """The address as the log has it, if it is banned; else "". Counts a refused CONNECT."""
        key = self._named(host) if self._banned else ""
        until = self._banned.get(key, 0.0)
        if until > now:
            self.refused += 1
            return key
        if until:
            del self._banned[key]
        return ""

    def failed(self, host: str, user: str, secret: bytes, now: float) -> str:
        """Credentials of a client were wrong. Its address as the log has it, if that brought a ban; else "".

        `secret`: the password, or whatever was wrong; what is random counts each time.
        """
        self.failures += 1
        settings = self._settings
        if settings.ban_after == 0:
            return ""
        key = self._named(host)
        name = user.encode()
        mark = hashlib.blake2b(b"%d:%b%b" % (len(name), name, secret), digest_size=8, key=self._key).digest()
        return key if key and self._note(key, int.from_bytes(mark), now) else ""

    def count(self, now: float) -> int:
        """How many bans hold. Walks over those that have ended since the last call alone, and forgets them.

        After a reload that made bans shorter, it counts one that has ended until those before it have, too.
        """
        banned = self._banned
        while banned:
            oldest = next(iter(banned))
            if banned[oldest] > now:
                break
            del banned[oldest]
        return len(banned)

    def lift(self, host: str) -> bool:
        """End the ban of an address. Whether there was one."""
        return self._banned.pop(ADDRESS + network(host), None) is not None

    def current(self, now: float) -> list[tuple[str, float]]:
        """The bans that hold, and the seconds that each has left."""
        return [(key, until - now) for key, until in self._banned.items() if until > now]

    def _note(self, key: str, mark: int, now: float) -> bool:
        """Something failed there. Whether that brought a ban."""
        settings = self._settings
        marks = self._failed.setdefault(key, {})
        self._failed.move_to_end(key)
        marks[mark] = now
        if len(marks) >= settings.ban_after:
            for old in [each for each, at in marks.items() if at <= now - settings.ban_time]:
                del marks[old]
        if len(marks) >= settings.ban_after:
            del self._failed[key]
            self._banned[key] = now + settings.ban_time
            self._banned.move_to_end(key)
            self.bans += 1
            if len(self._banned) > settings.max_bans:
                self._banned.popitem(last=False)
            return True
        if len(self._failed) > settings.max_bans:
            self._failed.popitem(last=False)
        return False

    def _named(self, host: str) -> str:
        return ADDRESS + network(host) if host and not self._is_exempt(host) else ""

    def _is_exempt(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in each for each in self._exempt)

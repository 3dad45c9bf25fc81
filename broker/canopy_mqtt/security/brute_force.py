"""Protection against brute force: counts failed logins by address, and bans an address that fails too often.

Owns both tables. Only different credentials count, so that a device that repeats an old password is not banned; the
table keeps a keyed hash of them. Client identifiers are never banned: anyone who knows one could have that client
banned. Promises: at most `max_bans` addresses are counted, and as many banned; the oldest are forgotten first. IPv6
counts by /64. Callers pass `now` in seconds of a monotonic clock.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from typing import Final

from canopy_mqtt.core.principal import network
from canopy_mqtt.settings import Security

ADDRESS: Final = "address "
"""The prefix of the tables' keys, which names a ban in the log."""


class BruteForceGuard:
    """Failed logins and bans of one broker."""

    def __init__(self, settings: Security) -> None:
        self._settings = settings
        self._exempt = tuple(ipaddress.ip_network(each) for each in settings.ban_exempt)
        self.key = secrets.token_bytes(16)
        # Address → what failed there, and when it did last. The one that failed last stands at the end.
        self._failed: OrderedDict[str, dict[int, float]] = OrderedDict()
        # → when its ban ends; the newest at the end.
        self._banned: OrderedDict[str, float] = OrderedDict()
        self.failures = 0
        """Refused credentials."""
        self.bans = 0
        """All bans so far."""
        self.refused = 0
        """Refused CONNECTs of banned addresses."""

    def change(self, settings: Security) -> None:
        """Use other settings. Bans stay, unless the settings switch bans off."""
        self._settings = settings
        self._exempt = tuple(ipaddress.ip_network(each) for each in settings.ban_exempt)
        if settings.ban_after == 0:
            self._banned.clear()
            self._failed.clear()

    def banned(self, host: str, now: float) -> str:
        """Return the address as the log names it if it is banned, and count a refused CONNECT; else ""."""
        key = self._named(host) if self._banned else ""
        until = self._banned.get(key, 0.0)
        if until > now:
            self.refused += 1
            return key
        if until:
            del self._banned[key]
        return ""

    def failed(self, host: str, user: str, secret: bytes, now: float) -> str:
        """Count a failed login. Returns the address as the log names it if this banned it; else "".

        `secret`: the password, or another wrong credential; a random value counts each time.
        """
        self.failures += 1
        settings = self._settings
        if settings.ban_after == 0:
            return ""
        key = self._named(host)
        name = user.encode()
        mark = hashlib.blake2b(b"%d:%b%b" % (len(name), name, secret), digest_size=8, key=self.key).digest()
        return key if key and self.note(key, int.from_bytes(mark), now) else ""

    def count(self, now: float) -> int:
        """Return the number of current bans. Forgets the ended ones, and visits only those.

        If a reload made bans shorter, an ended ban counts until all earlier bans have ended, too.
        """
        banned = self._banned
        while banned:
            oldest = next(iter(banned))
            if banned[oldest] > now:
                break
            del banned[oldest]
        return len(banned)

    def lift(self, host: str) -> bool:
        """End the ban of an address. Returns False if there was none."""
        return self._banned.pop(ADDRESS + network(host), None) is not None

    def current(self, now: float) -> list[tuple[str, float]]:
        """Return the current bans, and the seconds that each has left."""
        return [(key, until - now) for key, until in self._banned.items() if until > now]

    def note(self, key: str, mark: int, now: float) -> bool:
        """Count a failure. Returns True if it caused a ban. `key`: the address as the log names it; `mark`: the hash of
        the credentials."""
        settings = self._settings
        marks = self._failed.setdefault(key, {})
        self._failed.move_to_end(key)
        marks[mark] = now
        if len(marks) >= settings.ban_after:
            for old in [each for each, at in marks.items() if at <= now - settings.ban_time]:
                del marks[old]
        if len(marks) >= settings.ban_after:
            del self._failed[key]
            self.ban(key, now + settings.ban_time)
            self.bans += 1
            return True
        if len(self._failed) > settings.max_bans:
            self._failed.popitem(last=False)
        return False

    def ban(self, key: str, until: float) -> None:
        """Ban an address, by the name that the log has of it."""
        self._banned[key] = until
        self._banned.move_to_end(key)
        if len(self._banned) > self._settings.max_bans:
            self._banned.popitem(last=False)

    def _named(self, host: str) -> str:
        return ADDRESS + network(host) if host and not self._is_exempt(host) else ""

    def _is_exempt(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in each for each in self._exempt)

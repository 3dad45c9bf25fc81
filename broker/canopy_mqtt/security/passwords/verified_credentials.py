"""A cache of verified credentials, so that a client that comes back costs no hashing.

Owns the cache: for each user the HMAC of the password, beside the hash that it matched; the key is made at the start
and never leaves the process. Promises: a user whose line in the file has changed is not in the cache; it has at most
`max_users` users, and drops the least recently seen.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict


class VerifiedCredentials:
    """The last verified password of at most `max_users` users. 0: no cache."""

    def __init__(self, max_users: int) -> None:
        self._max_users = max_users
        self._key = secrets.token_bytes(32)
        # User → the hash that the password was good for, and the HMAC.
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def bound(self, max_users: int) -> None:
        self._max_users = max_users
        while len(self._kept) > max_users:
            self._kept.popitem(last=False)

    def good(self, user: str, password: bytes, hashed: str) -> bool:
        """Return True if the password was verified for this hash of the user. False: it has to be hashed."""
        kept = self._kept.get(user)
        if kept is None:
            return False
        if kept[0] != hashed:
            del self._kept[user]
            return False
        if not hmac.compare_digest(kept[1], self._mark(user, password)):
            return False
        self._kept.move_to_end(user)
        return True

    def keep(self, user: str, password: bytes, hashed: str) -> None:
        if self._max_users == 0:
            return
        self._kept[user] = (hashed, self._mark(user, password))
        self._kept.move_to_end(user)
        if len(self._kept) > self._max_users:
            self._kept.popitem(last=False)

    def forget(self, user: str) -> None:
        self._kept.pop(user, None)

    def _mark(self, user: str, password: bytes) -> bytes:
        name = user.encode()
        return hmac.digest(self._key, b"%d:%b%b" % (len(name), name, password), "sha256")

"""Credentials that were good a moment ago, so that a client that comes back is not hashed for again.

Owns what is remembered: for each user the HMAC of the password under a key that is made at the start and never leaves
the process, beside the hash that it was good for. Promises: a user whose line in the file has changed is not
remembered; at most `most` users are, those of whom nothing was heard for longest are forgotten first.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict


class VerifiedCredentials:
    """The last good password of at most `most` users. 0: of none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._key = secrets.token_bytes(32)
        # User → the hash that the password was good for, and the HMAC.
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def bound(self, most: int) -> None:
        self._most = most
        while len(self._kept) > most:
            self._kept.popitem(last=False)

    def good(self, user: str, password: bytes, hashed: str) -> bool:
        """Whether it is the password that was good for the user's hash. False: that is to be found out."""
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
        if self._most == 0:
            return
        self._kept[user] = (hashed, self._mark(user, password))
        self._kept.move_to_end(user)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def forget(self, user: str) -> None:
        self._kept.pop(user, None)

    def _mark(self, user: str, password: bytes) -> bytes:
        name = user.encode()
        return hmac.digest(self._key, b"%d:%b%b" % (len(name), name, password), "sha256")

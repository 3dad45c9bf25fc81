"""The authenticator of the type password-file: user names and hashed passwords.

Owns when a password is hashed: never in the event loop, never again for a user who repeats the same password
(`verified`), and also for unknown users, so that the time of a refusal does not tell whether a user exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.principal import Principal, network
from canopy_mqtt.security.authenticator import ASK, Ask, Attempt, Authenticator, Refusal, Verdict
from canopy_mqtt.security.passwords.hashing_pool import Busy, HashingPool
from canopy_mqtt.security.passwords.password_file import PasswordFile, read_password_file
from canopy_mqtt.security.passwords.verified_credentials import VerifiedCredentials

WRONG: Final = Refusal(text="wrong password")
MISSING: Final = Refusal(text="no password")
TOO_LONG: Final = Refusal(text="the password is longer than security.max_password_length")
BUSY: Final = Refusal(reason_codes.SERVER_BUSY, "too many passwords wait to be hashed")


class PasswordAuthenticator(Authenticator):
    """Checks user names and passwords against a file, as it was when it was read."""

    def __init__(
        self,
        name: str,
        path: Path,
        file: PasswordFile,
        pool: HashingPool,
        verified: VerifiedCredentials,
        longest: Callable[[], int],
    ) -> None:
        """`longest` returns the longest password that is hashed, in bytes."""
        self.name = name
        self._path = path
        self._file = file
        self._pool = pool
        self._verified = verified
        self._longest = longest

    @classmethod
    async def read(
        cls, name: str, path: Path, pool: HashingPool, verified: VerifiedCredentials, longest: Callable[[], int]
    ) -> PasswordAuthenticator:
        """Read the file, in a thread. Raises SecurityError."""
        return cls(name, path, await asyncio.to_thread(read_password_file, path), pool, verified, longest)

    def suspicion(self) -> str:
        return "" if self._file.users else f"{self._path}: there is no user in it; canopy passwd {self._path} USER"

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        user, password = attempt.user_name, attempt.password
        if user is None:
            return None
        known = self._file.users.get(user)
        if known is None:
            return None
        if not password:
            # Empty: as in mosquitto, the hash of an empty password is good for nothing.
            return MISSING
        if len(password) > self._longest():
            return TOO_LONG
        if self._verified.good(user, password, known.text):
            return Principal(user)
        return ASK

    async def authenticate(self, attempt: Attempt) -> Verdict:
        verdict = self.at_once(attempt)
        if verdict != ASK:
            return verdict
        user, password = attempt.user_name, attempt.password
        assert user is not None
        assert password is not None
        file = self._file
        try:
            good = await self._pool.run(network(attempt.origin.host), lambda: file.check(user, password))
        except Busy:
            return BUSY
        if not good:
            return WRONG
        self._verified.keep(user, password, file.users[user].text)
        return Principal(user)

    async def pretend(self, attempt: Attempt) -> Refusal | None:
        user, password = attempt.user_name, attempt.password
        # What is refused unhashed for known users is for unknown ones too.
        if user is None or not password or len(password) > self._longest() or not self._file.users:
            return None
        file = self._file
        try:
            await self._pool.run(network(attempt.origin.host), lambda: file.check(user, password))
        except Busy:
            return BUSY
        return None

    def still_knows(self, principal: Principal) -> bool:
        return principal.user_name in self._file.users

    def files(self) -> tuple[Path, ...]:
        return (self._path,)

    async def renewed(self) -> Authenticator:
        return await self.read(self.name, self._path, self._pool, self._verified, self._longest)

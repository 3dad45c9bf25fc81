"""Makes the authenticators of the settings: of each `[[authenticator]]` table the object that is asked.

Owns which class a table becomes, and what those of one broker share: the hashing threads, and the credentials that were
good (which a changed file leaves to whom it did not change).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from broker.security.authenticator import Authenticator
from broker.security.errors import SecurityError
from broker.security.passwords.hashing import HashingPool
from broker.security.passwords.verified import VerifiedCredentials
from broker.security.plain_authenticators import (
    AnonymousAuthenticator,
    CertificateAuthenticator,
    RejectAuthenticator,
    TrustAuthenticator,
)
from broker.security.rules.book import RuleBook
from broker.settings import (
    AnonymousTable,
    AuthenticatorTable,
    CertificateTable,
    HttpTable,
    JwtTable,
    PasswordFileTable,
    RejectTable,
    ScramTable,
    Security,
    Settings,
    TrustTable,
    called,
)


class Shared:
    """What the authenticators of one broker share."""

    def __init__(self, settings: Security, told: Callable[[str], None]) -> None:
        """`told` is told, in one line, of what an authenticator cannot do for a while."""
        self.told = told
        self.pool = HashingPool(settings.hashing_threads, settings.max_hashings)
        self._settings = settings
        self._verified: dict[str, VerifiedCredentials] = {}

    @property
    def longest_password(self) -> int:
        """Bytes of a password that is hashed."""
        return self._settings.max_password_length

    def verified(self, name: str) -> VerifiedCredentials:
        """The credentials that were good for the authenticator of a name."""
        return self._verified.setdefault(name, VerifiedCredentials(self._settings.verified_cache))

    def change(self, settings: Security) -> None:
        before, self._settings = self._settings, settings
        if (before.hashing_threads, before.max_hashings) != (settings.hashing_threads, settings.max_hashings):
            self.pool.bound(settings.hashing_threads, settings.max_hashings)
        for kept in self._verified.values():
            kept.bound(settings.verified_cache)


LIBRARIES: Final[Mapping[type[object], str]] = {
    PasswordFileTable: "broker.security.passwords.authenticator",
    JwtTable: "broker.security.tokens.authenticator",
    HttpTable: "broker.security.http_authenticator",
    ScramTable: "broker.security.scram.authenticator",
}
"""Each of these brings in libraries of its own, 30 MB in all: only those that are asked for are loaded."""


async def build(table: AuthenticatorTable, shared: Shared, before: Authenticator | None = None) -> Authenticator:
    """The authenticator of a table, or the one `before` with its files read again. Files are read in a thread.

    Raises:
        SecurityError: it cannot be used; the line names it.
    """
    try:
        return await (_made(table, shared) if before is None else before.renewed())
    except SecurityError as error:
        raise SecurityError(f'authenticator "{called(table)}": {error}') from None


async def _made(table: AuthenticatorTable, shared: Shared) -> Authenticator:
    name = called(table)
    if type(table) in LIBRARIES:
        # Loading reads files.
        await asyncio.to_thread(importlib.import_module, LIBRARIES[type(table)])
    if isinstance(table, PasswordFileTable):
        from broker.security.passwords.authenticator import PasswordAuthenticator

        return await PasswordAuthenticator.read(
            name, Path(table.path), shared.pool, shared.verified(name), lambda: shared.longest_password
        )
    if isinstance(table, CertificateTable):
        return CertificateAuthenticator(name, table.user)
    if isinstance(table, AnonymousTable):
        return AnonymousAuthenticator(name)
    if isinstance(table, TrustTable):
        return TrustAuthenticator(name)
    if isinstance(table, RejectTable):
        return RejectAuthenticator(name)
    if isinstance(table, JwtTable):
        from broker.security.tokens.authenticator import TokenAuthenticator

        return await asyncio.to_thread(TokenAuthenticator.made, table, shared.told)
    if isinstance(table, HttpTable):
        from broker.security.http_authenticator import HttpAuthenticator

        return await asyncio.to_thread(HttpAuthenticator.made, table, shared.told)
    assert isinstance(table, ScramTable)
    from broker.security.scram.authenticator import ScramAuthenticator

    return await asyncio.to_thread(ScramAuthenticator.made, table)


def unknown(settings: Settings, known: Collection[str]) -> Iterator[str]:
    """One line for each authenticator that a listener names and that is not among the `known` ones."""
    for listener in settings.listeners:
        for name in listener.authenticators:
            if name not in known:
                there = ", ".join(known) or "none"
                yield f'listener "{listener.called}": authenticators: none is called "{name}"; there are: {there}'


def check(settings: Settings) -> tuple[list[str], list[str]]:
    """What cannot be used of authenticators, rules and their files, and what is hardly meant; one line each.

    It reads them: not in an event loop.
    """
    return asyncio.run(_check(settings))


async def _check(settings: Settings) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    suspicious: list[str] = []
    try:
        RuleBook(settings)
    except SecurityError as error:
        problems.append(str(error))
    shared = Shared(settings.security, problems.append)
    for table in settings.authenticator:
        try:
            authenticator = await build(table, shared)
        except SecurityError as error:
            problems.append(str(error))
        else:
            if line := authenticator.suspicion():
                suspicious.append(f'authenticator "{called(table)}": {line}')
            await authenticator.close()
    problems += unknown(settings, [called(table) for table in settings.authenticator])
    return problems, suspicious

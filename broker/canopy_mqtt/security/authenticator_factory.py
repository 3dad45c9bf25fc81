"""Makes the authenticators of the settings, one for each `[[authenticator]]` table.

Owns the choice of the class, and the objects that the authenticators of one broker share: the hashing threads, and the
verified credentials (which a changed file keeps for the users whose lines are unchanged).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from canopy_mqtt.security.authenticator import Authenticator
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.hashing_pool import HashingPool
from canopy_mqtt.security.passwords.verified_credentials import VerifiedCredentials
from canopy_mqtt.security.plain_authenticators import (
    AnonymousAuthenticator,
    CertificateAuthenticator,
    RejectAuthenticator,
    TrustAuthenticator,
)
from canopy_mqtt.security.rules.rule_book import RuleBook
from canopy_mqtt.settings import (
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
    def __init__(self, settings: Security, report: Callable[[str], None]) -> None:
        """`report` gets a line when an authenticator fails for a while, and when it recovers."""
        self.report = report
        self.pool = HashingPool(settings.hashing_threads, settings.max_hashings)
        self._settings = settings
        self._verified: dict[str, VerifiedCredentials] = {}

    @property
    def longest_password(self) -> int:
        """The longest password that is hashed, in bytes."""
        return self._settings.max_password_length

    def verified(self, name: str) -> VerifiedCredentials:
        return self._verified.setdefault(name, VerifiedCredentials(self._settings.verified_cache))

    def change(self, settings: Security) -> None:
        before, self._settings = self._settings, settings
        if (before.hashing_threads, before.max_hashings) != (settings.hashing_threads, settings.max_hashings):
            self.pool.bound(settings.hashing_threads, settings.max_hashings)
        for kept in self._verified.values():
            kept.bound(settings.verified_cache)


LIBRARIES: Final[Mapping[type[object], str]] = {
    PasswordFileTable: "canopy_mqtt.security.passwords.password_authenticator",
    JwtTable: "canopy_mqtt.security.tokens.token_authenticator",
    HttpTable: "canopy_mqtt.security.http_authenticator",
    ScramTable: "canopy_mqtt.security.scram.scram_authenticator",
}
"""Each of these needs further libraries, 30 MB in all: only those in use are loaded."""


async def build(table: AuthenticatorTable, shared: Shared, before: Authenticator | None = None) -> Authenticator:
    """Make the authenticator of a table, or renew `before`, which reads its files again. Files are read in a thread.

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
        from canopy_mqtt.security.passwords.password_authenticator import PasswordAuthenticator

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
        from canopy_mqtt.security.tokens.token_authenticator import TokenAuthenticator

        return await asyncio.to_thread(TokenAuthenticator.from_table, table, shared.report)
    if isinstance(table, HttpTable):
        from canopy_mqtt.security.http_authenticator import HttpAuthenticator

        return await asyncio.to_thread(HttpAuthenticator.from_table, table, shared.report)
    assert isinstance(table, ScramTable)
    from canopy_mqtt.security.scram.scram_authenticator import ScramAuthenticator

    return await asyncio.to_thread(ScramAuthenticator.from_table, table)


def unknown(settings: Settings, known: Collection[str]) -> Iterator[str]:
    """Yield a line for each authenticator that a listener names and that is not `known`."""
    for listener in settings.listeners:
        for name in listener.authenticators:
            if name not in known:
                there = ", ".join(known) or "none"
                yield f'listener "{listener.label}": authenticators: none is called "{name}"; there are: {there}'


def check(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the errors in authenticators, rules and their files, and the warnings; one line each.

    It reads the files: never call it in an event loop.
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

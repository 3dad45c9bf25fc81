"""The access control of the settings: the chain of authenticators, together with the rules.

Owns the settings in force and their replacement: `prepare` reads all that new settings need and changes nothing,
`apply` puts it in force at once. `dismissed` tells which clients the new settings would not admit.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import AccessControl, AuthMethod, Origin, Ticket
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.guards.hook_guards import HookReporter
from canopy_mqtt.security.authenticator import Authenticator
from canopy_mqtt.security.authenticator_factory import Shared, build, unknown
from canopy_mqtt.security.chain import INTERVAL, MAX_LINES, Chain, ListenerAuth
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.rules.claims import PLACE as OWN_RULES
from canopy_mqtt.security.rules.rule import PUBLISH, RECEIVE
from canopy_mqtt.security.rules.rule_book import RuleBook
from canopy_mqtt.settings import AuthenticatorTable, HttpTable, JwtTable, Settings

GUESSES: Final = frozenset({reason_codes.BAD_USER_NAME_OR_PASSWORD, reason_codes.NOT_AUTHORIZED})
"""Reason codes of an authentication method that mean a wrong proof."""


class Prepared(NamedTuple):
    """The authenticators and rules of new settings, read and checked."""

    settings: Settings
    built: dict[AuthenticatorTable, Authenticator]
    """In the order in which they are asked; those of the embedding program come before."""
    book: RuleBook
    """The rules."""


class SettingsAccessControl(AccessControl):
    """Decides who may connect and what each client may do, by the settings and the embedding program."""

    def __init__(self, settings: Settings, embedded: Sequence[Authenticator], reporter: HookReporter, log: Any) -> None:
        """`embedded`: authenticators of the embedding program; they are asked first."""
        super().__init__()
        self.epoch = 0
        self.settings = settings
        self._embedded = tuple(embedded)
        self._log = log
        self._built: dict[AuthenticatorTable, Authenticator] = {}
        self._book: RuleBook | None = None
        # Lines about authenticators that are not available in the present interval, and when it ends.
        self._lines = 0
        self._lines_until = 0.0
        self._shared = Shared(settings.security, self._unavailable)
        # Of absent clients whose users are gone: sessions that ended for it, and wills that were not published.
        self.dismissed_sessions = 0
        self.dropped_wills = 0
        self.chain = Chain(settings.security, ListenerAuth(self._embedded), {}, reporter, log)

    # -- settings ------------------------------------------------------------------------------------------------------

    def needed(self, settings: Settings) -> bool:
        """Return True if these settings check anything. Otherwise the broker runs without access control, and pays
        nothing for it.
        """
        return bool(
            settings.authenticator
            or self._embedded
            or (self._book is not None and self._book.restricts)
            or settings.security.client_ids
            or any(listener.allow_anonymous is not None for listener in settings.listeners)
        )

    async def prepare(self, settings: Settings) -> Prepared:
        """Read the files that these settings need. Nothing in force changes.

        Raises:
            SecurityError: something cannot be used; in one line: which file, which line, what to do.
        """
        book = await asyncio.to_thread(RuleBook, settings)
        built: dict[AuthenticatorTable, Authenticator] = {}
        new: list[Authenticator] = []
        try:
            for table in settings.authenticator:
                before = self._built.get(table)
                built[table] = await build(table, self._shared, before)
                if before is None:
                    new.append(built[table])
            self._by_listener(settings, built)
        except BaseException:
            for authenticator in new:
                await authenticator.close()
            raise
        return Prepared(settings, built, book)

    def apply(self, prepared: Prepared) -> list[Authenticator]:
        """Put it in force. Returns the authenticators that are no longer used; the caller closes them."""
        before, self._built = self._built, prepared.built
        self.settings = settings = prepared.settings
        self._shared.change(settings.security)
        default, by_listener = self._by_listener(settings, self._built)
        self.chain.change(settings.security, default, by_listener)
        self._book = prepared.book
        # A client's own rules may say that it is not sent something.
        self.filters_deliveries = (
            prepared.book.filters_deliveries or bool(self._embedded) or any(map(_brings_rules, self._built))
        )
        self.ask_work = prepared.book.ask_work
        self.epoch += 1
        known = set(map(id, before.values()))
        for each in self._built.values():
            if id(each) not in known and (line := each.suspicion()):
                self._log.warning("suspicious setting", detail=f'authenticator "{each.name}": {line}')
        kept = set(map(id, self._built.values()))
        return [each for each in before.values() if id(each) not in kept]

    def _by_listener(
        self, settings: Settings, built: Mapping[AuthenticatorTable, Authenticator]
    ) -> tuple[ListenerAuth, dict[str, ListenerAuth]]:
        """Return the default rules of authentication, and those of each listener. Raises SecurityError."""
        asked = {each.name: each for each in (*self._embedded, *built.values())}
        anybody = None if settings.mqtt.allow_anonymous else False
        by_listener: dict[str, ListenerAuth] = {}
        for line in unknown(settings, asked):
            raise SecurityError(line)
        for listener in settings.listeners:
            mine = [asked[name] for name in asked if not listener.authenticators or name in listener.authenticators]
            by_listener[listener.label] = ListenerAuth(
                mine, anybody if listener.allow_anonymous is None else listener.allow_anonymous
            )
        return ListenerAuth(list(asked.values()), anybody), by_listener

    def files(self) -> tuple[Path, ...]:
        rules = () if self._book is None else self._book.files
        return (*rules, *(path for each in self._built.values() for path in each.files()))

    def methods(self) -> dict[str, AuthMethod]:
        """Return the MQTT 5.0 authentication methods of the authenticators; the first one with a name wins."""
        found: dict[str, AuthMethod] = {}
        for authenticator in (*self._embedded, *self._built.values()):
            for name, method in authenticator.methods().items():
                found.setdefault(name, method)
        return found

    def dismissed(self, principal: Principal) -> bool:
        """Return True if a client was admitted and would not be admitted any more."""
        return not self.chain.auth_of(principal.listener).still_admits(principal)

    async def close(self) -> None:
        await self.chain.close()
        for authenticator in (*self._embedded, *self._built.values()):
            await authenticator.close()
        self._built = {}
        await self._shared.pool.close()

    def counts(self, now: float) -> Iterator[tuple[str, int]]:
        """Yield the figures below `$SYS/broker/security/`. `now` in seconds of `time.monotonic`."""
        chain, pool = self.chain, self._shared.pool
        yield "dismissed/sessions", self.dismissed_sessions
        yield "dismissed/wills", self.dropped_wills
        yield "admitted", chain.admitted
        yield "refused", chain.refused
        yield "failures", chain.brute_force.failures
        yield "authenticating", chain.under_way
        yield "hashing/waiting", pool.waiting
        yield "hashing/refused", pool.refused
        yield "bans/total", chain.brute_force.bans
        yield "bans/current", chain.brute_force.count(now)
        yield "bans/refused", chain.brute_force.refused

    def _unavailable(self, line: str) -> None:
        """Log a failing service, at a bounded rate: clients can make it fail as often as they like."""
        now = time.monotonic()
        if now >= self._lines_until:
            self._lines, self._lines_until = 0, now + INTERVAL
        self._lines += 1
        if self._lines > MAX_LINES:
            return
        self._log.warning("an authenticator is not available", detail=line)

    # -- what the core asks --------------------------------------------------------------------------------------------

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        return self.chain.admit(connect, origin, ticket)

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        return self._book is None or self._book.may_publish(principal, topic, qos, retain)

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        return qos if self._book is None else self._book.may_subscribe(principal, topic_filter, qos)

    def may_receive(self, principal: Principal, topic: str) -> bool:
        return self.receive_qos(principal, topic) >= 0

    def receive_qos(self, principal: Principal, topic: str) -> int:
        return 2 if self._book is None else self._book.receive_qos(principal, topic)

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        book = self._book
        if book is None:
            return True, ""
        if action == "subscribe":
            verdict = book.about_filter(principal, topic)
        else:
            verdict = book.about(principal, PUBLISH if action == "publish" else RECEIVE, topic, qos, retain)
        place = verdict.place
        if place.startswith(OWN_RULES) and principal.authenticator:
            place = f'{place}, from authenticator "{principal.authenticator}"'
        return verdict.allowed, place

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        return self._book is not None and self._book.denies_part(principal, topic_filter)

    def bars(self, connect: Connect, origin: Origin) -> int:
        return self.chain.bars(connect, origin)

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        if reason_code in GUESSES:
            # What was proved is not known here: each time counts.
            user = connect.user_name or ""
            self.chain.login_failed(origin.host, user, secrets.token_bytes(8))


def _brings_rules(table: AuthenticatorTable) -> bool:
    """Return True if the claims or answers of an authenticator may contain rules."""
    return isinstance(table, HttpTable) or (isinstance(table, JwtTable) and table.rules_claim != "")

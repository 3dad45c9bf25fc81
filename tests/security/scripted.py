"""Authenticators, tickets and logs for the tests of the chain and of what stands around it."""

from __future__ import annotations

import asyncio
from typing import Any

from canopy_mqtt.core.codec.packets import V5, Connect
from canopy_mqtt.core.hooks import Origin, PeerCertificate, Ticket
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.guards.hook_guards import HookReporter
from canopy_mqtt.security.authenticator import ASK, Ask, Attempt, Authenticator, Refusal, Verdict


class Log:
    """Keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    info = error = warning


class Reporter(HookReporter):
    """Keeps what failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[tuple[str, Exception]] = []

    def failed(self, hook: str, error: Exception) -> None:
        self.failures.append((hook, error))


class Scripted(Authenticator):
    """Knows the users that it is given, by name, each with a password or an exception; decides at once or when told."""

    def __init__(self, name: str, users: dict[str, Any], at_once: bool = False) -> None:
        self.name = name
        self.users = users
        self.asked: list[str | None] = []
        self.pretended = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.cancelled = 0
        self._at_once = at_once

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        return self._decide(attempt) if self._at_once else ASK

    async def authenticate(self, attempt: Attempt) -> Verdict:
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self._decide(attempt)

    async def pretend(self, attempt: Attempt) -> Refusal | None:
        del attempt
        self.pretended += 1
        return None

    def still_knows(self, principal: Principal) -> bool:
        return principal.user_name in self.users

    def _decide(self, attempt: Attempt) -> Verdict:
        self.asked.append(attempt.user_name)
        if attempt.user_name not in self.users:
            return None
        wanted = self.users[attempt.user_name]
        if isinstance(wanted, Exception):
            raise wanted
        return Principal(attempt.user_name) if attempt.password == wanted else Refusal(text="wrong password")


class Asked:
    """A ticket, and its answers."""

    def __init__(self, principal: Principal | None = None) -> None:
        self.answers: list[int] = []
        self.ticket = Ticket(self.answers.append, principal)

    @property
    def principal(self) -> Principal | None:
        return self.ticket.principal

    @property
    def detail(self) -> str:
        return self.ticket.detail


def connect(user: str | None = None, password: bytes | None = None, client_id: str = "c") -> Connect:
    return Connect(client_id, V5, user_name=user, password=password)


def origin(host: str = "10.0.0.1", listener: str = "", certificate: PeerCertificate | None = None) -> Origin:
    return Origin(f"{host}:40000", host, listener, False, certificate)

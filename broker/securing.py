"""The security room in a running broker: put before the router, changed by a reload, and taken away at the end.

Owns who is disconnected when settings or files change: clients whose user is gone, or whom nothing admits any more, end
with 0x87, and so do sessions of such users, with their wills, also where users were removed while no broker ran; whose
password is another now stays, and needs the new one next time. Clients are looked at in turns, so that nobody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.core import guards
from broker.core.causes import NOT_AUTHORIZED
from broker.core.codec import reasons
from broker.core.connection.subscribing import SubscriptionReview
from broker.core.principal import Principal
from broker.core.routing.wills import DueWill, HeldWill
from broker.net.connections.client import Client
from broker.security.access import Access, Prepared
from broker.security.authenticator import Authenticator
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.hooks.running import RunningHooks
    from broker.net.server import Server

LOOKED_AT: Final = 500
"""Clients that are looked at in one turn: about a millisecond."""

TOLD: Final = "not allowed any more"

TAKEN_BACK: Final = "a subscription is not allowed any more"

REVIEW_WORK: Final = 16_384
"""What one turn of looking through subscriptions may do, counted as deliveries: some milliseconds."""


class Securing:
    """The access control that settings and embedded authenticators make up, in one broker."""

    def __init__(self, server: Server, authenticators: Sequence[Authenticator], hooks: RunningHooks) -> None:
        self._server = server
        self._hooks = hooks
        self.access = Access(server.settings, authenticators, server.faults, server.log)
        # The authentication methods that came from authenticators.
        self._methods: set[str] = set()
        self._next_pause = 0

    async def start(self) -> None:
        """Read what the settings need, before the first client comes. Raises SecurityError."""
        self._put(await self.access.prepare(self._server.settings))

    async def prepare(self, settings: Settings) -> Prepared:
        """Read what other settings need. Nothing in force changes. Raises SecurityError."""
        return await self.access.prepare(settings)

    async def apply(self, prepared: Prepared) -> int:
        """Put that in force, and end those who may not stay. How many connections that were."""
        retired = self._put(prepared)
        try:
            return await self._dismiss()
        finally:
            for authenticator in retired:
                await authenticator.close()

    async def stop(self) -> None:
        """Nobody comes any more."""
        await self.access.close()

    def files(self) -> tuple[Path, ...]:
        """The files that something in force was read from."""
        return self.access.files()

    def counts(self) -> Iterator[tuple[str, int]]:
        """What `$SYS/broker/security/` tells; nothing where nobody is asked, and nobody has guessed at `[http]`."""
        asked = isinstance(self._server.router.access_control, guards.GuardedAccessControl)
        if asked or self.access.chain.guessing.failures:
            yield from self.access.counts(time.monotonic())

    def refusals(self) -> dict[str, int]:
        """How many clients were refused, by the name of the reason code."""
        return self.access.chain.refusals

    def _put(self, prepared: Prepared) -> list[Authenticator]:
        """In force from here on. Who is asked no more."""
        server, router = self._server, self._server.router
        retired = self.access.apply(prepared)
        if router.access_control is None and (self.access.needed(prepared.settings) or self._hooks.decides):
            hooked = self._hooks.access(self.access)
            router.access_control = guards.GuardedAccessControl(hooked, server.faults, time.monotonic)
            server.faults.watch(guards.ACCESS_CONTROL)
            # It knows more than the settings of the core: what a listener allows.
            router.limits.allow_anonymous = True
            for connection in server.connections:
                if not connection.protocol.accepted:
                    connection.protocol.answer_later = connection.admitted
        methods = self.access.methods()
        for name in self._methods - methods.keys():
            del router.auth_methods[name]
        self._methods &= methods.keys()
        for name, method in methods.items():
            # Those of the embedding program stay.
            if name in self._methods or name not in router.auth_methods:
                router.auth_methods[name] = guards.GuardedAuthMethod(method, server.faults, time.monotonic)
                server.faults.watch(guards.AUTH_METHOD)
                self._methods.add(name)
        return retired

    async def _review(self) -> int:
        """End subscriptions that the rules do not allow any more. How many connections ended for it.

        A client that is there is told so: 5.0 has no other way to say that nothing will come of a subscription.
        """
        server = self._server
        router = server.router
        access_control = router.access_control
        assert access_control is not None
        ended = 0
        for session in list(router.sessions.values()):
            if session.own or not session.subscriptions:
                continue
            review = SubscriptionReview(session, access_control, router)
            while not session.ended and not review.turn(router.work + REVIEW_WORK):
                server.after_batch()
                await asyncio.sleep(0)
            connection = None if session.outbox is None else session.outbox.owner
            if review.ended and isinstance(connection, Client):
                connection.close(NOT_AUTHORIZED, reasons.NOT_AUTHORIZED, TAKEN_BACK)
                ended += 1
            if router.work >= self._next_pause:
                self._next_pause = router.work + REVIEW_WORK
                server.after_batch()
                await asyncio.sleep(0)
        server.after_batch()
        return ended

    async def _dismiss(self) -> int:
        """End connections and sessions of those who are not allowed any more."""
        server = self._server
        if server.router.access_control is None:
            return 0
        ended = 0
        for at, connection in enumerate(list(server.connections)):
            session = connection.protocol.session
            if session is not None and self.access.dismissed(session.principal):
                connection.close(NOT_AUTHORIZED, reasons.NOT_AUTHORIZED, TOLD)
                ended += 1
            if at % LOOKED_AT == LOOKED_AT - 1:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended += await self._review()
        await self._dismiss_absent()
        return ended

    async def dismiss_restored(self) -> None:
        """End what a store has brought of users who are gone: before anything of it is published."""
        if self._server.router.access_control is None:
            return
        sessions, wills = await self._dismiss_absent()
        if sessions or wills:
            self._server.log.warning("users were removed while the broker was stopped", sessions=sessions, wills=wills)

    async def _dismiss_absent(self) -> tuple[int, int]:
        """End the sessions, and drop the wills, of those who are away and not allowed any more. How many."""
        server = self._server
        router, wills = server.router, server.router.wills
        ended = dropped = 0
        for at, session in enumerate(list(router.sessions.values())):
            if session.outbox is None and not session.ended and self._gone(session.principal):
                if session.will is not None:
                    wills.forget(session)
                    dropped += 1
                router.end_session(session, server.loop.time())
                ended += 1
                server.after_batch()
            if at % LOOKED_AT == LOOKED_AT - 1:
                await asyncio.sleep(0)
        alone: list[HeldWill | DueWill] = [*wills.held.values(), *wills.line]
        for at, will in enumerate(alone):
            if self._gone(will.principal) and wills.drop(will):
                dropped += 1
            if at % LOOKED_AT == LOOKED_AT - 1:
                await asyncio.sleep(0)
        self.access.dismissed_sessions += ended
        self.access.dropped_wills += dropped
        return ended, dropped

    def _gone(self, principal: Principal) -> bool:
        """Whether somebody who was admitted would not be any more.

        One that nobody has vouched for is not taken back by anybody: it came before there was access control.
        """
        return principal.authenticator != "" and self.access.dismissed(principal)

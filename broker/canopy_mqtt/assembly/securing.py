"""Installs access control in a running broker, changes it on a reload, and removes it at the end.

Owns the review of clients when settings or files change: clients whose user was removed, or who would not be admitted
any more, are disconnected with 0x87, and the sessions and wills of removed users end, also those removed while no
broker ran. A client whose password has changed stays, and needs the new one next time. The review takes turns, so that
no client waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.causes import NOT_AUTHORIZED
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.jobs import STEP_WORK
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.protocol.subscribe import SubscriptionReview
from canopy_mqtt.core.routing.share_queues import ShareQueue
from canopy_mqtt.core.routing.wills import LoneWill
from canopy_mqtt.guards import hook_guards
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.security.access_control import Prepared, SettingsAccessControl
from canopy_mqtt.security.authenticator import Authenticator
from canopy_mqtt.settings import Settings

if TYPE_CHECKING:
    from canopy_mqtt.hooks.running_hooks import RunningHooks
    from canopy_mqtt.net.server import Server

LOOKED_AT: Final = 500
"""Clients that are reviewed in one turn: about a millisecond."""

TOLD: Final = "not allowed any more"

TAKEN_BACK: Final = "a subscription is not allowed any more"


class Securing:
    """The access control of the settings and of embedded authenticators, in one broker."""

    def __init__(self, server: Server, authenticators: Sequence[Authenticator], hooks: RunningHooks) -> None:
        self._server = server
        self._hooks = hooks
        self.access = SettingsAccessControl(server.settings, authenticators, server.faults, server.log)
        # The authentication methods that came from authenticators.
        self._methods: set[str] = set()

    async def start(self) -> None:
        """Read the files of the settings, before the first client comes. Raises SecurityError."""
        self._put_in_force(await self.access.prepare(self._server.settings))

    async def prepare(self, settings: Settings) -> Prepared:
        """Read the files of other settings. Nothing in force changes. Raises SecurityError."""
        return await self.access.prepare(settings)

    async def apply(self, prepared: Prepared) -> int:
        """Put the prepared rules in force, and end clients that may not stay. Returns their number."""
        retired = self._put_in_force(prepared)
        try:
            return await self._dismiss()
        finally:
            for authenticator in retired:
                await authenticator.close()

    async def stop(self) -> None:
        """Close all authenticators."""
        await self.access.close()

    def files(self) -> tuple[Path, ...]:
        """The files behind the access control in force."""
        return self.access.files()

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield the figures below `$SYS/broker/security/`; none if clients are not checked and `[http]` saw no wrong
        password.
        """
        asked = isinstance(self._server.router.access_control, hook_guards.GuardedAccessControl)
        if asked or self.access.chain.brute_force.failures:
            yield from self.access.counts(time.monotonic())

    def refusals(self) -> dict[str, int]:
        """Return the number of refused clients by the name of the reason code."""
        return self.access.chain.refusals

    def _put_in_force(self, prepared: Prepared) -> list[Authenticator]:
        """Put the prepared rules in force. Returns the authenticators that are no longer used."""
        server, router = self._server, self._server.router
        retired = self.access.apply(prepared)
        if router.access_control is None and (self.access.needed(prepared.settings) or self._hooks.decides):
            hooked = self._hooks.access(self.access)
            router.access_control = hook_guards.GuardedAccessControl(hooked, server.faults, time.monotonic)
            server.faults.watch(hook_guards.ACCESS_CONTROL)
            # The access control also knows what a listener allows.
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
                router.auth_methods[name] = hook_guards.GuardedAuthMethod(method, server.faults, time.monotonic)
                server.faults.watch(hook_guards.AUTH_METHOD)
                self._methods.add(name)
        return retired

    async def _review(self) -> int:
        """End subscriptions that the rules do not allow any more. Returns the number of ended connections.

        A connected client is disconnected: 5.0 has no other way to say that a subscription has ended.
        """
        server = self._server
        router = server.router
        access_control = router.access_control
        assert access_control is not None
        budget = router.budget
        budget.begin(STEP_WORK)
        ended = 0
        for session in list(router.sessions.values()):
            if session.internal or not session.subscriptions:
                continue
            review = SubscriptionReview(session, access_control, router)
            while not session.ended and not review.step(budget):
                server.after_batch()
                await asyncio.sleep(0)
                budget.begin(STEP_WORK)
            connection = None if session.send_buffer is None else session.send_buffer.owner
            if review.ended and isinstance(connection, Connection):
                connection.end(CLOSE, NOT_AUTHORIZED, reason_codes.NOT_AUTHORIZED, TAKEN_BACK)
                ended += 1
        server.after_batch()
        return ended

    async def _dismiss(self) -> int:
        """End connections and sessions of clients that are not allowed any more."""
        server = self._server
        if server.router.access_control is None:
            return 0
        ended = 0
        for at, connection in enumerate(list(server.connections)):
            session = connection.protocol.session
            if session is not None and self.access.dismissed(session.principal):
                connection.end(CLOSE, NOT_AUTHORIZED, reason_codes.NOT_AUTHORIZED, TOLD)
                ended += 1
            if at % LOOKED_AT == LOOKED_AT - 1:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended += await self._review()
        await self._dismiss_absent()
        return ended

    async def dismiss_restored(self) -> None:
        """End restored sessions of removed users, before any of their messages is published."""
        if self._server.router.access_control is None:
            return
        sessions, wills = await self._dismiss_absent()
        if sessions or wills:
            self._server.log.warning("users were removed while the broker was stopped", sessions=sessions, wills=wills)

    async def _dismiss_absent(self) -> tuple[int, int]:
        """End the sessions and wills of absent clients that are not allowed any more. Returns both numbers."""
        server = self._server
        router, wills = server.router, server.router.wills
        ended = dropped = 0
        for at, session in enumerate(list(router.sessions.values())):
            if isinstance(session, ShareQueue):
                # A share queue ends with its last member, or belongs to another one then.
                continue
            if session.send_buffer is None and not session.ended and self._lost_access(session.principal):
                if session.will is not None:
                    wills.revoke(session)
                    dropped += 1
                router.end_session(session, server.loop.time())
                ended += 1
                server.after_batch()
            if at % LOOKED_AT == LOOKED_AT - 1:
                await asyncio.sleep(0)
        alone: list[LoneWill] = [*wills.held.values(), *wills.line]
        for at, will in enumerate(alone):
            if self._lost_access(will.principal) and wills.drop(will):
                dropped += 1
            if at % LOOKED_AT == LOOKED_AT - 1:
                await asyncio.sleep(0)
        self.access.dismissed_sessions += ended
        self.access.dropped_wills += dropped
        return ended, dropped

    def _lost_access(self, principal: Principal) -> bool:
        """Return True if a client was admitted and would not be any more.

        A client without an authenticator stays: it came before there was access control.
        """
        return principal.authenticator != "" and self.access.dismissed(principal)

"""The plug-ins of one broker: put between the core and what it would ask, and told what happens.

Owns where they stand: before access control, on the way of messages, and beside whoever is told already. A broker
without plug-ins has none of this.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.core.hooks import EventListener
from broker.core.principal import Principal
from broker.hooks.access import HookedAccess
from broker.hooks.calls import PLACE, Calls
from broker.hooks.messages import HookedLosses, HookedMessages

if TYPE_CHECKING:
    from broker.core.hooks import AccessControl
    from broker.net.connections.client import Client
    from broker.net.server import Server
    from broker.upstream.links.link import UpstreamLink
    from broker.upstream.links.links import Links


class RunningHooks:
    """What the plug-ins of a broker have been made into. `plugins`: in their order."""

    def __init__(self, plugins: Sequence[Any]) -> None:
        """Raises PluginError: one of them has no hook, or one that does not exist."""
        self.calls = Calls(plugins)
        self._access: HookedAccess | None = None
        # Whom the connections that are open are of: what a session says of it may be another client's by its end.
        self._principals: dict[Client, Principal] = {}
        self._opened = self.calls.of("connected")
        self._ended = self.calls.of("disconnected")
        self._session = self.calls.of("session")
        self._upstream = self.calls.of("upstream")

    @property
    def decides(self) -> bool:
        """Whether anything is asked about clients that access control is asked about."""
        return any(self.calls.of(name) for name in ("connect", "subscribe", "deliver"))

    @property
    def hears_of_clients(self) -> bool:
        """Whether it wants to be told of each client that comes and goes."""
        return bool(self._opened or self._ended or self._session)

    def access(self, inner: AccessControl) -> AccessControl:
        if not self.decides:
            return inner
        self._access = HookedAccess(self.calls, inner)
        return self._access

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self, broker: Server) -> None:
        """Put them in place, before anybody can come. What a plug-in's `start` raises is raised."""
        self.calls.server = broker
        if not self.calls.plugins:
            return
        router = broker.router
        broker.faults.watch(PLACE)
        publish, retained, drop = self.calls.of("publish"), self.calls.of("retained"), self.calls.of("drop")
        if publish or retained:
            router.message_hook = HookedMessages(self.calls, publish, retained, lambda: broker.loop.time())
        if drop and not isinstance(router.counters.load.tap, HookedLosses):
            router.counters.load.tap = HookedLosses(self.calls, drop, router.counters.load.tap)
        told = isinstance(router.event_listener, _Told)  # it was started before
        if not told and any(self.calls.of(name) for name in ("subscribed", "unsubscribed", "session")):
            router.event_listener = _Told(self, router.event_listener)
        for method in self.calls.of("start"):
            answer = method(broker)
            if inspect.isawaitable(answer):
                await answer

    async def stop(self) -> None:
        """Tell them that it is over; those that raise are logged."""
        if self._access is not None:
            await self._access.close()
        await self.calls.finish()
        if self.calls.server is not None:
            await self.calls.end("stop")

    # -- what the broker tells -----------------------------------------------------------------------------------------

    def opened(self, connection: Client) -> None:
        protocol = connection.protocol
        session = protocol.session
        if session is None or not self.hears_of_clients:
            return
        if self._ended:
            self._principals[connection] = session.principal
        self.calls.tell(self._opened, session.principal)
        self.calls.tell(self._session, protocol.client_id, "resumed" if protocol.session_present else "created")

    def ended(self, connection: Client) -> None:
        principal = self._principals.pop(connection, None)
        if principal is not None:
            self.calls.tell(self._ended, principal, connection.protocol.close_cause)

    def session_ended(self, client_id: str) -> None:
        self.calls.tell(self._session, client_id, "ended")

    def follow(self, links: Links) -> None:
        """Be told of the links' states, after whoever is told already."""
        if not self._upstream:
            return
        before = links.state_changed

        def changed(link: UpstreamLink) -> None:
            if before is not None:
                before(link)
            self.calls.tell(self._upstream, link.name, link.state)

        links.state_changed = changed
        for link in links.links.values():
            link.state_changed = changed


class _Told(EventListener):
    """Tells plug-ins, and whoever was told before, what the router tells."""

    def __init__(self, hooks: RunningHooks, before: EventListener | None) -> None:
        super().__init__()
        self._hooks = hooks
        self._before = before
        self._subscribed = hooks.calls.of("subscribed")
        self._unsubscribed = hooks.calls.of("unsubscribed")

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        if self._before is not None:
            self._before.subscribed(client_id, topic_filter, qos)
        self._hooks.calls.tell(self._subscribed, client_id, topic_filter, qos)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        if self._before is not None:
            self._before.unsubscribed(client_id, topic_filter)
        self._hooks.calls.tell(self._unsubscribed, client_id, topic_filter)

    def session_ended(self, client_id: str) -> None:
        if self._before is not None:
            self._before.session_ended(client_id)
        self._hooks.session_ended(client_id)

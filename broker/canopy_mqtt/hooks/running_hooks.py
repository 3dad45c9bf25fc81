"""Installs plug-ins in a broker: between the core and its hooks, and as listeners of events.

Owns their places: after access control, on the way of messages, and beside existing listeners. A broker without
plug-ins loads none of this.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from canopy_mqtt.core.hooks import EventListener
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.hooks.hooked_access_control import HookedAccessControl
from canopy_mqtt.hooks.hooked_messages import HookedLosses, HookedMessages
from canopy_mqtt.hooks.loading import PluginError
from canopy_mqtt.hooks.plugin_calls import PLACE, PluginCalls

if TYPE_CHECKING:
    from canopy_mqtt.core.hooks import AccessControl
    from canopy_mqtt.links.link import UpstreamLink
    from canopy_mqtt.links.manager import LinkManager
    from canopy_mqtt.net.connections.connection import Connection
    from canopy_mqtt.net.server import Server


class RunningHooks:
    """The plug-ins of one broker. `plugins`: in their order."""

    def __init__(self, plugins: Sequence[Any]) -> None:
        """Raises PluginError: a plug-in defines no hook, or one that does not exist."""
        self.calls = PluginCalls(plugins)
        self._access: HookedAccessControl | None = None
        # Whom the connections that are open are of: what a session says of it may be another client's by its end.
        self._principals: dict[Connection, Principal] = {}
        self._opened = self.calls.of("connected")
        self._ended = self.calls.of("disconnected")
        self._session = self.calls.of("session")
        self._upstream = self.calls.of("upstream")

    @property
    def decides(self) -> bool:
        """True if a plug-in decides about clients or their actions."""
        return any(self.calls.of(name) for name in ("connect", "subscribe", "deliver"))

    @property
    def hears_of_clients(self) -> bool:
        """True if a plug-in hears of each client that comes and goes."""
        return bool(self._opened or self._ended or self._session)

    def access(self, inner: AccessControl) -> AccessControl:
        if not self.decides:
            return inner
        self._access = HookedAccessControl(self.calls, inner)
        return self._access

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self, broker: Server) -> None:
        """Install them, before the first client comes. Raises PluginError if a plug-in's `start` fails; the log has the
        traceback.
        """
        self.calls.server = broker
        if not self.calls.plugins:
            return
        router = broker.router
        broker.faults.watch(PLACE)
        publish, retained, drop = self.calls.of("publish"), self.calls.of("retained"), self.calls.of("drop")
        if publish or retained:
            router.counters.totals.message_hook = HookedMessages(
                self.calls, publish, retained, lambda: broker.loop.time()
            )
        if drop:
            router.counters.totals.loss_listener = HookedLosses(self.calls, drop)
        installed = isinstance(router.event_listener, _HookedEvents)  # it was started before
        if not installed and any(self.calls.of(name) for name in ("subscribed", "unsubscribed", "session")):
            router.event_listener = _HookedEvents(self, router.event_listener)
        for method in self.calls.of("start"):
            try:
                answer = method(broker)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:
                self.calls.failed(error)
                name = type(method.__self__).__name__ if inspect.ismethod(method) else "hooks"
                raise PluginError(f"{name}.start: {type(error).__name__}: {error}") from error

    async def stop(self) -> None:
        """Call each plug-in's `stop`; exceptions are logged, and one that does not end in time."""
        if self._access is not None:
            await self._access.close()
        await self.calls.finish()
        if self.calls.server is not None:
            await self.calls.stop()

    # -- what the broker tells -----------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        protocol = connection.protocol
        session = protocol.session
        if session is None or not self.hears_of_clients:
            return
        if self._ended:
            self._principals[connection] = session.principal
        self.calls.notify(self._opened, session.principal)
        self.calls.notify(self._session, protocol.client_id, "resumed" if protocol.session_present else "created")

    def ended(self, connection: Connection) -> None:
        principal = self._principals.pop(connection, None)
        if principal is not None:
            self.calls.notify(self._ended, principal, connection.protocol.close_cause)

    def session_ended(self, client_id: str) -> None:
        self.calls.notify(self._session, client_id, "ended")

    def follow(self, links: LinkManager) -> None:
        """Listen to the links' states, after the existing listener."""
        if not self._upstream:
            return
        before = links.state_changed

        def changed(link: UpstreamLink) -> None:
            if before is not None:
                before(link)
            self.calls.notify(self._upstream, link.name, link.state)

        links.state_changed = changed
        for link in links.links.values():
            link.state_changed = changed


class _HookedEvents(EventListener):
    """Passes the router's events on to plug-ins, and to the listener before them."""

    def __init__(self, hooks: RunningHooks, before: EventListener | None) -> None:
        super().__init__()
        self._hooks = hooks
        self._before = before
        self._subscribed = hooks.calls.of("subscribed")
        self._unsubscribed = hooks.calls.of("unsubscribed")

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        if self._before is not None:
            self._before.subscribed(client_id, topic_filter, qos)
        self._hooks.calls.notify(self._subscribed, client_id, topic_filter, qos)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        if self._before is not None:
            self._before.unsubscribed(client_id, topic_filter)
        self._hooks.calls.notify(self._unsubscribed, client_id, topic_filter)

    def session_ended(self, client_id: str) -> None:
        if self._before is not None:
            self._before.session_ended(client_id)
        self._hooks.session_ended(client_id)

"""Asks plug-ins after access control: they may refuse clients and actions that it allows."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import FORBIDDEN, LATER, UNSTEADY, AccessControl, Origin, Ticket
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.hooks.plugin_calls import PluginCalls, code_of


class HookedAccessControl(AccessControl):
    """An access control that asks another one first, and then the plug-ins. Its verdicts about deliveries are not
    cached.
    """

    def __init__(self, calls: PluginCalls, inner: AccessControl) -> None:
        super().__init__()
        self._calls = calls
        self._inner = inner
        self._connect = calls.of("connect")
        self._subscribe = calls.of("subscribe")
        self._deliver = calls.of("deliver")
        self._tasks: set[asyncio.Task[None]] = set()
        self.epoch = UNSTEADY
        self.filters_deliveries = bool(self._deliver)

    def source(self) -> AccessControl:
        """The inner access control decides about caching, if no plug-in is asked about deliveries."""
        return self if self._deliver else self._inner.source()

    # -- clients -------------------------------------------------------------------------------------------------------

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        """Implement `AccessControl.admit`: ask the inner access control, then the plug-ins."""
        if not self._connect:
            return self._inner.admit(connect, origin, ticket)

        def answered(reason_code: int) -> None:
            ticket.detail = own.detail
            code = self._ask(connect, origin, ticket, own.principal, reason_code)
            if code != LATER:
                ticket.answer(code)

        own = Ticket(answered, ticket.principal)
        reason_code = self._inner.admit(connect, origin, own)
        if reason_code == LATER:
            return LATER
        ticket.detail = own.detail
        return self._ask(connect, origin, ticket, own.principal, reason_code)

    def _ask(
        self, connect: Connect, origin: Origin, ticket: Ticket, principal: Principal | None, reason_code: int
    ) -> int:
        if reason_code != reason_codes.SUCCESS:
            return reason_code
        if principal is not None:
            ticket.principal = principal
            principal = principal.at(connect.client_id, origin.listener, origin.host)
        else:
            # Whom its CONNECT says.
            principal = Principal(
                connect.user_name, client_id=connect.client_id, listener=origin.listener, host=origin.host
            )
        for at, method in enumerate(self._connect):
            try:
                answer = method(principal, connect)
                code = LATER if inspect.isawaitable(answer) else code_of(answer)
            except Exception as error:
                self._calls.failed(error)
                return reason_codes.SERVER_UNAVAILABLE
            if code == LATER:
                rest = self._connect[at + 1 :]
                task = asyncio.get_running_loop().create_task(self._await(answer, rest, principal, connect, ticket))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return LATER
            if code >= 0x80:
                return code
        return reason_codes.SUCCESS

    async def _await(
        self, answer: Any, rest: list[Any], principal: Principal, connect: Connect, ticket: Ticket
    ) -> None:
        """Await the first pending answer, then ask the rest."""
        try:
            async with asyncio.timeout(self._calls.connect_timeout):
                code = code_of(await answer)
                for method in rest:
                    if code >= 0x80:
                        break
                    answer = method(principal, connect)
                    code = code_of(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            self._calls.failed(error)
            code = reason_codes.SERVER_UNAVAILABLE
        ticket.answer(code)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def bars(self, connect: Connect, origin: Origin) -> int:
        return self._inner.bars(connect, origin)

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        self._inner.method_refused(connect, origin, reason_code)

    # -- topics --------------------------------------------------------------------------------------------------------

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        return self._inner.may_publish(principal, topic, qos, retain)

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        granted = self._inner.may_subscribe(principal, topic_filter, qos)
        for method in self._subscribe:
            if granted == FORBIDDEN:
                break
            try:
                answer = method(principal, topic_filter, granted)
            except Exception as error:
                self._calls.failed(error)
                return FORBIDDEN
            granted = FORBIDDEN if answer < 0 or answer >= 0x80 else min(granted, int(answer))
        return granted

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        """Implement `AccessControl.said`: ask the plug-ins again, if the inner access control allows."""
        allowed, place = self._inner.said(principal, action, topic, qos, retain)
        methods = self._subscribe if action == "subscribe" else self._deliver if action == "receive" else []
        for method in methods if allowed else ():
            name = f"plug-in {type(getattr(method, '__self__', method)).__name__}"
            try:
                answer = method(principal, topic, qos) if action == "subscribe" else method(principal, topic)
            except Exception:
                return False, f"{name} has failed; the log has the error"
            if (action == "subscribe" and (answer < 0 or answer >= 0x80)) or (action == "receive" and not answer):
                return False, name
        return allowed, place

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        return self._inner.denies_part(principal, topic_filter)

    def receive_qos(self, principal: Principal, topic: str) -> int:
        inner = self._inner
        most = inner.receive_qos(principal, topic) if inner.source().filters_deliveries else 2
        for method in self._deliver:
            if most == FORBIDDEN:
                break
            try:
                if not method(principal, topic):
                    return FORBIDDEN
            except Exception as error:
                self._calls.failed(error)
                return FORBIDDEN
        return most

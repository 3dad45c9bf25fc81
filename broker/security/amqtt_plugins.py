"""An authentication plug-in of amqtt as an authenticator, for programs that embed a broker (extra `amqtt`).

Owns a thread with an event loop of its own, in which the plug-in lives: plug-ins hash passwords and read files within
their coroutines, and no other client is to wait for that. How many CONNECTs it is asked about at a time, and how long
each may take, are `security.max_authentications` and `security.authentication_timeout`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final

from broker.core.principal import Principal
from broker.security.authenticator import Attempt, Authenticator, Refusal, Verdict
from broker.security.errors import SecurityError

STOP_TIMEOUT: Final = 5.0
"""Seconds that the end waits for a plug-in that is at work."""


class AmqttAuthenticator(Authenticator):
    """Has a plug-in decide: True lets the client in, False refuses it with 0x86, None leaves it to the next.

    amqtt asks all of its plug-ins, and all have to agree; here the first that knows the client decides. Whom a plug-in
    calls anonymous has no user name.
    """

    def __init__(self, plugin: Callable[[Any], Any], config: Mapping[str, Any] | None = None, name: str = "") -> None:
        """Make the plug-in, which may take a moment.

        `plugin`: a class derived from amqtt's `BaseAuthPlugin`; `config`: the fields of its `Config`; `name`: empty for
        that of the class. What the plug-in raises is raised here.

        Raises:
            SecurityError: amqtt is not installed.
        """
        try:
            from amqtt.contexts import BaseContext
            from amqtt.session import Session
        except ImportError as error:
            raise SecurityError("amqtt is not installed: pip install 'canopy-mqtt[amqtt]'") from error
        self.name = name or getattr(plugin, "__name__", "amqtt")
        self._new_session: Callable[[], Any] = Session
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._plugin: Any = None
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(ready)), name=self.name, daemon=True)
        self._thread.start()
        ready.wait()
        try:
            self._in_thread(self._make(plugin, config or {}, BaseContext())).result()
        except BaseException:
            self._stop()
            raise

    async def authenticate(self, attempt: Attempt) -> Verdict:
        return await asyncio.wrap_future(self._in_thread(self._ask(attempt)))

    async def close(self) -> None:
        await asyncio.to_thread(self._stop)

    # -- in the thread -------------------------------------------------------------------------------------------------

    async def _live(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        ready.set()
        await self._stopping.wait()
        if self._plugin is not None:
            await self._plugin.close()

    async def _make(self, plugin: Callable[[Any], Any], config: Mapping[str, Any], context: Any) -> None:
        context.loop = asyncio.get_running_loop()
        context.config = getattr(plugin, "Config", dict)(**config)
        self._plugin = plugin(context)

    async def _ask(self, attempt: Attempt) -> Verdict:
        session = self._new_session()
        session.client_id, session.username = attempt.client_id, attempt.user_name
        session.remote_address = attempt.origin.host
        try:
            session.password = None if attempt.password is None else attempt.password.decode()
        except UnicodeDecodeError:
            return Refusal(text="a password that is no UTF-8, which amqtt does not have")
        verdict = await self._plugin.authenticate(session=session)
        if verdict is None:
            return None
        if not verdict:
            return Refusal(text="the plug-in refuses it")
        return Principal(None if session.is_anonymous else session.username)

    # ------------------------------------------------------------------------------------------------------------------

    def _in_thread(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop(self) -> None:
        """End the thread; again does nothing. Waits, so not in the event loop."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_TIMEOUT)

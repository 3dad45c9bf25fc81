"""Runs an authentication plug-in of amqtt as an authenticator, for programs that embed a broker (extra `amqtt`).

Owns a thread with its own event loop for the plug-in: plug-ins hash passwords and read files within their coroutines,
which must not delay other clients. `security.max_authentications` and `security.authentication_timeout` bound the
number of CONNECTs that it is asked about at a time, and the time for each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import Attempt, Authenticator, Refusal, Verdict
from canopy_mqtt.security.errors import SecurityError

STOP_TIMEOUT: Final = 5.0
"""Seconds for which `close` waits for a busy plug-in."""


class AmqttAuthenticator(Authenticator):
    """Asks a plug-in: True lets the client in, False refuses it with 0x86, None leaves it to the next authenticator.

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
            raise SecurityError("amqtt is not installed: in a clone of Canopy, pip install '.[amqtt]'") from error
        self.name = name or getattr(plugin, "__name__", "amqtt")
        self._new_session: Callable[[], Any] = Session
        self._make: Callable[[], _Life] = lambda: _Life(self.name, plugin, config or {}, BaseContext())
        self._life: _Life | None = self._make()
        self._beginning = threading.Lock()

    async def authenticate(self, attempt: Attempt) -> Verdict:
        life = self._life
        if life is None:
            # The broker that closed it was started again.
            life = await asyncio.to_thread(self._begin)
        return await asyncio.wrap_future(life.run(self._ask(life.plugin, attempt)))

    async def close(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            await asyncio.to_thread(life.end)

    def _begin(self) -> _Life:
        with self._beginning:
            if self._life is None:
                self._life = self._make()
            return self._life

    async def _ask(self, plugin: Any, attempt: Attempt) -> Verdict:
        session = self._new_session()
        session.client_id, session.username = attempt.client_id, attempt.user_name
        session.remote_address = attempt.origin.host
        try:
            session.password = None if attempt.password is None else attempt.password.decode()
        except UnicodeDecodeError:
            return Refusal(text="a password that is no UTF-8, which amqtt does not have")
        verdict = await plugin.authenticate(session=session)
        if verdict is None:
            return None
        if not verdict:
            return Refusal(text="the plug-in refuses it")
        return Principal(None if session.is_anonymous else session.username)


class _Life:
    """A plug-in and its thread, from the start of a broker to its stop."""

    def __init__(self, name: str, plugin: Callable[[Any], Any], config: Mapping[str, Any], context: Any) -> None:
        self.plugin: Any = None
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._live(ready)), name=name, daemon=True)
        self.thread.start()
        ready.wait()
        try:
            self.run(self._make(plugin, config, context)).result()
        except BaseException:
            self.end()
            raise

    async def _live(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        ready.set()
        await self._stopping.wait()
        if self.plugin is not None:
            await self.plugin.close()

    async def _make(self, plugin: Callable[[Any], Any], config: Mapping[str, Any], context: Any) -> None:
        context.loop = asyncio.get_running_loop()
        context.config = getattr(plugin, "Config", dict)(**config)
        self.plugin = plugin(context)

    def run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def end(self) -> None:
        """End the thread. Blocks: never call it in the event loop."""
        if self.thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self.thread.join(STOP_TIMEOUT)

"""The chain of authenticators: decides on a client, from the CONNECT to the answer.

Owns the order of asking (the first authenticator that knows the client decides), the default for unknown clients, the
bound on all CONNECTs in progress, the delay of refusals, and the bans. A listener may have some of the authenticators,
and its own rule about anonymous clients.

Promises: a verdict that needs no waiting costs no task; an authenticator that raises refuses only its own client, with
0x88, and is logged; no log line and no reason contains a secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.codec.properties import AUTHENTICATION_METHOD
from canopy_mqtt.core.hooks import LATER, Origin, Ticket
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.guards.hook_guards import HookReporter
from canopy_mqtt.security.authenticator import ASK, Attempt, Authenticator, Refusal
from canopy_mqtt.security.brute_force import BruteForceGuard
from canopy_mqtt.security.client_ids import belongs
from canopy_mqtt.settings import Security

MAX_LINES: Final = 20
INTERVAL: Final = 10.0
"""Seconds between two log lines about bans, and about failing authenticators: attackers with very many addresses, or
with a way to make a service fail, cannot fill the disk."""

MAX_REASON_CODES: Final = 32
"""Reason codes that are counted apart: a CONNACK cannot have more."""

HOOK: Final = "authenticator"
"""The name under which exceptions of authenticators are counted."""

ANONYMOUS: Final = Refusal(reason_codes.NOT_AUTHORIZED, "a user name is needed")
UNKNOWN: Final = Refusal(text="no authenticator knows the user")
FULL: Final = Refusal(reason_codes.SERVER_BUSY, "too many clients are being authenticated")
LATE: Final = Refusal(reason_codes.SERVER_UNAVAILABLE, "the authenticators took too long")
FAILED: Final = Refusal(reason_codes.SERVER_UNAVAILABLE, "an authenticator failed")
OTHER_LISTENER: Final = Refusal(reason_codes.NOT_AUTHORIZED, "the listener does not have this authentication method")
EXPIRED: Final = Refusal(reason_codes.NOT_AUTHORIZED, "what the client logs in with has expired")
FOREIGN: Final = Refusal(
    reason_codes.CLIENT_IDENTIFIER_NOT_VALID, "security.client_ids: not an identifier of this user"
)


class ListenerAuth:
    """The rules of authentication for the clients of one listener: the authenticators, and anonymous clients.

    `anonymous`: False forbids clients without a user name; True allows them, even if no authenticator does. None: they
    may connect if an authenticator allows it, or if there is none.
    """

    def __init__(self, authenticators: Sequence[Authenticator], anonymous: bool | None = None) -> None:
        self.authenticators = tuple(authenticators)
        self.anonymous = anonymous

    def excludes(self, principal: Principal) -> bool:
        """Return True if the client's principal comes from an authenticator that this listener does not ask."""
        name = principal.authenticator
        return name != "" and all(each.name != name for each in self.authenticators)

    def still_admits(self, principal: Principal) -> bool:
        """Return True if a client may stay that was admitted before the settings changed."""
        if principal.user_name is None and self.anonymous is not None:
            return self.anonymous
        for authenticator in self.authenticators:
            if authenticator.name == principal.authenticator:
                return authenticator.still_knows(principal)
        return not self.authenticators


class Chain:
    """Decides on CONNECTs. It can be made outside of an event loop, and is called in one."""

    def __init__(
        self,
        settings: Security,
        default: ListenerAuth,
        by_listener: Mapping[str, ListenerAuth],
        reporter: HookReporter,
        log: Any,
    ) -> None:
        """`by_listener`: by the names of listeners; `default` for the others."""
        self._reporter = reporter
        self._log = log
        self.brute_force = BruteForceGuard(settings)
        self._tasks: dict[asyncio.Task[None], tuple[Attempt, Ticket]] = {}
        # Lines about bans in the present interval, and when it ends.
        self._lines = 0
        self._lines_until = 0.0
        self._delayed: dict[Ticket, asyncio.TimerHandle] = {}
        self.admitted = 0
        self.refused = 0
        # By the name of the reason code that the client is told.
        self.refusals: dict[str, int] = {}
        self.change(settings, default, by_listener)

    def change(self, settings: Security, default: ListenerAuth, by_listener: Mapping[str, ListenerAuth]) -> None:
        """Use other settings and authenticators. CONNECTs in progress continue with the earlier ones."""
        self._settings = settings
        self._default = default
        self._by_listener = dict(by_listener)
        self.brute_force.change(settings)

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def auth_of(self, listener: str) -> ListenerAuth:
        return self._by_listener.get(listener, self._default)

    def bars(self, connect: Connect, origin: Origin) -> int:
        """Check a client before its authentication method begins. Returns 0, or the reason code of the refusal.

        A client may not begin it if it is banned, or if its listener does not ask the authenticator with that method:
        otherwise attackers could test passwords there.
        """
        if self.brute_force.banned(origin.host, time.monotonic()):
            return reason_codes.BANNED
        method = connect.properties.strings.get(AUTHENTICATION_METHOD, "")
        brings = next((each for each in self._default.authenticators if method in each.methods()), None)
        if brings is not None and brings not in self.auth_of(origin.listener).authenticators:
            return reason_codes.BAD_AUTHENTICATION_METHOD
        return reason_codes.SUCCESS

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        """Decide as `AccessControl.admit` does."""
        now = time.monotonic()
        banned = self.brute_force.banned(origin.host, now)
        if banned:
            ticket.detail = _ban_detail(banned)
            return reason_codes.BANNED
        auth = self.auth_of(origin.listener)
        if ticket.principal is not None:
            # An authentication method has found out who it is.
            return self._answer(auth, _proven(auth, ticket.principal), Attempt(connect, origin), ticket, now)
        attempt = Attempt(connect, origin)
        for at, authenticator in enumerate(auth.authenticators):
            try:
                known = authenticator.at_once(attempt)
                verdict = None if known is None or known == ASK else _signed(known, authenticator)
            except Exception as error:
                self._reporter.failed(HOOK, error)
                return self._answer(auth, FAILED, attempt, ticket, now)
            if known == ASK:
                return self._ask(auth, at, attempt, ticket, now)
            if verdict is not None:
                return self._answer(auth, verdict, attempt, ticket, now)
        return self._unknown(auth, attempt, ticket, now)

    async def close(self) -> None:
        for handle in self._delayed.values():
            handle.cancel()
        self._delayed.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _unknown(self, auth: ListenerAuth, attempt: Attempt, ticket: Ticket, now: float) -> int:
        """Answer a client that no authenticator knew at once, if none has to be awaited."""
        if not auth.authenticators or attempt.user_name is None:
            return self._answer(auth, _nobody(auth, attempt), attempt, ticket, now)
        # Refused, and no faster than a known client.
        return self._ask(auth, len(auth.authenticators), attempt, ticket, now)

    def _ask(self, auth: ListenerAuth, at: int, attempt: Attempt, ticket: Ticket, now: float) -> int:
        """Ask the authenticators from `at` on in a task."""
        if len(self._tasks) >= self._settings.max_authentications:
            return self._answer(auth, FULL, attempt, ticket, now)
        task = asyncio.get_running_loop().create_task(self._work(auth, at, attempt, ticket, now))
        self._tasks[task] = (attempt, ticket)
        task.add_done_callback(self._done)
        return LATER

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _work(self, auth: ListenerAuth, at: int, attempt: Attempt, ticket: Ticket, began: float) -> None:
        this = asyncio.current_task()
        assert this is not None
        try:
            async with asyncio.timeout(self._settings.authentication_timeout):
                verdict = await self._verdict(auth, at, attempt)
            asked, auth = auth, self.auth_of(attempt.origin.listener)
            if asked is not auth and isinstance(verdict, Principal) and not auth.still_admits(verdict):
                # A reload has meanwhile revoked what admitted the client.
                verdict = UNKNOWN
        except TimeoutError:
            verdict = LATE
        except Exception as error:
            self._reporter.failed(HOOK, error)
            verdict = FAILED
        # It is decided: a ban that comes of it is for the others.
        self._tasks.pop(this, None)
        answer = self._answer(auth, verdict, attempt, ticket, began)
        if answer != LATER:
            ticket.answer(answer)

    async def _verdict(self, auth: ListenerAuth, at: int, attempt: Attempt) -> Principal | Refusal:
        for authenticator in auth.authenticators[at:]:
            verdict = await authenticator.authenticate(attempt)
            if verdict is not None:
                return _signed(verdict, authenticator)
        if attempt.user_name is not None:
            for authenticator in auth.authenticators:
                refusal = await authenticator.pretend(attempt)
                if refusal is not None:
                    return _signed(refusal, authenticator)
        return _nobody(auth, attempt)

    def _answer(
        self, auth: ListenerAuth, verdict: Principal | Refusal, attempt: Attempt, ticket: Ticket, began: float
    ) -> int:
        """Return the reason code for a client, or LATER if the answer waits until the delay of a refusal is over."""
        if isinstance(verdict, Principal):
            if verdict.user_name is None and auth.anonymous is False:
                verdict = ANONYMOUS
            elif not belongs(attempt.client_id, verdict.user_name, self._settings.client_ids):
                verdict = FOREIGN
            elif 0.0 < verdict.expires_at <= time.time():
                # Not for a moment either: it could publish with its CONNECT, and would end who has its session.
                verdict = EXPIRED
            else:
                ticket.principal = verdict
                self.admitted += 1
                return reason_codes.SUCCESS
        self.refused += 1
        reason = reason_codes.name(verdict.reason_code)
        if reason in self.refusals or len(self.refusals) < MAX_REASON_CODES:
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
        ticket.detail = verdict.text
        if verdict.reason_code != reason_codes.BAD_USER_NAME_OR_PASSWORD:
            return verdict.reason_code
        self.login_failed(attempt.origin.host, attempt.user_name or "", attempt.password or b"")
        delay = self.delay(began)
        # As many as may be in progress may wait; all others are refused at once.
        if delay <= 0.0 or len(self._delayed) >= self._settings.max_authentications:
            return verdict.reason_code
        # The wrong password is not needed while the client waits for the refusal.
        attempt.connect.password = None
        loop = asyncio.get_running_loop()
        self._delayed[ticket] = loop.call_later(delay, self._send_delayed_refusal, ticket, verdict.reason_code)
        return LATER

    def _send_delayed_refusal(self, ticket: Ticket, code: int) -> None:
        del self._delayed[ticket]
        ticket.answer(code)

    def delay(self, began: float) -> float:
        """Return the seconds until wrong credentials that came at `began` (monotonic) are answered; negative: the time
        has passed.
        """
        return began + self._settings.failure_delay - time.monotonic()

    def login_failed(self, host: str, user: str, secret: bytes) -> None:
        """Count wrong credentials, which may cause a ban."""
        now = time.monotonic()
        banned = self.brute_force.failed(host, user, secret, now)
        if banned:
            self.address_banned(banned, now)

    def address_banned(self, banned: str, now: float, told: bool = True) -> None:
        """End all attempts in progress from a banned address, and log the ban if it is to be `told`."""
        self._end_banned(now)
        if told:
            if now >= self._lines_until:
                self._lines, self._lines_until = 0, now + INTERVAL
            self._lines += 1
            if self._lines <= MAX_LINES:
                self._log.warning("banned for guessing", banned=banned[:256], seconds=self._settings.ban_time)

    def _end_banned(self, now: float) -> None:
        """Refuse all attempts of banned addresses: an attacker with a thousand parallel guesses would get an answer to
        each.
        """
        loop = asyncio.get_running_loop()
        for task, (attempt, ticket) in list(self._tasks.items()):
            banned = self.brute_force.banned(attempt.origin.host, now)
            if banned:
                del self._tasks[task]
                task.cancel()
                ticket.detail = _ban_detail(banned)
                loop.call_soon(ticket.answer, reason_codes.BANNED)


def _ban_detail(banned: str) -> str:
    return f"banned for guessing: {banned}"[:256]


def _signed(verdict: Principal | Refusal, authenticator: Authenticator) -> Principal | Refusal:
    if isinstance(verdict, Principal):
        verdict.authenticator = authenticator.name
        return verdict
    if verdict.reason_code < 0x80:
        raise ValueError(f"the authenticator {authenticator.name} refuses with reason code {verdict.reason_code:#04x}")
    return verdict._replace(text=f"{authenticator.name}: {verdict.text}")


def _proven(auth: ListenerAuth, principal: Principal) -> Principal | Refusal:
    """Return the decision on a client whose identity an authentication method has proven."""
    if auth.excludes(principal):
        return OTHER_LISTENER
    # A reload may have taken the user back while the exchange was under way, which has begun with what was there then.
    knows = [each.still_knows(principal) for each in auth.authenticators if each.name == principal.authenticator]
    return principal if all(knows) else UNKNOWN


def _nobody(auth: ListenerAuth, attempt: Attempt) -> Principal | Refusal:
    if not auth.authenticators:
        # Nothing checks who clients are: they are whom they say.
        return Principal(attempt.user_name)
    if attempt.user_name is None:
        return Principal() if auth.anonymous else ANONYMOUS
    return UNKNOWN

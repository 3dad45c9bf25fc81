"""The authenticator of the type http: a service says who the client is. docs/security.md has what it is asked.

Owns the bounds: requests under way, CONNECTs that wait for theirs (addresses in turn), and answers that are remembered:
those that let a client in, under a keyed hash of the credentials.

Promises: a password goes to the service and nowhere else. A service that fails is told of once, and again when it is
back, however many clients come meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.core.addresses import network
from broker.core.codec import reasons
from broker.core.principal import Principal
from broker.security.authenticator import ASK, Ask, Attempt, Authenticator, Refusal, Verdict, is_mqtt_text
from broker.security.fair_places import FairPlaces, Full
from broker.security.fetching import FetchError, HttpClient, tls_context
from broker.security.rules.claims import read_claims
from broker.settings import HttpTable, called
from broker.settings.urls import shown

FULL: Final = Refusal(reasons.SERVER_BUSY, "too many clients wait for the service")
DOWN: Final = Refusal(reasons.SERVER_UNAVAILABLE, "the service does not answer as it should")
DENIED: Final = Refusal(text="the service denies it")

UNKNOWN: Final = 404
DENIALS: Final = (401, 403)


class _Remembered(NamedTuple):
    """A verdict, and until when it holds (loop time)."""

    principal: Principal
    until: float


class HttpAuthenticator(Authenticator):
    """Asks one service."""

    def __init__(self, table: HttpTable, client: HttpClient, told: Callable[[str], None]) -> None:
        self.name = called(table)
        self._table = table
        self._client = client
        self._told = told
        self._places = FairPlaces(table.max_requests, table.max_waiting)
        self._key = secrets.token_bytes(32)
        # The one that was used last stands at the end.
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._failing = False

    @classmethod
    def made(cls, table: HttpTable, told: Callable[[str], None]) -> HttpAuthenticator:
        """Read the files that the table names: not in the event loop. `told` hears when the service fails or is back.

        Raises:
            SecurityError: a file cannot be used.
        """
        tls = tls_context(table.ca_file, table.cert_file, table.key_file)
        client = HttpClient(table.timeout, table.max_answer_bytes, tls, table.headers, table.max_requests)
        return cls(table, client, told)

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        if not self._remembered:
            return ASK
        key = self._key_of(attempt)
        found = self._remembered.get(key)
        if found is None:
            return ASK
        if found.until <= asyncio.get_running_loop().time() or _is_over(found.principal):
            del self._remembered[key]
            return ASK
        self._remembered.move_to_end(key)
        return found.principal

    async def authenticate(self, attempt: Attempt) -> Verdict:
        try:
            await self._places.take(network(attempt.origin.host))
        except Full:
            return FULL
        try:
            status, content = await self._client.ask("POST", self._table.url, question(attempt))
            verdict = read_answer(status, content, attempt)
        except FetchError as error:
            return self._failed(attempt, str(error))
        finally:
            self._places.give_back()
        if self._failing:
            self._failing = False
            self._told(f"{shown(self._table.url)}: the service answers again")
        if isinstance(verdict, Principal) and self._table.cache_time > 0.0:
            self._remember(attempt, verdict)
        return verdict

    def files(self) -> tuple[Path, ...]:
        table = self._table
        return tuple(Path(file) for file in (table.ca_file, table.cert_file, table.key_file) if file)

    async def renewed(self) -> Authenticator:
        if not self.files():
            # What is remembered is not: somebody has changed something.
            self._remembered.clear()
            return self
        return await asyncio.to_thread(self.made, self._table, self._told)

    async def close(self) -> None:
        # Another one may have taken its place: whoever was asked for here has the answer first.
        try:
            async with asyncio.timeout(self._table.timeout):
                await self._places.emptied()
        except TimeoutError:
            pass
        await self._client.close()

    def _failed(self, attempt: Attempt, why: str) -> Verdict:
        if not self._failing:
            self._failing = True
            self._told(f"{shown(self._table.url)}: {why}")
        if self._table.on_error == "allow":
            return Principal(attempt.user_name)
        return None if self._table.on_error == "ignore" else DOWN

    def _remember(self, attempt: Attempt, principal: Principal) -> None:
        until = asyncio.get_running_loop().time() + self._table.cache_time
        self._remembered[self._key_of(attempt)] = _Remembered(principal, until)
        if len(self._remembered) > self._table.cache_entries:
            self._remembered.popitem(last=False)

    def _key_of(self, attempt: Attempt) -> bytes:
        """The same for the same credentials from the same place, and of no use outside of this process."""
        return hashlib.blake2b(
            json.dumps(question(attempt, port=False)).encode(), digest_size=32, key=self._key
        ).digest()


def question(attempt: Attempt, port: bool = True) -> dict[str, Any]:
    """What the service is asked. `port`: with that of the client's address."""
    origin = attempt.origin
    certificate = origin.certificate
    asked: dict[str, Any] = {
        "client_id": attempt.client_id,
        "user_name": attempt.user_name,
        "password": None,
        "address": origin.address if port else origin.host,
        "listener": origin.listener,
        "certificate": "" if certificate is None else certificate.subject,
    }
    if attempt.password is not None:
        try:
            asked["password"] = attempt.password.decode()
        except UnicodeDecodeError:
            asked["password_base64"] = base64.b64encode(attempt.password).decode()
    return asked


def read_answer(status: int, content: bytes, attempt: Attempt) -> Verdict:
    """What the service says: 204 lets the client in, 401 and 403 do not, 404 does not know it; 200 says it as JSON.

    Raises:
        FetchError: it is none of these, or the JSON is not what it should be.
    """
    if status == 204:
        return Principal(attempt.user_name)
    if status in DENIALS:
        return DENIED
    if status == UNKNOWN:
        return None
    if status != 200:
        raise FetchError(f"it answers with status {status}")
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise FetchError("its answer is not JSON") from None
    result = answer.get("result") if isinstance(answer, dict) else None
    if result == "ignore":
        return None
    if result == "deny":
        return DENIED
    if result != "allow":
        raise FetchError('its answer has no "result" that is "allow", "deny" or "ignore"')
    return _principal(answer, attempt)


def _principal(answer: Mapping[str, Any], attempt: Attempt) -> Principal:
    user = answer.get("user_name", attempt.user_name)
    groups = answer.get("groups", [])
    attributes = answer.get("attributes", {})
    expires_at = answer.get("expires_at", 0)
    if not (user is None or (isinstance(user, str) and is_mqtt_text(user))):
        raise FetchError('"user_name" of its answer is no text')
    if not _are_texts(groups):
        raise FetchError('"groups" of its answer are no list of text')
    if not isinstance(attributes, dict) or not _are_texts(list(attributes.values())):
        raise FetchError('"attributes" of its answer are no text by name')
    if isinstance(expires_at, bool) or not isinstance(expires_at, (int, float)) or not 0 <= expires_at < math.inf:
        raise FetchError('"expires_at" of its answer is no number of seconds since 1970')
    try:
        rules = read_claims(answer["rules"]) if answer.get("rules") is not None else ()
    except (ValueError, RecursionError) as error:
        raise FetchError(f'"rules" of its answer: {error}') from None
    return Principal(user, tuple(groups), attributes or None, float(expires_at), rules)


def _are_texts(values: Any) -> bool:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(each, str) and is_mqtt_text(each) for each in values)
    )


def _is_over(principal: Principal) -> bool:
    return 0.0 < principal.expires_at <= time.time()

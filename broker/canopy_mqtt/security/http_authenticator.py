"""The authenticator of the type http asks a service who the client is. docs/security.md describes the requests.

Owns the bounds: requests in progress, CONNECTs that wait for one (addresses take turns), and cached answers: those that
let a client in, under a keyed hash of the credentials.

Promises: a password goes only to the service. A failing service is reported once, and again when it recovers, however
many clients come meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.principal import Principal, network
from canopy_mqtt.json_keys import RepeatedKey, unique
from canopy_mqtt.security.authenticator import ASK, Ask, Attempt, Authenticator, Refusal, Verdict, is_mqtt_text
from canopy_mqtt.security.fair_semaphore import FairSemaphore, QueueFull
from canopy_mqtt.security.http_client import FetchError, HttpClient, tls_context
from canopy_mqtt.security.rules.claims import read_claims
from canopy_mqtt.settings import HttpTable, called
from canopy_mqtt.settings.urls import shown

FULL: Final = Refusal(reason_codes.SERVER_BUSY, "too many clients wait for the service")
DOWN: Final = Refusal(reason_codes.SERVER_UNAVAILABLE, "the service does not answer as it should")
DENIED: Final = Refusal(text="the service denies it")

LAST: Final = sys.float_info.max
"""The last time, in seconds since 1970: JSON has whole numbers that are greater."""

UNKNOWN: Final = 404
DENIALS: Final = (401, 403)


class _Remembered(NamedTuple):
    """A cached verdict, and the loop time at which it expires."""

    principal: Principal
    until: float


class HttpAuthenticator(Authenticator):
    """Asks one service."""

    def __init__(self, table: HttpTable, client: HttpClient, report: Callable[[str], None]) -> None:
        self.name = called(table)
        self._table = table
        self._client = client
        self._report = report
        self._places = FairSemaphore(table.max_requests, table.max_waiting)
        self._key = secrets.token_bytes(32)
        # The one that was used last stands at the end.
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._failing = False

    @classmethod
    def from_table(cls, table: HttpTable, report: Callable[[str], None]) -> HttpAuthenticator:
        """Make it, and read the files that the table names: never in the event loop. `report` hears when the service
        fails or recovers.

        Raises:
            SecurityError: a file cannot be used.
        """
        tls = tls_context(table.ca_file, table.cert_file, table.key_file)
        client = HttpClient(table.timeout, table.max_answer_bytes, tls, table.headers, table.max_requests)
        return cls(table, client, report)

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
        except QueueFull:
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
            self._report(f"{shown(self._table.url)}: the service answers again")
        if isinstance(verdict, Principal) and self._table.cache_time > 0.0:
            self._remember(attempt, verdict)
        return verdict

    def files(self) -> tuple[Path, ...]:
        table = self._table
        return tuple(Path(file) for file in (table.ca_file, table.cert_file, table.key_file) if file)

    async def renewed(self) -> Authenticator:
        if not self.files():
            # The cache is not kept: settings or files have changed.
            self._remembered.clear()
            return self
        return await asyncio.to_thread(self.from_table, self._table, self._report)

    async def close(self) -> None:
        # A reload may have replaced it: its requests in progress are finished first.
        try:
            async with asyncio.timeout(self._table.timeout):
                await self._places.emptied()
        except TimeoutError:
            pass
        await self._client.close()

    def _failed(self, attempt: Attempt, why: str) -> Verdict:
        if not self._failing:
            self._failing = True
            self._report(f"{shown(self._table.url)}: {why}")
        if self._table.on_error == "allow":
            return Principal(attempt.user_name)
        return None if self._table.on_error == "ignore" else DOWN

    def _remember(self, attempt: Attempt, principal: Principal) -> None:
        until = asyncio.get_running_loop().time() + self._table.cache_time
        self._remembered[self._key_of(attempt)] = _Remembered(principal, until)
        if len(self._remembered) > self._table.cache_entries:
            self._remembered.popitem(last=False)

    def _key_of(self, attempt: Attempt) -> bytes:
        """Return a key: equal for equal credentials from one address, and useless outside of this process."""
        return hashlib.blake2b(
            json.dumps(question(attempt, port=False)).encode(), digest_size=32, key=self._key
        ).digest()


def question(attempt: Attempt, port: bool = True) -> dict[str, Any]:
    """Return the JSON of a request. `port`: with the port of the client's address."""
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
    """Decode an answer: 204 lets the client in, 401 and 403 refuse it, 404 does not know it; 200 has the verdict as
    JSON.

    Raises:
        FetchError: it has another status, or invalid JSON.
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
        answer = json.loads(content, object_pairs_hook=unique)
    except RepeatedKey as error:
        raise FetchError(f"its answer cannot be used: {error}") from None
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
    if isinstance(expires_at, bool) or not isinstance(expires_at, (int, float)) or not 0 <= expires_at <= LAST:
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

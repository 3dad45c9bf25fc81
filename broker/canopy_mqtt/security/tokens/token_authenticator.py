"""The authenticator of the type jwt: a signed token in the CONNECT names the client, and when its connection ends.

Owns the way from a CONNECT to a verdict. It verifies signatures in the event loop: that takes 30 to 300 microseconds,
about as long as the CONNECT itself. It waits only for keys that have to be fetched.

Promises: no text contains a token or a key. A password that is no token is left to the next authenticator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import ASK, Ask, Attempt, Authenticator, Refusal, Verdict
from canopy_mqtt.security.http_client import FetchError, HttpClient, tls_context
from canopy_mqtt.security.tokens.checks import (
    Header,
    TokenError,
    expires_at,
    groups,
    read_header,
    rules,
    text_claim,
    verified,
)
from canopy_mqtt.security.tokens.key_sets import (
    FetchedKeys,
    Key,
    KeySource,
    read_key_set,
    read_public_key,
    read_secret,
    shared_secret,
)
from canopy_mqtt.settings import JwtTable, called
from canopy_mqtt.settings.access.tokens import MIN_SECRET_BYTES, is_url


class TokenAuthenticator(Authenticator):
    """Checks tokens with the keys of a table, as they were when it was made."""

    def __init__(self, table: JwtTable, keys: KeySource, report: Callable[[str], None]) -> None:
        self.name = called(table)
        self._table = table
        self._keys = keys
        self._report = report

    @classmethod
    def from_table(cls, table: JwtTable, report: Callable[[str], None]) -> TokenAuthenticator:
        """Read the files that the table names: never in the event loop. `report` hears of keys that cannot be fetched.

        Raises:
            SecurityError: a file cannot be used.
        """
        return cls(table, _key_source(table, report), report)

    def at_once(self, attempt: Attempt) -> Verdict | Ask:
        try:
            shown = self._shown(attempt)
            if shown is None:
                return None
            token, header = shown
            keys = self._keys.known(header.kid, header.alg)
            return ASK if keys is None else self._judge(attempt, token, header, keys)
        except TokenError as error:
            return Refusal(text=f"the token: {error}")

    async def authenticate(self, attempt: Attempt) -> Verdict:
        try:
            shown = self._shown(attempt)
            if shown is None:
                return None
            token, header = shown
            keys = await self._keys.find(header.kid, header.alg)
            return self._judge(attempt, token, header, keys)
        except TokenError as error:
            return Refusal(text=f"the token: {error}")
        except FetchError as error:
            return Refusal(reason_codes.SERVER_UNAVAILABLE, str(error))

    def files(self) -> tuple[Path, ...]:
        table = self._table
        keys = "" if is_url(table.jwks) else table.jwks
        return tuple(Path(file) for file in (table.secret_file, table.key_file, keys, table.jwks_ca_file) if file)

    async def renewed(self) -> Authenticator:
        if not self.files():
            return self
        fresh = await asyncio.to_thread(self.from_table, self._table, self._report)
        fresh._keys.adopt(self._keys)
        return fresh

    async def close(self) -> None:
        await self._keys.close()

    # -- one token -----------------------------------------------------------------------------------------------------

    def _shown(self, attempt: Attempt) -> tuple[str, Header] | None:
        """Return the token, if there is one, and its header. Raises TokenError."""
        token = self._token(attempt)
        header = None if token is None else self._header(token)
        return None if token is None or header is None else (token, header)

    def _token(self, attempt: Attempt) -> str | None:
        if self._table.token_in == "user-name":
            return attempt.user_name or None
        try:
            return None if not attempt.password else attempt.password.decode("ascii")
        except UnicodeDecodeError:
            return None

    def _header(self, token: str) -> Header | None:
        table = self._table
        if len(token) > table.max_token_bytes:
            raise TokenError("it is longer than max_token_bytes")
        header = read_header(token)
        if header is not None and header.alg not in table.algorithms:
            raise TokenError("its algorithm is not one of the settings")
        return header

    def _judge(self, attempt: Attempt, token: str, header: Header, keys: Sequence[Key]) -> Principal:
        table = self._table
        claims = verified(token, header.alg, keys, table)
        user = text_claim(claims, table.user_claim) if table.user_claim else attempt.user_name
        if table.same_user and attempt.user_name != user:
            raise TokenError("it is another user's than the CONNECT names")
        if table.client_id_claim and text_claim(claims, table.client_id_claim) != attempt.client_id:
            raise TokenError("it is for another client identifier")
        return Principal(
            user,
            groups(claims, table.groups_claim),
            expires_at=expires_at(claims, table.leeway),
            rules=rules(claims, table.rules_claim),
        )


def _key_source(table: JwtTable, report: Callable[[str], None]) -> KeySource:
    """Make the key source of the table. Raises SecurityError."""
    least = max(MIN_SECRET_BYTES.get(name, 0) for name in table.algorithms)
    if table.secret:
        return shared_secret(table.secret.encode())
    if table.secret_file:
        return read_secret(Path(table.secret_file), least)
    if table.key_file:
        return read_public_key(Path(table.key_file), table.algorithms)
    if not is_url(table.jwks):
        return read_key_set(Path(table.jwks))
    client = HttpClient(table.jwks_timeout, table.jwks_max_bytes, tls_context(table.jwks_ca_file))
    return FetchedKeys(client, table.jwks, table.jwks_refresh, table.jwks_min_interval, report)

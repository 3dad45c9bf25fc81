"""Identifies the caller of an HTTP request and its role: by a password file, by tokens, or because it is on this
machine.

Owns the roles and the checks of a request's origin. Promises: a password is hashed in a thread, at most once for a
client that keeps asking; tokens are compared by their hashes; an error contains neither. Wrong credentials count
towards a ban, together with those of CONNECTs (`security.chain`). A page of another site can change nothing (`Origin`,
`Sec-Fetch-Site`) and, where no credentials are needed, read nothing under a name of its own (`Host`).
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.core.principal import network
from canopy_mqtt.files import read_file
from canopy_mqtt.net.connections.connection_log import ConnectionLog
from canopy_mqtt.net.stream import peer_name
from canopy_mqtt.security.chain import Chain
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.hashing_pool import Busy, HashingPool
from canopy_mqtt.security.passwords.password_file import PasswordFile, read_password_file
from canopy_mqtt.security.passwords.verified_credentials import VerifiedCredentials
from canopy_mqtt.settings import Http

Role: TypeAlias = Literal["anyone", "viewer", "operator"]

RANKS: Final[dict[Role, int]] = {"anyone": 0, "viewer": 1, "operator": 2}

SAFE: Final = (hdrs.METH_GET, hdrs.METH_HEAD)
"""Methods that change nothing."""

MIN_TOKEN_LENGTH: Final = 16
"""Characters of a token: shorter ones can be guessed."""

MAX_CREDENTIALS_BYTES: Final = 2_048
"""Bytes of the header with the credentials."""

REMEMBERED: Final = 100
"""Users whose last verified password is cached."""

WAITING: Final = 32
"""Passwords that wait to be hashed."""

CHALLENGE: Final[dict[str, str]] = {hdrs.WWW_AUTHENTICATE: 'Basic realm="Canopy", charset="UTF-8"'}


class WrongCredentials(ApiError):
    """The credentials are wrong. `delay`: seconds until the answer is sent."""

    def __init__(self, delay: float) -> None:
        super().__init__(401, "BAD_USERNAME_OR_PWD", "wrong user, password or token", CHALLENGE)
        self.delay = delay


class Banned(Exception):
    """A banned address sends credentials. The answer does not tell whether they are right."""


class Caller(NamedTuple):
    """The caller's name, for logs, and its role."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        return RANKS[self.role] >= RANKS[role]


ANYONE: Final = Caller("", "anyone")
LOCAL_CALLER: Final = Caller("local", "operator")
"""The caller on this machine when no credentials are needed, and the caller at the Unix socket."""


class Credentials(NamedTuple):
    """The users and tokens in the files of the settings."""

    users: PasswordFile | None
    operators: Sequence[str]
    tokens: dict[bytes, Caller]
    guarded: bool
    hosts: Sequence[str]


def read_credentials(settings: Http) -> Credentials:
    """Read the files that the settings name. Blocks: run it in a thread.

    Raises:
        SecurityError: one of them cannot be used, in one line that names it.
    """
    users = read_password_file(Path(settings.password_file)) if settings.password_file else None
    tokens: dict[bytes, Caller] = {}
    files: tuple[tuple[str, Role], ...] = (
        (settings.viewer_token_file, "viewer"),
        (settings.operator_token_file, "operator"),
    )
    for name, role in files:
        if name:
            for number, token in _tokens(Path(name)):
                mark = _mark(token)
                if mark in tokens:
                    raise SecurityError(f"{name}: line {number}: the token is there already; leave one of both out")
                tokens[mark] = Caller(f"token {Path(name).name}:{number}", role)
    return Credentials(users, settings.operators, tokens, settings.guarded, settings.hosts)


def _tokens(path: Path) -> list[tuple[int, str]]:
    try:
        lines = read_file(path).decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise SecurityError(f"{path}: tokens cannot be read: {why}") from None
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    found = [(number, line) for number, line in found if line and not line.startswith("#")]
    for number, line in found:
        if len(line) < MIN_TOKEN_LENGTH or not line.isascii() or not line.isprintable() or " " in line:
            raise SecurityError(
                f"{path}: line {number}: a token has at least {MIN_TOKEN_LENGTH} ASCII characters and no blanks, as "
                "`openssl rand -hex 32` makes them"
            )
    if not found:
        raise SecurityError(f"{path}: there is no token in it; make one with `openssl rand -hex 32`")
    return found


def _mark(token: str) -> bytes:
    """Hash a token for the lookup, whose time then tells nothing of the token."""
    # Bytes that are no UTF-8 come from headers alone: no token has them.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Authentication:
    """Identifies the caller of each request. Called in the event loop."""

    def __init__(self, credentials: Credentials, chain: Chain | None = None, log: ConnectionLog | None = None) -> None:
        """`chain` counts wrong credentials and knows the bans; `log` reports them."""
        self.credentials = credentials
        self._chain = chain
        self._log = log
        self._pool = HashingPool(1, WAITING)
        self._verified = VerifiedCredentials(REMEMBERED)

    async def close(self) -> None:
        """End the hashing thread."""
        await self._pool.close()

    async def identify(self, request: web.Request, local: bool) -> Caller:
        """Identify the caller. `local`: at a Unix socket, whose file mode restricts callers.

        Raises:
            WrongCredentials: the credentials are wrong.
            Banned: there are credentials, and the address is banned.
            ApiError: it comes from a page of another site, or too many passwords wait.
        """
        self._same_site(request)
        if local:
            return LOCAL_CALLER
        if not self.credentials.guarded:
            self._known_host(request)
            return LOCAL_CALLER
        given = request.headers.get(hdrs.AUTHORIZATION)
        if given is None:
            return ANYONE
        began = time.monotonic()
        host, address = ("", "unknown") if request.transport is None else peer_name(request.transport)
        if self._chain is not None and self._chain.brute_force.banned(host, began):
            raise Banned
        named = ""
        if len(given) <= MAX_CREDENTIALS_BYTES:
            scheme, _, rest = given.partition(" ")
            if scheme.lower() == "bearer":
                found = self.credentials.tokens.get(_mark(rest.strip()))
                if found is not None:
                    return found
            elif scheme.lower() == "basic":
                named, secret = _pair(rest.strip())
                name = await self._user(named, secret, host)
                if name is not None:
                    operator = any(fnmatchcase(name, pattern) for pattern in self.credentials.operators)
                    return Caller(name, "operator" if operator else "viewer")
        if self._log is not None:
            self._log.http_refused(host, address, named)
        if self._chain is None:
            raise WrongCredentials(0.0)
        self._chain.login_failed(host, named, given.encode("utf-8", "surrogateescape"))
        raise WrongCredentials(self._chain.delay(began))

    async def _user(self, name: str, secret: bytes | None, host: str) -> str | None:
        """Return the user with this name and password; None: they are wrong."""
        users = self.credentials.users
        if users is None or secret is None:
            return None
        known = users.users.get(name)
        if known is not None and self._verified.good(name, secret, known.text):
            return name
        try:
            good = await self._pool.run(network(host) if host else "", lambda: users.check(name, secret))
        except Busy:
            raise ApiError(503, "SERVICE_UNAVAILABLE", "too many passwords wait to be checked") from None
        if not good or known is None:
            return None
        self._verified.keep(name, secret, known.text)
        return name

    def _same_site(self, request: web.Request) -> None:
        """Refuse a request that a page of another site has sent, unless it opens a page.

        The other page could not read the answer; but lists cost time, and open streams take places.
        """
        site = request.headers.get("Sec-Fetch-Site", "none")
        if request.method in SAFE:
            if site not in ("none", "same-origin") and request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate":
                raise ApiError(403, "FORBIDDEN", "a page of another site may load nothing from here")
            return
        origin = request.headers.get(hdrs.ORIGIN)
        if site not in ("none", "same-origin") or (origin is not None and _authority(origin) != request.host):
            raise ApiError(403, "FORBIDDEN", "a page of another site may not change anything here")

    def _known_host(self, request: web.Request) -> None:
        """Refuse a request for a host name that is not one of this machine's."""
        name = _host(request.host)
        if name == "localhost" or any(fnmatchcase(name, pattern) for pattern in self.credentials.hosts):
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise ApiError(
                403, "FORBIDDEN", "not a name of this broker: http.hosts lists those that are, beside its IP addresses"
            ) from None


def _pair(encoded: str) -> tuple[str, bytes | None]:
    """Return user name and password of basic authentication; None: the header has none."""
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        return "", None
    return name, password.encode() if colon else None


def _authority(url: str) -> str:
    """Return host and port of a URL; empty: it is malformed."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _host(authority: str) -> str:
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def is_json(request: web.Request) -> bool:
    """Return True if the body is declared as JSON. Forms of other sites cannot declare that unasked."""
    return request.content_type == "application/json"

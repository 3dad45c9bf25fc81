"""Who asks over HTTP, and what they may: basic authentication by a password file, tokens, or being on this machine.

Owns the roles and the checks of where a request comes from. Promises: a password is hashed in a thread, at most once
for a client that keeps asking; tokens are compared by their hashes; an error holds neither. Wrong credentials are
counted, and addresses that guess are banned, together with those of CONNECTs (`security.chain`). A page of another site
can neither change anything (`Origin`, `Sec-Fetch-Site`) nor, where nobody has to say who they are, look at anything by
a name of its own (`Host`).
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

from broker.admin.errors import ApiError
from broker.core.addresses import network
from broker.net.connections.connection_log import ConnectionLog
from broker.net.stream import peer_name
from broker.security.chain import Chain
from broker.security.errors import SecurityError
from broker.security.passwords.hashing import Busy, HashingPool
from broker.security.passwords.password_file import PasswordFile, read_password_file
from broker.security.passwords.verified import VerifiedCredentials
from broker.settings import Http

Role: TypeAlias = Literal["anyone", "viewer", "operator"]

RANKS: Final[dict[Role, int]] = {"anyone": 0, "viewer": 1, "operator": 2}

SAFE: Final = (hdrs.METH_GET, hdrs.METH_HEAD)
"""Methods that change nothing."""

SHORTEST_TOKEN: Final = 16
"""Characters of a token: what is shorter can be guessed."""

LONGEST_CREDENTIALS: Final = 2_048
"""Bytes of the header that says who asks."""

REMEMBERED: Final = 100
"""Users whose last good password is remembered."""

WAITING: Final = 32
"""Passwords that wait to be hashed."""

CHALLENGE: Final[dict[str, str]] = {hdrs.WWW_AUTHENTICATE: 'Basic realm="Canopy", charset="UTF-8"'}


class WrongCredentials(ApiError):
    """Somebody guesses, or has an old password. `delay`: seconds after which they are told."""

    def __init__(self, delay: float) -> None:
        super().__init__(401, "BAD_USERNAME_OR_PWD", "wrong user, password or token", CHALLENGE)
        self.delay = delay


class Banned(Exception):
    """An address that has guessed sends credentials again. It is not answered, whether they are right or not."""


class Who(NamedTuple):
    """Who asks, for logs, and what they may."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        return RANKS[self.role] >= RANKS[role]


NOBODY: Final = Who("", "anyone")
HERE: Final = Who("local", "operator")
"""Whoever is on this machine, where nobody has to say who they are; and whoever may open the Unix socket."""


class Credentials(NamedTuple):
    """What the files of the settings say, as they were read."""

    users: PasswordFile | None
    operators: Sequence[str]
    tokens: dict[bytes, Who]
    guarded: bool
    hosts: Sequence[str]


def read_credentials(settings: Http) -> Credentials:
    """Read the files that the settings name. It blocks: it is for a thread.

    Raises:
        SecurityError: one of them cannot be used, in one line that names it.
    """
    users = read_password_file(Path(settings.password_file)) if settings.password_file else None
    tokens: dict[bytes, Who] = {}
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
                tokens[mark] = Who(f"token {Path(name).name}:{number}", role)
    return Credentials(users, settings.operators, tokens, settings.guarded, settings.hosts)


def _tokens(path: Path) -> list[tuple[int, str]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise SecurityError(f"{path}: tokens cannot be read: {why}") from None
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    found = [(number, line) for number, line in found if line and not line.startswith("#")]
    for number, line in found:
        if len(line) < SHORTEST_TOKEN or not line.isascii() or not line.isprintable() or " " in line:
            raise SecurityError(
                f"{path}: line {number}: a token has at least {SHORTEST_TOKEN} ASCII characters and no blanks, as "
                "`openssl rand -hex 32` makes them"
            )
    if not found:
        raise SecurityError(f"{path}: there is no token in it; make one with `openssl rand -hex 32`")
    return found


def _mark(token: str) -> bytes:
    """A token is looked up by this: how long that takes tells nothing of the token."""
    # Bytes that are no UTF-8 come from headers alone: they are nobody's token.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Access:
    """Says of each request who asks. Called in the event loop."""

    def __init__(self, credentials: Credentials, chain: Chain | None = None, log: ConnectionLog | None = None) -> None:
        """`chain` counts who guesses and knows who is banned for it; `log` is told of wrong credentials."""
        self.credentials = credentials
        self._chain = chain
        self._log = log
        self._pool = HashingPool(1, WAITING)
        self._verified = VerifiedCredentials(REMEMBERED)

    async def close(self) -> None:
        """End the thread that hashes."""
        await self._pool.close()

    async def who(self, request: web.Request, local: bool) -> Who:
        """Who asks. `local`: by a Unix socket, whose file says who may.

        Raises:
            WrongCredentials: it names credentials, and they are wrong.
            Banned: it names credentials, and its address has guessed.
            ApiError: it comes from a page of another site, or too many passwords wait.
        """
        self._same_site(request)
        if local:
            return HERE
        if not self.credentials.guarded:
            self._known_host(request)
            return HERE
        given = request.headers.get(hdrs.AUTHORIZATION)
        if given is None:
            return NOBODY
        began = time.monotonic()
        host, address = ("", "unknown") if request.transport is None else peer_name(request.transport)
        if self._chain is not None and self._chain.guessing.banned(host, began):
            raise Banned
        named = ""
        if len(given) <= LONGEST_CREDENTIALS:
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
                    return Who(name, "operator" if operator else "viewer")
        if self._log is not None:
            self._log.http_refused(host, address, named)
        if self._chain is None:
            raise WrongCredentials(0.0)
        self._chain.wrong(host, named, given.encode("utf-8", "surrogateescape"))
        raise WrongCredentials(self._chain.delay(began))

    async def _user(self, name: str, secret: bytes | None, host: str) -> str | None:
        """The user whose name and password these are; None: they are nobody's."""
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
        """No other site's page has sent it: such a page may lead here, and no more.

        It could read no answer; but lists cost time, and open streams the places of others.
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
        """The name it was asked for under is one of this machine's."""
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
    """User name and password of basic authentication; None: there is none."""
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        return "", None
    return name, password.encode() if colon else None


def _authority(url: str) -> str:
    """Host and port of a URL; empty: it is none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _host(authority: str) -> str:
    """The host of what a `Host` header says; empty: there is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def is_json(request: web.Request) -> bool:
    """Whether the body says that it is JSON. Forms of other sites cannot say so unasked."""
    return request.content_type == "application/json"

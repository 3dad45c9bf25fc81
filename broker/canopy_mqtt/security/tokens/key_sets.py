"""The keys that verify tokens: one key of the settings, or a set of them (RFC 7517).

Owns the key sources. `find` answers from memory whenever it can. A set behind a URL is fetched when it has become old,
or when a token names an unknown key; never more often than the settings allow, however many tokens come, and once for
all callers that wait. Promises: no error repeats a key.
"""

from __future__ import annotations

import asyncio
import json
import math
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from canopy_mqtt.files import read_file
from canopy_mqtt.json_keys import RepeatedKey, unique
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.http_client import FetchError, HttpClient
from canopy_mqtt.settings.urls import shown

MAX_KEYS: Final = 100
"""Keys of a set that are used; further ones are ignored."""

MAX_TRIED: Final = 4
"""Keys that a token without `kid` is verified with: each costs a verification."""

FAMILIES: Final = {"HS": "oct", "RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The first letters of an algorithm → the type of its keys (RFC 7518, section 6)."""

CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_NAMES: Final = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_READERS: Final = {"oct": "HS256", "RSA": "RS256", "OKP": "EdDSA"}


class Key(NamedTuple):
    """One key, for one family of algorithms."""

    value: Any
    """The key in PyJWT's form."""
    kty: str
    curve: str = ""
    kid: str = ""
    alg: str = ""
    """The only algorithm that it is for; empty: any of its family."""

    def fits(self, kid: str, alg: str) -> bool:
        """Return True if this key may verify a token with this `kid` (empty: none) and `alg`."""
        return (
            kid in ("", self.kid)
            and self.kty == FAMILIES[alg[:2]]
            and self.alg in ("", alg)
            and self.curve == CURVES.get(alg, self.curve)
        )


class KeySource:
    """A source of keys; this one has none."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)

    def adopt(self, before: KeySource) -> None:
        """Take over the keys of the source that this one replaces."""

    def known(self, kid: str, alg: str) -> Sequence[Key] | None:
        """Return the keys in memory, as `find` does; None: `find` may find more."""
        return self._fitting(kid, alg)

    async def find(self, kid: str, alg: str) -> Sequence[Key]:
        """Return up to `MAX_TRIED` keys that may verify a token with this `kid` (empty: none) and `alg`.

        Raises:
            FetchError: they have to be fetched, and cannot be.
        """
        return self._fitting(kid, alg)

    def _fitting(self, kid: str, alg: str) -> Sequence[Key]:
        return [key for key in self._keys if key.fits(kid, alg)][:MAX_TRIED]

    async def close(self) -> None:
        """Stop fetching."""


class OneKey(KeySource):
    """One key of the settings: it verifies every token of its family, whatever the `kid`."""

    def _fitting(self, kid: str, alg: str) -> Sequence[Key]:
        del kid
        return super()._fitting("", alg)


class FetchedKeys(KeySource):
    """A set of keys behind a URL. Old keys are used while the URL cannot be fetched."""

    def __init__(
        self, client: HttpClient, url: str, refresh: float, min_interval: float, report: Callable[[str], None]
    ) -> None:
        """`refresh`: seconds until keys are old; `min_interval`: seconds between two fetches.

        `report` gets a line about each failed fetch.
        """
        super().__init__()
        self._client = client
        self._url = url
        self._refresh = refresh
        self._min_interval = min_interval
        self._report = report
        self._tried_at = self._fetched_at = -math.inf
        self._fetching: asyncio.Task[None] | None = None
        self._failure = ""

    def adopt(self, before: KeySource) -> None:
        """Use the keys of the earlier source until the first fetch."""
        if isinstance(before, FetchedKeys):
            self._keys = before._keys

    def known(self, kid: str, alg: str) -> Sequence[Key] | None:
        found = self._fitting(kid, alg)
        now = asyncio.get_running_loop().time()
        if found and now - self._fetched_at >= self._refresh:
            self._fetch(now)  # in the background
        return found or None

    async def find(self, kid: str, alg: str) -> Sequence[Key]:
        found = self.known(kid, alg)
        if found is not None:
            return found
        found = ()
        fetching = self._fetch(asyncio.get_running_loop().time())
        if fetching is not None:
            # Many callers wait for it; one that gives up must not cancel it.
            await asyncio.shield(fetching)
            found = self._fitting(kid, alg)
        if not found and self._failure:
            raise FetchError(self._failure)
        return found

    async def close(self) -> None:
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        await self._client.close()

    def _fetch(self, now: float) -> asyncio.Task[None] | None:
        """Return the fetch in progress, or begin one; None: it is too early for another one."""
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        if now - self._tried_at < self._min_interval:
            return None
        self._tried_at = now
        self._fetching = asyncio.get_running_loop().create_task(self._take())
        return self._fetching

    async def _take(self) -> None:
        try:
            status, content = await self._client.ask("GET", self._url)
            if status != 200:
                raise FetchError(f"it answers with status {status}")
            self._keys = parse_key_set(content)
        except (FetchError, ValueError) as error:
            self._failure = f"{shown(self._url)}: the keys cannot be fetched: {error}"
            self._report(self._failure)
        else:
            self._failure = ""
            self._fetched_at = self._tried_at


def parse_key_set(content: bytes) -> tuple[Key, ...]:
    """Return the signature keys of a JWK Set. Keys for other purposes are left out (section 5).

    Raises:
        ValueError: it is no set, or has no such key; the error repeats of it at most the name of a member.
    """
    try:
        document = json.loads(content, object_pairs_hook=unique)
    except RepeatedKey:
        raise
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError('it is no set of keys: {"keys": [...]}')
    keys = [key for key in map(_from_jwk, listed[:MAX_KEYS]) if key is not None]
    if not keys:
        raise ValueError("it has no key for signatures")
    return tuple(keys)


def _from_jwk(data: Any) -> Key | None:
    if not isinstance(data, dict) or data.get("use", "sig") != "sig":
        return None
    kty, curve, kid, alg = (str(data.get(name, "")) for name in ("kty", "crv", "kid", "alg"))
    operations = data.get("key_ops", ["verify"])
    if not isinstance(operations, list) or not {"verify", "sign"} & set(map(str, operations)):
        return None
    reader = next((name for name, known in CURVES.items() if known == curve), "") if kty == "EC" else _READERS.get(kty)
    if not reader:
        return None
    try:
        value = jwt.PyJWK(data, reader).key
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError):
        return None
    return Key(value, kty, curve if kty == "EC" else "", kid, alg)


def shared_secret(value: bytes) -> OneKey:
    return OneKey([Key(value, "oct")])


def read_secret(path: Path, least: int) -> OneKey:
    """Read a shared secret: all bytes of a file but a byte order mark and a last line end, `least` at least.

    Raises:
        SecurityError: the file cannot be read, or the secret is too short.
    """
    secret = _read(path)
    secret = secret.removesuffix(b"\n").removesuffix(b"\r")
    if len(secret) < least:
        raise SecurityError(f"{path}: the secret has {len(secret)} bytes; these algorithms need {least} at least")
    return shared_secret(secret)


def read_public_key(path: Path, algorithms: Sequence[str]) -> OneKey:
    """Read the public key (PEM) of a file, or that of the certificate in it.

    Raises:
        SecurityError: it cannot be read, is something else, or fits none of the algorithms.
    """
    content = _read(path)
    try:
        if b"-----BEGIN CERTIFICATE-----" in content:
            public: Any = x509.load_pem_x509_certificate(content).public_key()
        else:
            public = load_pem_public_key(content)
    except ValueError:
        raise SecurityError(
            f"{path}: no public key or certificate in PEM; a private key is not what is needed"
        ) from None
    kinds: Mapping[type, str] = {
        RSAPublicKey: "RSA",
        EllipticCurvePublicKey: "EC",
        Ed25519PublicKey: "OKP",
        Ed448PublicKey: "OKP",
    }
    kty = next((kty for kind, kty in kinds.items() if isinstance(public, kind)), "")
    key = Key(public, kty, _NAMES.get(public.curve.name, "") if kty == "EC" else "")
    if not any(key.fits("", alg) for alg in algorithms):
        raise SecurityError(f"{path}: this key is for none of the algorithms {', '.join(algorithms)}")
    return OneKey([key])


def read_key_set(path: Path) -> KeySource:
    """Read the set of keys (JWKS) of a file.

    Raises:
        SecurityError: it cannot be read, or is no such set.
    """
    try:
        return KeySource(parse_key_set(_read(path)))
    except ValueError as error:
        raise SecurityError(f"{path}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return read_file(path).removeprefix(BOM_UTF8)  # which editors of Windows write
    except OSError as error:
        raise SecurityError(f"{path}: cannot be read: {error.strerror or error}") from None

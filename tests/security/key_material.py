"""Keys and tokens for tests: made once, since some of them take long."""

from __future__ import annotations

import base64
import json
import time
from functools import cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SECRET: Final = "a secret of thirty-two bytes and of some more, for HS384 and HS512 too"

CURVES: Final[dict[str, ec.EllipticCurve]] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@cache
def private_key(alg: str) -> Any:
    """A key that signs with this algorithm."""
    if alg.startswith("HS"):
        return SECRET
    if alg in CURVES:
        return ec.generate_private_key(CURVES[alg])
    if alg == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


def public_pem(alg: str) -> bytes:
    made: bytes = private_key(alg).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return made


def jwk(key_alg: str, kid: str, **more: Any) -> dict[str, Any]:
    """The public half as an entry of a JWK Set; of a shared secret, the secret."""
    if key_alg.startswith("HS"):
        value = base64.urlsafe_b64encode(SECRET.encode()).rstrip(b"=").decode()
        return {"kty": "oct", "k": value, "kid": kid, **more}
    algorithm = jwt.get_algorithm_by_name(key_alg)
    made: dict[str, Any] = json.loads(algorithm.to_jwk(private_key(key_alg).public_key()))
    made.pop("key_ops", None)
    return {**made, "kid": kid, **more}


def token(alg: str = "HS256", *, headers: dict[str, Any] | None = None, key: Any = None, **claims: Any) -> str:
    """A token for the user ann for an hour; a claim that is None is left out."""
    said: dict[str, Any] = {"sub": "ann", "exp": int(time.time()) + 3600, **claims}
    said = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(said, private_key(alg) if key is None else key, alg, headers)


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token whose header says anything at all."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)

"""Checks signed tokens (RFC 7519) and reads their claims. Pure: it fetches no keys and needs no loop.

Owns the checks of RFC 8725: the settings allow the algorithm, which fits the key, and the token is for this audience.
Promises: a malformed token ends with `TokenError`, which repeats nothing of it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jwt

from canopy_mqtt.security.authenticator import is_mqtt_text
from canopy_mqtt.security.rules.claims import read_claims
from canopy_mqtt.security.rules.rule import Rule
from canopy_mqtt.security.tokens.key_sets import Key
from canopy_mqtt.settings import JwtTable

MAX_GROUPS: Final = 1_000
"""Groups that a token may name; the session keeps them."""


class TokenError(Exception):
    """The reason why a token is refused, without any part of it."""


class Header(NamedTuple):
    """The unverified header of a token."""

    alg: str
    kid: str


def read_header(token: str) -> Header | None:
    """Read the header of a token; None: the text is no token (a password, for example).

    Raises:
        TokenError: it is one that cannot be checked.
    """
    head, dot, rest = token.partition(".")
    if not dot or rest.count(".") != 1:
        return None
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or "alg" not in header:
        return None
    alg, kid = header["alg"], header.get("kid", "")
    if not isinstance(alg, str) or not isinstance(kid, str):
        raise TokenError("a header that is malformed")
    if "crit" in header or "b64" in header:
        raise TokenError("a header that asks for an extension")  # RFC 7515, section 4.1.11
    return Header(alg, kid)


def verified(token: str, alg: str, keys: Sequence[Key], table: JwtTable) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed, and that is valid now and here.

    `alg` is one of the algorithms of the settings, and the keys are of its family.

    Raises:
        TokenError: none of them has, or it does not.
    """
    options: Any = {
        "require": ["exp"] if table.require_expiry else [],
        "enforce_minimum_key_length": True,
        "verify_sub": False,  # it is used only where the settings say so
        "verify_jti": False,
    }
    why = "no key for its signature"
    for key in keys:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.value,
                algorithms=[alg],
                options=options,
                audience=list(table.audience) or None,
                issuer=list(table.issuer) or None,
                leeway=table.leeway,
            )
        except jwt.InvalidSignatureError:
            why = "the signature is wrong"
            continue
        except jwt.InvalidKeyError:
            continue  # too short for the algorithm (RFC 7518, section 3); another one may fit
        except jwt.ExpiredSignatureError:
            raise TokenError("it has expired") from None
        except jwt.ImmatureSignatureError:
            raise TokenError("it is not valid yet") from None
        except jwt.InvalidAudienceError:
            raise TokenError("it is for another audience") from None
        except jwt.InvalidIssuerError:
            raise TokenError("it is of another issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise TokenError(f"it has no claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
            raise TokenError("it is malformed") from None
        return claims
    raise TokenError(why)


def expires_at(claims: dict[str, Any], leeway: float) -> float:
    """Return the end of the token's connection (seconds since the epoch); 0.0: none. `exp` was checked before.

    Raises:
        TokenError: it is no time.
    """
    try:
        return float(claims["exp"]) + leeway if "exp" in claims else 0.0
    except (ValueError, TypeError, OverflowError):
        raise TokenError("its claim exp is no time") from None


def text_claim(claims: dict[str, Any], name: str) -> str:
    """Return a claim that has to be text, and a string of MQTT (section 1.5.4).

    Raises:
        TokenError: it is missing, or something else.
    """
    value = claims.get(name)
    if not isinstance(value, str) or not value or not is_mqtt_text(value):
        raise TokenError(f"its claim {name} is missing, or no text")
    return value


def groups(claims: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return the groups of a token: a list of text, or one text.

    Raises:
        TokenError: the claim is something else, or has too many.
    """
    value = claims.get(name, ()) if name else ()
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(
        isinstance(each, str) and is_mqtt_text(each) for each in listed
    ):
        raise TokenError(f"its claim {name} is no list of text")
    if len(listed) > MAX_GROUPS:
        raise TokenError(f"it names more than {MAX_GROUPS} groups")
    return tuple(listed)


def rules(claims: dict[str, Any], name: str) -> tuple[Rule, ...]:
    """Return the access rules of a token.

    Raises:
        TokenError: the claim cannot be used: without its rules the client might do more than it may.
    """
    if not name or claims.get(name) is None:
        return ()
    try:
        return read_claims(claims[name])
    except (ValueError, RecursionError) as error:
        raise TokenError(f"its claim {name}: {error}") from None

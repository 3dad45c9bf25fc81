"""Tokens: who comes in with which, until when, and that no token that is not right does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import Attempt, Refusal, Verdict
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.rules.rule import Rule
from canopy_mqtt.security.tokens.token_authenticator import TokenAuthenticator
from canopy_mqtt.settings import JwtTable
from tests.security.key_material import SECRET, jwk, private_key, public_pem, token, unsigned
from tests.support.runs import for_each

ASYMMETRIC = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


def authenticator(**keys: Any) -> TokenAuthenticator:
    given = {"algorithms": ["HS256"], "secret": SECRET, **keys}
    return TokenAuthenticator.from_table(JwtTable(type="jwt", **given), lambda _: None)


def attempt(password: str | bytes | None, user: str | None = None, client_id: str = "c") -> Attempt:
    connect = Connect(client_id)
    connect.user_name = user
    connect.password = password.encode() if isinstance(password, str) else password
    return Attempt(connect, Origin("192.0.2.1:4711", "192.0.2.1", "l"))


def verdict(with_: TokenAuthenticator, password: str | bytes | None, **more: Any) -> Verdict:
    """The verdict, which comes at once; no refusal repeats the token."""
    found = with_.at_once(attempt(password, **more))
    assert found != "ask"
    if isinstance(found, Refusal) and password:
        text = password if isinstance(password, str) else password.decode("latin-1")
        assert all(part not in found.text for part in text.split(".") if len(part) > 8)
    return found


def refused(found: Verdict, why: str = "") -> bool:
    return isinstance(found, Refusal) and found.reason_code == 0x86 and why in found.text


class TestWhoComesIn:
    def test_the_user_of_a_good_token(self) -> None:
        ends = int(time.time()) + 60
        found = verdict(authenticator(), token(groups=["staff", "night"], exp=ends))
        assert isinstance(found, Principal)
        assert (found.user_name, found.groups, found.expires_at) == ("ann", ("staff", "night"), ends)

    @for_each("alg", ASYMMETRIC)
    def test_every_algorithm_with_a_public_key(self, alg: str, tmp_path: Path) -> None:
        path = tmp_path / "key.pem"
        path.write_bytes(public_pem(alg))
        checks = authenticator(algorithms=[alg], secret="", key_file=str(path))
        assert isinstance(verdict(checks, token(alg)), Principal)
        forged = token(alg)[:-8] + "AAAAAAAA"
        assert refused(verdict(checks, forged), "the signature is wrong")

    @for_each("alg", ["HS256", "HS384", "HS512"])
    def test_every_algorithm_with_a_shared_secret(self, alg: str, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text(f"{SECRET}\n")
        for checks in (
            authenticator(algorithms=[alg]),
            authenticator(algorithms=[alg], secret="", secret_file=str(path)),
        ):
            assert isinstance(verdict(checks, token(alg)), Principal)
            assert refused(verdict(checks, token(alg, key="x" * 64)), "the signature is wrong")

    def test_a_set_of_keys_of_a_file(self, tmp_path: Path) -> None:
        """The `kid` chooses; a token without one is tried with those that fit it and are not too short."""
        path = tmp_path / "keys.json"
        short = {"kty": "RSA", "kid": "short", "e": "AQAB", "n": "_" * 170 + "8"}
        path.write_text(json.dumps({"keys": [short, jwk("RS256", "one"), jwk("ES256", "two"), jwk("EdDSA", "three")]}))
        checks = authenticator(algorithms=["RS256", "ES256", "EdDSA"], secret="", jwks=str(path))
        for alg, kid in (("RS256", "one"), ("ES256", "two"), ("EdDSA", "three")):
            assert isinstance(verdict(checks, token(alg, headers={"kid": kid})), Principal)
            assert isinstance(verdict(checks, token(alg)), Principal)
            assert refused(verdict(checks, token(alg, headers={"kid": "four"})), "no key")
        for kid in ("short", "two"):
            assert refused(verdict(checks, token("RS256", headers={"kid": kid})), "no key")

    def test_a_token_in_place_of_the_user_name(self) -> None:
        checks = authenticator(token_in="user-name")
        found = verdict(checks, None, user=token())
        assert isinstance(found, Principal)
        assert found.user_name == "ann"
        assert verdict(checks, token(), user="ann") is None

    def test_the_claims_can_have_other_names(self) -> None:
        checks = authenticator(user_claim="name", groups_claim="roles", client_id_claim="cid", same_user=True)
        good = token(sub=None, name="bob", roles="admin", cid="c")
        found = verdict(checks, good, user="bob")
        assert isinstance(found, Principal)
        assert (found.user_name, found.groups) == ("bob", ("admin",))
        assert refused(verdict(checks, good, user="eve"), "another user")
        assert refused(verdict(checks, good), "another user")
        assert refused(verdict(checks, good, user="bob", client_id="d"), "another client identifier")
        assert refused(verdict(checks, token(name="bob"), user="bob"), "claim cid")

    @for_each("claims", [{"sub": "ann\ud800"}, {"sub": "ann\0"}, {"groups": ["staff\udc00"]}])
    def test_text_that_mqtt_does_not_have(self, claims: dict[str, Any]) -> None:
        """Half of a surrogate pair cannot be written anywhere: with it lines of the log would be lost."""
        assert refused(verdict(authenticator(), token(**claims)), "its claim")

    def test_where_no_claim_is_the_user_the_connect_says_it(self) -> None:
        found = verdict(authenticator(user_claim=""), token(sub=None), user="ann")
        assert isinstance(found, Principal)
        assert found.user_name == "ann"

    def test_the_rules_that_a_token_brings(self) -> None:
        found = verdict(authenticator(), token(acl={"pub": ["a/#"], "sub": ["b"]}))
        assert isinstance(found, Principal)
        assert [(rule.topic_filter, rule.allow) for rule in found.rules if isinstance(rule, Rule)] == [
            ("a/#", True),
            ("b", True),
        ]
        found = verdict(authenticator(rules_claim=""), token(acl="nonsense"))
        assert isinstance(found, Principal)
        assert found.rules == ()

    @for_each("acl", ["a/#", {"all": ["a/#/b"]}, {"read": ["a"]}, [{"topic": "a", "user": "bob"}], 5])
    def test_rules_that_are_not_understood_let_nobody_in(self, acl: object) -> None:
        """Half of the rules would be other rules."""
        assert refused(verdict(authenticator(), token(acl=acl)), "claim acl")

    @for_each(
        "password",
        [None, "", "secret", "a.b", "a.b.c", "a.b.c.d", b"\xff.\xff.\xff", "e30.e30.", "W10.e30.x", "bnVsbA.a.b"],
    )
    def test_what_is_no_token_is_left_to_the_next(self, password: str | bytes | None) -> None:
        assert verdict(authenticator(), password) is None


class TestWhoDoesNot:
    def test_an_expired_token(self) -> None:
        late = int(time.time()) - 10
        assert refused(verdict(authenticator(), token(exp=late)), "has expired")
        assert isinstance(verdict(authenticator(leeway=60.0), token(exp=late)), Principal)

    def test_one_that_is_not_valid_yet(self) -> None:
        assert refused(verdict(authenticator(), token(nbf=int(time.time()) + 60)), "not valid yet")

    def test_one_without_an_end_unless_the_settings_allow_it(self) -> None:
        assert refused(verdict(authenticator(), token(exp=None)), "no claim exp")
        found = verdict(authenticator(require_expiry=False), token(exp=None))
        assert isinstance(found, Principal)
        assert found.expires_at == 0.0

    def test_one_for_another_audience(self) -> None:
        checks = authenticator(audience=["mqtt", "canopy"])
        assert isinstance(verdict(checks, token(aud=["web", "canopy"])), Principal)
        assert refused(verdict(checks, token(aud="web")), "another audience")
        assert refused(verdict(checks, token()), "no claim aud")
        assert refused(verdict(authenticator(), token(aud="web")), "another audience")

    def test_one_of_another_issuer(self) -> None:
        checks = authenticator(issuer=["https://id.example.org/"])
        assert isinstance(verdict(checks, token(iss="https://id.example.org/")), Principal)
        assert refused(verdict(checks, token(iss="https://evil.example.org/")), "another issuer")
        assert refused(verdict(checks, token()), "no claim iss")

    @for_each("alg", ["none", "None", "NONE", "", "HS512", "RS256", "HS256 "])
    def test_one_whose_algorithm_is_not_one_of_the_settings(self, alg: str) -> None:
        claims = {"sub": "ann", "exp": int(time.time()) + 60}
        for signature in (b"", b"x" * 32):
            assert refused(verdict(authenticator(), unsigned({"alg": alg}, claims, signature)), "algorithm")

    def test_a_public_key_is_no_shared_secret(self, tmp_path: Path) -> None:
        """Algorithm confusion (RFC 8725, section 2.1): HS256 over the public key, which everybody has."""
        path = tmp_path / "key.pem"
        path.write_bytes(public_pem("RS256"))
        keys = tmp_path / "keys.json"
        keys.write_text(json.dumps({"keys": [jwk("RS256", "one")]}))
        head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').rstrip(b"=")
        body = base64.urlsafe_b64encode(b'{"sub":"root","exp":99999999999}').rstrip(b"=")
        for secret in (public_pem("RS256"), public_pem("RS256").strip()):
            signature = hmac.digest(secret, head + b"." + body, hashlib.sha256)
            forged = b".".join((head, body, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()
            for checks in (
                authenticator(algorithms=["RS256"], secret="", key_file=str(path)),
                authenticator(algorithms=["RS256"], secret="", jwks=str(keys)),
                authenticator(algorithms=["HS256"], secret="", jwks=str(keys)),
            ):
                assert refused(verdict(checks, forged))

    def test_a_key_is_for_its_own_algorithm(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        path.write_text(json.dumps({"keys": [jwk("RS256", "one", alg="RS512")]}))
        checks = authenticator(algorithms=["RS256", "RS512"], secret="", jwks=str(path))
        assert refused(verdict(checks, token("RS256")), "no key")
        assert isinstance(verdict(checks, token("RS512", key=private_key("RS256"))), Principal)

    @for_each("more", [{"crit": ["exp"]}, {"b64": False}, {"kid": 5}, {"kid": ["a"]}])
    def test_a_header_that_asks_for_more(self, more: dict[str, Any]) -> None:
        assert refused(verdict(authenticator(), unsigned({"alg": "HS256", **more}, {"sub": "ann"}, b"x")), "header")

    def test_a_token_beyond_the_size_is_not_read(self) -> None:
        checks = authenticator(max_token_bytes=512)
        assert refused(verdict(checks, token(fill="x" * 512)), "longer than max_token_bytes")
        assert isinstance(verdict(checks, token()), Principal)

    @for_each("claims", [{"sub": None}, {"sub": 5}, {"sub": ""}, {"sub": "a\0b"}, {"groups": 5}, {"groups": [5]}])
    def test_claims_that_are_not_what_they_should_be(self, claims: dict[str, Any]) -> None:
        made = unsigned_with_secret({"sub": "ann", "exp": int(time.time()) + 60, **claims})
        assert refused(verdict(authenticator(), made), "claim")

    def test_more_groups_than_a_session_should_keep(self) -> None:
        found = verdict(authenticator(max_token_bytes=100_000), token(groups=[str(each) for each in range(1_001)]))
        assert refused(found, "groups")

    @for_each("exp", [float("inf"), float("nan"), "soon", [1], 10**400, -(10**400), True], ids=lambda exp: str(exp)[:8])
    def test_an_end_that_is_no_time(self, exp: Any) -> None:
        found = verdict(authenticator(), unsigned_with_secret({"sub": "ann", "exp": exp}))
        assert refused(found)

    def test_json_that_is_nested_deep(self) -> None:
        """8 KiB of brackets: the parser gives up, and the broker does not."""
        head = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 5_000).rstrip(b"=").decode()
        assert verdict(authenticator(), f"{head}.e30.x") is None
        body = base64.urlsafe_b64encode(b'{"a":' + b"[" * 5_000).rstrip(b"=")
        assert refused(verdict(authenticator(), signed(b'{"alg":"HS256"}', body)), "malformed")

    @given(st.binary(max_size=200))
    def test_no_bytes_come_in(self, password: bytes) -> None:
        assert not isinstance(verdict(authenticator(), password), Principal)

    @given(st.integers(min_value=0), st.integers(1, 127))
    def test_no_changed_token_comes_in(self, at: int, by: int) -> None:
        good = bytearray(token("HS256", exp=9_999_999_999).encode())
        before = bytes(good)
        good[at % len(good)] ^= by
        found = verdict(authenticator(), bytes(good))
        # The last digit of a part may hold bits that mean nothing.
        if isinstance(found, Principal):
            assert [*decoded(before)] == [*decoded(bytes(good))]


def decoded(of: bytes) -> list[bytes]:
    return [base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in of.split(b".")]


def signed(head: bytes, body: bytes) -> str:
    """A token with the right signature over what is no claims."""
    head = base64.urlsafe_b64encode(head).rstrip(b"=")
    signature = base64.urlsafe_b64encode(hmac.digest(SECRET.encode(), head + b"." + body, hashlib.sha256))
    return b".".join((head, body, signature.rstrip(b"="))).decode()


def unsigned_with_secret(claims: dict[str, Any]) -> str:
    return signed(b'{"alg":"HS256"}', base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"="))


class TestFiles:
    @for_each(
        ("content", "keys", "why"),
        [
            (None, {"secret_file": "PATH"}, "cannot be read: No such file"),
            ("short\n", {"secret_file": "PATH"}, "the secret has 5 bytes; these algorithms need 32"),
            ("nonsense", {"key_file": "PATH", "algorithms": ["RS256"]}, "no public key or certificate in PEM"),
            (public_pem("ES256").decode(), {"key_file": "PATH", "algorithms": ["RS256"]}, "for none of the algorithms"),
            (public_pem("ES256").decode(), {"key_file": "PATH", "algorithms": ["ES384"]}, "for none of the algorithms"),
            ("nonsense", {"jwks": "PATH", "algorithms": ["RS256"]}, "not JSON"),
            ("[" * 10_000, {"jwks": "PATH", "algorithms": ["RS256"]}, "not JSON"),
            ("[]", {"jwks": "PATH", "algorithms": ["RS256"]}, "no set of keys"),
            ('{"keys": [{"kty": "RSA"}, 5]}', {"jwks": "PATH", "algorithms": ["RS256"]}, "no key for signatures"),
            (
                json.dumps({"keys": [jwk("RS256", "one", use="enc")]}),
                {"jwks": "PATH", "algorithms": ["RS256"]},
                "no key for signatures",
            ),
            ("nonsense", {"jwks": "https://h/x", "jwks_ca_file": "PATH", "algorithms": ["RS256"]}, "authorities"),
        ],
    )
    def test_what_is_wrong_with_one_is_said(
        self, content: str | None, keys: dict[str, Any], why: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "file"
        if content is not None:
            path.write_text(content)
        given = {name: str(path) if value == "PATH" else value for name, value in keys.items()}
        with pytest.raises(SecurityError, match=why) as caught:
            authenticator(**{"secret": "", **given})
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)

    @for_each(("alg", "least"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
    def test_a_secret_of_the_least_length_is_one(self, tmp_path: Path, alg: str, least: int) -> None:
        """As many bytes as the hash has (RFC 7518, section 3.2); a last line end is none of them."""
        path = tmp_path / "secret"
        for end in ("", "\n", "\r\n"):
            path.write_bytes(b"s" * least + end.encode())
            checks = authenticator(algorithms=[alg], secret="", secret_file=str(path))
            assert isinstance(verdict(checks, token(alg, key="s" * least)), Principal)
            path.write_bytes(b"s" * (least - 1) + end.encode())
            with pytest.raises(SecurityError, match=f"has {least - 1} bytes; these algorithms need {least} at least"):
                authenticator(algorithms=[alg], secret="", secret_file=str(path))

    async def test_a_new_secret_counts_from_the_next_reload_on(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text(SECRET)
        checks = await asyncio.to_thread(authenticator, secret="", secret_file=str(path))
        assert checks.files() == (path,)
        path.write_text("n" * 64)
        fresh = await checks.renewed()
        assert isinstance(fresh, TokenAuthenticator)
        assert refused(verdict(fresh, token()))
        assert isinstance(verdict(fresh, token(key="n" * 64)), Principal)
        path.write_text("short")
        with pytest.raises(SecurityError):
            await fresh.renewed()
        assert isinstance(verdict(fresh, token(key="n" * 64)), Principal)

"""The tables of tokens, of the service over HTTP and of SCRAM: what goes together, and that no secret is repeated."""

from __future__ import annotations

from canopy_mqtt.settings import JwtTable, Settings
from canopy_mqtt.settings.access.tokens import in_clear
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.loader import load_settings, of_tables
from tests.support.problems import problem_of
from tests.support.runs import for_each

SECRET = "s" * 32


def load(tables: str) -> Settings:
    return load_settings(None, (), (), {"CANOPY_AUTHENTICATOR": tables})


@for_each(
    "keys",
    [
        f'algorithms = ["HS256"], secret = "{SECRET}"',
        'algorithms = ["HS256", "HS512"], secret_file = "/s"',
        'algorithms = ["HS256"], jwks = "/keys.json"',
        'algorithms = ["RS256", "ES256", "EdDSA"], jwks = "https://id.example.org/keys"',
        'algorithms = ["PS512"], key_file = "/k.pem"',
        'algorithms = ["ES256"], key_file = "/k.pem", token_in = "user-name"',
    ],
)
def test_a_token_has_one_key(keys: str) -> None:
    (table,) = load(f'[{{type = "jwt", {keys}}}]').authenticator
    assert isinstance(table, JwtTable)


@for_each(
    ("keys", "told"),
    [
        ('secret = "x"', "algorithms: missing"),
        ('algorithms = ["none"], secret = "x"', 'algorithms[0]: found "none"; allowed: "HS256" or'),
        (f'algorithms = ["HS256", "RS256"], secret = "{SECRET}"', "either all with a shared secret (HS…) or none"),
        ("algorithms = []", "algorithms: found []; allowed: one or more algorithms"),
        ('algorithms = ["HS256"], secret = "short"', "secret: found ***; allowed: text of at least 32 bytes"),
        (f'algorithms = ["HS512"], secret = "{SECRET}"', "secret: found ***; allowed: text of at least 64 bytes"),
        ('algorithms = ["HS256"]', "one of secret, secret_file, jwks with algorithms"),
        ('algorithms = ["HS256"], key_file = "/k.pem"', "one of secret, secret_file, jwks with algorithms"),
        (f'algorithms = ["RS256"], secret = "{SECRET}"', "one of key_file, jwks with algorithms"),
        ('algorithms = ["RS256"], key_file = "/k", jwks = "/j"', "one of key_file, jwks with algorithms"),
        (f'algorithms = ["HS256"], secret = "{SECRET}", secret_file = "/s"', "only without secret"),
        ('algorithms = ["RS256"], jwks = "https://u:p@h/x"', "without a user"),
        ('algorithms = ["RS256"], key_file = "/k", token_in = "user-name", same_user = true', "not same_user"),
        ('algorithms = ["RS256"], key_file = "/k", leeway = -1', "leeway: found -1; allowed: a number from 0 to"),
    ],
)
def test_what_a_token_is_not_checked_with(keys: str, told: str) -> None:
    found = problem_of("AUTHENTICATOR", f'[{{type = "jwt", {keys}}}]')
    assert told in found
    assert SECRET not in found


@for_each(
    ("keys", "told"),
    [
        ('url = "ftp://h/x"', "https://HOST[:PORT]/PATH"),
        ('url = "http:///x"', "https://HOST[:PORT]/PATH"),
        ('url = "http://h:0/x"', "https://HOST[:PORT]/PATH"),
        (f'url = "http://u:{SECRET}@h/x"', "without a user"),
        ('url = "http://h/x#y"', "without a fragment"),
        (f'url = "http://h/x", headers = ["Authorization {SECRET}"]', "headers: found ***; allowed: a list of headers"),
        (f'url = "http://h/x", headers = ["A: {SECRET}\\nB: c"]', "headers: found ***; allowed: a list of headers"),
        ('url = "http://h/x", headers = [17]', "headers[0]: found ***"),
        ('url = "http://h/x", headers = ["Host: other"]', "headers other than Host"),
        ('url = "http://h/x", timeout = 0', "timeout: found 0; allowed: a number above 0"),
        ('url = "http://h/x", key_file = "/k"', "only with cert_file"),
        ('url = "http://h/x", on_error = "shrug"', '"deny" or "ignore" or "allow"'),
    ],
)
def test_what_no_service_is_asked_with(keys: str, told: str) -> None:
    found = problem_of("AUTHENTICATOR", f'[{{type = "http", {keys}}}]')
    assert told in found
    assert SECRET not in found


def test_no_secret_is_shown() -> None:
    settings = load(
        f'[{{type = "jwt", algorithms = ["HS256"], secret = "{SECRET}"}},'
        f' {{type = "http", url = "http://h/x", headers = ["Authorization: {SECRET}"]}}]'
    )
    for told in (
        repr(settings),
        show(settings.authenticator),
        show(of_tables("authenticator", settings.authenticator)),
    ):
        assert SECRET not in told
    assert hash(settings) == hash(settings)


@for_each(
    ("url", "clear"),
    [
        ("http://auth.example.org/x", True),
        ("http://10.0.0.1/x", True),
        ("https://auth.example.org/x", False),
        ("http://localhost:8080/x", False),
        ("http://[::1]/x", False),
        ("http://127.0.0.1/x", False),
    ],
)
def test_which_services_are_spoken_to_in_clear(url: str, clear: bool) -> None:
    assert in_clear(url) is clear

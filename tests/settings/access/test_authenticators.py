"""`[[authenticator]]` and `[security]`: what they hold, and what is said of mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.settings import AnonymousTable, CertificateTable, PasswordFileTable, Settings, called
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings, of_tables
from tests.support.problems import problem_of
from tests.support.runs import for_each

TYPES_IN_WORDS = (
    '"password-file" or "certificate" or "jwt" or "http" or "scram-sha-256" or "anonymous" or "trust" or "reject"'
)


def load(tables: str = "", config: Path | None = None) -> Settings:
    return load_settings(config, (), (), {"CANOPY_AUTHENTICATOR": tables} if tables else {})


def test_there_is_none_by_default() -> None:
    assert Settings().authenticator == ()


def test_tables_of_all_types(tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(
        '[[authenticator]]\nname = "staff"\ntype = "password-file"\npath = "/p"\n'
        '[[authenticator]]\ntype = "certificate"\nuser = "san-dns"\n'
        '[[authenticator]]\ntype = "anonymous"\n'
    )
    made = load(config=file).authenticator
    assert made == (
        PasswordFileTable(type="password-file", name="staff", path="/p"),
        CertificateTable(type="certificate", user="san-dns"),
        AnonymousTable(type="anonymous"),
    )
    assert [called(table) for table in made] == ["staff", "certificate", "anonymous"]
    assert hash(Settings(authenticator=made)) == hash(Settings(authenticator=list(made)))


@for_each(
    ("tables", "told"),
    [
        ("[{}]", f"authenticator[0].type: missing; allowed: {TYPES_IN_WORDS}"),
        ('[{type = "radius"}]', f'authenticator[0].type: found "radius"; allowed: {TYPES_IN_WORDS}'),
        (
            "[5]",
            'authenticator[0]: found 5; allowed: a table, like {type = "password-file", path = "/etc/canopy/passwd"}',
        ),
        (
            '[{type = "password-file"}]',
            'authenticator[0].path: missing; allowed: a file, like "/etc/canopy/passwd"',
        ),
        (
            '[{type = "password-file", path = 5}]',
            'authenticator[0].path: found 5; allowed: a file, like "/etc/canopy/passwd"',
        ),
        (
            '[{type = "password-file", pth = "/p", path = "/p"}]',
            "authenticator[0].pth: no such setting; the nearest is path",
        ),
        (
            '[{type = "anonymous", path = "/p"}]',
            "authenticator[0].path: no such setting; known are name, type",
        ),
        (
            '[{type = "certificate", user = "dn"}]',
            'authenticator[0].user: found "dn"; allowed: "cn" or "subject" or "san-dns" or "san-email" or "san-uri"',
        ),
        (
            '[{type = "anonymous"}, {type = "anonymous"}]',
            (
                'authenticator[1].name: found "anonymous"; allowed: a name that no other authenticator has (without '
                "one, its type is its name)"
            ),
        ),
        (
            '[{type = "anonymous", name = "a b"}]',
            (
                'authenticator[0].name: found "a b"; allowed: 1 to 64 letters, digits, "_" and "-", like "staff", or '
                '"" for its type'
            ),
        ),
        (
            '[{type = "scram-sha-256", path = "/a"}, {type = "scram-sha-256", path = "/b", name = "more"}]',
            (
                'authenticator[1].type: found "scram-sha-256"; allowed: another type: "scram-sha-256" has the '
                "authentication method already; put the users of both into one file"
            ),
        ),
        (
            "5",
            (
                "authenticator: found 5; allowed: [[authenticator]] tables, or a list of them, like "
                '[{type = "password-file", path = "/etc/canopy/passwd"}]'
            ),
        ),
    ],
)
def test_mistakes(tables: str, told: str) -> None:
    assert problem_of("AUTHENTICATOR", tables) == told


@for_each(
    ("setting", "told"),
    [
        (
            'security.ban_exempt=["10.0.0.0/8", "10.0.0.1/8"]',
            'security.ban_exempt[1]: found "10.0.0.1/8"; allowed: an IP',
        ),
        ("security.ban_time=0", "security.ban_time: found 0; allowed: a number above 0, to 2592000.0"),
        ('security.client_ids=[""]', 'security.client_ids[0]: found ""; allowed: a pattern'),
        ("security.hashing_threads=0", "security.hashing_threads: found 0; allowed: an integer from 1 to 64"),
    ],
)
def test_mistakes_of_the_section(setting: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, (setting,), (), {})
    (problem,) = caught.value.problems
    assert told in problem


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, ('authenticator=[{type = "jwt", secret = "hunter2"}]',), (), {})
    assert "hunter2" not in str(caught.value)


def test_what_differs_is_listed() -> None:
    tables: Any = load('[{type = "password-file", path = "/p"}]').authenticator
    assert of_tables("authenticator", tables) == {
        "authenticator[0].type": ("password-file", None),
        "authenticator[0].path": ("/p", None),
    }

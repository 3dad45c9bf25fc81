"""The file of SCRAM: what is written is read back, and what is wrong is said with its line and without a key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.scram.key_file import (
    MIN_ITERATIONS,
    credential_line,
    derive,
    read_scram_file,
    secret_line,
)
from tests.support.runs import for_each

KEY = base64.b64encode(b"k" * 32).decode()
GOOD = f"ann:SCRAM-SHA-256$4096:c2FsdA==${KEY}:{KEY}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scram"


def test_a_written_line_is_read_back(path: Path) -> None:
    line = credential_line("j\u00f6rg", "s\u00a0e", 4096, b"salt")
    path.write_text(f"# users\n\n{secret_line()}\n{line}\n")
    credential, known = read_scram_file(path).find("j\u00f6rg")
    assert known
    assert credential == derive("s e", b"salt", 4096)


def test_the_form_is_that_of_postgresql() -> None:
    """Its documentation: `SCRAM-SHA-256$<iteration count>:<salt>$<StoredKey>:<ServerKey>` (pg_authid)."""
    line = credential_line("user", "pencil", 4096, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    assert line == (
        "user:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ=="
        "$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )


def test_two_lines_of_one_password_have_nothing_in_common() -> None:
    first, second = (credential_line("ann", "secret").split("$", 2)[1:] for _ in range(2))
    assert not set(first[1].split(":")) & set(second[1].split(":"))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("ann", "not USER:SCRAM-SHA-256"),
        ("ann:secret", "not USER:SCRAM-SHA-256"),
        (GOOD.replace("4096", "4095"), "iterations"),
        (GOOD.replace("4096", "99999999"), "iterations"),
        (GOOD.replace("c2FsdA==", "!"), "the salt is not base64"),
        (GOOD.replace(f"${KEY}", "$a2V5"), "the stored key"),
        (GOOD.replace(f":{KEY}", ":a2V5"), "the server key"),
        (GOOD[3:], "the user name is missing"),
        ("$secret:YQ==", "the secret has to have at least 16 bytes"),
        ("a\u0627b" + GOOD[3:], "mixed"),
    ],
)
def test_a_wrong_line_is_named(path: Path, line: str, what: str) -> None:
    path.write_text(f"# users\n{line}\n")
    with pytest.raises(SecurityError, match=what) as caught:
        read_scram_file(path)
    assert str(caught.value).startswith(f"{path}: line 2: ")
    assert KEY not in str(caught.value)
    assert "secret:YQ" not in str(caught.value)


def test_a_user_stands_in_the_file_once(path: Path) -> None:
    path.write_text(f"{GOOD}\n{GOOD}\n")
    with pytest.raises(SecurityError, match="line 2: the user stands in the file already"):
        read_scram_file(path)


def test_a_file_that_cannot_be_read(path: Path) -> None:
    with pytest.raises(SecurityError, match="cannot be read: No such file"):
        read_scram_file(path)
    path.write_bytes(b"\xff")
    with pytest.raises(SecurityError, match="not UTF-8"):
        read_scram_file(path)


@for_each(("user", "password"), [("", "x"), ("a:b", "x"), ("#a", "x"), ("$secret", "x"), (" a", "x"), ("a", "")])
def test_what_no_line_is_made_of(user: str, password: str) -> None:
    with pytest.raises(ValueError, match=r"user name|empty"):
        credential_line(user, password)


def test_fewer_iterations_than_the_rfc_has() -> None:
    with pytest.raises(ValueError, match="iterations from 4096"):
        credential_line("ann", "secret", MIN_ITERATIONS - 1)

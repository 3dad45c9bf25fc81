"""Hashes of mosquitto and argon2: read, checked, made, and what is said of those that cannot be used."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.security.passwords.hashes import ARGON2, make, parse
from tests.support.runs import for_each

BY_MOSQUITTO = {
    "secret": "$7$101$2tv3/OjldgA5zO4q$qW13KIaPf8PZ2piYFn435KQ+FwmKj+GoRW9GRfRKM8SV2anROkCdsONIbWsHqS916Slauv2mXrXl3a0"
    "cXeC4xA==",
    "pässword": "$7$101$SrftJIbEMhvKhcoP$Ttp7pKBVUPXJNyKbkHZvgTDW4V/234pxziXmHlZegolbiaD8ywWiS5wxNK33aA8jgT6JtmhvJGWK9"
    "qXNE9rRng==",
    "secret ": "$6$SxP6XF6t/kC2Ja88$wysNY2xo6uLbiNprG/4AFpjclTt33Cq15T3YA2hv+7WiMPkC+Q3Vk5HXBewqca44mTdfagot8J6HvdsJ2cV"
    "UoQ==",
}
"""Passwords, and what mosquitto_passwd 2.0.11 wrote of them. Blanks at the end only tell them apart."""


@for_each("written", BY_MOSQUITTO, ids=["pbkdf2", "utf-8", "sha512"])
def test_what_mosquitto_passwd_wrote(written: str) -> None:
    made = parse(BY_MOSQUITTO[written])
    password = written.rstrip().encode()
    assert made.check(password)
    assert not made.check(password + b"x")
    assert not made.check(b"")


@for_each("kind", ["sha512", "sha512-pbkdf2"])
def test_what_the_installed_mosquitto_passwd_writes(tmp_path: Path, kind: str) -> None:
    tool = shutil.which("mosquitto_passwd")
    if tool is None:
        pytest.skip("mosquitto_passwd is not installed")
    file = tmp_path / "passwd"
    file.touch()
    subprocess.run([tool, "-H", kind, "-b", file, "alice", "hunter 2"], check=True, timeout=30, capture_output=True)
    made = parse(file.read_text().strip().removeprefix("alice:"))
    assert made.check(b"hunter 2")
    assert not made.check(b"hunter2")


@given(password=st.binary(max_size=64), other=st.binary(max_size=64), iterations=st.integers(1, 50))
@settings(max_examples=30)
def test_what_is_made_is_checked(password: bytes, other: bytes, iterations: int) -> None:
    for text in (make(password, "sha512"), make(password, "pbkdf2-sha512", iterations)):
        assert parse(text).check(password)
        assert parse(text).check(other) is (other == password)


def test_argon2id_is_made_and_checked() -> None:
    text = make(b"secret")
    assert text.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert parse(text).check(b"secret")
    assert not parse(text).check(b"Secret")
    assert make(b"secret") != text


def test_costs_are_in_order() -> None:
    cheap, dear = parse(make(b"x", "sha512")), parse(make(b"x", "pbkdf2-sha512", 10))
    assert cheap.cost < dear.cost == 10 < parse(ARGON2.hash(b"x")).cost


@for_each(
    ("text", "told"),
    [
        ("secret", "not a hashed password"),
        ("", "not a hashed password"),
        ("$5$abc$def", "not a hashed password"),
        ("$7$101$c2FsdA==", "not a hashed password"),
        ("$7$0$c2FsdA==$" + "A" * 86 + "==", "iterations has to be from 1 to"),
        ("$7$99999999999$c2FsdA==$" + "A" * 86 + "==", "iterations has to be from 1 to"),
        ("$7$²$c2FsdA==$" + "A" * 86 + "==", "iterations has to be from 1 to"),
        ("$7$101$c2FsdA==$AAAA", "the hash has to have 16 to 64 bytes"),
        ("$7$101$s$" + "A" * 86 + "==", "the salt is not base64"),
        ("$6$c2FsdA==$AAAA", "the hash has to have 64 bytes"),
        ("$6$c2FsdA==$hunter2!", "the hash is not base64"),
        ("$argon2id$v=19$m=8", "not a hash of argon2"),
        ("$argon2i$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$" + "A" * 43, "only argon2id"),
        ("$argon2id$v=19$m=4294967295,t=1,p=1$c2FsdHNhbHQ$" + "A" * 43, "is not read"),
    ],
)
def test_what_cannot_be_used(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)

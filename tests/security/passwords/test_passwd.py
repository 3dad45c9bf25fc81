"""`canopy passwd`: what it writes, from where the password comes, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt.command import cli
from canopy_mqtt.security.passwords.password_file import read_password_file
from canopy_mqtt.security.scram.key_file import derive, read_scram_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "passwd"


def canopy(*arguments: object, typed: str | bytes = "") -> Result:
    result = CliRunner().invoke(cli.app, ["passwd", *map(str, arguments)], input=typed)
    assert "Traceback" not in result.output
    return result


def test_add_change_and_delete(file: Path) -> None:
    result = canopy(file, "alice", "--stdin", "--create", typed="hunter2\n")
    assert (result.exit_code, result.output) == (0, f"{file}: alice was added\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "$argon2id$" in file.read_text()
    assert read_password_file(file).check("alice", b"hunter2")
    result = canopy(file, "alice", "--stdin", typed="hunter 3\r\n")
    assert result.output == f"{file}: alice has another password\n"
    assert read_password_file(file).check("alice", b"hunter 3")
    assert not read_password_file(file).check("alice", b"hunter2")
    assert canopy(file, "alice", "--delete").exit_code == 0
    assert file.read_text() == ""
    result = canopy(file, "alice", "--delete")
    assert (result.exit_code, result.output) == (1, f'canopy: {file}: there is no user "alice"\n')


@pytest.mark.parametrize("kind", ["argon2id", "pbkdf2-sha512", "sha512"])
def test_kinds_of_hashes(file: Path, kind: str) -> None:
    assert canopy(file, "alice", "-c", "-b", "hunter2", "--hash", kind).exit_code == 0
    assert read_password_file(file).check("alice", b"hunter2")


def test_a_password_that_is_no_utf_8(file: Path) -> None:
    """Its bytes count, as in a CONNECT; SCRAM takes text alone."""
    assert canopy(file, "alice", "-c", "--stdin", typed=b"p\xe4ss\n").exit_code == 0
    assert canopy(file, "bob", "-b", "p\udce4ss").exit_code == 0
    assert read_password_file(file).check("alice", b"p\xe4ss")
    assert read_password_file(file).check("bob", b"p\xe4ss")
    result = canopy(file.with_name("scram"), "alice", "-c", "--scram", "--stdin", typed=b"p\xe4ss\n")
    assert (result.exit_code, result.output) == (1, "canopy: a password of SCRAM-SHA-256 is text in UTF-8\n")


def test_scram(file: Path) -> None:
    assert canopy(file, "alice", "-c", "-b", "hunter2", "--scram").exit_code == 0
    secret = file.read_text().splitlines()
    assert sum(line.startswith("$secret:") for line in secret) == 1
    credential, known = read_scram_file(file).find("alice")
    assert known
    assert derive("hunter2", credential.salt, credential.iterations) == credential
    assert canopy(file, "alice", "-b", "another", "--scram").output == f"{file}: alice has another password\n"
    assert canopy(file, "alice", "-D").exit_code == 0
    assert canopy(file, "bob", "-b", "hunter2", "--scram").exit_code == 0


@pytest.mark.parametrize(("first", "then"), [((), ("--scram",)), (("--scram",), ())])
def test_kinds_of_files_are_not_mixed(file: Path, first: tuple[str, ...], then: tuple[str, ...]) -> None:
    canopy(file, "alice", "-c", "-b", "hunter2", *first)
    before = file.read_text()
    result = canopy(file, "bob", "-b", "hunter2", *then)
    assert result.exit_code == 1
    assert "--scram, or name another file" in result.output
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "typed", "code", "told"),
    [
        (("alice", "--stdin"), "x\n", 1, "cannot be read: No such file or directory; --create makes it"),
        (("alice", "-c", "--stdin"), "\n", 1, "a password has 1 to 65535 bytes"),
        (("alice", "-c", "--stdin"), "x" * 65_536, 1, "a password has 1 to 65535 bytes"),
        (("a:b", "-c", "--stdin"), "x\n", 1, "a user name has no"),
        (("alice", "-c", "--stdin", "-b", "x"), "", 2, "exclude each other"),
        (("alice", "-c", "--hash", "md5", "-b", "x"), "", 2, "--hash md5: allowed: argon2id, pbkdf2-sha512, sha512"),
        (("alice", "-c"), "", 2, "nobody can be asked for the password here: use --stdin"),
        (("alice", "-c", "--scram", "-b", "\x07"), "", 1, ""),
    ],
)
def test_what_is_refused(file: Path, arguments: tuple[str, ...], typed: str, code: int, told: str) -> None:
    result = canopy(file, *arguments, typed=typed)
    assert result.exit_code == code
    assert told in result.output
    assert not file.exists()


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
def test_mosquitto_passwd_and_this_share_a_file(file: Path) -> None:
    canopy(file, "alice", "-c", "-b", "hunter2", "--hash", "pbkdf2-sha512")
    subprocess.run(["mosquitto_passwd", "-b", file, "bob", "hunter3"], check=True, timeout=30, capture_output=True)
    users = read_password_file(file)
    assert users.check("alice", b"hunter2")
    assert users.check("bob", b"hunter3")


class TestCheckConfig:
    def test_a_password_file_that_cannot_be_used(self, file: Path, tmp_path: Path) -> None:
        file.write_text("alice\n")
        toml = tmp_path / "canopy.toml"
        toml.write_text(f'[[authenticator]]\ntype = "password-file"\npath = "{file}"\n')
        result = CliRunner().invoke(cli.app, ["check-config", str(toml)])
        assert result.exit_code == 2
        assert f'cannot be used: authenticator "password-file": {file}: line 1: not USER:HASH' in result.output

    def test_one_that_can(self, file: Path, tmp_path: Path) -> None:
        canopy(file, "alice", "-c", "-b", "hunter2")
        toml = tmp_path / "canopy.toml"
        toml.write_text(f'[[authenticator]]\ntype = "password-file"\npath = "{file}"\n')
        result = CliRunner().invoke(cli.app, ["check-config", str(toml)])
        assert result.exit_code == 0
        assert f'authenticator[0].path = "{file}"' in result.output
        assert "hunter2" not in result.output

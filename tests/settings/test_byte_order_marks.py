"""A byte order mark, which editors of Windows write before UTF-8, means nothing in a file that the broker reads."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.admin.authentication import _tokens
from canopy_mqtt.command.cli import app
from canopy_mqtt.convert.source import read
from canopy_mqtt.ctl.options import _token
from canopy_mqtt.links.parameters import password
from canopy_mqtt.security.passwords.passwd import set_password
from canopy_mqtt.security.passwords.password_file import read_password_file
from canopy_mqtt.security.rules.acl_file import read_acl_file
from canopy_mqtt.security.scram.key_file import credential_line, read_scram_file
from canopy_mqtt.security.tokens.key_sets import read_key_set, read_public_key, read_secret
from canopy_mqtt.settings import Upstream
from canopy_mqtt.settings.loader import load_settings
from tests.support.runs import for_each

TOKEN = "t" * 40
PUBLIC = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""


def _key_set() -> str:
    return json.dumps({"keys": [{"kty": "oct", "k": base64.urlsafe_b64encode(b"k" * 64).decode().rstrip("=")}]})


FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "settings": ('listen = ["mqtt://127.0.0.1:0"]\n', lambda path: load_settings(path, environ={}).listen),
    "password file": (
        "alice:$7$1$c2FsdHNhbHQ=$" + "A" * 86 + "==\n",
        lambda path: list(read_password_file(path).users),
    ),
    "comment first": (
        "# a: comment\nalice:$7$1$c2FsdHNhbHQ=$" + "A" * 86 + "==\n",
        lambda path: list(read_password_file(path).users),
    ),
    "SCRAM file": (
        credential_line("alice", "pw", 4096, b"s" * 16) + "\n",
        lambda path: read_scram_file(path).find("alice"),
    ),
    "acl_file": ("user alice\ntopic write a/b\n", lambda path: sorted(map(str, read_acl_file(path)._users))),
    "token file": (TOKEN + "\n", _tokens),
    "key set": (_key_set(), lambda path: bool(read_key_set(path))),
    "public key": (PUBLIC, lambda path: bool(read_public_key(path, ["EdDSA"]))),
    "password of a link": (
        "hunter2\n",
        lambda path: password(Upstream(name="up", url="mqtt://a", username="u", password_file=str(path))),
    ),
    "mosquitto.conf": ("listener 1883\n", lambda path: [(each.option, each.value) for each in read(path)]),
}


@for_each("kind", FILES)
@for_each("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_file_means_the_same_with_the_mark(tmp_path: Path, kind: str, ends: str) -> None:
    text, meaning = FILES[kind]
    path = tmp_path / "file"
    path.write_bytes(text.encode())
    plain = meaning(path)
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", ends).encode())
    assert meaning(path) == plain


def test_a_secret_is_the_same_with_the_mark(tmp_path: Path) -> None:
    """A token that was signed with it is taken."""
    path = tmp_path / "secret"
    path.write_bytes(b"\xef\xbb\xbf" + b"s" * 64 + b"\n")
    assert read_secret(path, 64) is not None
    with pytest.raises(Exception, match="the secret has 64 bytes"):
        read_secret(path, 65)


def test_the_token_of_ctl(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"\xef\xbb\xbf" + TOKEN.encode() + b"\n")
    path.chmod(0o600)
    assert _token(path) == TOKEN


def test_an_edited_password_file_loses_the_mark(tmp_path: Path) -> None:
    """The first user stays one."""
    path = tmp_path / "users"
    set_password(path, "alice", "one", "sha512", create=True)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    set_password(path, "bob", "two", "sha512", create=False)
    assert list(read_password_file(path).users) == ["alice", "bob"]
    set_password(path, "alice", "three", "sha512", create=False)
    assert list(read_password_file(path).users) == ["alice", "bob"]
    assert read_password_file(path).users["alice"].check(b"three")


def test_a_password_from_the_input(tmp_path: Path) -> None:
    """`canopy passwd --stdin < file`."""
    path = tmp_path / "users"
    arguments = ["passwd", "--create", "--stdin", "--hash", "sha512", str(path), "alice"]
    assert CliRunner().invoke(app, arguments, input="\ufeffpw\r\n").exit_code == 0
    assert read_password_file(path).users["alice"].check(b"pw")

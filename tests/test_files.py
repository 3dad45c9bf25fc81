"""Files that an operator names, and what is none: nobody waits for it, and it is said in a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.files import read_file

UNDER_TLS = """
[[listener]]
url = "mqtts://127.0.0.1:0"
[listener.tls]
certificate = "{file}"
key = "{file}"
"""

LINK = """
[[upstream]]
name = "cloud"
url = "mqtts://127.0.0.1:1"
publish = ["a"]
"""

NAMES = {
    "rules": '[access]\nacl_file = "{file}"',
    "certificate": UNDER_TLS,
    "passwords": '[[authenticator]]\ntype = "password-file"\npath = "{file}"',
    "keys of SCRAM": '[[authenticator]]\ntype = "scram-sha-256"\npath = "{file}"',
    "shared secret": '[[authenticator]]\ntype = "jwt"\nalgorithms = ["HS256"]\nsecret_file = "{file}"',
    "key set": '[[authenticator]]\ntype = "jwt"\nalgorithms = ["RS256"]\njwks = "{file}"',
    "authority of a service": '[[authenticator]]\ntype = "http"\nurl = "https://127.0.0.1:1/"\nca_file = "{file}"',
    "users of HTTP": '[http]\nlisten = ["http://127.0.0.1:0"]\npassword_file = "{file}"',
    "tokens of HTTP": '[http]\nlisten = ["http://127.0.0.1:0"]\nviewer_token_file = "{file}"',
    "password of a link": LINK + 'username = "u"\npassword_file = "{file}"',
    "authority of a link": LINK + 'ca_file = "{file}"',
}
"""Settings that name a file."""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A named pipe that nobody has open."""
    made = tmp_path / "fifo"
    os.mkfifo(made)
    return made


@pytest.mark.parametrize("text", NAMES.values(), ids=NAMES)
def test_a_fifo_that_settings_name_is_told_of(text: str, fifo: Path, tmp_path: Path) -> None:
    config = tmp_path / "canopy.toml"
    config.write_text(text.format(file=fifo), encoding="utf-8")
    result = CliRunner().invoke(app, ["check-config", str(config)])
    assert "cannot be used: " in result.stdout
    assert f"{fifo}" in result.stdout
    assert "FIFO" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [("check-config",), ("serve", "--config"), ("convert",), ("ctl", "--config"), ("passwd", "--delete")],
    ids=" ".join,
)
def test_a_fifo_that_an_argument_names_is_told_of(arguments: tuple[str, ...], fifo: Path) -> None:
    rest = {"ctl": ["status"], "passwd": ["user"]}.get(arguments[0], [])
    result = CliRunner().invoke(app, [*arguments, str(fifo), *rest])
    assert result.exit_code in (1, 2)
    assert "FIFO" in result.stderr


def test_a_device_is_no_file_but_for_the_null_device() -> None:
    with pytest.raises(OSError, match="it is a device"):
        read_file("/dev/zero")
    assert read_file(os.devnull) == b""


def test_what_the_process_has_open_may_be_a_pipe() -> None:
    """As `--config <(command)` names it."""
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    assert read_file(f"/dev/fd/{reading}") == b"text"
    os.close(reading)

"""How the commands of `canopy` end when something fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.terminal import fail, system_failures


def test_the_command_says_who_speaks_on_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        fail("one\ntwo", 5)
    assert caught.value.exit_code == 5
    assert capsys.readouterr().err == "canopy: one\ncanopy: two\n"


def test_an_option_of_the_group_behind_the_command_hears_where_it_goes() -> None:
    """Some commands have a --user of their own: of the others it is told."""
    done = CliRunner().invoke(app, ["ctl", "status", "--user", "a"], prog_name="canopy")
    assert done.exit_code == 2
    assert "it comes before the command: canopy ctl --user … status" in " ".join(done.stderr.split())


def test_an_option_that_nobody_has_is_no_option() -> None:
    done = CliRunner().invoke(app, ["ctl", "status", "--uri", "x"], prog_name="canopy")
    assert done.exit_code == 2
    assert "No such option" in done.stderr
    assert "comes before" not in done.stderr


def test_a_file_that_the_system_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, system_failures():
        os.stat("n" * 300)
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"canopy: {'n' * 300}: File name too long\n"


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"), system_failures():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    command = [sys.executable, "-P", "-m", "canopy_mqtt", "check-config", "--defaults"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "canopy: output: No space left on device\n")


def in_encoding(encoding: str, *words: str) -> bytes:
    """What Python writes with these arguments where standard streams have this encoding."""
    environ = os.environ | {"PYTHONIOENCODING": encoding}
    return subprocess.run(
        [sys.executable, "-P", *words], stdout=subprocess.PIPE, env=environ, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("latin-1", b"\xfc\\u20ac\n"),
        ("ascii:surrogateescape", b"\\xfc\\u20ac\n"),
        ("utf-8:surrogateescape", "ü€\n".encode()),
    ],
)
def test_what_an_encoding_has_no_character_for_is_escaped(encoding: str, written: bytes) -> None:
    """Names of clients have any character."""
    program = "from canopy_mqtt import terminal; terminal.escape_what_cannot_be_written(); print('\\xfc\\u20ac')"
    assert in_encoding(encoding, "-c", program) == written


def test_each_command_escapes_and_converted_settings_are_utf_8(tmp_path: Path) -> None:
    settings = tmp_path / "€.toml"
    settings.touch()
    checked = in_encoding("latin-1", "-m", "canopy_mqtt", "check-config", str(settings))
    assert checked.endswith(b"\\u20ac.toml: OK\n")
    mosquitto = tmp_path / "mosquitto.conf"
    mosquitto.write_text("listener 1883\nallow_anonymous true\nauto_id_prefix ü€\n", encoding="utf-8")
    converted = in_encoding("latin-1", "-m", "canopy_mqtt", "convert", str(mosquitto))
    assert 'auto_id_prefix = "ü€"'.encode() in converted

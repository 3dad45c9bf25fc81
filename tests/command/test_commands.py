"""How the commands of `canopy` end when something fails."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from broker.command.cli import app
from broker.command.commands import fail


def test_the_command_says_who_speaks_on_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        fail("one\ntwo", 5)
    assert caught.value.exit_code == 5
    assert capsys.readouterr().err == "canopy: one\ncanopy: two\n"


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("ctl status --url http://127.0.0.1:1", "canopy ctl --url … status"),
        ("ctl status --json", "canopy ctl --json … status"),
        ("ctl trace client c --ca ca.pem", "canopy ctl --ca … trace"),
    ],
)
def test_an_option_of_the_group_behind_the_command_hears_where_it_goes(line: str, place: str) -> None:
    done = CliRunner().invoke(app, line.split(), prog_name="canopy")
    assert done.exit_code == 2
    assert f"it comes before the command: {place}" in " ".join(done.stderr.split())


def test_an_option_that_nobody_has_is_no_option() -> None:
    done = CliRunner().invoke(app, ["ctl", "status", "--uri", "x"], prog_name="canopy")
    assert done.exit_code == 2
    assert "No such option" in done.stderr
    assert "comes before" not in done.stderr

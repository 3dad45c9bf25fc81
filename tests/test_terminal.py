"""How the commands of `canopy` end when something fails."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.terminal import fail


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

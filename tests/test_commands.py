"""How the commands of `canopy` end when something fails."""

from __future__ import annotations

import pytest
import typer

from broker.commands import fail


def test_the_command_says_who_speaks_on_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        fail("one\ntwo", 5)
    assert caught.value.exit_code == 5
    assert capsys.readouterr().err == "canopy: one\ncanopy: two\n"

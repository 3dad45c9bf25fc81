"""`canopy` in the search path, as programs of the pages call it: the one that is tested here."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest


def put_command_on_path(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """`folder`: where it is made; the working directory from then on."""
    command = folder / "bin" / "canopy"
    command.parent.mkdir()
    path = shlex.quote(os.pathsep.join(map(os.path.abspath, sys.path)))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec "{sys.executable}" -P -m canopy_mqtt "$@"\n')
    command.chmod(0o755)
    patch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    patch.chdir(folder)

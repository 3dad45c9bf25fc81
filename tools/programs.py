"""How the tools that build packages run other programs, and end when one fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
OWN: Final = ("PYTHONPATH", "UV_PROJECT_ENVIRONMENT", "VIRTUAL_ENV")
"""Variables of this project's own environment, which are not for those that are made here."""


def fail(text: str) -> NoReturn:
    """End with a line for the user, and exit code 1."""
    print(f"canopy: {text}", file=sys.stderr)
    sys.exit(1)


def need(command: str, where: str) -> None:
    """Fail unless a command is on the path; `where`: how to get it."""
    if shutil.which(command) is None:
        fail(f"needs {command}: {where}")


def uv() -> str:
    """Return the command uv: on the path, or where the make targets install it."""
    found = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
    if not Path(found).is_file():
        fail("needs uv: run `make setup` first")
    return found


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it prints; a failure ends this process with the command's errors."""
    inherited = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(command, cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout

"""The scripts of tools/ as modules: they are in no package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]


def load(name: str) -> Any:
    """The script of that name; those beside it can be imported while it is loaded, as mkdocs has it."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))

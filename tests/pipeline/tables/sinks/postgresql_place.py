"""Where the tables of a test are in PostgreSQL."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.support import postgresql

URL: Final = "CANOPY_TESTS_DATABASE"
"""The environment variable with the address of the server, for processes that do not begin one of their own."""


def terms(folder: Path) -> dict[str, Any]:
    """The database, and a schema for the tables of a folder alone."""
    name = f"tables_{sha256(str(folder).encode()).hexdigest()[:16]}"
    return {"database": os.environ.get(URL) or postgresql.shared().url, "namespace": name}


def ask(folder: Path, text: str) -> list[tuple[Any, ...]]:
    """The rows of a statement about the tables of a folder."""
    return postgresql.shared().ask(f"SET search_path = {terms(folder)['namespace']}", then=text)

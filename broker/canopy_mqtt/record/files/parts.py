"""The parts of a record: what each worker of a broker has recorded below one directory, and what one process has.

Owns the names of the parts: `w0`, `w1` and so on, as workers are called. Each part is a recorder's folder with numbers
and gaps of its own; a broker of one process records into the directory itself. Readers take all of them as one record,
of however many workers it was at which time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from canopy_mqtt.record.files.segment import MANIFESTS

PART: Final = re.compile(r"w(?:0|[1-9]\d?)")
"""The name of a worker, of which there are 64 at most."""


def part_names(names: Iterable[str]) -> list[str]:
    """Return those among the names in a directory that are parts of a record, by number."""
    return sorted((name for name in names if PART.fullmatch(name)), key=lambda name: int(name[1:]))


def has_own(names: Iterable[str]) -> bool:
    """Return whether a directory with these names is a recorder's folder itself."""
    return any(name == MANIFESTS or name == ".recorder" or name.startswith("date=") for name in names)


def is_in_part(place: str) -> bool:
    """Return whether a path below a directory belongs to a part of it, and not to the directory's own record."""
    head, slash, _ = place.partition("/")
    return bool(slash) and PART.fullmatch(head) is not None


def parts(root: Path) -> list[Path]:
    """Return the folders of a record: the directory itself if one process has recorded there, and its parts.

    The directory alone if it has no parts, whatever it is.
    """
    try:
        names = [each.name for each in root.iterdir() if each.is_dir() or each.name == ".recorder"]
    except OSError:
        return [root]
    found = [root / name for name in part_names(names)]
    return [*([root] if has_own(names) or not found else []), *found]

"""All manifests of an hour once more, in one file: `_manifests/date=…/hour=….jsonl`, a line for each.

For who reads the record where each file costs a way over a network. Nothing depends on it: a manifest counts where it
is there by itself, and what a bundle lacks is read there. It may break off when the machine stops. Blocks.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.record.files.private import opener
from broker.record.files.segment import MANIFESTS, UNFINISHED

SUFFIX: Final = ".jsonl"


def bundle(root: Path, folder: str) -> None:
    """Write that of an hour, `date=…/hour=…`. One that cannot be written is left out."""
    place = root / MANIFESTS / folder
    path = place.with_name(f"{place.name}{SUFFIX}")
    draft = place.with_name(f".{path.name}{UNFINISHED}")
    with suppress(OSError, ValueError):
        lines = [json.dumps(json.loads(each.read_bytes())) for each in sorted(place.glob("[!.]*.json"))]
        with open(draft, "w", encoding="utf-8", opener=opener) as file:
            file.writelines(f"{line}\n" for line in lines)
        draft.rename(path)

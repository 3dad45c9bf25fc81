"""Bundles all manifests of an hour in one file, a line for each: `_manifests/date=…/hour=….jsonl`.

Bundles help readers for whom each file costs a request over a network. Nothing depends on them: the single manifests
are authoritative, and readers fall back to them. A bundle may be cut off if the machine stops. Blocks.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from canopy_mqtt.record.files.private import opener
from canopy_mqtt.record.files.segment import MANIFESTS, UNFINISHED

SUFFIX: Final = ".jsonl"


def bundle(root: Path, folder: str) -> None:
    """Write the bundle of an hour, `date=…/hour=…`. A bundle that cannot be written is left out."""
    place = root / MANIFESTS / folder
    path = place.with_name(f"{place.name}{SUFFIX}")
    draft = place.with_name(f".{path.name}{UNFINISHED}")
    with suppress(OSError, ValueError):
        lines = [json.dumps(json.loads(each.read_bytes())) for each in sorted(place.glob("[!.]*.json"))]
        with open(draft, "w", encoding="utf-8", opener=opener) as file:
            file.writelines(f"{line}\n" for line in lines)
        draft.rename(path)

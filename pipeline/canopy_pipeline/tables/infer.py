"""The columns of a JSON table, inferred from the first messages and pinned in a file, which holds from then on.

Promises: memory is bounded, whatever clients send: rare fields go first. A field of two types is JSON text; whole
numbers beside others are float64.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from typing import Any, Final

from canopy_mqtt.words import counted
from canopy_pipeline.tables.mapping import RESERVED
from canopy_pipeline.tables.patterns import NAME
from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.confluent import split
from canopy_pipeline.tables.payloads.json_text import JsonReader
from canopy_pipeline.tables.plans import KEPT, Plan

SAMPLE: Final = 10_000
"""Messages of a table that are looked at."""
CANDIDATES: Final = 20_000
"""Fields that are counted at the same time."""
SHARE: Final = 0.01
"""Share of the messages that a field must be in to become a column: a field of a single client becomes none."""
MAX_DEPTH: Final = 4
"""Levels of objects that become columns of their own; deeper ones are JSON text."""
NAMED: Final = 120
"""Characters of a path."""

Path = tuple[str, ...]


class Inferred:
    """The fields and types found in a sample of one table's messages."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.messages = 0
        self.bad = 0
        self._reader = JsonReader(plan.limits)
        self._seen: dict[Path, Counter[str]] = {}

    def take(self, payload: bytes | None) -> bool:
        """Look at a message; return True if more are wanted."""
        if payload is None or len(payload) > self.plan.limits.payload_bytes:
            self.bad += 1
            return self.wanted
        try:
            found = self._reader.read(payload if self.plan.framing == "none" else split(payload)[1])
        except BadPayloadError:
            found = None
        if not isinstance(found, dict):
            self.bad += 1
            return self.wanted
        self.messages += 1
        self._fields(found, ())
        if len(self._seen) > CANDIDATES:
            kept = sorted(self._seen.items(), key=lambda each: -each[1].total())[: CANDIDATES // 2]
            self._seen = dict(kept)
        return self.wanted

    @property
    def wanted(self) -> bool:
        """True while the sample takes more messages."""
        return self.messages + self.bad < SAMPLE

    def _fields(self, found: dict[str, Any], above: Path) -> None:
        for key, each in found.items():
            path = (*above, key)
            if isinstance(each, dict) and each and len(path) < MAX_DEPTH:
                self._fields(each, path)
            elif each is not None and sum(map(len, path)) <= NAMED and key.isprintable():
                self._seen.setdefault(path, Counter())[_type(each)] += 1

    def text(self) -> str | None:
        """Return the text of the file; None if there was nothing to infer from."""
        often = max(1.0, self.messages * SHARE)
        fields = sorted(
            ((path, types) for path, types in self._seen.items() if types.total() >= often),
            key=lambda each: (-each[1].total(), each[0]),
        )
        taken = {*RESERVED, *KEPT, *self.plan.pattern.names}
        lines: list[str] = []
        for path, types in fields:
            if len(lines) == self.plan.limits.columns:
                break
            name = _name(path, taken)
            if name is None:
                continue
            taken.add(name)
            where = json.dumps(list(path), ensure_ascii=False)
            lines.append(f'{name} = {{ path = {where}, type = "{_united(types)}" }}')
        if not lines:
            return None
        said = (
            f"# Columns of the table {self.plan.name}, inferred from {counted(self.messages, 'message')}; "
            f"{self.bad:,} were no JSON objects.\n"
            "# This file is part of the mapping from now on: change it as you like, before tables are written.\n"
            "\n[columns]\n"
        )
        return said + "\n".join(sorted(lines)) + "\n"


def _type(found: Any) -> str:
    if isinstance(found, bool):
        return "boolean"
    if isinstance(found, int):
        return "int64" if -(1 << 63) <= found < 1 << 63 else "float64"
    if isinstance(found, float):
        return "float64"
    if isinstance(found, str):
        return "timestamp" if _is_time(found) else "string"
    return "json"


def _is_time(text: str) -> bool:
    if not 19 <= len(text) <= 35 or text[4] != "-":
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _united(types: Counter[str]) -> str:
    found = set(types)
    if len(found) == 1:
        return found.pop()
    if found == {"int64", "float64"}:
        return "float64"
    return "string" if found == {"string", "timestamp"} else "json"


def _name(path: Path, taken: set[str]) -> str | None:
    """Return a column name for a path; None if none can be made of it."""
    plain = re.sub(r"[^a-z0-9]+", "_", "_".join(path).lower()).strip("_")
    name = plain if plain[:1].isalpha() else f"f_{plain}"
    if name in taken:
        name = f"payload_{name}"
    return name if re.fullmatch(NAME, name) and name not in taken and plain else None

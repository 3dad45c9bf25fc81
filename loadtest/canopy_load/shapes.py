"""Data from a file, of TOML or JSON, as an instance of a dataclass."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


def shaped(value: object, kind: type[T]) -> T:
    """Return data as an instance of a dataclass, with the dataclasses in it. An integer may stand for a float, and a
    bool for neither. Raises ValueError: what is wrong, and where."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value, allow_nan=False), strict=True)
    except ValidationError as error:
        found = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, found['loc']))}: {found['msg']}") from None

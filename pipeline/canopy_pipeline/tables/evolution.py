"""The columns that tables have had, and what a later mapping may make of them.

Owns the rule: what stands in a table keeps its name, its type, and where it comes from: the record, a level of the
topic, or the payload; except that int32 may become int64. New tables and new columns, which are null in older rows, may
come. How a payload becomes a value may change: `path`, `unit`, `required`, `late`, `ahead`, the schema of a payload,
and what a topic filter has where it has no name.

A version is a list of columns, and has the name of the folder that Parquet has for it; Delta and Iceberg change the
table instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import AfterValidator, Field

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.tables.patterns import NAME
from canopy_pipeline.tables.plans import DEAD, DEAD_LETTERS, KEPT, MICROS, TYPES, Plan

WIDER: Final = frozenset({("int32", "int64")})
"""Types, and the ones that they may become."""

RECORD: Final = "of the record"

_ARROW: Final = {str(each): each for each in (*TYPES.values(), *KEPT.values(), MICROS)}
"""Arrow's types by their names."""


def _known(kind: str) -> str:
    if kind not in _ARROW:
        raise ValueError("no type of a column")
    return kind


Version = list[tuple[str, Annotated[str, AfterValidator(_known)], bool, str]]
"""Name, type of Arrow's, whether it may be null, and what it is, of each column: the mapping's type, `level 2 of the
topic`, or `RECORD`. Two that Arrow has as strings may differ in what they are."""


@dataclass(frozen=True)
class Kept:
    """A table, as the commits keep it."""

    event_time: str | None
    versions: Annotated[
        dict[Annotated[str, Field(pattern=rf"^{NAME}(\.v[0-9]+)?$")], Version],
        Field(min_length=1),
    ]
    """By the folder that Parquet has for each, the newest last."""


def described(schema: Any, plan: Plan | None = None) -> Version:
    """Return the columns of a schema, which are those of `plan`, or all of the record."""
    what: dict[str, str] = {}
    if plan is not None:
        levels = zip(plan.pattern.names, plan.pattern.at, strict=True)
        what = {name: f"level {at + 1} of the topic" for name, at in levels}
        what |= {each.name: each.type for each in plan.columns}
    return [(each.name, str(each.type), each.nullable, what.get(each.name, RECORD)) for each in schema]


def schema(version: Version) -> Any:
    """Return the Arrow schema of a version."""
    return pa.schema([pa.field(name, _ARROW[kind], nullable) for name, kind, nullable, _ in version])


def newest(table: Kept) -> tuple[str, Version]:
    """Return the folder and the columns of a table's last version."""
    folder, version = [*table.versions.items()][-1]
    return folder, version


_DEAD: Final = Kept(None, {DEAD_LETTERS: described(DEAD)})


def evolved(before: dict[str, Kept], plans: Sequence[Plan]) -> dict[str, Kept]:
    """Return the tables of an output folder with what a mapping makes of them.

    Raises:
        MisuseError: a table or a column would go, or would mean something else.
    """
    made = dict(before)
    for plan in plans:
        said = before.get(plan.name)
        now = described(plan.arrow, plan)
        if said is None:
            made[plan.name] = Kept(plan.event_time, {plan.name: now})
            continue
        if said.event_time != plan.event_time:
            raise _refused(f"{plan.name}.event_time", said.event_time, plan.event_time)
        if _check(plan.name, newest(said)[1], now):
            made[plan.name] = replace(said, versions={**said.versions, following(plan.name, said.versions): now})
    for name in before.keys() - {plan.name for plan in plans} - {DEAD_LETTERS}:
        raise MisuseError(f"tables.{name} is no longer in the mapping: put it back, or give another --output")
    return {**made, DEAD_LETTERS: before.get(DEAD_LETTERS, _DEAD)}


def _check(table: str, before: Version, now: Version) -> bool:
    """Return True if the columns of a table have changed, which they may in this way."""
    present = {name: (what, nullable) for name, _, nullable, what in now}
    for name, _, nullable, what in before:
        where = f"{table}.columns.{name}"
        if name not in present:
            raise MisuseError(
                f"tables.{where} is no longer in the mapping: put it back (it may be absent from payloads), or give "
                "another --output"
            )
        if present[name] != (what, nullable) and (what, present[name][0]) not in WIDER:
            raise _refused(where, what, present[name][0])
    known = {name: what for name, _, _, what in before}
    for name, _, nullable, _ in now:
        if name not in known and not nullable:
            raise MisuseError(f"tables.{table}: its rows had no {name}; give another --output")
    return known != {name: what for name, (what, _) in present.items()}


def _refused(where: str, before: str | None, now: str | None) -> MisuseError:
    return MisuseError(
        f"tables.{where} was {before or 'not set'} in these tables and is now {now or 'not set'}: give the new column "
        "another name, or give another --output"
    )


def following(table: str, folders: Iterable[str]) -> str:
    """Return the folder of a table's next version, after those in `folders`; no table has a dot in its name."""
    numbers = [int(each.removeprefix(table).removeprefix(".v") or 1) for each in folders]
    return f"{table}.v{max(numbers, default=1) + 1}"

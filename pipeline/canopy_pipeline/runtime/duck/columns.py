"""Column expressions and types as DuckDB's SQL.

A text is a column's name where a function takes a column, and a value everywhere else, as in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

TYPES: Final = {
    "bigint": "BIGINT", "binary": "BLOB", "boolean": "BOOLEAN", "double": "DOUBLE", "int": "INTEGER",
    "long": "BIGINT", "string": "VARCHAR", "timestamp": "TIMESTAMP WITH TIME ZONE", "tinyint": "TINYINT",
    "smallint": "SMALLINT", "float": "FLOAT", "date": "DATE",
}  # fmt: skip


def quoted(name: str) -> str:
    """A name, or one within another (`at.why`), or all of a struct's (`at.*`)."""
    parts = name.split(".")
    return ".".join("*" if part == "*" else '"' + part.replace('"', '""') + '"' for part in parts)


def literal(value: Any) -> str:
    """A Python value.

    Raises:
        TypeError: it is of a kind that no job uses.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        # Spark counts what does not fit 32 bits in 64.
        return str(value) if -(2**31) <= value < 2**31 else f"CAST({value} AS BIGINT)"
    if isinstance(value, float):
        return f"CAST({value!r} AS DOUBLE)"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if hasattr(value, "isoformat"):
        return f"CAST('{value.isoformat()}' AS TIMESTAMP WITH TIME ZONE)"
    raise TypeError(f"no literal of {type(value).__name__}")


def sql_type(wanted: str) -> str:
    """A type that Spark's SQL names.

    Raises:
        KeyError: no job uses it.
    """
    if wanted.startswith("decimal"):
        return wanted.upper()
    outer, _, inner = wanted.partition("<")
    if outer == "array":
        return f"{sql_type(inner[:-1])}[]"
    if outer == "struct":
        fields = (each.partition(":") for each in parts(inner[:-1]))
        return "STRUCT(" + ", ".join(f"{quoted(name)} {sql_type(kind)}" for name, _, kind in fields) + ")"
    return TYPES[wanted]


def columns_of(ddl: str) -> dict[str, str]:
    """The columns of a schema that is written as Spark takes it: DuckDB's types by their names."""
    named = (each.strip().partition(" ") for each in parts(ddl))
    return {name.strip("`"): sql_type(kind) for name, _, kind in named}


def parts(text: str) -> list[str]:
    """Split a list at its commas, except those within brackets."""
    return re.split(r",(?![^<(]*[>)])", text)


def _operator(sign: str, after: bool = False) -> Callable[[Column, Any], Column]:
    """Return the method of an operator; with `after`, of one whose left side is no column."""

    def applied(self: Column, other: Any) -> Column:
        left, right = (value(other), self.sql) if after else (self.sql, value(other))
        return Column(f"({left} {sign} {right})")

    return applied


class Column:
    """An expression, and the name it has as a column of a frame."""

    def __init__(self, sql: str, name: str = "") -> None:
        self.sql = sql
        self._name = name

    @property
    def name(self) -> str:
        return self._name or self.sql

    @property
    def shown(self) -> str:
        """The expression in a list of columns."""
        return self.sql if self.name == "*" else f"{self.sql} AS {quoted_whole(self.name)}"

    def alias(self, name: str) -> Column:
        return Column(self.sql, name)

    def cast(self, wanted: str) -> Column:
        return Column(f"CAST({self.sql} AS {sql_type(wanted)})", self._name)

    def isNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NULL)")

    def isNotNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NOT NULL)")

    def eqNullSafe(self, other: Any) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NOT DISTINCT FROM {value(other)})")

    def isin(self, *values: Any) -> Column:
        chosen = values[0] if len(values) == 1 and isinstance(values[0], list | tuple | set) else values
        if not chosen:
            return Column("FALSE")
        return Column(f"({self.sql} IN ({', '.join(value(each) for each in chosen)}))")

    def startswith(self, other: Any) -> Column:
        return Column(f"starts_with({self.sql}, {value(other)})")

    def endswith(self, other: Any) -> Column:
        return Column(f"suffix({self.sql}, {value(other)})")

    def rlike(self, pattern: str) -> Column:
        return Column(f"regexp_matches({self.sql}, {literal(pattern)})")

    def asc(self) -> Order:
        """Return the rising order, nulls first."""
        return Order(f"{self.sql} ASC NULLS FIRST")

    def desc(self) -> Order:
        """Return the falling order, nulls last."""
        return Order(f"{self.sql} DESC NULLS LAST")

    def __getitem__(self, name: str) -> Column:
        return Column(f"struct_extract({self.sql}, {literal(name)})", name)

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    __eq__ = _operator("=")  # type: ignore[assignment]  # an expression, as in Spark
    __ne__ = _operator("<>")  # type: ignore[assignment]  # an expression, as in Spark
    __hash__ = None  # type: ignore[assignment]  # nor can Spark's be put in a set
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("<", "<=", ">", ">="))
    __and__, __or__ = map(_operator, ("AND", "OR"))
    __add__, __sub__, __mul__, __truediv__ = map(_operator, "+-*/")
    __radd__, __rsub__, __rmul__ = map(partial(_operator, after=True), "+-*")

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __bool__(self) -> bool:
        raise TypeError("a column has no truth of its own: & and | are for columns")


class Case(Column):
    """`when(…).when(…).otherwise(…)`: null if no condition holds."""

    def __init__(self, branches: list[str]) -> None:
        super().__init__(f"CASE {' '.join(branches)} END")
        self._branches = branches

    def when(self, condition: Column, then: Any) -> Case:
        return Case([*self._branches, branch(condition, then)])

    def otherwise(self, then: Any) -> Column:
        return Column(f"CASE {' '.join(self._branches)} ELSE {value(then)} END")


class Order:
    """A column by which rows are put in order."""

    def __init__(self, sql: str) -> None:
        self.sql = sql


def quoted_whole(name: str) -> str:
    """A name that has no parts."""
    return '"' + name.replace('"', '""') + '"'


def column(given: Any) -> Column:
    """A column: by its name, or as it is; any other value as one."""
    if isinstance(given, Column):
        return given
    if isinstance(given, str):
        if given == "*":
            return Column("*", "*")
        return Column(quoted(given), given.rpartition(".")[2])
    return Column(literal(given))


def value(given: Any) -> str:
    return given.sql if isinstance(given, Column) else literal(given)


def branch(condition: Column, then: Any) -> str:
    return f"WHEN {condition.sql} THEN {value(then)}"


def order(given: Any) -> Order:
    return given if isinstance(given, Order) else column(given).asc()


def listed(columns: Iterable[Column]) -> str:
    return ", ".join(each.shown for each in columns)

"""The functions of `pyspark.sql.functions` that the jobs use, as DuckDB's SQL.

A whole number that Spark calls INT or BIGINT is one here: DuckDB's sums are of 128 bits, its floors are doubles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, Final

from canopy_pipeline.runtime.duck.columns import Case, Column, Order, branch, column, literal, quoted_whole, value

if TYPE_CHECKING:
    from canopy_pipeline.runtime.duck.duckdb_session import Frame

_SQL: Final = {
    # Of groups.
    "min": "min",
    "max": "max",
    "max_by": "arg_max",
    "bit_xor": "bit_xor",
    "sum": "sum",
    "count_distinct": "count(DISTINCT {0})",
    "collect_list": "list({0}) FILTER ({0} IS NOT NULL)",
    # Of numbers.
    "floor": "floor",
    "ceil": "ceil",
    "log2": "log2",
    "greatest": "greatest",
    "least": "least",
    # Of texts and bytes.
    "octet_length": "strlen",
    "length": "octet_length",
    "substring": "array_slice({0}, {1}, {1} + {2} - 1)",
    "hex": "hex",
    # Bytes hold these, which are ASCII: others are escaped where bytes are read as text.
    "contains": "contains(CAST({0} AS VARCHAR), CAST({1} AS VARCHAR))",
    "nullif": "nullif",
    "coalesce": "coalesce",
    # Of times.
    "minute": "minute",
    "timestamp_micros": "make_timestamptz",
    "timestamp_seconds": "to_timestamp",
    "unix_micros": "epoch_us",
    "unix_seconds": "(epoch_us({0}) // 1000000)",
    # Of arrays.
    "explode": "unnest",
    "size": "len",
    "sequence": "generate_series",
    "slice": "list_slice({0}, {1}, {1} + {2} - 1)",
    "get": "list_extract({0}, {1} + 1)",
    "element_at": "list_extract({0}, {1})",
    "array_distinct": "list_distinct",
    "array_sort": "list_sort",
    "sort_array": "list_sort",
}
"""The functions that take columns alone: DuckDB's name of each, or its SQL."""
_AROUND: Final = {
    **dict.fromkeys(("sum", "floor", "ceil"), "CAST({} AS BIGINT)"),
    "size": "CAST({} AS INTEGER)",
    "collect_list": "coalesce({}, [])",
}
_DATES: Final = (("yyyy", "%Y"), ("MM", "%m"), ("dd", "%d"), ("HH", "%H"), ("mm", "%M"), ("ss", "%S"))
_numbers = numbers(1)


def __getattr__(name: str) -> Callable[..., Column]:
    sql = _SQL.get(name)
    if sql is None:
        raise AttributeError(name)

    def call(*given: Any) -> Column:
        texts = [column(each).sql for each in given]
        text = sql.format(*texts) if "{" in sql else f"{sql}({', '.join(texts)})"
        return Column(_AROUND.get(name, "{}").replace("{}", text))

    return call


col = column


def lit(given: Any) -> Column:
    return given if isinstance(given, Column) else Column(literal(given))


def expr(text: str) -> Column:
    """Return an expression in Spark's SQL; rewrite names in backquotes, whole division and hexadecimal bytes for
    DuckDB."""
    text = re.sub(r"`(\w+)`", r'"\1"', text)
    text = re.sub(r"X'([0-9A-F]{2})'", r"CAST('\\x\1' AS BLOB)", text)
    return Column(re.sub(r"\bdiv\b", "//", text))


def when(condition: Column, then: Any) -> Case:
    return Case([branch(condition, then)])


def desc(name: Any) -> Order:
    return column(name).desc()


def broadcast(frame: Frame) -> Frame:
    return frame


def count(given: Any) -> Column:
    return Column("count(*)" if isinstance(given, str) and given == "*" else f"count({column(given).sql})")


def call_function(name: str, *given: Any) -> Column:
    """A function that Python has no name for.

    Raises:
        AttributeError: no job uses it.
    """
    if name != "shiftright":
        raise AttributeError(name)
    number, by = (column(each).sql for each in given)
    return Column(f"({number} >> {by})")


def conv(given: Any, base: int, to: int) -> Column:
    """Hexadecimal digits as decimal ones.

    Raises:
        AttributeError: other bases are asked for.
    """
    if (base, to) != (16, 10):
        raise AttributeError(f"conv({base}, {to})")
    return Column(f"CAST(CAST('0x' || {column(given).sql} AS BIGINT) AS VARCHAR)")


def regexp_extract(given: Any, pattern: str, group: int) -> Column:
    return Column(f"regexp_extract({column(given).sql}, {literal(pattern)}, {group})")


def regexp_replace(given: Any, pattern: str, by: Any) -> Column:
    return Column(f"regexp_replace({column(given).sql}, {literal(pattern)}, {value(by)}, 'g')")


def split(given: Any, by: str) -> Column:
    return Column(f"string_split({column(given).sql}, {literal(by)})")


def concat(*given: Any) -> Column:
    return Column(f"({' || '.join(column(each).sql for each in given)})")


def date_trunc(unit: str, given: Any) -> Column:
    return Column(f"date_trunc({literal(unit)}, {column(given).sql})")


def date_format(given: Any, pattern: str) -> Column:
    for spark, ours in _DATES:
        pattern = pattern.replace(spark, ours)
    return Column(f"strftime({column(given).sql}, {literal(pattern)})")


def struct(*given: Any) -> Column:
    parts = [column(each) for each in given]
    return Column(f"struct_pack({', '.join(f'{quoted_whole(each.name)} := {each.sql}' for each in parts)})")


def array(*given: Any) -> Column:
    return Column(f"[{', '.join(column(each).sql for each in given)}]")


def array_contains(given: Any, each: Any) -> Column:
    return Column(f"list_contains({column(given).sql}, {value(each)})")


def array_join(given: Any, by: str) -> Column:
    return Column(f"array_to_string({column(given).sql}, {literal(by)})")


def array_compact(given: Any) -> Column:
    return filter(given, lambda each: each.isNotNull())


def xxhash64(*given: Any) -> Column:
    """A hash of 63 bits, which is DuckDB's own: to be compared with others of the same job alone."""
    return Column(f"CAST(hash({', '.join(column(each).sql for each in given)}) >> 1 AS BIGINT)")


def aggregate(given: Any, start: Column, merge: Callable[[Column, Column], Column]) -> Column:
    number = next(_numbers)
    whole, each = f"whole{number}", f"each{number}"
    merged = merge(Column(whole), Column(each)).sql
    return Column(f"list_reduce({column(given).sql}, lambda {whole}, {each}: {merged}, {start.sql})")


def transform(given: Any, to: Callable[..., Column]) -> Column:
    return Column(f"list_transform({column(given).sql}, {_lambda(to)})")


def filter(given: Any, keep: Callable[..., Column]) -> Column:  # noqa: A001
    return Column(f"list_filter({column(given).sql}, {_lambda(keep)})")


def _lambda(function: Callable[..., Column]) -> str:
    number = next(_numbers)
    each, at = f"each{number}", f"at{number}"
    if function.__code__.co_argcount == 1:
        return f"lambda {each}: {function(Column(each)).sql}"
    # DuckDB counts from 1.
    return f"lambda {each}, {at}: {function(Column(each), Column(f'({at} - 1)')).sql}"

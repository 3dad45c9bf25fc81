"""The functions of `pyspark.sql.functions` that the jobs use, as DuckDB's SQL.

A whole number that Spark calls INT or BIGINT is one here: DuckDB's sums are of 128 bits, its floors are doubles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, Final

from pipeline.runtime.duck.columns import Case, Column, Order, branch, column, literal, quoted_whole, value

if TYPE_CHECKING:
    from pipeline.runtime.duck.frames import Frame

_LONG: Final = "CAST({} AS BIGINT)"
_DATES: Final = (("yyyy", "%Y"), ("MM", "%m"), ("dd", "%d"), ("HH", "%H"), ("mm", "%M"), ("ss", "%S"))
_numbers = numbers(1)


def _call(name: str, *given: Any, around: str = "{}") -> Column:
    return Column(f"{name}({', '.join(column(each).sql for each in given)})", around=around)


def col(name: str) -> Column:
    """A column by its name."""
    return column(name)


def lit(given: Any) -> Column:
    """A value."""
    return given if isinstance(given, Column) else Column(literal(given))


def expr(text: str) -> Column:
    """An expression in Spark's SQL; what DuckDB writes otherwise: whole division, long numbers, hexadecimal bytes."""
    text = re.sub(r"X'([0-9A-F]{2})'", r"CAST('\\x\1' AS BLOB)", text)
    text = re.sub(r"\b(\d+)L\b", r"CAST(\1 AS BIGINT)", text)
    return Column(re.sub(r"\bdiv\b", "//", text))


def when(condition: Column, then: Any) -> Case:
    """A value where a condition holds."""
    return Case([branch(condition, then)])


def desc(name: Any) -> Order:
    """In falling order."""
    return column(name).desc()


def broadcast(frame: Frame) -> Frame:
    """The frame itself: there is nobody to send it to."""
    return frame


# Of groups.


def count(given: Any) -> Column:
    """How many rows there are that have a value."""
    return Column("count(*)") if isinstance(given, str) and given == "*" else _call("count", given)


def count_distinct(given: Any) -> Column:
    """How many different values there are."""
    return Column(f"count(DISTINCT {column(given).sql})")


def sum(given: Any) -> Column:  # noqa: A001
    """The sum of whole numbers."""
    return _call("sum", given, around=_LONG)


def min(given: Any) -> Column:  # noqa: A001
    """The least value."""
    return _call("min", given)


def max(given: Any) -> Column:  # noqa: A001
    """The greatest value."""
    return _call("max", given)


def max_by(given: Any, by: Any) -> Column:
    """The value of the row where another is the greatest."""
    return _call("arg_max", given, by)


def collect_list(given: Any) -> Column:
    """All values, but nulls."""
    each = column(given).sql
    return Column(f"list({each}) FILTER ({each} IS NOT NULL)", around="coalesce({}, [])")


def row_number() -> Column:
    """Which row of its window it is, from 1."""
    return Column("row_number()")


def lead(given: Any) -> Column:
    """The value of the next row of the window."""
    return _call("lead", given)


# Of numbers.


def floor(given: Any) -> Column:
    """The greatest whole number that is not above."""
    return _call("floor", given, around=_LONG)


def ceil(given: Any) -> Column:
    """The least whole number that is not below."""
    return _call("ceil", given, around=_LONG)


def log2(given: Any) -> Column:
    """The logarithm to the base 2."""
    return _call("log2", given)


def greatest(*given: Any) -> Column:
    """The greatest of them, but nulls."""
    return _call("greatest", *given)


def least(*given: Any) -> Column:
    """The least of them, but nulls."""
    return _call("least", *given)


def bin(given: Any) -> Column:  # noqa: A001
    """A whole number as binary digits."""
    return _call("bin", given)


def call_function(name: str, *given: Any) -> Column:
    """A function that Python has no name for.

    Raises:
        AttributeError: no job uses it.
    """
    if name != "shiftright":
        raise AttributeError(name)
    number, by = (column(each).sql for each in given)
    return Column(f"({number} >> {by})")


# Of texts and bytes.


def char_length(given: Any) -> Column:
    """How many characters a text has."""
    return _call("length", given)


def octet_length(given: Any) -> Column:
    """How many bytes a text has as UTF-8."""
    return _call("strlen", given)


def length(given: Any) -> Column:
    """How many bytes there are (of a text: `char_length`)."""
    return _call("octet_length", given)


def substring(given: Any, start: int, size: int) -> Column:
    """Some of the bytes, from 1 on."""
    return Column(f"array_slice({column(given).sql}, {start}, {start + size - 1})")


def hex(given: Any) -> Column:  # noqa: A001
    """Bytes as hexadecimal digits."""
    return _call("hex", given)


def contains(given: Any, part: Any) -> Column:
    """Whether bytes hold these, which are ASCII: others are escaped where bytes are read as text."""
    return Column(f"contains(CAST({column(given).sql} AS VARCHAR), CAST({column(part).sql} AS VARCHAR))")


def conv(given: Any, base: int, to: int) -> Column:
    """Hexadecimal digits as decimal ones.

    Raises:
        AttributeError: other bases are asked for.
    """
    if (base, to) != (16, 10):
        raise AttributeError(f"conv({base}, {to})")
    return Column(f"CAST(CAST('0x' || {column(given).sql} AS BIGINT) AS VARCHAR)")


def nullif(given: Any, other: Any) -> Column:
    """Null where both are the same."""
    return _call("nullif", given, other)


def coalesce(*given: Any) -> Column:
    """The first that is not null."""
    return _call("coalesce", *given)


def regexp_extract(given: Any, pattern: str, group: int) -> Column:
    """A group of what is found; an empty text where nothing is."""
    return Column(f"regexp_extract({column(given).sql}, {literal(pattern)}, {group})")


def regexp_replace(given: Any, pattern: str, by: Any) -> Column:
    """A text with all that is found replaced."""
    return Column(f"regexp_replace({column(given).sql}, {literal(pattern)}, {value(by)}, 'g')")


def split(given: Any, by: str) -> Column:
    """The parts of a text between all of these."""
    return Column(f"string_split({column(given).sql}, {literal(by)})")


def concat(*given: Any) -> Column:
    """Texts, or arrays, one after the other; null where one of them is."""
    return Column(f"({' || '.join(column(each).sql for each in given)})")


# Of times.


def date_trunc(unit: str, given: Any) -> Column:
    """The beginning of the minute, hour or day."""
    return Column(f"date_trunc({literal(unit)}, {column(given).sql})")


def minute(given: Any) -> Column:
    """Which minute of its hour it is."""
    return _call("minute", given)


def date_format(given: Any, pattern: str) -> Column:
    """A time as text."""
    for spark, ours in _DATES:
        pattern = pattern.replace(spark, ours)
    return Column(f"strftime({column(given).sql}, {literal(pattern)})")


def unix_micros(given: Any) -> Column:
    """Microseconds since 1970."""
    return _call("epoch_us", given)


def unix_seconds(given: Any) -> Column:
    """Whole seconds since 1970."""
    return Column(f"(epoch_us({column(given).sql}) // 1000000)")


# Of arrays and structs.


def struct(*given: Any) -> Column:
    """Several values as one."""
    parts = [column(each) for each in given]
    return Column(f"struct_pack({', '.join(f'{quoted_whole(each.name)} := {each.sql}' for each in parts)})")


def array(*given: Any) -> Column:
    """Several values in a row."""
    return Column(f"[{', '.join(column(each).sql for each in given)}]")


def explode(given: Any) -> Column:
    """A row for each element."""
    return _call("unnest", given)


def size(given: Any) -> Column:
    """How many elements there are."""
    return _call("len", given, around="CAST({} AS INTEGER)")


def sequence(first: Any, last: Any) -> Column:
    """All whole numbers from one to another that is not below."""
    return _call("generate_series", first, last)


def slice(given: Any, start: Any, number: Any) -> Column:  # noqa: A001
    """So many elements, from 1 on."""
    first = column(start).sql
    return Column(f"list_slice({column(given).sql}, {first}, {first} + {column(number).sql} - 1)")


def get(given: Any, at: Any) -> Column:
    """An element, counted from 0; null beyond the end."""
    return Column(f"list_extract({column(given).sql}, {column(at).sql} + 1)")


def element_at(given: Any, at: int) -> Column:
    """An element, counted from 1, or from the end."""
    return Column(f"list_extract({column(given).sql}, {at})")


def array_contains(given: Any, each: Any) -> Column:
    """Whether it is among the elements."""
    return Column(f"list_contains({column(given).sql}, {value(each)})")


def array_join(given: Any, by: str) -> Column:
    """All elements as one text."""
    return Column(f"array_to_string({column(given).sql}, {literal(by)})")


def array_compact(given: Any) -> Column:
    """The elements that are not null."""
    return filter(given, lambda each: each.isNotNull())


def array_distinct(given: Any) -> Column:
    """Each element once."""
    return _call("list_distinct", given)


def array_sort(given: Any) -> Column:
    """The elements in rising order."""
    return _call("list_sort", given)


def sort_array(given: Any) -> Column:
    """The elements in rising order."""
    return _call("list_sort", given)


def transform(given: Any, to: Callable[..., Column]) -> Column:
    """What each element becomes."""
    return Column(f"list_transform({column(given).sql}, {_lambda(to)})")


def filter(given: Any, keep: Callable[..., Column]) -> Column:  # noqa: A001
    """The elements for which something holds; it may take where each stands too, from 0 on."""
    return Column(f"list_filter({column(given).sql}, {_lambda(keep)})")


def _lambda(function: Callable[..., Column]) -> str:
    number = next(_numbers)
    each, at = f"each{number}", f"at{number}"
    if function.__code__.co_argcount == 1:
        return f"lambda {each}: {function(Column(each)).sql}"
    # DuckDB counts from 1.
    return f"lambda {each}, {at}: {function(Column(each), Column(f'({at} - 1)')).sql}"

"""The mapping file: which topics become which tables, and how payloads become columns (docs/tables.md).

Promises: a mistake is one line with the file, the key and what to do. Files that a mapping names lie beside it.
"""

from __future__ import annotations

import re
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from canopy_pipeline.command_options import seconds
from canopy_pipeline.errors import MisuseError
from canopy_pipeline.tables.patterns import NAME, pattern
from canopy_pipeline.tables.payloads import avro, protobuf, sparkplug
from canopy_pipeline.tables.payloads.sparkplug_message import payload_class
from canopy_pipeline.tables.plans import DATE, DEAD_LETTERS, EVENT_TIME, ITEM, KEPT, SEQ, TS, Column, Limits, Plan
from canopy_pipeline.tables.registry import Registry

EXTRA: Final = "which Canopy's extra `tables` brings: in a clone run `make setup` or pip install '.[tables]'"
RESERVED: Final = frozenset({SEQ, TS, EVENT_TIME, ITEM, DATE})
TABLES: Final = 100
"""Tables of a mapping: each has a file that is written at the same time as those of the others."""
SCHEMAS: Final = 1_000
"""Schemas of a table that payloads may name."""
FILE_BYTES: Final = 16 << 20
"""Of a file that a mapping names."""

_NAMED: Final = re.compile(NAME)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnModel(_Strict):
    type: Literal["boolean", "int32", "int64", "float64", "string", "binary", "timestamp", "json"]
    path: str | tuple[str, ...] = ()
    required: bool = False
    unit: Literal["s", "ms", "us", "ns"] = "ms"

    def column(self, name: str) -> Column:
        path = tuple(self.path.split(".")) if isinstance(self.path, str) else self.path
        return Column(name, self.type, path or (name,), self.required, self.unit)


class TableModel(_Strict):
    """The keys that tables of all formats have."""

    filter: str
    keep: tuple[Literal["topic", "client_id", "run_id", "qos", "retain", "recv_ns"], ...] = ("topic",)
    event_time: str | None = None
    late: str = "7d"
    ahead: str = "1d"

    fixed: ClassVar[tuple[Column, ...]] = ()

    @field_validator("filter")
    @classmethod
    def _is_filter(cls, text: str) -> str:
        pattern(text)
        return text


class ColumnsModel(TableModel):
    """A table whose columns the mapping may choose."""

    columns: dict[str, ColumnModel] = {}

    @field_validator("columns", mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        # `watts = "float64"` is short for `watts = { type = "float64" }`.
        if not isinstance(given, dict):
            return given
        return {name: {"type": each} if isinstance(each, str) else each for name, each in given.items()}


class TextModel(TableModel):
    format: Literal["text"]
    fixed = (Column("value", "string", ("value",)),)


class NumberModel(TableModel):
    format: Literal["number"]
    fixed = (Column("value", "float64", ("value",)),)


class JsonModel(ColumnsModel):
    format: Literal["json"]
    framing: Literal["none", "confluent"] = "none"


class AvroModel(ColumnsModel):
    format: Literal["avro"]
    schema_file: str | None = Field(None, alias="schema")
    schemas: dict[str, str] = Field({}, max_length=SCHEMAS)
    framing: Literal["none", "single-object", "confluent"] = "none"


class ProtobufModel(ColumnsModel):
    format: Literal["protobuf"]
    descriptor: str
    message: str
    framing: Literal["none", "confluent"] = "none"


class SparkplugModel(TableModel):
    format: Literal["sparkplug"]
    fixed = sparkplug.COLUMNS


class RegistryModel(_Strict):
    """The schema registry that knows the numbers of `framing = "confluent"`."""

    url: str
    user: str = ""
    password_file: str | None = None
    timeout: str = "10s"

    @field_validator("url")
    @classmethod
    def _is_url(cls, text: str) -> str:
        found = urlsplit(text)
        if found.scheme not in ("http", "https") or not found.hostname or found.username or found.query:
            raise ValueError("must be http://HOST:PORT or https://…, and the user stands in registry.user")
        return text


class MappingModel(_Strict):
    limits: Limits = Limits()
    registry: RegistryModel | None = None
    tables: dict[
        str,
        Annotated[
            TextModel | NumberModel | JsonModel | AvroModel | ProtobufModel | SparkplugModel,
            Field(discriminator="format"),
        ],
    ] = Field(min_length=1, max_length=TABLES)


@dataclass(frozen=True)
class Mapping:
    path: Path
    plans: tuple[Plan, ...]


def load(path: str) -> Mapping:
    """Read a mapping and the files that it names.

    Raises:
        MisuseError: something in it is wrong; a line for each mistake.
    """
    file = Path(path)
    model = _parsed(file)
    registry = None if model.registry is None else _registry(file, model)
    plans = (_Loader(file, name, model.limits, registry).plan(table) for name, table in model.tables.items())
    return Mapping(file, tuple(plans))


def _registry(file: Path, model: MappingModel) -> Registry:
    said = model.registry
    assert said is not None
    if not any(getattr(table, "framing", "none") == "confluent" for table in model.tables.values()):
        raise MisuseError(f'{file}: registry: has no effect: no table has framing = "confluent"')
    password = ""
    if said.password_file is not None:
        key = f"{file}: registry.password_file"
        try:
            password = _content(file.parent / said.password_file, key).decode().strip()
        except UnicodeDecodeError as error:
            raise MisuseError(f"{key}: {said.password_file} is no text in UTF-8") from error
    try:
        return Registry(said.url, said.user, password, seconds(said.timeout, "registry.timeout"))
    except MisuseError as error:
        raise MisuseError(f"{file}: {error}") from error


def _parsed(file: Path) -> MappingModel:
    try:
        found = tomllib.loads(_content(file, str(file)).decode())
    except ValueError as error:
        raise MisuseError(f"{file}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise MisuseError(f"{file}: not a mapping: nested too deeply") from error
    try:
        return MappingModel.model_validate(found)
    except ValidationError as error:
        raise MisuseError("\n".join(_line(file, each) for each in error.errors()[:20])) from error


def _content(file: Path, key: str) -> bytes:
    try:
        if file.stat().st_size > FILE_BYTES:
            raise MisuseError(f"{key}: {file} has more than {FILE_BYTES:,} bytes")
        return file.read_bytes().removeprefix(BOM_UTF8)  # which editors of Windows write
    except (OSError, ValueError) as error:
        # Python refuses a NUL in a name itself.
        why = getattr(error, "strerror", None) or str(error)
        raise MisuseError(f"{key}: {file} cannot be read ({why.lower()})") from error


def _line(file: Path, error: Any) -> str:
    """One mistake for people."""
    place = list(error["loc"])
    formats = [each.__name__.removesuffix("Model").lower() for each in _FORMATS]
    # The discriminator is no key of the file.
    if len(place) > 2 and place[0] == "tables" and place[2] in formats:
        chosen: type[BaseModel] = _FORMATS[formats.index(str(place.pop(2)))]
    else:
        sections: dict[object, type[BaseModel]] = {"limits": Limits, "registry": RegistryModel}
        chosen = sections.get(place[0], MappingModel) if place else MappingModel
    if len(place) > 3 and place[-3] == "columns":
        chosen = ColumnModel
    key = ".".join(str(each) for each in place)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        said = "is missing; give it"
    elif kind == "extra_forbidden":
        known = [field.alias or name for name, field in chosen.model_fields.items()]
        near = get_close_matches(str(place[-1]), known, 1)
        said = f"is not known; did you mean {near[0]}?" if near else f"is not known; one of {', '.join(known)}"
    elif kind == "union_tag_not_found":
        said = f"lacks format; one of {', '.join(formats)}"
    elif kind == "union_tag_invalid":
        said = f"format {context.get('tag')!r} is not known; one of {', '.join(formats)}"
    elif kind == "literal_error":
        said = f"{error['input']!r} is not known; one of {context.get('expected')}"
    else:
        said = str(error["msg"]).removeprefix("Value error, ")
    return f"{file}: {key}: {said}"


_FORMATS: Final[Sequence[type[TableModel]]] = (
    TextModel,
    NumberModel,
    JsonModel,
    AvroModel,
    ProtobufModel,
    SparkplugModel,
)


class _Loader:
    def __init__(self, file: Path, name: str, limits: Limits, registry: Registry | None) -> None:
        self.file = file
        self.name = name
        self.limits = limits
        self.registry = registry

    def _wrong(self, key: str, said: str) -> MisuseError:
        return MisuseError(f"{self.file}: tables.{self.name}{key and f'.{key}'}: {said}")

    def _beside(self, key: str, name: str) -> bytes:
        return _content(self.file.parent / name, f"{self.file}: tables.{self.name}.{key}")

    def plan(self, table: Any) -> Plan:
        # The folders of an output that are no tables begin with `_`, and many readers pass over such ones.
        if not _NAMED.fullmatch(self.name) or self.name.startswith("_") or self.name == DEAD_LETTERS:
            raise self._wrong("", "use lower-case letters, digits and _ after a letter for its name, not dead_letters")
        schema, message, framing = b"", "", getattr(table, "framing", "none")
        schemas: tuple[tuple[int, bytes], ...] = ()
        columns = table.fixed or tuple(each.column(name) for name, each in table.columns.items())
        if isinstance(table, JsonModel) and not columns:
            raise self._wrong("columns", "missing; set them (docs/tables.md says how to see the fields of payloads)")
        if isinstance(table, AvroModel):
            schemas = self._schemas(table)
            # A table's schema stays while others come: by default it is the one with the lowest number.
            schema = schemas[0][1] if table.schema_file is None else self._beside("schema", table.schema_file)
            columns = self._described("schema", columns, partial(avro.columns, schema))
        elif isinstance(table, ProtobufModel):
            schema, message = self._beside("descriptor", table.descriptor), table.message
            columns = self._described("message", columns, partial(_protobuf_columns, schema, message, columns))
        elif isinstance(table, SparkplugModel):
            self._described("format", columns, _sparkplug_columns)
        plan = Plan(
            self.name, pattern(table.filter), table.format, columns, tuple(dict.fromkeys(table.keep)), table.event_time,
            self._span("late", table.late), self._span("ahead", table.ahead), schema, schemas, message, framing,
            self.registry if framing == "confluent" else None, self.limits,
        )  # fmt: skip
        self._check(plan)
        return plan

    def _span(self, key: str, text: str) -> int:
        try:
            return round(seconds(text, key) * 1_000_000)
        except MisuseError as error:
            raise self._wrong(key, str(error)) from error

    def _schemas(self, table: AvroModel) -> tuple[tuple[int, bytes], ...]:
        """The schemas that payloads may name, by rising numbers."""
        if table.framing != "confluent":
            if table.schemas:
                raise self._wrong("schemas", 'only with framing = "confluent", whose payloads name their schema')
            if table.schema_file is None:
                raise self._wrong("schema", "is missing; give it")
            return ()
        if self.registry is not None and not table.schemas and table.schema_file is None:
            raise self._wrong("schema", "is missing: the registry has those of payloads; give that of the table")
        if self.registry is None and not table.schemas:
            raise self._wrong(
                "schemas",
                "is missing: payloads name the schema that they were written with; set { NUMBER = FILE } or [registry]",
            )
        found = {}
        for number, file in table.schemas.items():
            key = f"schemas.{number}"
            if not re.fullmatch(r"[0-9]{1,10}", number) or int(number) >= 1 << 32 or int(number) in found:
                raise self._wrong(key, "must be the number of a schema in the registry, each once")
            found[int(number)] = text = self._beside(key, file)
            self._described(key, (), partial(avro.columns, text))
        return tuple(sorted(found.items()))

    def _described(
        self, key: str, given: tuple[Column, ...], described: Callable[[], tuple[Column, ...]]
    ) -> tuple[Column, ...]:
        try:
            found = described()
        except ValueError as error:
            raise self._wrong(key, str(error)) from error
        except ModuleNotFoundError as error:
            raise self._wrong("format", f"needs {error.name}, {EXTRA}") from error
        return given or found

    def _check(self, plan: Plan) -> None:
        """Check the rules that concern several keys."""
        if len(plan.columns) > self.limits.columns:
            raise self._wrong("columns", f"{len(plan.columns)} columns, but limits.columns is {self.limits.columns}")
        named = [*plan.keep, *plan.pattern.names, *(each.name for each in plan.columns)]
        for name in named:
            if not _NAMED.fullmatch(name):
                raise self._wrong(f"columns.{name}", "use lower-case letters, digits and _ for its name; set columns")
            if name in RESERVED:
                raise self._wrong(f"columns.{name}", "every table has a column of this name; use another")
            if named.count(name) > 1:
                raise self._wrong(f"columns.{name}", "a level or another column has this name; use another")
            if name in KEPT and name not in plan.keep:
                raise self._wrong(f"columns.{name}", "the record has a column of this name; use another")
        times = [each.name for each in plan.columns if each.type == "timestamp"]
        if plan.event_time is not None and plan.event_time not in times:
            raise self._wrong("event_time", f"{plan.event_time} is not a column of type timestamp ({', '.join(times)})")


def _sparkplug_columns() -> tuple[Column, ...]:
    # What reads them is there.
    payload_class()
    return sparkplug.COLUMNS


def _protobuf_columns(schema: bytes, message: str, given: tuple[Column, ...]) -> tuple[Column, ...]:
    for column in given:
        protobuf.check(schema, message, column.path)
    return protobuf.columns(schema, message)

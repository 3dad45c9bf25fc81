"""The columns of a table and their types, for either engine."""

from __future__ import annotations

from collections.abc import Iterable


class Schema(dict[str, str]):
    """Types by the names of columns, as Spark's SQL writes them: `bigint`, `array<struct<key:string,value:string>>`."""

    @property
    def ddl(self) -> str:
        """As Spark's readers take it."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.items())

    def only(self, names: Iterable[str]) -> Schema:
        """Some of the columns, each once."""
        return Schema({name: self[name] for name in names})

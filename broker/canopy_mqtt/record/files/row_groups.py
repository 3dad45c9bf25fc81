"""Writes the rows of a record into one Parquet file: for the recorder, and for who merges its segments.

Owns how each column is encoded, and where a row group ends.

Promises: a row group has `ROW_GROUP` rows, or fewer if they have `ROW_GROUP_BYTES` bytes in memory. Only the last one
of a file is smaller than both.
"""

from __future__ import annotations

from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from canopy_mqtt.record.schema import dictionary_columns, number_columns

COMPRESSION_LEVEL: Final = 1
"""The level of zstd: more costs several times the CPU for some percent."""
ROW_GROUP: Final = 131_072
"""Rows that are written at a time."""
ROW_GROUP_BYTES: Final = 33_554_432
"""Bytes in memory at which a smaller number of rows is written."""


class RowGroups:
    def __init__(self, file: Any, schema: Any) -> None:
        """`file`: open for writing, and left open. Raises OSError."""
        self._schema = schema
        self._writer: Any = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=dictionary_columns(),
            column_encoding=dict.fromkeys(number_columns(), "DELTA_BINARY_PACKED"),
            # A flipped bit would else be read as another value.
            write_page_checksum=True,
            write_statistics=["seq", "kind", "ts", "recv_ns", "run_id", "topic", "client_id"],
        )
        self._waiting: list[Any] = []
        self._rows = 0
        self.waiting_bytes = 0
        """Bytes in memory of the rows that are not written yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def add(self, rows: Any) -> None:
        """Add a record batch or a table of the schema. Raises OSError."""
        self._wait(rows.to_batches() if isinstance(rows, pa.Table) else [rows])
        while self._rows >= ROW_GROUP:
            self._write(ROW_GROUP)
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self._write(self._rows)

    def close(self) -> None:
        """Write what waits, and the footer. Raises OSError."""
        if self._rows:
            self._write(self._rows)
        self._writer.close()

    def abandon(self) -> None:
        """Let go of the file, which is not to be used. Raises OSError or ArrowException."""
        self._waiting.clear()
        self._writer.close()

    def _wait(self, batches: list[Any]) -> None:
        self._waiting += batches
        self._rows += sum(batch.num_rows for batch in batches)
        self.waiting_bytes += sum(batch.nbytes for batch in batches)

    def _write(self, count: int) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting = []
        self._rows = self.waiting_bytes = 0
        self._writer.write_table(table.slice(0, count), row_group_size=count)
        if count < table.num_rows:
            self._wait(table.slice(count).to_batches())

"""Tables on an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from canopy_pipeline.runtime.storage import storage
from canopy_pipeline.tables.backfill import Range
from canopy_pipeline.tables.sinks.sink_of import DELTA, PARQUET
from canopy_pipeline.tables.tables_job import TablesOptions, run
from tests.pipeline.tables.fleet import mapping, story
from tests.support.s3 import BUCKET, serving


@pytest.mark.parametrize("format_", [PARQUET, DELTA])
@pytest.mark.long
def test_tables_are_made_from_one_object_store_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    story().write(tmp_path / "record", segments=2)
    file = str(mapping(tmp_path / "maps"))
    with serving() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.fill(
            {
                f"record/{path.relative_to(tmp_path / 'record').as_posix()}": path.read_bytes()
                for path in (tmp_path / "record").rglob("*")
                if path.is_file()
            }
        )
        out = f"s3://{BUCKET}/out"
        outcome = run(f"s3a://{BUCKET}/record", out, file, TablesOptions(format_, batch=13))
        assert outcome.rows == dict.fromkeys(outcome.rows, 3) | {"metrics": 4}
        assert run(f"s3a://{BUCKET}/record", out, file, TablesOptions(format_)).done == outcome.done
        place = storage(None, out)
        assert "power" in place.names("")
        assert not [name for name in place.names("") if name.startswith("_staging")]
        found = [path for path in place.listed(".parquet") if path.startswith("power/")]
        assert len(found) == 2
        if format_ == DELTA:
            table = DeltaTable(f"{out}/power", storage_options={"AWS_ALLOW_HTTP": "true"})
            assert table.to_pyarrow_table().num_rows == 3
            assert {path.removeprefix("power/") for path in found} == {*table.to_pyarrow_dataset().files}
            before = table.to_pyarrow_table().sort_by("seq").to_pylist()
            run(f"s3a://{BUCKET}/record", out, file, TablesOptions(format_, replace=Range(3, 20)))
            table.update_incremental()
            assert table.to_pyarrow_table().sort_by("seq").to_pylist() == before

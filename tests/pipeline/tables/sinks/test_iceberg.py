"""Tables of Iceberg: each batch once, in a catalog of pyiceberg's own configuration."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction
from pyiceberg.utils.config import Config

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.tables.sinks import iceberg
from canopy_pipeline.tables.sinks.sink_of import ICEBERG
from canopy_pipeline.tables.tables_job import TablesOptions, TablesOutcome, run
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import MAPPING, mapping, power, story

OPTIONS = TablesOptions(ICEBERG, batch=13, catalog="plant", namespace="site.west")
SECRET = "hunter2"


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path, **more: str) -> None:
    """A catalog `plant` in a file, by pyiceberg's own environment variables, which it reads when it is imported."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"} | more
    for name, value in told.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PLANT__{name.upper()}", value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())


class StoppedError(BaseException):
    """The end of a process: what the code does not catch."""


@contextmanager
def stopped(monkeypatch: pytest.MonkeyPatch, steps: int) -> Iterator[list[None]]:
    """The process ends before so many steps more: each commit to the catalog is two, it and its answer. Yields those
    that were made."""
    commit, made = SqlCatalog.commit_table, list[None]()

    def step() -> None:
        if len(made) == steps:
            raise StoppedError
        made.append(None)

    def stopping(*arguments: Any) -> Any:
        step()
        done = commit(*arguments)
        step()
        return done

    with monkeypatch.context() as patch, suppress(StoppedError):
        patch.setattr(SqlCatalog, "commit_table", stopping)
        yield made


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    story().write(tmp_path / "record", segments=4)
    mapping(tmp_path / "maps", MAPPING.partition("[tables.temperature]")[0])
    configured(monkeypatch, tmp_path / "lake")
    return tmp_path


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The catalogs of a test, which keep files open, are closed at its end."""
    made: list[Any] = []
    load = pyiceberg.catalog.load_catalog

    def loaded(*arguments: Any, **options: Any) -> Any:
        made.append(load(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", loaded)
    yield
    for each in made:
        each.close()


def tables(plant: Path, out: str = "out", options: TablesOptions = OPTIONS) -> TablesOutcome:
    return run(str(plant / "record"), str(plant / out), str(plant / "maps/tables.toml"), options)


def table(name: str) -> Any:
    return pyiceberg.catalog.load_catalog("plant").load_table(f"site.west.{name}")


def seqs(name: str) -> list[int]:
    return sorted(table(name).scan(selected_fields=("seq",)).to_arrow().column("seq").to_pylist())


def test_a_table_has_the_columns_of_the_mapping_and_its_snapshots_say_which_numbers_they_are(plant: Path) -> None:
    outcome = tables(plant)
    assert outcome.rows == {"power": 3, "notes": 3}
    metered = table("power")
    found = metered.scan().to_arrow().sort_by("seq")
    assert found.column("watts").to_pylist() == [230.5, 231.5, 232.5]
    assert {each.name: str(each.field_type) for each in metered.schema().fields} == {
        "seq": "long", "ts": "timestamptz", "topic": "string", "client_id": "string", "site": "string",
        "device": "string", "event_time": "timestamptz", "measured": "timestamptz", "watts": "double",
        "phase": "int", "date": "date",
    }  # fmt: skip
    assert [each.name for each in metered.spec().fields] == ["date"]
    told = [each.summary for each in metered.snapshots()]
    assert [(each["canopy.from_seq"], each["canopy.to_seq"]) for each in told] == [
        ("1", "7"),
        ("8", "14"),
        ("15", "25"),
    ]
    assert seqs("dead_letters") == [3, 11, 19]


def test_a_commit_that_another_writer_was_quicker_than_is_begun_again(
    plant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, tried = Transaction.commit_transaction, list[bool]()

    def quicker(self: Any) -> Any:
        tried.append(True)
        if len(tried) == 1:
            raise CommitFailedException("somebody else")
        done = commit(self)
        if len(tried) == 2:
            # It is done, and its answer is lost.
            raise CommitFailedException("who knows")
        return done

    monkeypatch.setattr(Transaction, "commit_transaction", quicker)
    tables(plant)
    assert (seqs("power"), seqs("notes")) == ([2, 10, 18], [4, 12, 20])


def test_a_table_that_somebody_always_writes_is_given_up(plant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def never(_: Any) -> Any:
        tried.append(True)
        raise CommitFailedException("somebody else")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit_transaction", never)
        with pytest.raises(PipelineError, match=r"table site\.west.power: CommitFailedException"):
            tables(plant)
    assert len(tried) == iceberg.TRIES
    tables(plant)
    assert seqs("power") == [2, 10, 18]


def test_a_large_batch_is_written_in_parts_of_one_commit(plant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Story()
    for day in (19, 20, 21):
        told.publish("d", "site/a/device/b/power", power(1.0, f"2026-11-{day}T12:00:00Z"))
    shutil.rmtree(plant / "record")
    told.write(plant / "record")
    monkeypatch.setattr(iceberg, "BYTES", 1)
    tables(plant)
    found = table("power")
    assert len(found.snapshots()) == 3
    assert (seqs("power"), found.properties["canopy.batch"]) == ([1, 2, 3], "1")
    # The table as it was created, and one commit.
    assert len(found.metadata.metadata_log) == 1


def test_tables_of_somebody_else_are_left_alone(plant: Path) -> None:
    tables(plant)
    with pytest.raises(MisuseError, match=r"--namespace site\.west: its table power is not of these tables"):
        tables(plant, "other")
    with pytest.raises(MisuseError, match="begun with another namespace"):
        tables(plant, options=TablesOptions(ICEBERG, catalog="plant", namespace="east"))
    assert seqs("power") == [2, 10, 18]


@pytest.mark.parametrize("uri", [f"nonsense://me:{SECRET}@host/db", f"sqlite:////no/such/{SECRET}/catalog.db"])
def test_a_catalog_that_cannot_be_used_is_a_line_without_its_secrets(
    plant: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    configured(monkeypatch, plant / "lake", uri=uri)
    with pytest.raises(PipelineError, match="--catalog plant: ") as told:
        tables(plant)
    assert SECRET not in str(told.value)
    assert told.value.__suppress_context__

"""`--metrics`: what a run was, for node_exporter's textfile collector; and the examples that read exit codes."""

from __future__ import annotations

import configparser
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from canopy_pipeline import job_metrics
from canopy_pipeline.cli import app
from canopy_pipeline.job_metrics import HELP, JobMetrics
from canopy_pipeline.tables.mapping import load
from canopy_pipeline.tables.plans import DEAD
from tests.pipeline.folder import record
from tests.pipeline.tables.fleet import ROOT, mapping, story
from tests.support.runs import for_each

LINE = re.compile(r'([a-z_]+)\{job="[a-z]+"(,[a-z]+="([^"\\\n]|\\[\\"n])*")*\} [0-9.e+-]+')


def read(file: Path) -> dict[str, float]:
    """The samples of a text file, each of which Prometheus takes."""
    found = {}
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            assert LINE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def test_metrics_that_cannot_be_written_are_a_line() -> None:
    words = ["compact", "--input", str(ROOT / "config"), "--dry-run", "--metrics", "9" * 300]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "cannot be written" in done.stderr) == (1, True), done.stderr


def test_a_run_writes_what_it_was(tmp_path: Path) -> None:
    story().write(tmp_path / "record", segments=4)
    mapping(tmp_path / "maps")
    file = tmp_path / "canopy.prom"
    flags = ["--input", str(tmp_path / "record"), "--output", str(tmp_path / "out"), "--metrics", str(file)]
    flags += ["--mapping", str(tmp_path / "maps/tables.toml")]
    done = CliRunner().invoke(app, ["tables", *flags])
    assert (done.exit_code, "power: 3 rows; 3 dead letters (3 wrong-type)" in done.stdout) == (0, True), done.output
    found = read(file)
    assert found['canopy_job_exit_code{job="tables"}'] == 0
    assert found['canopy_job_tables_rows{job="tables",table="power"}'] == 3
    assert found['canopy_job_tables_dead_letters{job="tables",table="power",reason="wrong-type"}'] == 3
    assert found['canopy_job_missing_events{job="tables"}'] == 0
    written = found['canopy_job_written_timestamp_seconds{job="tables"}']
    assert file.stat().st_mode & 0o777 == 0o644
    sorted((tmp_path / "record").rglob("seg-*.parquet"))[0].unlink()
    flags[3] = str(tmp_path / "again")
    assert CliRunner().invoke(app, ["tables", *flags]).exit_code == 3
    found = read(file)
    assert found['canopy_job_exit_code{job="tables"}'] == 3
    assert found['canopy_job_missing_events{job="tables"}'] == 7
    assert found['canopy_job_written_timestamp_seconds{job="tables"}'] > written
    # A failure keeps the time of the last results, and leaves nothing beside the file.
    written = found['canopy_job_written_timestamp_seconds{job="tables"}']
    (tmp_path / "maps/tables.toml").write_text("[tables")
    assert CliRunner().invoke(app, ["tables", *flags]).exit_code == 2
    found = read(file)
    assert found['canopy_job_exit_code{job="tables"}'] == 2
    assert found['canopy_job_written_timestamp_seconds{job="tables"}'] == written
    assert [path.name for path in tmp_path.iterdir() if "prom" in path.name] == ["canopy.prom"]


@pytest.mark.parametrize(
    ("command", "metric"),
    [
        (["compact"], "merged_segments"),
        (["compact", "--erase", "a/#"], "erased_events"),
        (["retention", "--keep", "1d"], "removed_segments"),
        (["rollup", "--engine", "duckdb", "--output", "out"], "events"),
    ],
)
def test_every_job_has_metrics_and_a_dry_run_has_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], metric: str
) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "record")
    command = [*command, "--input", "record", "--metrics", "job.prom"]
    name = f'canopy_job_{metric}{{job="{command[0]}"}}'
    if command[0] != "rollup":
        CliRunner().invoke(app, [*command, "--dry-run"])
        assert read(tmp_path / "job.prom")[name] == 0
    done = CliRunner().invoke(app, command)
    assert done.exit_code in (0, 3), done.output
    assert read(tmp_path / "job.prom")[name] > 0


def test_labels_are_escaped_and_every_metric_has_its_help(tmp_path: Path) -> None:
    metrics = JobMetrics("tables", tmp_path / "a.prom")
    metrics.note("tables_rows", 1, table='a"b\\c\nd')
    metrics.write()
    assert read(tmp_path / "a.prom")['canopy_job_tables_rows{job="tables",table="a\\"b\\\\c\\nd"}'] == 1
    # One that waits for a database has written nothing new.
    before = read(tmp_path / "a.prom")['canopy_job_written_timestamp_seconds{job="tables"}']
    metrics.write(wrote=False)
    found = read(tmp_path / "a.prom")
    assert found['canopy_job_written_timestamp_seconds{job="tables"}'] == before
    assert found['canopy_job_end_timestamp_seconds{job="tables"}'] > before
    metrics.note("unheard_of", 1)
    metrics.write()
    assert "unheard_of" not in (tmp_path / "a.prom").read_text()
    assert all(name.startswith("canopy_job_") for name in HELP)


def test_the_unit_of_systemd_takes_named_holes_for_a_success() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]  # systemd tells capitals apart
    unit.read(ROOT / "config/pipeline/canopy-tables.service")
    assert unit["Service"]["SuccessExitStatus"] == "3"
    command = unit["Service"]["ExecStart"].split()
    assert command[1:3] == ["pipeline", "tables"]
    parsed = CliRunner().invoke(app, [*command[2:], "--help"])
    assert parsed.exit_code == 0


def test_the_sources_of_dbt_are_tables_of_the_sample_mapping() -> None:
    yaml = pytest.importorskip("yaml")
    [source] = yaml.safe_load((ROOT / "config/pipeline/sources.yml").read_text())["sources"]
    schemas = {plan.name: plan.arrow for plan in load(str(ROOT / "config/tables/tables.toml")).plans}
    schemas["dead_letters"] = DEAD
    for table in source["tables"]:
        columns = [each["name"] for each in table["columns"]]
        assert {*columns, source["loaded_at_field"]} <= {*schemas[table["name"]].names}, table["name"]


class FailedError(Exception):
    """Airflow tries again."""


class FailedForGoodError(FailedError):
    """Airflow does not."""


@for_each(
    ("code", "outcome"),
    [(0, "complete"), (3, "missing"), (1, FailedError), (2, FailedForGoodError), (130, FailedError)],
)
def test_the_tasks_of_airflow_read_the_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, outcome: object
) -> None:
    """The file runs; of Airflow there is only what it imports."""

    class Task:
        def __init__(self, called: Callable[[], str]) -> None:
            names.append(called.__name__)

        def __call__(self) -> Task:
            return self

        def __rshift__(self, other: Task) -> Task:
            return other

    names: list[str] = []

    decorators, exceptions = ModuleType("airflow.decorators"), ModuleType("airflow.exceptions")
    vars(decorators).update(dag=lambda **_: lambda made: made, task=Task)
    vars(exceptions).update(AirflowException=FailedError, AirflowFailException=FailedForGoodError)
    for module in (ModuleType("airflow"), decorators, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = runpy.run_path(str(ROOT / "config/pipeline/canopy_dag.py"))
    assert names == ["tables", "compact", "retention"]
    command = tmp_path / "canopy"
    command.write_text(f"#!/bin/sh\necho $* > {tmp_path}/said\nexit {code}\n")
    command.chmod(0o755)
    monkeypatch.setitem(found["run"].__globals__, "CANOPY", str(command))
    if isinstance(outcome, str):
        assert found["run"]("compact", "--older-than", "1h") == outcome
    else:
        with pytest.raises(FailedError) as raised:
            found["run"]("compact", "--older-than", "1h")
        assert raised.type is outcome
    assert (tmp_path / "said").read_text() == "pipeline compact --input /var/lib/canopy/record --older-than 1h\n"


def test_a_job_that_goes_on_writes_after_each_look(tmp_path: Path) -> None:
    file = tmp_path / "a.prom"
    job_metrics.write()
    with job_metrics.measured("tables", str(file)):
        job_metrics.note("tables_through", 5)
        job_metrics.write()
        assert read(file)['canopy_job_tables_through{job="tables"}'] == 5
        # Killed from here on, it leaves no 0 behind.
        assert 'canopy_job_exit_code{job="tables"}' not in read(file)
        job_metrics.note("tables_through", 7)
    assert read(file)['canopy_job_tables_through{job="tables"}'] == 7
    assert read(file)['canopy_job_exit_code{job="tables"}'] == 0
    job_metrics.note("tables_through", 9)
    job_metrics.write()
    assert read(file)['canopy_job_tables_through{job="tables"}'] == 7

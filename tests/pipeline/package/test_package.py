"""What a Spark program imports, and the one file that executors take: nothing of it meets a user's own modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Annotated

import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import canopy_spark
from broker.core.codec import packets
from pipeline.cli import app as pipeline_app
from pipeline.options import configured
from pipeline.package.archive import contents, rewritten, write
from pipeline.runtime.session import SETTINGS
from pipeline.runtime.storage import Local
from tests.pipeline.folder import record
from tests.pipeline.mqtt.conftest import canopy, publish

OURS = re.compile(r"^\s*(from|import) (broker|canopy_delta|canopy_pages|loadtest|pipeline)\b", re.MULTILINE)
POISON = "raise ImportError('a module of the user, which has nothing to do with Canopy')\n"
JOB = """
import sys
import pyspark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
import canopy_spark

canopy_spark.register(spark)
frame = spark.read.format("mqtt").option("url", sys.argv[1]).option("filters", "plant/#").option("idle", "0.5").load()
for row in frame.collect():
    print("row", row.topic, bytes(row.payload).decode(), canopy_spark.__file__)
spark.stop()
"""


def test_the_public_names() -> None:
    assert canopy_spark.__all__ == [
        "IncompleteError",
        "MisuseError",
        "PipelineError",
        "read_record",
        "receive",
        "register",
    ]
    assert all(getattr(canopy_spark, name).__doc__ for name in canopy_spark.__all__)


def test_a_zip_that_cannot_be_made_leaves_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path / "a.zip")
    before = (tmp_path / "a.zip").read_bytes()
    monkeypatch.setattr(Local, "publish", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == before


def test_one_package_is_at_the_top_and_the_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.zip")
    write(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"canopy_spark"}
    assert {"canopy_spark/broker/core/codec/decoder.py", "canopy_spark/broker/words.py"} <= set(names)
    assert not [name for name in names if "/core/routing" in name or "/package/" in name or name.endswith(".so")]


def test_imports_are_written_anew_and_nothing_else() -> None:
    assert rewritten("from pipeline.mqtt import x\n    from broker.core import y\n") == (
        "from canopy_spark.pipeline.mqtt import x\n    from canopy_spark.broker.core import y\n"
    )
    assert (
        rewritten('files("pipeline")\nname = "pipeline.mqtt"\n')
        == 'files("canopy_spark.pipeline")\nname = "pipeline.mqtt"\n'
    )
    for name, text in contents():
        assert "mypy_extensions import mypyc_attr" not in text, name
        assert not OURS.search(text), name


def poisoned(folder: Path) -> Path:
    """Modules of the names that Canopy has, in a folder of the user's; the folder."""
    for name in ("pipeline", "broker", "loadtest", "canopy_pages", "mypy_extensions"):
        (folder / f"{name}.py").write_text(POISON)
    return folder


def test_the_zip_beside_modules_of_the_same_names(tmp_path: Path) -> None:
    write(tmp_path / "canopy_spark.zip")
    (tmp_path / "own").mkdir()
    code = (
        "import canopy_spark, canopy_spark.pipeline.mqtt.link as link, canopy_spark.pipeline.mqtt.rows as rows\n"
        "from canopy_spark.broker.core.codec import encoder, packets\n"
        "print(canopy_spark.__file__, encoder.encode(packets.Connect('c'), packets.V311).hex())\n"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": f"{poisoned(tmp_path / 'own')}{os.pathsep}{tmp_path / 'canopy_spark.zip'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    where, frame = told.stdout.split()
    assert where.startswith(str(tmp_path / "canopy_spark.zip"))
    assert bytes.fromhex(frame)[0] >> 4 == packets.CONNECT


@pytest.mark.long
@pytest.mark.timeout(300)
def test_spark_submit_with_the_zip_alone(tmp_path: Path) -> None:
    write(tmp_path / "canopy_spark.zip")
    (tmp_path / "own").mkdir()
    job = tmp_path / "job.py"
    job.write_text(JOB)
    home = Path(sys.executable).parent
    with canopy() as port:
        publish(port, "plant/a", [b"kept"], retain=True)
        told = subprocess.run(
            [
                str(home / "spark-submit"),
                "--py-files",
                str(tmp_path / "canopy_spark.zip"),
                str(job),
                f"mqtt://127.0.0.1:{port}",
            ],
            env=os.environ
            | {
                "PYTHONPATH": str(poisoned(tmp_path / "own")),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert told.returncode == 0, told.stderr[-3000:]
    row = [line.split() for line in told.stdout.splitlines() if line.startswith("row ")]
    assert [each[1:3] for each in row] == [["plant/a", "kept"]]
    assert "canopy_spark.zip" in row[0][3]


def test_a_record_with_a_hole_is_refused_unless_gaps_are_allowed(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path, hours=1, segments=2)
    assert canopy_spark.read_record(spark, str(tmp_path), columns=["seq"]).count() == 10
    next(tmp_path.rglob("*.parquet")).unlink()
    with pytest.raises(canopy_spark.IncompleteError, match="seg-"):
        canopy_spark.read_record(spark, str(tmp_path))
    assert canopy_spark.read_record(spark, [str(tmp_path)], columns=["seq"], allow_gaps=True).count() == 5


def test_settings_of_spark_on_the_command_line() -> None:
    seen: list[dict[str, str]] = []
    before = dict(SETTINGS.get())

    def job(input: Annotated[str, typer.Option("--input")]) -> None:  # noqa: A002
        seen.append(dict(SETTINGS.get()) | {"input": input})

    app = typer.Typer()
    app.command()(configured(job))
    said = ["--input", "x", "--conf", "spark.a=b=c", "--conf", "spark.d=", "--packages", "g:a:1"]
    assert CliRunner().invoke(app, said).exit_code == 0
    assert seen == [{"spark.a": "b=c", "spark.d": "", "spark.jars.packages": "g:a:1", "input": "x"}]
    assert dict(SETTINGS.get()) == before
    wrong = CliRunner().invoke(app, ["--input", "x", "--conf", "fs.s3a.secret.key:hunter2"])
    assert wrong.exit_code == 2
    assert "KEY=VALUE" in wrong.output
    assert "hunter2" not in wrong.output


def test_every_job_of_spark_takes_them() -> None:
    for name in ("rollup", "tree", "oracle", "loadtest", "plan", "report", "tables"):
        told = CliRunner().invoke(pipeline_app, [name, "--help"], terminal_width=200)
        assert told.exit_code == 0
        for option in ("--conf", "--packages", "--master", "--remote"):
            assert option in told.output, (name, option)

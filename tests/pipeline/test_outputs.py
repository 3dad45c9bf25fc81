"""The folders that a job writes to: this machine's, and the same as one elsewhere is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from canopy_pipeline.errors import MisuseError, PipelineError, in_a_line
from canopy_pipeline.outputs import check
from canopy_pipeline.runtime.storage import storage
from tests.pipeline.folder import elsewhere


@pytest.mark.parametrize("remote", [False, True])
def test_files_are_written_moved_and_removed(tmp_path: Path, remote: bool) -> None:
    place = elsewhere(tmp_path / "out") if remote else storage(None, f"{tmp_path}/out")
    assert place.names("a") == []
    place.remove("a")
    place.write("page.html", b"at the top")
    assert (place.text("page.html"), sorted(tmp_path.iterdir())) == ("at the top", [tmp_path / "out"])
    place.write("a/b", b"old\n")
    place.write("a/b", b"new\n")
    assert place.text("a/b") == "new\n"
    place.write("c/d", b"moved")
    place.move("c/d", "a/b")
    place.move("a/b", "e/f/g")
    assert place.text("e/f/g") == "moved"
    assert [name for name in place.names("a") if not name.startswith(".")] == []
    place.remove("e/f/g")
    place.write("e/x", b"1")
    place.remove("e")
    assert place.names("e") == []
    with pytest.raises(OSError, match="e/none"):
        place.move("e/none", "e/other")


def test_a_path_without_a_scheme_is_this_machine_s(tmp_path: Path) -> None:
    for path in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        assert storage(None, path).at("x") == f"file:{tmp_path}/x"


def test_an_output_in_an_input_is_refused(tmp_path: Path) -> None:
    """Its tables would be read as events, and no job could read that record any more."""
    record = tmp_path / "record"
    record.mkdir()
    for output in (record, record / "out", record / "date=2026-11-21" / "out", f"file:{record}/out"):
        with pytest.raises(MisuseError, match="lies in --input"):
            check([str(tmp_path / "other"), str(record)], str(output))
    for output in ("s3a://plant/record/out", "s3://plant/record", "S3://plant/record/out"):
        with pytest.raises(MisuseError, match="lies in --input"):
            check(["s3a://plant/record/"], output)
    check([str(record), "s3a://plant/record"], str(tmp_path / "record-out"))
    check([str(record)], "s3a://plant/record")
    # Beside the record, and above it: nothing that is written there is read.
    check([str(record)], str(tmp_path))


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere: the system's answer is made up.
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PipelineError, match="cannot be written to"):
        check([], str(tmp_path / "new" / "out"))


def test_a_store_that_spark_has_no_client_for_is_told_with_what_reads_it() -> None:
    error = RuntimeError('o.a.h.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"\n\tat org')
    assert in_a_line(error) == (
        'o.a.h.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3": Spark has no client for it; '
        "of S3 it reads s3a:// with --packages org.apache.hadoop:hadoop-aws:3.4.2, and what a cluster brings"
    )

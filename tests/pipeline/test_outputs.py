"""The folders that a rollup writes to: this machine's, and the same through Hadoop's clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.outputs import Folder, LocalFolder, RemoteFolder, folder


@pytest.mark.parametrize("remote", [False, True])
def test_files_are_written_moved_and_removed(spark: SparkSession, tmp_path: Path, remote: bool) -> None:
    place: Folder = RemoteFolder(spark, f"file://{tmp_path}/out/") if remote else LocalFolder(tmp_path / "out")
    assert (place.names("a"), place.text("a/b")) == ([], None)
    place.remove("a")
    place.write("a/b", "ä\n")
    place.write("a/b", "ö\n")
    assert place.text("a/b") == "ö\n"
    place.write("c/d", "new")
    place.move("c/d", "a/b")
    place.move("a/b", "e/f/g")
    assert place.text("e/f/g") == "new"
    assert [name for name in place.names("a") if not name.startswith(".")] == []
    place.remove("e/f/g")
    place.write("e/x", "1")
    place.remove("e")
    assert place.names("e") == []
    with pytest.raises(OSError, match="e/none"):
        place.move("e/none", "e/other")


def test_a_path_without_a_scheme_is_this_machine_s(spark: SparkSession, tmp_path: Path) -> None:
    for path in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        place = folder(spark, path)
        assert isinstance(place, LocalFolder)
        assert place.path("x") == f"file:{tmp_path}/x"

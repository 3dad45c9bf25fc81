"""`canopy record files`: each event is in one of the files, and they are there."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt.command.cli import app
from canopy_mqtt.record.files import current_files as current
from canopy_mqtt.record.files.folder import RecorderError, segments
from canopy_mqtt.record.files.segment import manifest_path
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.retention import retention_job as retention
from tests.pipeline.folder import NOW, record
from tests.support.runs import for_each

HOUR: Final = timedelta(hours=1)


def files(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["record", "files", *map(str, arguments)], catch_exceptions=False)


def numbers(paths: list[str]) -> list[int]:
    """The numbers of the events in them, as often as they are there."""
    return sorted(
        seq for path in paths for seq in pq.read_table(path, columns=["seq"], partitioning=None)["seq"].to_pylist()
    )


def merge(folder: Path, remove_after: timedelta = timedelta(0)) -> compact.CompactOutcome:
    return compact.run(str(folder), HOUR, 1 << 20, remove_after, now=NOW)


class TestFiles:
    """The command."""

    def test_one_a_line_in_the_order_of_their_numbers(self, tmp_path: Path) -> None:
        written = record(tmp_path)
        assert files(tmp_path).stdout.splitlines() == [str(path) for path in written]

    def test_one_that_has_no_manifest_yet_is_one_of_them(self, tmp_path: Path) -> None:
        written = record(tmp_path)
        manifest_path(tmp_path, written[-1].relative_to(tmp_path).as_posix()).unlink()
        result = files(tmp_path, "--until", "2026-11-21T16:00:01")
        assert result.stdout.splitlines() == [str(written[0]), str(written[-1])]

    def test_a_copy_in_another_hour_is_none_of_them(self, tmp_path: Path) -> None:
        written = record(tmp_path)
        for day in ("2026-11-20", "2026-11-22"):
            copy = tmp_path / f"date={day}/hour=16" / written[1].name
            copy.parent.mkdir(parents=True)
            copy.write_bytes(written[1].read_bytes())
        assert files(tmp_path).stdout.splitlines() == [str(path) for path in written]

    def test_one_that_is_cut_off_is_named(self, tmp_path: Path) -> None:
        written = record(tmp_path)
        written[1].write_bytes(written[1].read_bytes()[:-7])
        result = files(tmp_path)
        assert (result.exit_code, result.stdout.splitlines()) == (1, [str(path) for path in written])
        assert result.stderr == f"canopy: {written[1]}: not as large as its manifest says\n"

    def test_json_has_what_the_manifest_says(self, tmp_path: Path) -> None:
        written = record(tmp_path)
        first, *_ = (json.loads(line) for line in files(tmp_path, "--json").stdout.splitlines())
        assert (first["path"], first["rows"], first["from_seq"], first["to_seq"]) == (str(written[0]), 5, 1, 5)
        assert len(first["sha256"]) == 64

    @for_each(
        ("options", "hours"),
        [
            (["--since", "2026-11-21T17:00"], [1, 2]),
            (["--until", "2026-11-21T17:00"], [0]),
            (["--since", "2026-11-21T17:00", "--until", "2026-11-21T18:00+00:00"], [1]),
            (["--since", "2026-11-22"], []),
        ],
    )
    @for_each("merged", [False, True])
    def test_times_choose_among_them(self, tmp_path: Path, options: list[str], hours: list[int], merged: bool) -> None:
        record(tmp_path)
        if merged:
            merge(tmp_path)
        named = {Path(line).parent.name for line in files(tmp_path, *options).stdout.splitlines()}
        assert named == {f"hour={16 + hour}" for hour in hours}

    @for_each("option", ["--since", "--until"])
    def test_what_is_no_time_is_one_line(self, tmp_path: Path, option: str) -> None:
        result = files(tmp_path, option, "yesterday")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert f"{option} yesterday: must be a time" in result.stderr

    def test_one_that_is_missing_is_named_and_not_printed(self, tmp_path: Path) -> None:
        written = record(tmp_path)
        written[2].unlink()
        result = files(tmp_path)
        assert result.exit_code == 1
        assert result.stdout.splitlines() == [str(path) for path in written if path != written[2]]
        assert result.stderr == f"canopy: {written[2]}: its manifest is there, and it is not\n"

    def test_what_retention_removed_is_not_missing(self, tmp_path: Path) -> None:
        written = record(tmp_path)
        retention.run(str(tmp_path), HOUR * 4, now=NOW)
        result = files(tmp_path)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines() == [str(path) for path in written[8:]]

    @for_each("command", ["files", "stats", "ls"])
    @for_each("newest", [False, True])
    def test_merged_ones_without_any_manifest_are_refused(self, tmp_path: Path, command: str, newest: bool) -> None:
        """Nobody knows which of them count, also where a segment stands beside them."""
        record(tmp_path)
        merge(tmp_path)
        if not newest:
            next(tmp_path.glob("date=*/hour=18/seg-*")).unlink()
        for path in (tmp_path / "_manifests").rglob("*.json"):
            path.unlink()
        result = CliRunner().invoke(app, ["record", command, str(tmp_path)], catch_exceptions=False)
        assert result.exit_code == 1
        assert "no manifest says what they hold; copy _manifests too" in result.stderr

    @for_each("says", [{}, {"replaces": None}], ids=["nothing", "null"])
    def test_a_merged_one_that_does_not_say_what_it_replaces_is_an_error(
        self, tmp_path: Path, says: dict[str, None]
    ) -> None:
        """What it was made of would be counted twice."""
        record(tmp_path)
        merge(tmp_path, HOUR)
        manifest = next((tmp_path / "_manifests").rglob("merged-*.json"))
        about = json.loads(manifest.read_text())
        del about["replaces"]
        manifest.write_text(json.dumps({**about, **says}))
        result = files(tmp_path)
        assert result.exit_code == 1
        assert f"{manifest}: not a manifest of a merged segment" in result.stderr


@for_each("when", ["before", "after"])
def test_each_event_is_in_one_of_them_where_a_merge_falls_into_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The manifests are read, all is merged and what it replaces removed, then the segments are listed; or the other
    way round."""
    before = numbers([str(path) for path in record(tmp_path)])
    meanwhile = [lambda: merge(tmp_path)]

    def listed(root: Path) -> list[str]:
        if when == "before" and meanwhile:
            meanwhile.pop()()
        found = segments(root)
        if meanwhile:
            meanwhile.pop()()
        return found

    monkeypatch.setattr(current, "segments", listed)
    assert numbers([f"{tmp_path}/{place}" for place in current.current_files(tmp_path)]) == before


def test_a_folder_that_never_stands_still_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path)
    merge(tmp_path)
    manifest = next((tmp_path / "_manifests").rglob("merged-*.json"))
    looks: list[int] = []

    def listed(_: Path) -> list[str]:
        looks.append(1)
        (manifest.parent / f"merged-{len(looks):015d}-x.json").write_bytes(manifest.read_bytes())
        return []

    monkeypatch.setattr(current, "segments", listed)
    with pytest.raises(RecorderError, match="merged faster than they can be listed"):
        current.current_files(tmp_path)
    assert len(looks) == current.LOOKS

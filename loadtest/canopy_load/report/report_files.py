"""The report's files, whole or not at all.

Owns: which files there are, their names, and how they come into their folder.

Promises: everything is written into a hidden folder beside its place first and then moved there; an interruption leaves
nothing half written. The JSON is moved last: where it stands, the others do.

No report is replaced: one that finds another in its folder goes into a folder beside it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from canopy_load.errors import LoadError
from canopy_load.report.report_page import page
from canopy_load.report.result import Result


class ReportError(LoadError):
    """A report could not be written."""


SUMMARIES: Final = ("summary.json", "compare.json")
"""A folder that has one of these files holds the report of a run or of a comparison."""


def holds_report(folder: Path) -> bool:
    """Return True if a folder holds the report of a run or of a comparison."""
    return any((folder / name).exists() for name in SUMMARIES)


def unused(folder: Path) -> Path:
    """Return the folder, or if it holds a report, the first of NAME-2, NAME-3 … that holds none."""
    found, number = folder, 1
    while holds_report(found):
        number += 1
        found = folder.parent / f"{folder.name or 'report'}-{number}"
    return found


def spare(folder: Path | None) -> None:
    """Refuse a folder named on the command line that holds a report. Raises ReportError."""
    if folder is not None and holds_report(folder):
        raise ReportError(f"{folder}: holds the report of an earlier run; give another --out")


def check(folder: Path) -> None:
    """Check that a report can be written into a folder, as far as that is known before there is one. Leaves nothing.

    Raises:
        ReportError: the folder cannot be made or written to.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder):
            pass
    except OSError as error:
        raise ReportError(f"{folder}: the report cannot be written ({error.strerror or error})") from error
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()


def write(result: Result, folder: Path) -> Path:
    """Write the whole report of a run; see `put`."""
    summary = json.dumps(result.as_json(), indent=1) + "\n"
    return put(folder, {"scenario.toml": result.scenario_text, "report.html": page(result), "summary.json": summary})


def put(folder: Path, texts: Mapping[str, str]) -> Path:
    """Write files, by name, into a folder, or beside it if it holds a report; make the folder, and return it.

    Raises:
        ReportError: the folder cannot be made or written to, or the disk is full.
    """
    folder = unused(folder)
    write_all(folder, texts, f"{folder}: the report")
    return folder


def write_all(folder: Path, texts: Mapping[str, str], what: str) -> None:
    """Write files, by name, in place of those before, each whole. `what` is written, for people.

    Raises:
        ReportError: the folder cannot be made or written to, or the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as hidden:
            for name, text in texts.items():
                (Path(hidden) / name).write_bytes(text.encode("utf-8", "backslashreplace"))
            for name in texts:
                (Path(hidden) / name).replace(folder / name)
    except OSError as error:
        raise ReportError(f"{what} cannot be written ({error.strerror or error})") from error

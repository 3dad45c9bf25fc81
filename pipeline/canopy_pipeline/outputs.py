"""The output of a job, its tables and small files: any place that `storage` reaches.

Owns: what may be an output, and the small files beside its tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.runtime.storage import Storage, address, local_path

SUMMARY: Final = "summary.json"
PAGE: Final = "index.html"


def begin(place: Storage) -> None:
    """Remove the page and summary of an earlier run. Readers go by the summary, which comes last: a run that breaks off
    leaves none."""
    for name in (SUMMARY, PAGE):
        place.remove(name)


def check_apart(inputs: Sequence[str], output: str) -> None:
    """Refuse a folder that is an input, or lies in one: what is written there would be read as events.

    Raises:
        MisuseError: it does.
    """
    place = local_path(output)
    for path in inputs:
        root = local_path(path)
        if place is not None and root is not None:
            # By the folders themselves: a link, or a mount, gives one a second name.
            own = Path(os.path.realpath(place))
            inside = root.exists() and any(each.exists() and each.samefile(root) for each in (own, *own.parents))
        else:
            inside = place is root and f"{address(output)}/".startswith(f"{address(path)}/")
        if inside:
            raise MisuseError(f"--output {output}: lies in --input {path} and would be read as events; give another")


def check(inputs: Sequence[str], output: str, tables: Iterable[str] = ()) -> None:
    """Refuse a folder that cannot be written to, or that is part of an input.

    `tables`: the folders below it that the job replaces. An input that has such a name there would be lost.

    Raises:
        MisuseError: it is a file, or lies in an input; an input is one of the tables.
        PipelineError: it cannot be written to.
    """
    check_apart(inputs, output)
    for table in tables:
        check_apart(inputs, f"{output.rstrip('/')}/{table}")
    place = local_path(output)
    if place is None:
        return
    # The folder itself is made with its first table.
    there = next(above for above in (place, *place.absolute().parents) if above.exists() or above.is_symlink())
    if not there.is_dir():
        raise MisuseError(f"--output {output}: {there} is no folder; give one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PipelineError(f"--output {output}: {there} cannot be written to; give another, or its permission")


def finish(place: Storage, summary: dict[str, Any], page: str | None = None) -> None:
    """Write page and summary beside the tables, which count from then on. Without a page, remove an old one."""
    if page is None:
        place.remove(PAGE)
    else:
        place.write(PAGE, page.encode())
    place.write(SUMMARY, f"{json.dumps(summary, indent=2, ensure_ascii=False)}\n".encode())

"""`canopy_spark` as one zip that Spark's `--py-files` takes, with all that it needs of this distribution below it.

Owns: which files go in, and their names there. In the zip there is one package at the top, `canopy_spark`; what stands
beside it here (`pipeline`, the pages, the codec) stands inside it there, and imports are written anew. So a user's own
`pipeline.py` hides nothing, and is hidden by nothing.

Promises: the same sources make the same bytes. The codec in it is interpreted: the wheel's compiled one is faster.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from pipeline.runtime.storage import Local

TOP: Final = "canopy_spark"
INSIDE: Final = ("pipeline", "canopy_delta", "canopy_pages", "broker.client", "broker.core.codec")
LEFT_OUT: Final = ("pipeline/package/", "pipeline/submit.py")
MODULES: Final = ("broker/words.py",)
"""Single modules that these import."""
EMPTY: Final = ("broker/__init__.py", "broker/core/__init__.py")
"""Above the codec; what they have here would ask for the whole broker."""
PLAIN: Final = '''"""What mypyc's marks are where nothing is compiled."""


def mypyc_attr(*args, **keywords):
    return lambda marked: marked
'''
WHEN: Final = (2026, 1, 1, 0, 0, 0)

_IMPORT: Final = re.compile(r"^(\s*from )(pipeline|canopy_delta|canopy_pages|broker)(?=[. ])", re.MULTILINE)
_RESOURCES: Final = re.compile(r'(\bfiles\(")(pipeline|canopy_delta|canopy_pages)(?="\))')
_MARKS: Final = re.compile(r"^from mypy_extensions import mypyc_attr$", re.MULTILINE)


def write(target: Path) -> int:
    """Write the zip, whole or not at all, in place of what is there; how many files it has.

    Raises:
        OSError: it cannot be written.
    """
    found = dict(sorted(contents()))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in found.items():
            archive.writestr(zipfile.ZipInfo(f"{TOP}/{name}", WHEN), text, zipfile.ZIP_DEFLATED)
    Local(target.parent).write(target.name, made.getvalue())
    return len(found)


def contents() -> Iterator[tuple[str, str]]:
    """Names below `canopy_spark/`, and texts."""
    for name, text in _texts(files(TOP), ""):
        yield name, rewritten(text)
    for package in INSIDE:
        for name, text in _texts(files(package), package.replace(".", "/") + "/"):
            if not name.startswith(LEFT_OUT):
                yield name, rewritten(text)
    for name in MODULES:
        package, _, file = name.rpartition("/")
        yield name, rewritten((files(package.replace("/", ".")) / file).read_text(encoding="utf-8"))
    for name in EMPTY:
        yield name, ""
    yield "unmarked.py", PLAIN


def rewritten(text: str) -> str:
    """A module's text as it stands in the zip."""
    text = _MARKS.sub(f"from {TOP}.unmarked import mypyc_attr", text)
    return _RESOURCES.sub(rf"\g<1>{TOP}.\g<2>", _IMPORT.sub(rf"\g<1>{TOP}.\g<2>", text))


def _texts(folder: Traversable, above: str) -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            if each.name != "__pycache__":
                yield from _texts(each, f"{above}{each.name}/")
        elif not each.name.endswith((".so", ".pyd", ".pyc")):
            yield above + each.name, each.read_text(encoding="utf-8")

"""Lines of keys in TOML: what `tomllib` reads is found, each on the line on which it stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.settings.toml_lines import lines
from canopy_mqtt.settings.validation import line_of
from tests.support.runs import for_each

CONFIG = Path(__file__).parents[2] / "config"

DOCUMENT = """\
# A comment = 1
a = 1
"b c" = '''
[not.a.table]
x = 2'''
d.e.f = "x" # d.e = 5

[limits] # and more
x = [1,
  2, # one, two ]
  [3, {y = 4, z = [5,
    6]}],
]

[[listener]]
name = "one"
[listener.tls]
key = \"\"\"a "quoted" = \\\"\"\"
" \"\"\"
[[listener]]
name = 'two'
[[listener.rule]]
a = {b = {c = 1}}
[[listener.rule]]
a = 1979-05-27T07:32:00Z
["x.y"."z"]
k = true
"""


def test_each_kind_of_place() -> None:
    found = lines(DOCUMENT)
    assert found == {
        ("a",): 2,
        ("b c",): 3,
        ("d",): 6,
        ("d", "e"): 6,
        ("d", "e", "f"): 6,
        ("limits",): 8,
        ("limits", "x"): 9,
        ("limits", "x", 0): 9,
        ("limits", "x", 1): 10,
        ("limits", "x", 2): 11,
        ("limits", "x", 2, 0): 11,
        ("limits", "x", 2, 1): 11,
        ("limits", "x", 2, 1, "y"): 11,
        ("limits", "x", 2, 1, "z"): 11,
        ("limits", "x", 2, 1, "z", 0): 11,
        ("limits", "x", 2, 1, "z", 1): 12,
        ("listener",): 15,
        ("listener", 0): 15,
        ("listener", 0, "name"): 16,
        ("listener", 0, "tls"): 17,
        ("listener", 0, "tls", "key"): 18,
        ("listener", 1): 20,
        ("listener", 1, "name"): 21,
        ("listener", 1, "rule"): 22,
        ("listener", 1, "rule", 0): 22,
        ("listener", 1, "rule", 0, "a"): 23,
        ("listener", 1, "rule", 0, "a", "b"): 23,
        ("listener", 1, "rule", 0, "a", "b", "c"): 23,
        ("listener", 1, "rule", 1): 24,
        ("listener", 1, "rule", 1, "a"): 25,
        ("x.y",): 26,
        ("x.y", "z"): 26,
        ("x.y", "z", "k"): 27,
    }


def test_what_is_missing_is_told_where_it_would_stand() -> None:
    found = lines(DOCUMENT)
    assert line_of(found, ("listener", 1, "tls", "key")) == 20
    assert line_of(found, ("x",)) is None


def paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """All that has a place in what `tomllib` makes of a document."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from paths(item, (*path, key))


@for_each("file", sorted(CONFIG.rglob("*.toml")), ids=lambda file: file.name)
def test_every_key_of_our_own_files_is_found_on_its_line(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = lines(text)
    there = text.split("\n")
    assert set(paths(tomllib.loads(text))) == set(found)
    for path, line in found.items():
        if isinstance(path[-1], str):
            assert path[-1] in there[line - 1]


PIECES = (
    "[a]\n", "[[b]]\n", "[b.c]\n", "k", "j.i", ' "q r"', "=", " = ", "1", "'x'", '"""', "'''", '"', "\\", "\n", "#",
    "[", "]", "{", "}", ", ", "x = 1\n", "true", "y = [1,\n{z = 2}]\n", "\r\n", "s = '''\n'''\n",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_whatever_tomllib_reads_is_found(text: str) -> None:
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(lines(text)) == set(paths(read))

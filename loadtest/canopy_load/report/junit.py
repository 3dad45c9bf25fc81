"""A test suite as JUnit XML.

Owns: `JUnitCase`, and ``suite``. Promises: whatever text it gets, the result is XML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from xml.etree import ElementTree

_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JUnitCase(NamedTuple):
    """A case. `outcome`: "failure", "error" or "skipped"; empty: it passed."""

    name: str
    outcome: str = ""
    message: str = ""
    kind: str = ""
    text: str = ""


def suite(
    name: str, class_name: str, seconds: float, about: Mapping[str, str], cases: Sequence[JUnitCase], **more: str
) -> str:
    """Return a suite of cases. `about`: its properties; `more`: further attributes."""
    outcomes = [each.outcome for each in cases]
    made = ElementTree.Element(
        "testsuite",
        name=_text(name),
        tests=str(len(cases)),
        failures=str(outcomes.count("failure")),
        errors=str(outcomes.count("error")),
        skipped=str(outcomes.count("skipped")),
        time=f"{seconds:.3f}",
    )
    made.attrib.update({key: _text(value) for key, value in more.items()})
    properties = ElementTree.SubElement(made, "properties")
    for key, value in about.items():
        ElementTree.SubElement(properties, "property", name=_text(key), value=_text(value))
    for each in cases:
        case = ElementTree.SubElement(made, "testcase", classname=_text(class_name), name=_text(each.name), time="0")
        if each.outcome:
            told = {"message": _text(each.message), "type": each.kind} if each.message else {}
            ElementTree.SubElement(case, each.outcome, told).text = _text(each.text) or None
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(made, encoding="unicode") + "\n"


def _text(text: str) -> str:
    """XML has no way to write some characters, escaped or not."""
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)

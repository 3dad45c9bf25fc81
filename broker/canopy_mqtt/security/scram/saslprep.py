"""SASLprep (RFC 4013) prepares user names and passwords for SCRAM."""

from __future__ import annotations

import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    # A stored string must not hold code points that Unicode may give a meaning later (RFC 3454, section 7).
    stringprep.in_table_a1,
)


def saslprep(text: str) -> str:
    """Return the prepared form of a user name or password.

    Raises:
        ValueError: it contains characters that RFC 4013 prohibits; the error does not repeat it.
    """
    if text.isascii():
        # No mapping and no normalisation changes it.
        if not text.isprintable():
            raise ValueError("a control character")
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(prohibited(char) for char in prepared for prohibited in _PROHIBITED):
        raise ValueError("a character that RFC 4013 prohibits")
    if any(stringprep.in_table_d1(char) for char in prepared):
        # Right-to-left text (RFC 3454, section 6).
        ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if not ends or any(stringprep.in_table_d2(char) for char in prepared):
            raise ValueError("right-to-left and left-to-right text are mixed")
    return prepared

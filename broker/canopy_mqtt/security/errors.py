"""The text of the files that the security room reads, and the error of them all."""

from __future__ import annotations

from pathlib import Path

from canopy_mqtt.files import read_file


class SecurityError(Exception):
    """A file or value cannot be used. The text is one line with file, line and remedy, and repeats no secret. Nothing
    has changed.
    """


def read_text(path: Path) -> str:
    """Return the text of a file, without a byte order mark. Raises SecurityError."""
    try:
        return read_file(path).decode("utf-8-sig")
    except OSError as error:
        raise SecurityError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SecurityError(f"{path}: not UTF-8 text (byte {error.start})") from None

"""Reads the lines of a mosquitto.conf, with those of included folders at their place."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from canopy_mqtt.files import open_file

MAX_FILE: Final = 16_777_216
"""Bytes of a file: a longer one is not a configuration."""

PEM: Final = b"-----BEGIN "
"""The beginning of a private key, whose lines would be repeated as unknown options."""

SECRETS: Final = frozenset({"password", "remote_password", "local_password", "bridge_psk", "tls_engine_kpass_sha1"})
"""Options whose values are not repeated in comments."""


class ConvertError(Exception):
    """The reason in one line why a file cannot be read."""


class Line(NamedTuple):
    """One option in a file."""

    file: str
    number: int
    option: str
    value: str
    scope: int = 0
    """The number of its file: a `listener` or `connection` applies to the lines below it in its own file."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    def __str__(self) -> str:
        secret = self.option in SECRETS or "password" in self.option.removesuffix("password_file")
        shown = f"{self.place}: {self.option} {'***' if secret and self.value else self.value}".rstrip()
        return "".join(char if char.isprintable() else "?" for char in shown)


def read(path: Path) -> list[Line]:
    """Read the options of a file in the order in which mosquitto takes them.

    Raises:
        ConvertError: it, or a file of a folder that it includes, cannot be read.
    """
    lines: list[Line] = []
    files = 0
    names = {path.name}
    for line in _lines(path, path.name, 0):
        if line.option == "include_dir" and line.value:
            for included in _included(path, Path(line.value)):
                files += 1
                name = str(Path(included.parent.name, included.name))
                # Of two files of one name the second has its whole path: a place is one line.
                name = str(included) if name in names else name
                names.add(name)
                lines += _lines(included, name, files)
        else:
            lines.append(line)
    return lines


def _lines(path: Path, name: str, scope: int) -> list[Line]:
    try:
        with open_file(path) as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE:
        raise ConvertError(f"{path}: more than {MAX_FILE} bytes; this is no mosquitto.conf")
    if content.startswith(PEM):
        raise ConvertError(f"{path}: a key or certificate (PEM); this is no mosquitto.conf")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path}: not UTF-8 text (byte {error.start})") from None
    found: list[Line] = []
    for number, each in enumerate(text.split("\n"), start=1):
        # A comment begins with the very first character, as in mosquitto.
        option, _, value = each.strip().partition(" ")
        if option and not each.startswith("#"):
            found.append(Line(name, number, option, value.strip(), scope))
    return found


def _included(path: Path, folder: Path) -> list[Path]:
    """Return the files of an included folder, in mosquitto's order: by byte, upper case first. `folder` is relative to
    the file.
    """
    if not folder.is_absolute():
        folder = path.parent / folder
    try:
        files = [each for each in folder.iterdir() if each.name.endswith(".conf") and not each.samefile(path)]
    except OSError as error:
        raise ConvertError(f"{folder}: cannot be read: {error.strerror or error}") from None
    return sorted(files, key=lambda each: (each.name.lower(), each.name))

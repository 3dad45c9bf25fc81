"""`canopy init`: writes initial settings for a use, and prints the next commands.

The settings are the files of `config/`, which stand beside the models where Canopy is installed. Files that they name
in /etc/canopy are replaced by ones beside the written settings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from canopy_mqtt.settings.loader import FOLDERS

ETC: Final = "/etc/canopy"

MADE_FOR_TRYING: Final = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost "
    "-addext subjectAltName=DNS:localhost -keyout {folder}/server.key -out {folder}/server.pem"
)


class InitError(Exception):
    """The reason in one line why no settings were written."""


class Use(NamedTuple):
    """A use of a broker."""

    file: str
    about: str
    first: tuple[str, ...]
    """Commands that make the files in the settings; {folder} is their folder, quoted for a shell."""
    last: tuple[str, ...] = ()
    """Commands for the running broker."""


USES: Final = {
    "dev": Use(
        "dev.toml",
        "a developer's machine: web page, WebSocket and a detailed log, for this machine only",
        (),
        ("canopy ctl status", "mosquitto_sub -h 127.0.0.1 -t 'demo/#' -v"),
    ),
    "edge": Use(
        "edge.toml",
        "a small machine in a local network, linked to a broker in the cloud",
        ("install -m 600 /dev/null {folder}/cloud.password   # and write the password of the link into it",),
        ("canopy ctl upstream   # needs [http] in the settings",),
    ),
    "public": Use(
        "secure.toml",
        "a broker on the internet: TLS, users with passwords, rules",
        (
            MADE_FOR_TRYING + "   # for a test; then use your own",
            "canopy passwd --create {folder}/passwd admin",
        ),
        ("mosquitto_sub -h localhost -p 8883 --cafile {folder}/server.pem -u admin -P PASSWORD -t '#' -v",),
    ),
    "recorder": Use(
        "recorder.toml",
        "all traffic is recorded as Parquet files, for analysis",
        ("pip install '.[record]'   # in a clone of Canopy, if pyarrow is missing",),
        ("canopy record ls canopy-record",),
    ),
}


def settings_for(use: str, output: Path | None = None) -> str:
    """Return the text of the settings; `output`: the file that it is for.

    Raises:
        InitError: the installation lacks it.
    """
    name = USES[use].file
    found = next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)
    if found is None:
        raise InitError(f"{FOLDERS[0] / name}: missing; install Canopy again")
    text = found.read_text(encoding="utf-8")
    if output is None:
        return text
    # As it stands between the quotes of a TOML string.
    folder = json.dumps(str(output.resolve().parent), ensure_ascii=False)[1:-1]
    return text.replace(f"config/{name}", str(output)).replace(f"{ETC}/", f"{folder}/")


def write(use: str, output: Path) -> None:
    """Write the settings to a new file.

    Raises:
        InitError: it exists already, or cannot be created.
    """
    text = settings_for(use, output)
    try:
        with output.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise InitError(f"{output}: exists already, and was not changed") from None
    except OSError as error:
        raise InitError(f"{output}: cannot be written: {error.strerror or error}") from None


def next_commands(use: str, output: Path) -> list[str]:
    there = USES[use]
    folder = shlex.quote(str(output.resolve().parent))
    file = shlex.quote(str(output))
    fill: Callable[[str], str] = lambda command: command.replace("{folder}", folder)  # noqa: E731
    return [
        *map(fill, there.first),
        f"canopy check-config {file}",
        f"canopy serve --config {file}",
        *map(fill, there.last),
    ]

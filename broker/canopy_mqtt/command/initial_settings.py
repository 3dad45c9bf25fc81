"""`canopy init`: writes initial settings for a use, and prints the next commands.

The settings are the files of `config/`, which stand beside the models where Canopy is installed. Files that they name
in /etc/canopy are replaced by ones beside the written settings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from canopy_mqtt.settings.loader import FOLDERS

ETC: Final = "/etc/canopy"

MADE_FOR_TRYING: Final = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost "
    "-addext subjectAltName=DNS:localhost -keyout {folder}/server.key -out {folder}/server.pem"
)


AUTHORITY_FOR_TRYING: Final = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=plant "
    "-keyout {folder}/cluster-ca.key -out {folder}/cluster-ca.pem"
)

NODE_FOR_TRYING: Final = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=NODE "
    "-addext basicConstraints=CA:FALSE -CA {folder}/cluster-ca.pem -CAkey {folder}/cluster-ca.key "
    "-keyout {folder}/node-NODE.key -out {folder}/node-NODE.pem"
)

NODES: Final = ("a", "b", "c")


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
    nodes: tuple[str, ...] = ()
    """Names of nodes that have a file each; the shipped one is that of the first."""


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
        ("mosquitto_sub -h 127.0.0.1 -t '$SYS/broker/upstream/cloud/#' -v   # how the link is",),
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
    "cluster": Use(
        "cluster.toml",
        "three brokers that exchange messages, on this machine at first",
        (AUTHORITY_FOR_TRYING, *(NODE_FOR_TRYING.replace("NODE", node) for node in NODES)),
        (
            "canopy ctl upstream   # $node/b and $node/c",
            "mosquitto_sub -h 127.0.0.1 -p 1885 -t '#' -v   # at b",
            "mosquitto_pub -h 127.0.0.1 -p 1884 -t hello -m there   # at a",
        ),
        NODES,
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


def files(use: str, output: Path) -> dict[Path, str]:
    """Return the files to write with their settings: one, or one for each node, with its name behind that of `output`.

    Raises:
        InitError: the installation lacks them.
    """
    text = settings_for(use, output)
    nodes = USES[use].nodes
    if not nodes:
        return {output: text}
    first = nodes[0]
    found = {}
    for number, node in enumerate(nodes):
        # Its own address is the one of its name in the list of all.
        own, rest = text.replace(":1884", f":{1884 + number}").replace(":8080", f":{8080 + number}").split("nodes = [")
        own = own.replace(":8884", f":{8884 + number}").replace(f'node = "{first}"', f'node = "{node}"')
        settings = f"{own}nodes = [{rest}".replace(f"node {first} of", f"node {node} of")
        for name in ("canopy-store-", "node-"):
            settings = settings.replace(f"{name}{first}", f"{name}{node}")
        found[output.with_stem(f"{output.stem}-{node}")] = settings
    return found


def write(use: str, output: Path) -> list[Path]:
    """Write the settings to a new file, or to one for each node. Return them.

    Raises:
        InitError: one of them exists already, and so none was written; or one cannot be created.
    """
    wanted = files(use, output)
    for file in wanted:
        if file.exists():
            raise InitError(f"{file}: exists already, and was not changed")
    for file, text in wanted.items():
        try:
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise InitError(f"{file}: exists already, and was not changed") from None
        except OSError as error:
            raise InitError(f"{file}: cannot be written: {error.strerror or error}") from None
    return list(wanted)


def next_commands(use: str, output: Path, written: Sequence[Path]) -> list[str]:
    """Return the commands that make what the settings name, check them, serve them and try them."""
    there = USES[use]
    folder = shlex.quote(str(output.resolve().parent))
    names = [shlex.quote(str(file)) for file in written]
    fill: Callable[[str], str] = lambda command: command.replace("{folder}", folder)  # noqa: E731
    return [
        *map(fill, there.first),
        *(f"canopy check-config {file}" for file in names),
        *(f"canopy serve --config {file}" + "   # in a terminal of its own" * bool(there.nodes) for file in names),
        *map(fill, there.last),
    ]

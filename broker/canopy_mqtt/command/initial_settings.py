"""`canopy init`: writes initial settings for a use, and prints the next commands.

The settings are the files of `config/`, which stand beside the models where Canopy is installed. Files that they name
in /etc/canopy are replaced by ones beside the written settings.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from canopy_mqtt.command import compose_file
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

STORE_OF_A_NODE: Final = re.compile(r'^path = "canopy-store-.*$', re.MULTILINE)
"""The line of a node's own store, which a database of all nodes replaces."""

IN_CONTAINERS: Final = {
    r"^# This file has only(.|\n)*?\n\n": "# This file has only what differs from the defaults. "
    "The compose file beside it starts this node.\n\n",
    # The rest of the line says why another port than 1883 was chosen.
    r'^listen = \["mqtt://.*$': f'listen = ["mqtt://0.0.0.0:{compose_file.MQTT}"]',
    r'^listen = \["http://[^"]*"\]': 'listen = ["http://127.0.0.1:8080"]',
    r'^listen = "mqtts://[^"]*"': f'listen = "mqtts://0.0.0.0:{compose_file.NODES}"  ',
    r'name = "(\w+)", address = "[^"]*"': rf'name = "\1", address = "mqtts://canopy-\1:{compose_file.NODES}"',
}
"""Lines of the settings of a node, as patterns, and what they are in a container."""

HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts of a database on this machine."""

POSTGRESQL: Final = "postgres:17"
"""The image of a database to try."""


EXISTS: Final = "{file}: exists already, and was not changed; another: --output FILE"


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
        ("echo PASSWORD | install -m 600 /dev/stdin {folder}/cloud.password   # the link's, in the cloud",),
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


def settings_for(use: str, output: Path | None = None, database: str = "") -> str:
    """Return the text of the settings; `output`: the file that it is for; `database`: the URL of the nodes' database.

    Raises:
        InitError: the installation lacks it, or the use has no database.
    """
    if database:
        if not USES[use].nodes:
            raise InitError("--database is for a cluster: canopy init cluster --database URL")
        if urlsplit(database).scheme not in ("postgresql", "postgres"):
            raise InitError("--database: not the URL of a PostgreSQL database: postgresql://USER@HOST/NAME")
    name = USES[use].file
    found = next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)
    if found is None:
        raise InitError(f"{FOLDERS[0] / name}: missing; install Canopy again")
    text = found.read_text(encoding="utf-8")
    if output is None:
        return _with_database(text, database)
    # As it stands between the quotes of a TOML string.
    folder = json.dumps(str(output.resolve().parent), ensure_ascii=False)[1:-1]
    return _with_database(text.replace(f"config/{name}", str(output)).replace(f"{ETC}/", f"{folder}/"), database)


def _with_database(text: str, url: str) -> str:
    """Return the settings of a node with the database of all nodes in place of a store of its own."""
    if not url:
        return text
    line = f"url = {json.dumps(url, ensure_ascii=False)}   # the same database for all nodes"
    return STORE_OF_A_NODE.sub(lambda _: line, text)


def files(use: str, output: Path, database: str = "", compose: bool = False) -> dict[Path, str]:
    """Return the files to write with their settings: one, or one for each node, with its name behind that of `output`.
    `compose`: nodes in containers, with a compose file, a database, and its password.

    Raises:
        InitError: see `settings_for`; `compose` with another use, or with another database.
    """
    if compose:
        if not USES[use].nodes or database:
            raise InitError("--compose is for a cluster, with a database of its own: canopy init cluster --compose")
        return _in_containers(use, output.resolve())
    settings_for(use, output, database)
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
        # Last: nothing in the URL is a name of the node's.
        found[output.with_stem(f"{output.stem}-{node}")] = _with_database(settings, database)
    return found


def _in_containers(use: str, output: Path) -> dict[Path, str]:
    """Return the files of nodes that run in containers, and reach each other by the names of these."""
    nodes = USES[use].nodes
    found = {}
    for file, settings in files(use, output, compose_file.url(output.parent)).items():
        text = settings
        for pattern, line in IN_CONTAINERS.items():
            text = re.sub(pattern, line, text, flags=re.MULTILINE)
        found[file] = text
    composed = output.with_name(f"{output.stem}-compose.yaml")
    found[composed] = compose_file.text(composed, [*found], nodes, POSTGRESQL)
    return found | compose_file.password_files(output.parent)


def write(use: str, output: Path, database: str = "", compose: bool = False) -> list[Path]:
    """Write the settings to a new file, or to one for each node. Return them. Only the user may read those with a
    database: its password may be there.

    Raises:
        InitError: one of them exists already, and so none was written; or one cannot be created.
    """
    wanted = files(use, output, database, compose)
    for file in wanted:
        if file.exists():
            raise InitError(EXISTS.format(file=file))
    for file, text in wanted.items():
        try:
            # The mode comes before the content: another user who has it open once may read it for ever.
            mode = 0o600 if database or compose else 0o644
            with open(
                os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w", encoding="utf-8"
            ) as opened:
                opened.write(text)
        except FileExistsError:
            raise InitError(EXISTS.format(file=file)) from None
        except OSError as error:
            # A half of it would be in the way of the next attempt.
            with suppress(OSError):
                file.unlink()
            raise InitError(f"{file}: cannot be written: {error.strerror or error}") from None
    return list(wanted)


def next_commands(
    use: str, output: Path, written: Sequence[Path], database: str = "", compose: bool = False
) -> list[str]:
    """Return the commands that make what the settings name, check them, serve them and try them."""
    there = USES[use]
    folder = shlex.quote(str(output.resolve().parent))
    names = [shlex.quote(str(file)) for file in written]
    fill: Callable[[str], str] = lambda command: command.replace("{folder}", folder)  # noqa: E731
    if compose:
        composed = next(name for name in names if ".yaml" in name)
        return [
            *map(fill, there.first),
            *(f"canopy check-config {name}" for name in names if ".toml" in name),
            "docker build --tag canopy --build-arg EXTRAS=postgresql .   # in a clone of Canopy",
            f"docker compose --file {composed} up --detach",
            f"docker compose --file {composed} exec canopy-{there.nodes[0]} canopy ctl cluster",
            *(each for each in there.last if each.startswith("mosquitto_")),
        ]
    return [
        *_database_for_trying(database),
        *map(fill, there.first),
        *(f"canopy check-config {file}" for file in names),
        *(f"canopy serve --config {file}" + "   # in a terminal of its own" * bool(there.nodes) for file in names),
        *map(fill, there.last),
    ]


def _database_for_trying(url: str) -> list[str]:
    """Return the command that starts a database of this URL in a container, if it is on this machine. Shows no
    password."""
    parts = urlsplit(url)
    if parts.hostname not in HERE or not parts.password:
        return []
    values = {"USER": parts.username or "canopy", "PASSWORD": "PASSWORD", "DB": parts.path.lstrip("/") or "canopy"}
    given = " ".join(f"--env {shlex.quote(f'POSTGRES_{name}={unquote(value)}')}" for name, value in values.items())
    port = parts.port or 5432
    return [f"docker run --detach --publish 127.0.0.1:{port}:5432 {given} {POSTGRESQL}   # if none runs there yet"]

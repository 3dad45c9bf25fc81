"""What has to be there before the commands of a page can run: a broker with clients, a record, files.

`BEFORE` says what is set up before which block; `NOT_RUN` lists the blocks that are not run, and why.
"""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Callable
from typing import Final

from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.terminals import Reader
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import story

BUILDS: Final = "builds an environment and runs for minutes; the target is held against the Makefile"
LOADS: Final = "load for half a minute or more; tests/loadtest runs each command"
NO_CLUSTER: Final = "needs a cluster or an object store"
NO_INDEX: Final = "installs packages"

NOT_RUN: Final = {
    ("CONTRIBUTING", "sudo apt"): NO_INDEX,
    ("README", "sudo apt"): NO_INDEX,
    ("README", "python3 -m venv"): "builds the package; tests/project/test_project.py and CI do",
    ("README", "docker build"): "needs Docker and dpkg; tests/project has the files and the package",
    ("benchmarks", "make"): BUILDS,
    ("benchmarks-pipeline", "make"): BUILDS,
    ("benchmarks-pipeline", "canopy load compare"): "measures for minutes",
    ("benchmarks-pipeline", "python -m benchmarks source"): "measures for minutes",
    ("benchmarks-routing", "make"): BUILDS,
    ("load", "canopy load run"): LOADS,
    ("prove", "canopy prove"): LOADS,
    ("pipeline", "make demo"): BUILDS,
    ("pipeline", "pip wheel"): NO_CLUSTER,
    ("pipeline", "canopy pipeline rollup --input s3a"): NO_CLUSTER,
    ("pipeline-jobs", "canopy pipeline upload --input recorded --output s3:"): NO_CLUSTER,
    ("recorder", "pip install"): NO_INDEX,
    ("recorder", "canopy record files s3:"): NO_CLUSTER,
    ("security", "make attack"): BUILDS,
    (
        "security",
        "mosquitto_sub -h broker.example.org",
    ): "the broker of a reader's own; the next block asks one on this machine",
    (
        "tables",
        "canopy pipeline tables --input /var/lib/canopy/record",
    ): "a database, and records, of a reader's own; tests/pipeline/tables has both",
    ("testing", "pip install"): NO_INDEX,
    ("tutorial", "git clone"): "installs the package, as README does",
}
"""Pages and beginnings of blocks. Their commands are parsed all the same."""


def broker(reader: Reader, settings: str = "") -> None:
    """A broker on the page's port, which can be asked, with these settings besides."""
    (reader.folder / "stage.toml").write_text(
        reader.here(f'listen = ["mqtt://127.0.0.1:1883"]\nhttp.listen = ["http://127.0.0.1:8080"]\n{settings}')
    )
    reader.stay("canopy serve --config stage.toml", "stop it with Ctrl-C")


def plant(reader: Reader) -> None:
    """A broker with a sensor that reads what is published all the time, and a client that does not."""
    broker(reader)
    reader.stay("mosquitto_sub -i sensor-7 -q 1 -t plant/+/temp -t plant/+/temperature -v")
    reader.stay("mosquitto_sub -i logger -t other -d", "SUBACK")
    reader.stay("while sleep 0.1; do echo 21.5; done | mosquitto_pub -l -q 1 -t plant/1/temp")
    reader.stay("mosquitto_sub -t plant/1/temp -v", "21.5")


def defaults(reader: Reader) -> None:
    """Brokers that the page starts listen on its ports where it says nothing else."""
    reader.environment["CANOPY_LISTEN"] = reader.here("mqtt://127.0.0.1:1883")
    reader.environment["CANOPY_HTTP__LISTEN"] = reader.here("http://127.0.0.1:8080")


def configuration(reader: Reader) -> None:
    """The project's folder config/."""
    shutil.copytree(ROOT / "config" / "tables", reader.folder / "config" / "tables", dirs_exist_ok=True)
    for file in (ROOT / "config").glob("*.toml"):
        (reader.folder / "config" / file.name).write_text(reader.here(file.read_text(encoding="utf-8")))


def etc(reader: Reader) -> None:
    """The folders of a package."""
    defaults(reader)
    for path in ("etc/canopy", "var/lib", "backup"):
        (reader.folder / path).mkdir(parents=True, exist_ok=True)


def kept(reader: Reader) -> None:
    """What a broker has kept of a session that is away."""
    reader.stay(reader.here("canopy serve --store /var/lib/canopy"), "stop it with Ctrl-C")
    reader.script("mosquitto_sub -i away -c -q 1 -t a\nmosquitto_pub -q 1 -t a -m 1")
    reader.leave()


def mosquitto(reader: Reader) -> None:
    """A configuration of mosquitto."""
    folder = reader.folder / "etc" / "mosquitto"
    folder.mkdir(parents=True)
    (folder / "mosquitto.conf").write_text(reader.here("listener 1883 127.0.0.1\nallow_anonymous true\n"))


def saved(reader: Reader) -> None:
    """What a mosquitto has saved at its end."""
    folder = reader.folder / "var" / "lib" / "mosquitto"
    folder.mkdir(parents=True)
    (folder / "own.conf").write_text(
        reader.here(
            f"listener 1883 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {folder}/\nuser {getpass.getuser()}\n"
        )
    )
    reader.stay(f"mosquitto -v -c {folder / 'own.conf'}", "running")
    reader.script("mosquitto_pub -r -q 1 -t a -m 1")
    reader.leave()


def plugin(reader: Reader) -> None:
    """The module that the page of hooks has the daemon load."""
    defaults(reader)
    program = next(block.text for block in blocks("hooks", PAGES["hooks"]) if block.language == "python")
    (reader.folder / "my_company").mkdir()
    (reader.folder / "my_company" / "mqtt.py").write_text(program.replace("asyncio.run(main())", ""))
    reader.environment["PYTHONPATH"] += f":{reader.folder}"


def secured(reader: Reader) -> None:
    """A broker with the certificate that the page has made, and a Unix socket."""
    (reader.folder / "run" / "canopy").mkdir(parents=True, exist_ok=True)
    broker(
        reader,
        '[[listener]]\nurl = "mqtts://127.0.0.1:8883"\n'
        '[listener.tls]\ncertificate = "server.pem"\nkey = "server.key"\n'
        '[[listener]]\nurl = "mqtt+unix:///run/canopy/mqtt.sock"\n',
    )


def authority(reader: Reader) -> None:
    """A broker whose certificate is for the host that the page names."""
    reader.script(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=broker.example.org "
        "-addext subjectAltName=DNS:broker.example.org -keyout server.key -out server.pem"
    )
    shutil.copy(reader.folder / "server.pem", reader.folder / "ca.pem")
    secured(reader)


def users(reader: Reader) -> None:
    """The page's first settings, with a certificate for this machine, and a password to read."""
    configuration(reader)
    (reader.folder / "etc" / "canopy").mkdir(parents=True)
    first = next(block.text for block in blocks("security", PAGES["security"]) if block.language == "toml")
    (reader.folder / "canopy.toml").write_text(reader.here(first).replace("0.0.0.0", "127.0.0.1"))
    (reader.folder / "password").write_text("correct horse\n")
    reader.script(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
        "-keyout /etc/canopy/server.key -out /etc/canopy/server.pem"
    )


def recorded(reader: Reader) -> None:
    """A record, under the names that the pages use."""
    defaults(reader)
    configuration(reader)
    for at, name in enumerate(("recorded", "canopy-record", "edge-1", "edge-2")):
        if not (reader.folder / name).exists():
            # Each of a broker of its own: the same events under two inputs are refused.
            traffic = Story(f"0a1b2c{at:02x}")
            traffic.subscribe("reader", "a/#")
            for number in range(20):
                traffic.deliver("reader", traffic.publish("writer", f"a/{number % 4}"), topic_filter="a/#")
            traffic.write(reader.folder / name, segments=4)


def tabled(reader: Reader) -> None:
    """Payload tables of the record."""
    reader.script("canopy pipeline tables --input recorded --mapping config/tables/tables.toml --output out/tables")


def fleet(reader: Reader) -> None:
    """The record of a plant, for the tables."""
    if (reader.folder / "canopy-record").exists():
        return  # the page serves twice
    defaults(reader)
    configuration(reader)
    story().write(reader.folder / "canopy-record")
    (reader.folder / "srv" / "lake").mkdir(parents=True)


BEFORE: Final[dict[tuple[str, str], Callable[[Reader], None]]] = {
    ("README", "canopy init"): defaults,
    ("durability", "canopy serve"): etc,
    ("durability", "sqlite3"): kept,
    ("explain", "canopy serve"): defaults,
    ("explain", "canopy ctl"): plant,
    ("federation", "mosquitto_sub"): broker,
    ("from-mosquitto", "canopy convert"): mosquitto,
    ("from-mosquitto", "systemctl"): saved,
    ("hooks", "canopy serve"): plugin,
    ("listeners", "mosquitto_sub"): secured,
    ("listeners", "mosquitto_pub"): secured,
    ("listeners", "canopy health"): authority,
    ("operations", "canopy serve"): etc,
    ("operations", "canopy ctl"): plant,
    ("overload", "mosquitto_sub"): broker,
    ("pipeline", "canopy serve"): recorded,
    ("pipeline-jobs", "canopy pipeline rollup"): recorded,
    ("pipeline-jobs", "canopy pipeline compact --input recorded --erase"): tabled,
    ("recorder", "canopy serve"): recorded,
    ("security", "canopy passwd --create /etc"): users,
    ("security-tokens", "openssl"): etc,
    ("tables", "canopy serve"): fleet,
}

"""`canopy load pub`, `sub` and `conn`: a load in one line, with the names of emqtt-bench's options where they fit.

Owns: their options, and the scenarios that they stand for. They are played and reported like any other.

Patterns are those of scenarios; emqtt-bench's `%i` (the client's number), `%c` (its identifier) and `%u` (its user
name) are taken in topics as well. What else begins with a percent sign is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from canopy_load.capture.recording import OPEN_END
from canopy_load.cli.common import (
    Credentials,
    Output,
    Secured,
    parse_targets,
    play_and_report,
    seconds_option,
    size_option,
)
from canopy_load.errors import Misuse

LEVELS: Final = {"3": "3.1.1", "4": "3.1.1", "3.1.1": "3.1.1", "5": "5.0", "5.0": "5.0"}
_TOKEN: Final = re.compile(r"%([%icu])")

QosOption = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="QoS.")]


class HostOrHelp(TyperCommand):
    """A command whose `-h` is the host, as emqtt-bench and mosquitto_pub have it; alone it asks for help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--help"] if args == ["-h"] else args)


@dataclass(frozen=True)
class Clients:
    """The options that all three have: the broker's address, and the settings of the clients."""

    host: Annotated[
        str, typer.Option("-h", "--host", metavar="HOST", help="Broker; several, separated by commas, in turn.")
    ] = "127.0.0.1"
    port: Annotated[
        int | None,
        typer.Option(
            "-p", "--port", metavar="PORT", min=1, max=65_535, help="1883; with TLS 8883; with --ws 8080, or 8443."
        ),
    ] = None
    version: Annotated[str, typer.Option("-V", "--version", metavar="V", help="MQTT version: 3, 4 (3.1.1) or 5.")] = "5"
    count: Annotated[
        int, typer.Option("-c", "--count", metavar="N", min=1, max=1_000_000, help="Number of clients.")
    ] = 200
    interval: Annotated[
        float, typer.Option("-i", "--interval", metavar="MS", min=0.0, help="Milliseconds between two connections.")
    ] = 10.0
    rate: Annotated[
        float,
        typer.Option("-R", "--rate", "--connrate", metavar="N", min=0.0, help="Connections a second, instead of -i."),
    ] = 0.0
    start: Annotated[
        int, typer.Option("-n", "--startnumber", metavar="N", min=0, help="Number of the first client.")
    ] = 0
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="TEXT", help="Prefix of the client identifiers; the number follows."),
    ] = None
    keep_alive: Annotated[
        int, typer.Option("-k", "--keepalive", metavar="S", min=0, max=65_535, help="Keep alive in seconds.")
    ] = 300
    clean: Annotated[bool, typer.Option("-C/--no-clean", "--clean", help="Clean start (3.1.1: clean session).")] = True
    expiry: Annotated[
        int,
        typer.Option(
            "-x", "--session-expiry", metavar="S", min=0, help="Session expiry interval in seconds (MQTT 5.0)."
        ),
    ] = 0
    ssl: Annotated[bool, typer.Option("-S", "--ssl", help="Use TLS.")] = False
    ws: Annotated[bool, typer.Option("--ws", help="Use WebSocket, at /mqtt.")] = False
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration", metavar="TIME", parser=seconds_option, help="Such as 30s or 5m; default: until Ctrl-C."
        ),
    ] = None

    @property
    def number(self) -> str:
        return f"%{{c+{self.start}}}" if self.start else "%c"

    def client_id(self, name: str) -> str:
        if self.prefix is not None:
            return self.prefix.replace("%", "%%") + self.number
        return f"load-%r-{name}-{self.number}"

    def pattern(self, text: str, name: str, user: str | None) -> str:
        """A topic of emqtt-bench's as a pattern of ours."""
        meant = {"%": "%%", "i": self.number, "c": self.client_id(name)}
        if "%u" in text.replace("%%", ""):
            if user is None:
                raise Misuse("-t: %u is the user name: give one with -u")
            meant["u"] = user.replace("%i", self.number)
        return _TOKEN.sub(lambda found: meant[found[1]], text)

    def group(self, name: str, **more: Any) -> dict[str, Any]:
        if self.version not in LEVELS:
            raise Misuse(f"-V {self.version}: 3 and 4 are MQTT 3.1.1, 5 is 5.0")
        connect_rate = self.rate or (1000 / self.interval if self.interval else 0.0)
        made: dict[str, Any] = {
            "name": name,
            "clients": self.count,
            "client_id": self.client_id(name),
            "version": LEVELS[self.version],
            "clean_start": self.clean,
            "keep_alive": self.keep_alive,
            "connect_rate": connect_rate,
        }
        if self.expiry:
            made["session_expiry"] = self.expiry
        return made | more

    def urls(self) -> list[str]:
        scheme = ("wss" if self.ssl else "ws") if self.ws else "mqtts" if self.ssl else "mqtt"
        port = "" if self.port is None else f":{self.port}"
        hosts = [each.strip() for each in self.host.split(",")]
        return [f"{scheme}://{f'[{each}]' if each.count(':') > 1 and each[0] != '[' else each}{port}" for each in hosts]


def pub(
    topic: Annotated[str, typer.Option("-t", "--topic", metavar="TOPIC", help="Such as bench/%i.")],
    every: Annotated[
        float,
        typer.Option(
            "-I", "--interval_of_msg", metavar="MS", min=0.001, help="Milliseconds between two messages of a client."
        ),
    ] = 1000.0,
    size: Annotated[
        int, typer.Option("-s", "--size", metavar="BYTES", parser=size_option, help="Payload size, at least 16.")
    ] = 256,
    qos: QosOption = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Set RETAIN.")] = False,
    most: Annotated[
        int,
        typer.Option(
            "-L", "--limit", metavar="N", min=0, help="Stop after this many messages of all clients; 0: never."
        ),
    ] = 0,
    subscribers: Annotated[
        int,
        typer.Option("--subscribers", metavar="N", min=0, max=100_000, help="Subscribers that check all messages."),
    ] = 0,
    *,
    clients: Clients,
    output: Output,
    secured: Secured,
    who: Credentials,
) -> None:
    """Publish messages: canopy load pub -c 1000 -i 10 -I 1000 -t 'bench/%i' -s 256 -q 1 --duration 30s"""
    pattern = clients.pattern(topic, "pub", who.user)
    publish: dict[str, Any] = {
        "topic": pattern, "rate": 1000 / every, "qos": qos, "retain": retain, "payload": {"size": size},
    }  # fmt: skip
    duration = clients.duration
    if most:
        publish["messages"] = max(1, most // clients.count)
        # The last message goes out within an interval of its time.
        duration = duration or (publish["messages"] + 1) * every / 1000
    groups = [clients.group("pub", publish=[publish])]
    if subscribers:
        heard = "/".join("+" if "%" in level.replace("%%", "") else level for level in pattern.split("/"))
        groups.append(
            {
                "name": "sub",
                "clients": subscribers,
                "version": groups[0]["version"],
                "subscribe": [{"filter": heard, "qos": qos}],
            }
        )
    _play("pub", groups, duration, clients, output, secured, who)


def sub(
    topics: Annotated[list[str], typer.Option("-t", "--topic", metavar="FILTER", help="Such as bench/%i. Repeatable.")],
    qos: QosOption = 0,
    *,
    clients: Clients,
    output: Output,
    secured: Secured,
    who: Credentials,
) -> None:
    """Subscribe, and count received messages: canopy load sub -c 100 -t 'bench/#' -q 1"""
    filters = [{"filter": clients.pattern(each, "sub", who.user), "qos": qos} for each in topics]
    _play("sub", [clients.group("sub", subscribe=filters)], clients.duration, clients, output, secured, who)


def conn(*, clients: Clients, output: Output, secured: Secured, who: Credentials) -> None:
    """Connect, and stay connected: canopy load conn -c 10000 --rate 500"""
    _play("conn", [clients.group("conn")], clients.duration, clients, output, secured, who)


def _play(
    name: str,
    groups: list[dict[str, Any]],
    duration: float | None,
    clients: Clients,
    output: Output,
    secured: Secured,
    who: Credentials,
) -> None:
    from canopy_load.engine.job import Job
    from canopy_load.scenario import library

    numbered = Credentials(
        None if who.user is None else who.user.replace("%i", clients.number),
        None if who.password is None else who.password.replace("%i", clients.number),
        who.users,
    )
    data = {
        "name": name,
        "description": f"canopy load {name}",
        "stages": [{"name": "run", "seconds": duration or OPEN_END}],
        "groups": groups,
    }
    scenario, text = library.made(f"canopy load {name}", data)
    play_and_report(Job(scenario, text, parse_targets(clients.urls(), secured)), output, numbered)

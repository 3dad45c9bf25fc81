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

from loadtest.load.capture.recording import OPEN_END
from loadtest.load.cli.common import (
    MISUSED,
    CaOption,
    CertOption,
    InsecureOption,
    JunitOption,
    KeyOption,
    OutOption,
    Output,
    PasswordOption,
    ProcessesOption,
    PrometheusOption,
    RecordsOption,
    Secured,
    StrictOption,
    ThresholdOption,
    UserOption,
    UsersOption,
    default_processes,
    fail,
    parse_targets,
    play_and_report,
    seconds_option,
    size_option,
    with_users,
)

LEVELS: Final = {"3": "3.1.1", "4": "3.1.1", "3.1.1": "3.1.1", "5": "5.0", "5.0": "5.0"}
_TOKEN: Final = re.compile(r"%([%icu])")

HostOption = Annotated[
    str, typer.Option("-h", "--host", metavar="HOST", help="Broker; several, separated by commas, in turn.")
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "-p", "--port", metavar="PORT", min=1, max=65_535, help="1883; with TLS 8883; with --ws 8080, or 8443."
    ),
]
VersionOption = Annotated[str, typer.Option("-V", "--version", metavar="V", help="MQTT version: 3, 4 (3.1.1) or 5.")]
SslOption = Annotated[bool, typer.Option("-S", "--ssl", help="Use TLS.")]
WsOption = Annotated[bool, typer.Option("--ws", help="Use WebSocket, at /mqtt.")]
CountOption = Annotated[
    int, typer.Option("-c", "--count", metavar="N", min=1, max=1_000_000, help="Number of clients.")
]
IntervalOption = Annotated[
    float, typer.Option("-i", "--interval", metavar="MS", min=0.0, help="Milliseconds between two connections.")
]
RateOption = Annotated[
    float,
    typer.Option("-R", "--rate", "--connrate", metavar="N", min=0.0, help="Connections a second, instead of -i."),
]
StartOption = Annotated[
    int, typer.Option("-n", "--startnumber", metavar="N", min=0, help="Number of the first client.")
]
PrefixOption = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", help="Prefix of the client identifiers; the number follows.")
]
KeepAliveOption = Annotated[
    int, typer.Option("-k", "--keepalive", metavar="S", min=0, max=65_535, help="Keep alive in seconds.")
]
CleanOption = Annotated[bool, typer.Option("-C/--no-clean", "--clean", help="Clean start (3.1.1: clean session).")]
ExpiryOption = Annotated[
    int,
    typer.Option("-x", "--session-expiry", metavar="S", min=0, help="Session expiry interval in seconds (MQTT 5.0)."),
]
QosOption = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="QoS.")]
DurationOption = Annotated[
    float | None,
    typer.Option("--duration", metavar="TIME", parser=seconds_option, help="Such as 30s or 5m; default: until Ctrl-C."),
]
CalibrateOption = Annotated[bool, typer.Option("--calibrate", help="Measure the generator's own limit first.")]


class HostOrHelp(TyperCommand):
    """A command whose `-h` is the host, as emqtt-bench and mosquitto_pub have it; alone it asks for help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words of the command line."""
        return super().parse_args(ctx, ["--help"] if args == ["-h"] else args)


@dataclass(frozen=True)
class Clients:
    """The options that all three have, as a group of a scenario takes them."""

    count: int
    interval: float
    rate: float
    start: int
    prefix: str | None
    version: str
    keep_alive: int
    clean: bool
    expiry: int
    user: str | None

    @property
    def number(self) -> str:
        """The pattern of a client's number."""
        return f"%{{c+{self.start}}}" if self.start else "%c"

    def client_id(self, name: str) -> str:
        """The pattern of the client identifiers."""
        if self.prefix is not None:
            return self.prefix.replace("%", "%%") + self.number
        return f"load-%r-{name}-{self.number}"

    def pattern(self, text: str, name: str) -> str:
        """A topic of emqtt-bench's as a pattern of ours."""
        meant = {"%": "%%", "i": self.number, "c": self.client_id(name)}
        if "%u" in text.replace("%%", ""):
            if self.user is None:
                fail("-t: %u is the user name: give one with -u", MISUSED)
            meant["u"] = self.user.replace("%i", self.number)
        return _TOKEN.sub(lambda found: meant[found[1]], text)

    def group(self, name: str, **more: Any) -> dict[str, Any]:
        """The group that these clients are."""
        if self.version not in LEVELS:
            fail(f"-V {self.version}: 3 and 4 are MQTT 3.1.1, 5 is 5.0", MISUSED)
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


@dataclass(frozen=True)
class Place:
    """Where the broker is."""

    host: str
    port: int | None
    ssl: bool
    ws: bool

    def urls(self) -> list[str]:
        """A URL for each host."""
        scheme = ("wss" if self.ssl else "ws") if self.ws else "mqtts" if self.ssl else "mqtt"
        port = "" if self.port is None else f":{self.port}"
        hosts = [each.strip() for each in self.host.split(",")]
        return [f"{scheme}://{f'[{each}]' if each.count(':') > 1 and each[0] != '[' else each}{port}" for each in hosts]


def pub(
    topic: Annotated[str, typer.Option("-t", "--topic", metavar="TOPIC", help="Such as bench/%i.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    version: VersionOption = "5",
    count: CountOption = 200,
    interval: IntervalOption = 10.0,
    rate: RateOption = 0.0,
    start: StartOption = 0,
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
    user: UserOption = None,
    password: PasswordOption = None,
    users: UsersOption = None,
    keep_alive: KeepAliveOption = 300,
    clean: CleanOption = True,
    expiry: ExpiryOption = 0,
    prefix: PrefixOption = None,
    ssl: SslOption = False,
    ws: WsOption = False,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
    duration: DurationOption = None,
    processes: ProcessesOption = None,
    out: OutOption = None,
    calibrate: CalibrateOption = False,
    strict: StrictOption = False,
    records: RecordsOption = False,
    threshold: ThresholdOption = None,
    junit: JunitOption = None,
    prometheus: PrometheusOption = None,
) -> None:
    """Publish messages: canopy load pub -c 1000 -i 10 -I 1000 -t 'bench/%i' -s 256 -q 1 --duration 30s"""
    clients = Clients(count, interval, rate, start, prefix, version, keep_alive, clean, expiry, user)
    pattern = clients.pattern(topic, "pub")
    publish: dict[str, Any] = {
        "topic": pattern, "rate": 1000 / every, "qos": qos, "retain": retain, "payload": {"size": size},
    }  # fmt: skip
    if most:
        publish["messages"] = max(1, most // count)
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
    output = Output(out, calibrate, strict, records, tuple(threshold or ()), junit, prometheus)
    _play(
        "pub", groups, duration, Place(host, port, ssl, ws), Secured(ca, cert, key, insecure),
        (clients, password, users), processes, output,
    )  # fmt: skip


def sub(
    topics: Annotated[list[str], typer.Option("-t", "--topic", metavar="FILTER", help="Such as bench/%i. Repeatable.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    version: VersionOption = "5",
    count: CountOption = 200,
    interval: IntervalOption = 10.0,
    rate: RateOption = 0.0,
    start: StartOption = 0,
    qos: QosOption = 0,
    user: UserOption = None,
    password: PasswordOption = None,
    users: UsersOption = None,
    keep_alive: KeepAliveOption = 300,
    clean: CleanOption = True,
    expiry: ExpiryOption = 0,
    prefix: PrefixOption = None,
    ssl: SslOption = False,
    ws: WsOption = False,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
    duration: DurationOption = None,
    processes: ProcessesOption = None,
    out: OutOption = None,
    strict: StrictOption = False,
    threshold: ThresholdOption = None,
    junit: JunitOption = None,
    prometheus: PrometheusOption = None,
) -> None:
    """Subscribe, and count received messages: canopy load sub -c 100 -t 'bench/#' -q 1"""
    clients = Clients(count, interval, rate, start, prefix, version, keep_alive, clean, expiry, user)
    filters = [{"filter": clients.pattern(each, "sub"), "qos": qos} for each in topics]
    output = Output(out, False, strict, False, tuple(threshold or ()), junit, prometheus)
    _play(
        "sub", [clients.group("sub", subscribe=filters)], duration, Place(host, port, ssl, ws),
        Secured(ca, cert, key, insecure), (clients, password, users), processes, output,
    )  # fmt: skip


def conn(
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    version: VersionOption = "5",
    count: CountOption = 200,
    interval: IntervalOption = 10.0,
    rate: RateOption = 0.0,
    start: StartOption = 0,
    user: UserOption = None,
    password: PasswordOption = None,
    users: UsersOption = None,
    keep_alive: KeepAliveOption = 300,
    clean: CleanOption = True,
    expiry: ExpiryOption = 0,
    prefix: PrefixOption = None,
    ssl: SslOption = False,
    ws: WsOption = False,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    insecure: InsecureOption = False,
    duration: DurationOption = None,
    processes: ProcessesOption = None,
    out: OutOption = None,
    strict: StrictOption = False,
    threshold: ThresholdOption = None,
    junit: JunitOption = None,
    prometheus: PrometheusOption = None,
) -> None:
    """Connect, and stay connected: canopy load conn -c 10000 --rate 500"""
    clients = Clients(count, interval, rate, start, prefix, version, keep_alive, clean, expiry, user)
    output = Output(out, False, strict, False, tuple(threshold or ()), junit, prometheus)
    _play(
        "conn", [clients.group("conn")], duration, Place(host, port, ssl, ws), Secured(ca, cert, key, insecure),
        (clients, password, users), processes, output,
    )  # fmt: skip


def _play(
    name: str,
    groups: list[dict[str, Any]],
    duration: float | None,
    place: Place,
    secured: Secured,
    who: tuple[Clients, str | None, str | None],
    processes: int | None,
    output: Output,
) -> None:
    """Make the scenario and play it."""
    from loadtest.load.engine.job import Job
    from loadtest.load.scenario import library

    clients, password, users = who
    user = None if clients.user is None else clients.user.replace("%i", clients.number)
    secret = None if password is None else password.replace("%i", clients.number)
    data = {
        "name": name,
        "description": f"canopy load {name}",
        "stages": [{"name": "run", "seconds": duration or OPEN_END}],
        "groups": groups,
    }
    try:
        scenario, text = library.made(f"canopy load {name}", data)
    except library.ScenarioError as error:
        fail(str(error), MISUSED)
    scenario = with_users(scenario, user, secret, users)
    targets = parse_targets(place.urls(), secured)
    play_and_report(Job(scenario, text, targets, processes=processes or default_processes(scenario)), output)

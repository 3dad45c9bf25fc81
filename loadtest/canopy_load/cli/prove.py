"""`canopy prove`.

Owns: its arguments, what is printed while it runs, and its exit codes: 0 when nothing that the broker promises was
broken, 1 when something was or the broker did not come back, 2 when it could not be judged or the command line is
wrong, 130 when it was interrupted before anything was found, with a report so far.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from canopy_load.brokers.process import raise_file_limit
from canopy_load.cli.common import INTERRUPTED, Secured, clear, harmless, parse_targets, passing, told
from canopy_load.errors import Misuse
from canopy_load.prove.faults import BROKER_FAULTS, CLIENT_FAULTS, MAX_NODES, MAX_TIMEOUT, Fault, rounds_for

if TYPE_CHECKING:
    from canopy_load.engine.job import Target
    from canopy_load.prove.ground import Login
    from canopy_load.prove.plan import Plan
    from canopy_load.prove.summary import Settings, Summary

ROUNDS: Final = 4
"""The rounds of a run, and of each piece of a run of some minutes, at least, where nothing else is said: so many more
that each fault has its turn."""
MAX_ROUNDS: Final = 20
"""Rounds of a piece: all of its history is in memory, and one client more comes in each."""
PIECE_ROUNDS: Final = 8
"""The same for a piece."""
ROUND_SECONDS: Final = 8.0
"""How long a round takes, about."""
MAX_CROWD: Final = 20_000
FILES_THROUGH_A_PROXY: Final = 3
"""The open files of a connection to a broker that was started for the proof: its own, and both ends of its proxy."""
OTHER_FILES: Final = 300
"""Files and connections besides those of the crowd."""
PATIENCE_TIMES: Final = 3
"""How many time-outs of a cluster an answer may take, at least."""
COMPARE: Final = "compare"
PASSWORD: Final = "CANOPY_LOAD_PASSWORD"


app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True)
class Chosen:
    """The options that make the plan."""

    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="The same seed and options make the same plan.")
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_ROUNDS,
            help=f"Rounds, of about {ROUND_SECONDS:g} seconds each. "
            f"Default: {ROUNDS}, or so many that each fault has its turn.",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=100_000,
            help="Play one plan after the other for so long; one that has begun is played to its end.",
        ),
    ] = None
    fault: Annotated[
        list[Fault] | None,
        typer.Option(help="Let only this go wrong; all but the first four need --broker. Repeatable."),
    ] = None
    nodes: Annotated[
        int, typer.Option(min=1, max=MAX_NODES, help="How many nodes of the broker to start, as a cluster.")
    ] = 1
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=MAX_TIMEOUT,
            metavar="SECONDS",
            help="Stop and cut off nodes for 0.5 to 3 times as long. Default: what the broker's file says.",
        ),
    ] = None
    crowd: Annotated[
        int, typer.Option(min=0, max=MAX_CROWD, help="So many durable sessions more, behind two overlapping filters.")
    ] = 0
    recovery: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Time after a fault within which the broker is to answer."),
    ] = None
    replay: Annotated[
        int | None,
        typer.Option(
            metavar="SEED", min=0, max=2**32 - 1, help="Play a plan again, and show the packets of a finding."
        ),
    ] = None
    until: Annotated[
        int | None, typer.Option(metavar="STEP", min=0, help="With --replay: only until this step of the plan.")
    ] = None


@dataclass(frozen=True)
class Files:
    """The reports that are written."""

    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report as a page.")] = None
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report as JSON.")] = None
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML.")] = None
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write everything that happened, as JSON lines.")
    ] = None

    def check(self) -> None:
        """Raise ReportError if one cannot be written."""
        from canopy_load.report import report_files

        for file in (self.html, self.json, self.junit, self.history):
            if file is not None:
                report_files.check(file.parent)

    def write(self, summary: Summary, history: str) -> None:
        from canopy_load.prove import page, report
        from canopy_load.report import exports

        if self.html is not None:
            exports.write(self.html, page.page(summary))
        if self.json is not None:
            exports.write(self.json, summary.dumps())
        if self.junit is not None:
            exports.write(self.junit, report.junit(summary))
        if self.history is not None:
            exports.write(self.history, history)


@app.command()
@told
def prove(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL",
            help="Of a running broker: mqtt://HOST:PORT, mqtts://, ws:// or wss://. Or: compare FILE.json …, a table "
            "of reports.",
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="Start a broker instead, and let it go wrong, too: canopy, mosquitto, rabbitmq, amqtt, aedes, …",
        ),
    ] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="User name of all clients.")] = None,
    password: Annotated[
        str | None,
        typer.Option("-P", "--password", metavar="TEXT", envvar=PASSWORD, help="Password of all clients."),
    ] = None,
    *,
    chosen: Chosen,
    files: Files,
    secured: Secured,
) -> None:
    """Find out what a broker loses, doubles or reorders while clients come, go, and lose their connections."""
    from canopy_load.engine.running import run
    from canopy_load.prove import report
    from canopy_load.prove.brokers.driver import Driver, find
    from canopy_load.prove.brokers.started import unmade
    from canopy_load.prove.ground import PATIENCE
    from canopy_load.prove.ground import Login as Names
    from canopy_load.prove.pieces import Played, place, play_pieces
    from canopy_load.prove.plan import make
    from canopy_load.prove.summary import added, packets_of_findings

    files.check()
    if target and target[0] == COMPARE:
        _compare(target[1:], files)
        return
    driver, lacking = None, dict[Fault, str]()
    if broker is not None:
        driver = find(broker)
        if target or secured != Secured():
            raise Misuse("--broker starts a broker of its own: give no URL and nothing for TLS with it")
        if driver.missing is not None:
            raise Misuse(f"--broker {broker}: {driver.missing}")
        if chosen.nodes > driver.max_nodes:
            raise Misuse(f"--nodes {chosen.nodes}: {driver.name} has {driver.max_nodes} at most")
        lacking = unmade(driver, chosen.nodes)
    elif not target:
        raise Misuse("give the URL of a running broker, such as mqtt://127.0.0.1:1883, or --broker NAME")
    elif chosen.nodes > 1 or chosen.timeout is not None:
        raise Misuse("--nodes and --timeout need a broker that is started for it (--broker)")
    possible = CLIENT_FAULTS + BROKER_FAULTS if driver is not None else CLIENT_FAULTS
    _check(chosen, possible, FILES_THROUGH_A_PROXY if driver is not None else 1)
    asked = set(chosen.fault or possible)
    lacking = {each: why for each, why in lacking.items() if each in asked}
    faults = [each for each in possible if each in asked and each not in lacking]
    if chosen.fault and not faults:
        why = "; ".join(f"{each}: {reason}" for each, reason in lacking.items())
        raise Misuse(f"nothing of what --fault asks for can be made here ({why})")
    of = driver or Driver()
    limit = chosen.timeout or of.timeout
    count = chosen.nodes if driver is not None else len(target or ())
    number = next((each for each in (chosen.replay, chosen.seed) if each is not None), secrets.randbits(32))
    login = Names(user, password)
    lacks = {str(each): why for each, why in lacking.items()}
    if of.max_qos < 2:
        lacks["QoS 2"] = "the broker takes such messages with a lower QoS"
    promised = of.durability
    if chosen.recovery is not None:
        promised = replace(promised, recovery=chosen.recovery)
    about = f"{broker}: {driver.version}" if driver is not None else " ".join(target or ())
    chosen = replace(chosen, rounds=rounds_of(chosen, faults))
    settings = _settings(about, _words(target or [], broker, chosen, secured, login), number, chosen)
    settings = replace(settings, promised=promised, unmade=lacks)
    targets = parse_targets(target, secured) if driver is None else []
    _check_hosts(targets)

    plan = partial(
        make, faults=faults, nodes=count, timeout=limit, crowd=chosen.crowd, max_qos=of.max_qos,
        sessions_stay=of.sessions_stay,
    )  # fmt: skip
    _check_until(number, chosen, plan)

    async def work(stop: asyncio.Event) -> Played:
        passing("starting" if driver is not None else "connecting")
        async with place(targets, driver, chosen.nodes, faults) as where:
            return await play_pieces(
                _plans(number, chosen, plan),
                where,
                settings,
                stop=stop,
                histories=files.history is not None,
                login=login,
                tell=passing,
                live=sys.stderr.isatty(),
                patience=max(PATIENCE, PATIENCE_TIMES * limit),
            )

    if driver is not None:
        typer.echo(harmless(f"broker: {driver.version}"))
        if driver.not_run:
            typer.echo(harmless(f"its file has not been tried: {driver.not_run}"))
    typer.echo(f"seed: {number}")
    try:
        played = run(work, lambda: passing("interrupted: ending the rounds (once more ends everything)"))
    except asyncio.CancelledError:
        clear()
        typer.echo("canopy: ended by a second signal; there is no report", err=True)
        if driver is None:
            typer.echo("canopy: the broker may keep sessions and retained messages of this run (prove-…)", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        clear()
    summary = added(played.summaries)
    if chosen.replay is not None and played.last is not None:
        typer.echo(harmless("\n".join(packets_of_findings(played.last))))
    typer.echo(harmless(report.text(summary)))
    files.write(summary, "".join(played.histories))
    if summary.interrupted and not summary.broken:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(summary.code)


def _check(chosen: Chosen, possible: Sequence[Fault], files: int) -> None:
    """Raise Misuse for options that do not go together, or need more than there is. `files`: of each connection."""
    for each in chosen.fault or ():
        if each not in possible:
            raise Misuse(f"--fault {each}: this needs a broker that is started for it (--broker)")
    if chosen.replay is not None and (chosen.seed is not None or chosen.minutes is not None):
        raise Misuse("--replay has the seed of one plan: give no --seed and no --minutes with it")
    if chosen.until is not None and chosen.replay is None:
        raise Misuse("--until needs --replay SEED")
    if chosen.crowd and not raise_file_limit(files * chosen.crowd + OTHER_FILES):
        raise Misuse(f"--crowd {chosen.crowd}: this machine does not allow so many open files (ulimit -n)")


def _check_until(seed: int, chosen: Chosen, make: Callable[[int, int], Plan]) -> None:
    """Raise Misuse if --until names a step that the plan does not have."""
    if chosen.until is None:
        return
    rounds = chosen.rounds or ROUNDS
    last = sum(len(each.steps) for each in make(seed, rounds).rounds) - 1
    if chosen.until > last:
        raise Misuse(
            f"--until {chosen.until}: the plan of seed {seed} with {rounds} rounds and these options ends with step "
            f"{last:,}; give all options of the run that is to be seen again, --rounds and --fault, too"
        )


def _check_hosts(targets: Sequence[Target]) -> None:
    """Raise Misuse for a host that has no address: no client could say more about it."""
    for each in targets:
        try:
            socket.getaddrinfo(each.host, each.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise Misuse(f"{each}: the host {each.host} is not known ({why})") from None


def _plans(seed: int, chosen: Chosen, make: Callable[[int, int], Plan]) -> Iterator[Plan]:
    """Yield one plan, or with --minutes the plans of one seed after the other, until the time is over."""
    from canopy_load.prove.plan import up_to

    end = None if chosen.minutes is None else time.monotonic() + 60 * chosen.minutes
    rounds = chosen.rounds or ROUNDS
    while True:
        plan = make(seed, rounds)
        yield plan if chosen.until is None else up_to(plan, chosen.until)
        if end is None or time.monotonic() + ROUND_SECONDS * rounds / 2 > end:
            return
        seed = (seed + 1) % 2**32


def rounds_of(chosen: Chosen, faults: Sequence[Fault]) -> int:
    """Return the rounds of each plan: those that were asked for, or enough for each fault to have its turn."""
    return chosen.rounds or max(ROUNDS if chosen.minutes is None else PIECE_ROUNDS, rounds_for(faults))


def _words(targets: list[str], broker: str | None, chosen: Chosen, secured: Secured, login: Login) -> list[str]:
    """Return the words of the command but for the seed and the length, without secrets."""
    words = ["canopy", "prove", *targets]
    options: list[tuple[str, object]] = [("--broker", broker), ("--user", login.user)]
    options += [("--ca", secured.ca), ("--cert", secured.cert), ("--key", secured.key)]
    options += [("--nodes", chosen.nodes if chosen.nodes > 1 else None), ("--timeout", chosen.timeout)]
    options += [("--crowd", chosen.crowd or None), ("--recovery", chosen.recovery)]
    for name, value in options:
        words += [] if value is None else [name, f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--insecure"] if secured.insecure else []
    for each in chosen.fault or ():
        words += ["--fault", str(each)]
    words[:0] = [] if login.password is None else [f"{PASSWORD}=…"]
    return words


def _settings(about: str, words: list[str], seed: int, chosen: Chosen) -> Settings:
    from canopy_load.prove.summary import SEED, UNTIL, Settings

    rounds = ["--rounds", str(chosen.rounds)]
    length = rounds if chosen.minutes is None else ["--minutes", f"{chosen.minutes:g}", *rounds]
    begin = ["--seed", str(seed)]
    if chosen.replay is not None:
        begin = ["--replay", str(seed), *([] if chosen.until is None else ["--until", str(chosen.until)])]
    return Settings(
        broker=about,
        again=_joined([*words, *begin, *length]),
        replay=f"{_joined([*words, *rounds])} --replay {SEED} --until {UNTIL}",
        options={
            "length": f"{chosen.minutes:g} minutes" if chosen.minutes is not None else f"{chosen.rounds} rounds",
            "faults": ", ".join(chosen.fault or ["all that apply"]),
            "nodes": f"{chosen.nodes}",
            "crowd": f"{chosen.crowd:,}",
        },
    )


def _joined(words: list[str]) -> str:
    """Return words as a command line; what is in the place of a password stands as it is."""
    return " ".join(each if each.startswith(f"{PASSWORD}=") else shlex.quote(each) for each in words)


def _compare(names: list[str], files: Files) -> None:
    """Print the table of several reports."""
    from canopy_load.prove import page
    from canopy_load.prove.summary import NoReport, loads
    from canopy_load.report import exports

    if not names:
        raise Misuse("give the files that --json has written: canopy prove compare A.json B.json")
    if files.json or files.junit or files.history:
        raise Misuse("compare writes --html only")
    summaries = []
    for name in names:
        try:
            summaries.append(loads(Path(name).read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, NoReport) as error:
            raise Misuse(f"{name}: {error}") from None
    typer.echo(harmless(page.league_text(summaries)))
    if files.html is not None:
        exports.write(files.html, page.league(summaries))

"""`canopy prove`.

Owns: its arguments, what is printed while it runs, and its exit codes: 0 when nothing that the broker promises was
broken, 1 when something was or the broker did not come back, 2 when it could not be judged or the command line is
wrong, 130 when it was interrupted before anything was found, with a report so far.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from canopy_load.cli.common import INTERRUPTED, Secured, clear, parse_targets, passing, told
from canopy_load.errors import Misuse
from canopy_load.prove.plan import BROKER_FAULTS, CLIENT_FAULTS, Fault

ROUNDS: Final = 4
MAX_ROUNDS: Final = 10_000


app = typer.Typer(rich_markup_mode=None)


@app.command()
@told
def prove(
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL", help="Of a running broker: mqtt://HOST:PORT, mqtts://, ws:// or wss://."),
    ] = None,
    broker: Annotated[
        str | None, typer.Option(metavar="NAME", help="Start a broker instead, kill and restart it: canopy, mosquitto.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="The same seed and options make the same plan.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="Rounds, of about 4 seconds each.")] = ROUNDS,
    fault: Annotated[
        list[Fault] | None,
        typer.Option(help="Let only this go wrong; the last three need --broker. Repeatable. Default: everything."),
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the report as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None,
    history: Annotated[
        Path | None,
        typer.Option("--history", metavar="FILE", help="Also write everything that happened, as JSON lines."),
    ] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="User name of all clients.")] = None,
    password: Annotated[
        str | None,
        typer.Option(
            "-P", "--password", metavar="TEXT", envvar="CANOPY_LOAD_PASSWORD", help="Password of all clients."
        ),
    ] = None,
    *,
    secured: Secured,
) -> None:
    """Find out what a broker loses, doubles or reorders while clients come, go, and lose their connections."""
    from canopy_load.engine.running import run
    from canopy_load.prove import report
    from canopy_load.prove.brokers import DRIVERS, started
    from canopy_load.prove.ground import Login
    from canopy_load.prove.judge import Judgement, judge
    from canopy_load.prove.plan import make
    from canopy_load.prove.play import play
    from canopy_load.report import exports, report_files

    driver = None
    if broker is not None:
        driver = DRIVERS.get(broker)
        if driver is None:
            raise Misuse(f"--broker {broker}: known are {', '.join(DRIVERS)}")
        if target or secured != Secured():
            raise Misuse("--broker starts a broker of its own: give no URL and nothing for TLS with it")
        if driver.missing is not None:
            raise Misuse(f"--broker {broker}: {driver.missing}")
    elif not target:
        raise Misuse("give the URL of a running broker, such as mqtt://127.0.0.1:1883, or --broker NAME")
    possible = CLIENT_FAULTS + BROKER_FAULTS if driver is not None else CLIENT_FAULTS
    for each in fault or ():
        if each not in possible:
            raise Misuse(f"--fault {each}: this needs a broker that is started for it (--broker)")
    for file in (json, junit, history):
        if file is not None:
            report_files.check(file.parent)
    number = secrets.randbits(32) if seed is None else seed
    plan = make(number, rounds, fault or possible)
    login = Login(user, password)
    about = broker if broker is not None else " ".join(target or ())
    repeat = _repeat(target or [], broker, number, rounds, fault or [])

    async def work(stop: asyncio.Event) -> Judgement:
        if driver is None:
            targets = parse_targets(target, secured)
            return judge(await play(plan, targets, login=login, stop=stop, tell=passing))
        passing(f"starting {driver.name}")
        async with started(driver) as own:
            proof = await play(plan, [own.target], login=login, broker=own, stop=stop, tell=passing)
        return judge(proof, driver.durability)

    if driver is not None:
        typer.echo(f"broker: {driver.version}")
        about = f"{broker}: {driver.version}"
    typer.echo(f"seed: {number}")
    try:
        judgement = run(work, lambda: passing("interrupted: ending the rounds (once more ends everything)"))
    except asyncio.CancelledError:
        clear()
        typer.echo("canopy: ended by a second signal; there is no report", err=True)
        if driver is None:
            typer.echo("canopy: the broker may keep sessions and retained messages of this run (prove-…)", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        clear()
    typer.echo(report.text(judgement, repeat))
    if json is not None:
        exports.write(json, report.as_json(judgement, about, repeat))
    if junit is not None:
        exports.write(junit, report.junit(judgement, about))
    if history is not None:
        exports.write(history, judgement.proof.history.dumps())
    if judgement.proof.interrupted and not judgement.broken:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(judgement.code)


def _repeat(targets: list[str], broker: str | None, seed: int, rounds: int, faults: list[Fault]) -> str:
    """Return the command that plays the same plan, without secrets."""
    words = ["canopy", "prove", *targets]
    if broker is not None:
        words += ["--broker", broker]
    words += ["--seed", str(seed), "--rounds", str(rounds)]
    for each in faults:
        words += ["--fault", str(each)]
    return shlex.join(words)

"""The command: ``canopy pipeline``.

Owns: which jobs there are, and the flags of each. A job imports what it computes with only when it runs, so that
`canopy` starts without it. The same commands run under spark-submit: `spark-submit pipeline/canopy_pipeline/submit.py
JOB …`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from canopy_mqtt.words import counted
from canopy_pipeline import job_metrics
from canopy_pipeline.command_options import (
    AllowOption,
    InputOption,
    OutputOption,
    Run,
    RunOption,
    SinceOption,
    UntilOption,
    Verdict,
    close,
    existing,
    existing_file,
    named,
    on_an_engine,
    say,
    seconds,
    tell,
    told,
)
from canopy_pipeline.errors import INCOMPLETE, MisuseError
from canopy_pipeline.record.coverage import Coverage

app = typer.Typer(
    name="pipeline",
    help="Analyse records: traffic, routing, payloads as tables; by Spark or DuckDB.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

FolderOption = Annotated[
    str,
    typer.Option("--input", metavar="DIR", help="The recorder's folder, or s3://BUCKET/PREFIX.", callback=existing),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")]


@app.callback()
def pipeline() -> None:
    """Analyse records: traffic, routing, payloads as tables; by Spark or DuckDB."""


@app.command()
@on_an_engine
def rollup(
    run: Run,
    latency: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where to find the time at which a message was sent: mark (of canopy load), property:NAME (a user "
            "property, in s, ms, µs or ns since 1970), none, or auto: mark if there is one.",
        ),
    ] = "auto",
    since: SinceOption = None,
    until: UntilOption = None,
    run_id: RunOption = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Replace only the hours from --since to --until in the output, and keep the others: for a timer.",
        ),
    ] = False,
) -> Verdict:
    """Compute messages, bytes, sizes, publishers and latency for each topic and minute, and topic and hour."""
    from canopy_pipeline.record.segments import Choice
    from canopy_pipeline.rollup import rollup_job

    choice = Choice((), since, until, run_id)
    outcome = rollup_job.run(run.spark, run.inputs, run.output, latency, choice, tell, update)
    return Verdict([outcome.line()], outcome.coverage)


@app.command()
@on_an_engine
def tree(
    run: Run,
    hot: Annotated[int, typer.Option(metavar="N", help="List this many of the topics with most messages.")] = 100,
    since: SinceOption = None,
    until: UntilOption = None,
    run_id: RunOption = None,
) -> Verdict:
    """Compute messages, bytes, topics and children of each prefix; list hot topics and topic explosions."""
    from canopy_pipeline.record.segments import Choice
    from canopy_pipeline.tree import tree_job

    choice = Choice((), since, until, run_id)
    outcome = tree_job.run(run.spark, run.inputs, run.output, choice, hot, tell)
    return Verdict([outcome.line()], outcome.coverage)


@app.command()
@on_an_engine
def oracle(run: Run, since: SinceOption = None, until: UntilOption = None, run_id: RunOption = None) -> Verdict:
    """Check that the broker sent every message to the right clients, and to no other.

    Works out from the recorded subscriptions and publishes who should receive what by the MQTT 5.0 specification, and
    compares that with the recorded deliveries and drops. The recorder must run with `deliveries = true`. The exit code
    is 1 if a delivery is missing, unexpected or wrong.
    """
    from canopy_pipeline.oracle import oracle_job

    outcome = oracle_job.run(run.spark, run.inputs, run.output, run_id, since, until)
    return Verdict([outcome.line()], outcome.coverage, outcome.fine, outcome.notes)


@app.command()
@on_an_engine
def plan(
    run: Run,
    traffic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="The upstream broker's record; default: all inputs. Repeatable.",
            callback=existing,
        ),
    ] = None,
    max_filters: Annotated[
        int | None, typer.Option(metavar="K", help="At most this many upstream filters for each broker.")
    ] = None,
    headroom: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            help="Without --max-filters: allow unwanted bytes up to this percentage of the wanted bytes.",
        ),
    ] = 10.0,
) -> Verdict:
    """Find a small set of upstream topic filters that covers the subscriptions of a broker's clients.

    Each --input is the record of one downstream broker. Writes how many unwanted bytes each number of filters costs,
    and for each broker a set of filters in the format of the upstream settings.
    """
    from canopy_pipeline.plan import plan_job

    outcome = plan_job.run(run.spark, run.inputs, run.output, traffic or (), max_filters, headroom)
    notes = [f"{each.broker}: {note}" for each in outcome.plans for note in each.notes]
    return Verdict([each.line() for each in outcome.plans], outcome.coverage, notes=notes)


@app.command()
@on_an_engine
def report(run: Run) -> Verdict:
    """Run rollup, tree, oracle and plan in one session, and write a page that links to theirs.

    Omits oracle if deliveries were not recorded. The exit code is 1 if a job fails or finds faults, and 3 if parts of
    the record are missing.
    """
    from canopy_pipeline.report import report_job

    outcome = report_job.run(run.spark, run.inputs, run.output, tell)
    return Verdict([f"{run.output.rstrip('/')}/index.html"], outcome.coverage, outcome.fine)


@app.command()
@told
def tables(
    inputs: InputOption,
    output: OutputOption,
    mapping: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The mapping of topics to tables and of payloads to columns (docs/tables.md).",
            callback=existing_file,
        ),
    ],
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet, delta, iceberg or postgresql.")
    ] = "parquet",
    catalog: Annotated[
        str | None, typer.Option(metavar="NAME", help="Iceberg: a catalog of pyiceberg's configuration (default).")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Iceberg: namespace of the tables in the catalog; PostgreSQL: their schema (canopy)."
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="PostgreSQL: postgresql://USER@HOST/DATABASE; its password in PGPASSWORD."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the growing record until Ctrl-C, instead of ending at its end.")
    ] = False,
    max_lag: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --follow: look for segments ten times in this time, and say if it takes longer (2m).",
        ),
    ] = None,
    batch_events: Annotated[int, typer.Option(metavar="N", min=1, help="Sequence numbers in one commit.")] = 1_000_000,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="SEQ|TIME", help="With --replace: the first number, or a time (included)."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="SEQ|TIME", help="With --replace: the last number, or a time (not included)."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Make the rows from --from to --to again, in place of those that are there."),
    ] = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Write payloads to typed tables, by a mapping file. Each run continues where the previous one ended."""
    if max_lag is not None and not follow:
        raise MisuseError("--max-lag needs --follow")
    if format_ not in ("parquet", "delta", "iceberg", "postgresql"):
        raise MisuseError(f"--format {format_}: parquet, delta, iceberg or postgresql")
    if (catalog and format_ != "iceberg") or (namespace and format_ not in ("iceberg", "postgresql")):
        raise MisuseError("--catalog needs --format iceberg, --namespace that or postgresql")
    if bool(database) is not (format_ == "postgresql"):
        raise MisuseError("--format postgresql and --database: give both")
    if replace is not bool(begin or end):
        raise MisuseError("--from, --to and --replace: give --replace, and at least one of the others")
    if replace and follow:
        raise MisuseError("--replace makes a part of the tables again, and ends: leave --follow out")
    lag = seconds(max_lag or "2m", "--max-lag") if follow else None
    from canopy_pipeline.tables.backfill import Range
    from canopy_pipeline.tables.tables_job import TablesOptions, run_all

    again = Range.of(begin, end) if replace else None
    names = {"catalog": catalog or "default", "namespace": namespace or "canopy", "database": database or ""}
    chosen = TablesOptions(format_, batch_events, lag, allow_gaps, **names, replace=again)
    outcomes = run_all(inputs, output, mapping, chosen, say)
    coverage = Coverage()
    for name, outcome in outcomes.items():
        for line in outcome.lines():
            typer.echo(f"{name}: {line}" if name else line)
        coverage = coverage.beside(outcome.coverage)
    close(coverage, allow_gaps)


@app.command()
@told
def compact(
    folder: FolderOption,
    older_than: Annotated[str, typer.Option(metavar="TIME", help="Only hours that ended this long ago.")] = "1h",
    target_size: Annotated[str, typer.Option(metavar="SIZE", help="Largest size of a merged segment.")] = "128m",
    remove_after: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Keep replaced segments for this long, for readers that use them and streams that are stopped.",
        ),
    ] = "1h",
    erase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILTER",
            help="Erase the messages whose topics match this filter from all finished segments, and do not merge. "
            "Repeatable.",
        ),
    ] = None,
    erase_client: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Likewise: erase all events of this client. Repeatable."),
    ] = None,
    tables_: Annotated[
        list[str] | None,
        typer.Option(
            "--tables", metavar="DIR", help="Erase also in these tables of `canopy pipeline tables`. Repeatable."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Merge small segments of past hours, or erase events. Safe while the broker records; needs no Java."""
    if erase or erase_client:
        _erase(folder, erase or [], erase_client or [], tables_ or [], dry_run, allow_gaps)
        return
    if tables_:
        raise MisuseError("--tables needs --erase or --erase-client")
    age = timedelta(seconds=seconds(older_than, "--older-than"))
    after = timedelta(seconds=seconds(remove_after, "--remove-after"))
    from canopy_pipeline.compact import compact_job
    from canopy_pipeline.record.record_folder import size

    outcome = compact_job.run(folder, age, size(target_size, "--target-size"), after, dry_run, say)
    for place, number in outcome.merged:
        typer.echo(f"{place}: {counted(number, 'segment')}")
    typer.echo(outcome.line(dry_run))
    job_metrics.note("merged_segments", 0 if dry_run else sum(number for _, number in outcome.merged))
    job_metrics.note("removed_segments", 0 if dry_run else outcome.removed)
    close(outcome.coverage, allow_gaps, not outcome.refused)


def _erase(
    folder: str, topics: list[str], clients: list[str], tables_: list[str], dry_run: bool, allow_gaps: bool
) -> None:
    from canopy_pipeline.compact import erase_job
    from canopy_pipeline.tables import erasing

    for output in tables_:
        # Before anything is erased.
        erasing.check(output)
    outcome = erase_job.run(folder, erase_job.Chosen(tuple(topics), tuple(clients)), dry_run)
    typer.echo(outcome.line(dry_run))
    job_metrics.note("erased_events", 0 if dry_run else outcome.events)
    for output in () if dry_run else tables_:
        for line in erasing.erase(output, outcome.erased, outcome.times, outcome.reached, say):
            tell(f"not reached: {line}")
    for line in (*outcome.unreached, erase_job.COPIES):
        tell(f"not reached: {line}")
    if outcome.unreached:
        tell("exit code 3, since parts of the record are not reached; run it again")
        raise typer.Exit(INCOMPLETE)
    close(outcome.coverage, allow_gaps)


@app.command()
@told
def retention(
    folder: FolderOption,
    keep: Annotated[
        str | None, typer.Option(metavar="TIME", help="Remove segments whose last event is older, such as 7d.")
    ] = None,
    keep_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Remove the oldest until the others fit, such as 10g.")
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Remove old segments, and list them in _manifests/removed.jsonl. Safe while the broker records; needs no Java."""
    age = None if keep is None else timedelta(seconds=seconds(keep, "--keep"))
    from canopy_pipeline.record.record_folder import size
    from canopy_pipeline.retention import retention_job

    room = None if keep_bytes is None else size(keep_bytes, "--keep-bytes")
    outcome = retention_job.run(folder, age, room, dry_run)
    job_metrics.note("removed_segments", 0 if dry_run else len(outcome.removed))
    for line in outcome.lines(dry_run):
        typer.echo(line)


@app.command()
@told
def upload(
    folder: FolderOption,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="URL",
            help="Where the copy is: s3://BUCKET/PREFIX, or another folder.",
            callback=named,
        ),
    ],
    keep: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Remove segments here that are there, and whose last event is older."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what the recorder finishes, until Ctrl-C.")
    ] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="With --follow: the time between two looks.")] = "10s",
) -> None:
    """Copy finished segments to an object store. Safe while the broker records; needs no Java.

    What is there already is not sent again. The exit code is 3 if a segment is damaged, which is not sent.
    """
    age = None if keep is None else timedelta(seconds=seconds(keep, "--keep"))
    pause = seconds(every, "--every")
    if pause < 0.1:
        raise MisuseError(f"--every {every}: at least 100ms")
    from canopy_pipeline.upload import upload_job

    outcome = upload_job.run(folder, output, age, say, pause if follow else None)
    typer.echo(outcome.line())
    for place in outcome.damaged:
        tell(upload_job.damaged(place))
    if outcome.damaged:
        raise typer.Exit(INCOMPLETE)

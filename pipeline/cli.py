"""The command: ``canopy pipeline``.

Owns: which jobs there are. Each job's package has a `command` module with its flags, which imports pyspark only when it
runs. The same commands run under spark-submit: `spark-submit pipeline/submit.py JOB …`.
"""

from __future__ import annotations

import typer

from pipeline.compact.command import compact
from pipeline.loadtest.command import loadtest
from pipeline.oracle.command import oracle
from pipeline.plan.command import plan
from pipeline.report.command import report
from pipeline.retention.command import retention
from pipeline.rollup.command import rollup
from pipeline.tables.command import tables
from pipeline.tree.command import tree

app = typer.Typer(
    name="pipeline",
    help="Spark jobs over what the recorder wrote.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def pipeline() -> None:
    """Spark jobs over what the recorder wrote."""


app.command("rollup")(rollup)
app.command("tree")(tree)
app.command("oracle")(oracle)
app.command("loadtest")(loadtest)
app.command("plan")(plan)
app.command("report")(report)
app.command("tables")(tables)
app.command("compact")(compact)
app.command("retention")(retention)

"""The command: ``canopy pipeline``.

Owns: which jobs there are. Each job's package has a `command` module with its flags, which imports pyspark only when it
runs. The same commands run under spark-submit: `spark-submit pipeline/submit.py JOB …`.
"""

from __future__ import annotations

import typer

from pipeline.compact.command import compact
from pipeline.loadtest.command import loadtest
from pipeline.options import configured
from pipeline.oracle.command import oracle
from pipeline.package.command import package
from pipeline.plan.command import plan
from pipeline.report.command import report
from pipeline.retention.command import retention
from pipeline.rollup.command import rollup
from pipeline.tables.command import tables
from pipeline.tree.command import tree

app = typer.Typer(
    name="pipeline",
    help="Analyse records: traffic, routing, payloads as tables; by Spark or DuckDB.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def pipeline() -> None:
    """Analyse records: traffic, routing, payloads as tables; by Spark or DuckDB."""


app.command("rollup")(configured(rollup))
app.command("tree")(configured(tree))
app.command("oracle")(configured(oracle))
app.command("loadtest")(configured(loadtest))
app.command("plan")(configured(plan))
app.command("report")(configured(report))
app.command("tables")(configured(tables))
app.command("compact")(compact)
app.command("retention")(retention)
app.command("package")(package)

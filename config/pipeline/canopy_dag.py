"""A DAG of Airflow 2 or 3 for a record: tables each hour, then the upkeep of the record.

Not run here, for lack of an Airflow. Set the paths, and put the file into the folder of your DAGs.

Exit codes: 0 complete; 3 written, and events are missing, which the log names: the task succeeds, and the DAG goes on;
1 nothing more was written: Airflow tries again; 2 a mistake in the flags or the mapping: no second try would help, and
the task fails at once.
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta

from airflow.decorators import dag, task  # type: ignore[import-not-found]  # it is where this runs
from airflow.exceptions import AirflowException, AirflowFailException  # type: ignore[import-not-found]

CANOPY = "/opt/canopy/bin/canopy"
RECORD = "/var/lib/canopy/record"
TABLES = "/var/lib/canopy-tables/tables"
MAPPING = "/etc/canopy/tables.toml"


def run(job: str, *flags: str) -> str:
    """Run a job over the record; return "complete", or "missing" if events are missing."""
    done = subprocess.run([CANOPY, "pipeline", job, "--input", RECORD, *flags], check=False)
    if done.returncode == 2:
        raise AirflowFailException(f"{job}: a mistake in its flags or its mapping")
    if done.returncode not in (0, 3):
        raise AirflowException(f"{job}: exit code {done.returncode}")
    return "complete" if done.returncode == 0 else "missing"


def tables() -> str:
    return run("tables", "--output", TABLES, "--mapping", MAPPING)


def compact() -> str:
    return run("compact", "--older-than", "1h")


def retention() -> str:
    return run("retention", "--keep", "30d")


def canopy_record() -> None:
    # Retention last, so that nothing is removed that the tables have not read.
    task(tables)() >> task(compact)() >> task(retention)()


dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # Two runs over the same folders refuse each other.
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
)(canopy_record)()

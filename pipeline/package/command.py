"""The command ``canopy pipeline package``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.words import counted
from pipeline.options import told


@told
def package(
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="The zip file; an existing one is replaced.")
    ] = Path("canopy_spark.zip"),
) -> None:
    """Write canopy_spark as one file for spark-submit's --py-files.

    The executors need nothing else of Canopy, but their Python needs pyarrow.
    """
    from pipeline.package.archive import write

    count = write(output)
    typer.echo(f"{output}: {counted(count, 'file')}")

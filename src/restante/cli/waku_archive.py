"""`restante waku export`, `import`, `check` and `backup`: commands for a data directory."""

from __future__ import annotations

import os
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from restante.cli.serve_options import data_directory
from restante.common.texts import counted

app = typer.Typer()

DataOption = Annotated[
    Path, typer.Option(metavar="DIR", envvar="RESTANTE_WAKU_DATA", parser=data_directory, help="Data directory.")
]
DEFAULT_DATA = Path("restante-waku")

MAX_PRINTED_ERRORS = 100
"""Errors that `check` prints. More would not help to find the cause."""


@app.command("export")
def export_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create, .rlp or .parquet; it must not exist.")
    ],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Write all archived envelopes to a file. The server may be running."""
    from restante.common.signals import cleaning_up
    from restante.waku.files.exporting import export

    with cleaning_up():
        count = export(data, file)
    print(f"exported {counted(count, 'envelope')}")


@app.command("import")
def import_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files to read, .rlp or .parquet, or the directory of a LevelDB archive."
        ),
    ],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Archive the envelopes of files. The server must be stopped. Importing a file again changes nothing."""
    from restante.waku.files.importing import import_files, render_report, warning

    os.umask(0o077)  # as for `serve`
    report = import_files(data, paths)
    print(render_report(report))
    for sentence in (*report.unreadable, warning(report)):
        if sentence is not None:
            print(sentence, file=sys.stderr)
    if report.refused:
        raise typer.Exit(1)


@app.command()
def check(data: DataOption = DEFAULT_DATA) -> None:
    """Check an archive for damage. The server may be running."""
    from restante.common.progress import progress
    from restante.waku.archive import checking, statements
    from restante.waku.archive.schema import SCHEMA

    with SCHEMA.reading(data) as database:
        counts = statements.read_counts(database)
        with progress("check", counts.envelopes) as advance:
            errors = list(islice(checking.check(database, advance), MAX_PRINTED_ERRORS))
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        raise typer.Exit(1)
    quantities = ((counts.envelopes, "envelope"), (counts.bytes, "byte"), (counts.topics, "topic"))
    print(f"{', '.join(counted(number, noun) for number, noun in quantities)}: no errors")


@app.command("backup")
def backup_command(
    target: Annotated[
        Path, typer.Argument(metavar="DIR", help="Data directory to create; if it exists, it must be empty.")
    ],
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Copy an archive into a new data directory. The server may be running."""
    from restante.common.progress import progress
    from restante.waku.archive.schema import backup

    os.umask(0o077)  # as for `serve`
    with progress("backup") as advance:
        backup(data, target, advance)
    print(f"{target} is a data directory with a copy of the archive")

"""`restante extract`: rows of this host's databases for a pipeline on another machine. It needs no Spark."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from restante.common.extras import require_extra
from restante.common.terminal import say
from restante.common.texts import counted

if TYPE_CHECKING:
    from restante.pipeline.extract import Extracted

app = typer.Typer()


@app.command("extract")
def extract(
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME=PATH|URL",
            help="Database to read, and the name that you choose for it; repeatable.",
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR|URL",
            help="Folder of the extracts: here, or s3://, gs://, abfss://, hdfs://.",
        ),
    ] = "",
) -> None:
    """Write what is new in a server's database as Parquet files.

    They are for a pipeline on another machine. The database is that of a mailbox server (also the URL of one in
    PostgreSQL), a relay or a Waku archive, or the usage database of a reference server. The newest files in the
    folder say where to go on. Cron may call this at any time: files are written at most once an hour.
    """
    require_extra("extract")
    from restante.common.errors import Misuse, RestanteError
    from restante.pipeline.cli.options import check_names
    from restante.pipeline.cli.output import scratch_until_a_signal

    if not source or not output:
        raise Misuse("name what to read, --source NAME=PATH, and the folder of the extracts, --output DIR or a URL")
    try:
        output.encode()
    except UnicodeEncodeError as error:
        raise Misuse("--output: the path is not UTF-8: name another folder") from error
    specs = check_names(source)
    exit_code = 0
    with scratch_until_a_signal() as temporary:
        from restante.pipeline.extract import extract as write_extracts
        from restante.pipeline.sources.extract_files import ExtractFolder

        folder = ExtractFolder(output)
        for result in write_extracts(specs, folder, temporary, time.time(), say):
            if isinstance(result, RestanteError):
                say(f"restante: {result}")
                exit_code = max(exit_code, result.exit_code)
            else:
                print(result if isinstance(result, str) else _line(result))
    if exit_code:
        sys.exit(exit_code)


def _line(extracted: Extracted) -> str:
    """Return the line for a table that was written."""
    from restante.pipeline.cli.output import row_counts

    clean = extracted.rows - extracted.rejected
    files = f" to {counted(extracted.files, 'file')}" if extracted.files > 1 else ""
    text = row_counts(clean, {"with a fault": extracted.rejected}, extracted.missed)
    return f"{extracted.source}: {extracted.table}: {counted(extracted.rows, 'row')} written{files}: {text}"

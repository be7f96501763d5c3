"""Builds the table `sources`, which is not built day by day: rows of any day may change any of its rows.

It is built as a whole if a clean table has commits with rows or a ledger after the one that it was built from. That
is cheap. The counts are in the commits' states (Totals). Of each clean table only the latest day of each source is
read, and of the quarantine one column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import pyarrow as pa

from restante.common.texts import counted
from restante.pipeline.build.freshness import TableWithInputs
from restante.pipeline.build.run import BuildResult, commit_info_of, commit_inputs, report_removed
from restante.pipeline.ingest import Run
from restante.pipeline.lake import columns
from restante.pipeline.lake.data_files import Where
from restante.pipeline.lake.table import MAX_READ_ROWS, LakeTable
from restante.pipeline.schemas import QUARANTINE, SOURCE_KIND_ARCHIVE, SOURCE_KIND_FILES
from restante.pipeline.spark import small_jobs
from restante.pipeline.tables.sources import BUILD, COUNT_COLUMNS, LEDGERS, SOURCE_KINDS

_UNKNOWN: Final = "~"
"""Later than each day: the last day of a file that another program added, and that only its rows show."""


def build_sources(run: Run, first_day: str = "", *, plan: bool = False, planned: Collection[str] = ()) -> BuildResult:
    """Build the table if it is not up to date, or only return the days that its rows will have (`plan`).

    Rows of days before `first_day` (ISO) are left out, and rows of days that were dropped from the table by age.
    `planned` are the clean tables into which the run would read rows, if it only plans. Raises StoreError if the lake
    cannot be read or written, SparkError if the job fails.
    """
    tables = TableWithInputs.open(BUILD, cache(run.table))
    name, target = BUILD.table.name, tables.target
    report_removed(run, tables, planned)
    if not tables.is_outdated():
        if not plan:
            commit_inputs(run, tables)
        return BuildResult(name, ())
    first_day = max(first_day, target.state.kept or "")
    rows = [row for row in _ledgers(tables.inputs) if row["last_ingest"].date().isoformat() >= first_day]
    days = sorted({row["last_ingest"].date() for row in rows})
    if plan or not rows:
        return BuildResult(name, days)
    inputs = tables.inputs.items()
    selected = {input_: {} if input_ == QUARANTINE.name else _latest_days(table) for input_, table in inputs}
    size = _job_size(tables, selected)
    if not size.small:
        run.large_jobs()
    with run.step(name) as step:
        spark = small_jobs.session_for(run.spark(), size)
        frames = {input_: tables.inputs[input_].read(spark, where) for input_, where in selected.items()}
        ledgers = spark.createDataFrame(pa.Table.from_pylist(rows, columns.row_schema(LEDGERS.columns)))
        frames[LEDGERS.name] = small_jobs.one_task(ledgers)
        staged = target.stage(BUILD.rows(frames).coalesce(1))
        target.commit([staged], info=commit_info_of(run, tables, tables.input_commits()), replace={})
        step.done(counted(staged.rows, "row"))
    return BuildResult(name, days, staged.rows)


def _job_size(tables: TableWithInputs, selected: Mapping[str, Where]) -> small_jobs.JobSize:
    """Return the size of a job that reads these rows.

    The quarantine is read whole, but only one column of it, whose values are counted. So its rows count as those of
    files that are opened.
    """
    rows = file_rows = file_bytes = 0
    for name, where in selected.items():
        files = tables.inputs[name].files(where)
        file_rows += sum(file.rows for file in files)
        if name != QUARANTINE.name:
            by_day = tables.inputs[name].rows_by_day(files)
            rows += sum(number for day, number in by_day.items() if "day" not in where or day in where["day"])
            file_bytes += sum(file.size for file in files)
    return small_jobs.JobSize(rows, file_rows, file_bytes)


def _ledgers(inputs: Mapping[str, LakeTable]) -> list[dict[str, Any]]:
    """Return the rows of LEDGERS."""
    ledgers = []
    for name, table in inputs.items():
        for source, totals in table.state.totals.items():
            ledgers.append(
                {
                    "source": source,
                    "kind": SOURCE_KINDS.get(name) or _envelope_kind(table, source),
                    "last_ingest": datetime.fromtimestamp(totals.until, UTC),
                    "counted_since": datetime.fromtimestamp(totals.since, UTC),
                    **{column.name: getattr(totals, column.name) for column in COUNT_COLUMNS},
                }
            )
    return ledgers


def _envelope_kind(table: LakeTable, source: str) -> str:
    # The mark of a database has the name "", those of files have the files' names.
    return SOURCE_KIND_ARCHIVE if "" in table.marks(source) else SOURCE_KIND_FILES


def _latest_days(table: LakeTable) -> Where:
    """Return the latest days of all sources.

    Files are read from the last one on, until no other can have a later day of a source. If these have more than
    MAX_READ_ROWS, because a source has had no rows for long, all days are returned: executors read them.
    """
    latest: dict[str, str] = {}
    rows = 0
    sources = set(table.state.sources)
    for file in sorted(table.files(), key=lambda file: file.last_day or _UNKNOWN, reverse=True):
        if sources <= latest.keys() and (file.last_day or _UNKNOWN) <= min(latest.values(), default=""):
            break
        rows += file.rows if table.table.by_month else 0  # the log has the others' days and sources
        if rows > MAX_READ_ROWS and table.executors:
            return {}
        for source, day in file.latest_days().items():
            latest[source] = max(day, latest.get(source, ""))
    return {"day": set(latest.values())}

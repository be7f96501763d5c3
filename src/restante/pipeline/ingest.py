"""`restante pipeline ingest`: reads the new rows of the sources into the lake's clean tables, one commit per table.

Each row is clean, a duplicate, or goes into quarantine. A commit's ledger compares these counts with the source's own
count. The commit has the marks at which the next run continues. So a run that is killed has either finished a table
or not changed it, and the next run reads the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from restante.common.errors import StoreError
from restante.common.texts import counted
from restante.pipeline.clean.envelopes import SENT_TOO_LATE
from restante.pipeline.clean.rules import OUT_OF_RANGE
from restante.pipeline.lake.commit_info import CommitInfo, Ledger, SourceCommit
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import ARCHIVED, CLEAN_TABLES, QUARANTINE, Table
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.rows import arrow_schema, ddl
from restante.pipeline.sources.source import (
    DUPLICATE,
    IngestContext,
    OpenedSource,
    Source,
    SourceError,
    Span,
    Task,
    another_kind,
    files_by_origin,
    parse_spec,
    read_twice,
)
from restante.pipeline.spark import small_jobs
from restante.pipeline.spark.errors import SparkError
from restante.pipeline.steps import Step, Steps

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession


PARTITIONS_PER_CORE: Final = 4
"""Spark's tasks that read a source, by core: Spark takes a tenth of a second per task, and a client's log has 8 kB.
Several, because some take longer than others."""


class Run(NamedTuple):
    """The context of a run."""

    lake: Lake
    name: str
    """Identifies the run in the infos of its commits."""
    now: Callable[[], float]
    """Returns the time in seconds since 1970."""
    spark: Callable[[], SparkSession]
    """Returns the Spark session, which the first call starts."""
    steps: Steps
    scratch: Path
    """A folder for copies that no other user may read."""
    local: Callable[[], SparkSession] | None = None
    """Returns a session on this machine, which reads the sources. It ends the one of `spark`, and `spark` ends this
    one. None: that of `spark` is on this machine."""
    large_jobs: Callable[[], None] = lambda: None
    """Is called before jobs that are not small (restante.pipeline.spark.small_jobs), while no job runs. It ends a
    session whose Java was started for small jobs, and the next call of `spark` starts another."""

    def table(self, table: Table) -> LakeTable:
        """Return a table of the lake as it is now (Lake.table)."""
        return self.lake.table(table, self.spark if self.local else None)

    @contextmanager
    def step(self, name: str, spark: SparkSession | None = None) -> Iterator[Step]:
        """Start Spark if it is not running, and show a step that uses it, or another session."""
        from restante.pipeline.spark.session import name_jobs

        name_jobs(spark or self.spark(), name)
        with self.steps.step(name) as step:
            yield step


class IngestResult(NamedTuple):
    """The result of a run for a table of a source."""

    source: str
    table: str
    span: Span | None
    """The new rows; None if there were none."""
    ledger: Ledger | None = None
    """None if there were no new rows, or the run only planned."""
    failure: str = ""
    """Why the source was not read from here on; "" if it was."""


def recognise_sources(specs: Sequence[str]) -> tuple[list[Source], list[IngestResult]]:
    """Recognise the sources that the operator named. A source that cannot be read gives a result with the reason.

    Raises Misuse if a text does not name a source.
    """
    sources, failures = [], []
    for spec in specs:
        try:
            sources.append(recognise(spec))
        except SourceError as error:
            name = parse_spec(spec).name
            failures.append(IngestResult(name, "", None, failure=error.with_source(name)))
    return sources, failures


def ingest(run: Run, sources: Sequence[Source], *, plan: bool = False) -> list[IngestResult]:
    """Ingest the new rows of all sources, or only return how many there are (`plan`).

    A source that cannot be read gives a result with the reason, and the others are read. Raises StoreError if the
    lake cannot be written, SparkError if a job fails. Sources are read by this machine, whose files they are, also if
    the run's session is on others.
    """
    targets = {name: run.table(table) for name, table in CLEAN_TABLES.items()}
    refused = _refusals(sources, targets.values())
    imported = files_by_origin([source for source in sources if source.name not in refused])
    context = ingest_context(run, targets.values(), imported)
    results = []
    for source in sources:
        if source.name in refused:
            results.append(IngestResult(source.name, "", None, failure=refused[source.name]))
            continue
        try:
            with source.opened(run.scratch, run.steps.say, context) as opened:
                results.extend(
                    _ingest_table(run, context, source, opened, targets[table.name], plan=plan)
                    for table in opened.tables
                )
        except SourceError as error:
            results.append(IngestResult(source.name, "", None, failure=error.with_source(source.name)))
    return results


def ingest_context(
    run: Run, tables: Iterable[LakeTable], origins: Mapping[str, Sequence[Path]] | None = None
) -> IngestContext:
    """Return the values that sources are read with, and say so if our clock was set back."""
    last_commit = max((table.last_commit or 0.0 for table in tables), default=0.0)
    context = IngestContext(run.now(), origins or {}, last_commit)
    if context.set_back:
        run.steps.say(_clock_message(context))
    return context


def _clock_message(context: IngestContext) -> str:
    """Return the text about a clock that was set back."""
    times = (context.now, context.before)
    now, latest = (datetime.fromtimestamp(int(seconds), UTC).isoformat(" ") for seconds in times)
    return f"this machine's clock says {now}, before the lake's last commit or first day, {latest}: set the clock"


def _refusals(sources: Sequence[Source], targets: Iterable[LakeTable]) -> dict[str, str]:
    """Return why sources are not read, by name: two sources read the same file, or a source's kind has changed."""
    errors = read_twice(sources)
    for source in sources:
        fed_tables = [target.table.name for target in targets if source.name in target.state.sources]
        if fed_tables and not {table.name for table in source.feeds}.intersection(fed_tables):
            errors.setdefault(source.name, another_kind(source, ", ".join(fed_tables)))
    return {name: str(error) for name, error in errors.items()}


def _ingest_table(
    run: Run, context: IngestContext, source: Source, opened: OpenedSource, target: LakeTable, *, plan: bool
) -> IngestResult:
    table = target.table
    marks = target.marks(source.name)
    if marks and all((part == "") != source.is_database for part in marks):
        raise another_kind(source, table.name)
    span = opened.find_new(table.name, marks)
    if span is not None and source.is_database and not marks:
        say_same_start(run, target, source.name, span)
    if span is None or plan:
        return IngestResult(source.name, table.name, span)
    say_reason(run, source.name, span)
    size = small_jobs.JobSize(span.counted, file_bytes=span.envelope_bytes)
    if not size.small:
        run.large_jobs()
    spark = (run.local or run.spark)()
    if not any(column.type == "BINARY" for column in table.columns):  # few envelopes may have many bytes
        spark = small_jobs.session_for(spark, size)
    with run.step(f"{source.name}: {table.name}", spark) as step:
        try:
            ledger = _ingest_span(run, spark, source, span, target, context)
        except SparkError as error:
            raise _source_error(error) from error
        step.done(counted(ledger.read, "row"))
    return IngestResult(source.name, table.name, span, ledger)


def say_same_start(run: Run, target: LakeTable, source: str, span: Span) -> None:
    """Say which other sources in the lake have the first row of this new source."""
    table = target.table
    twice = "it counts as another holder of its envelopes" if table is ARCHIVED else "its rows are counted twice"
    first_digests = {mark.first_digest for mark in span.marks.values()} - {""}
    for other in target.state.sources:
        if other != source and first_digests & {mark.first_digest for mark in target.marks(other).values()}:
            run.steps.say(
                f"source {source}: {table.name} begins with the same row as that of source {other} in the lake:"
                f" if it is the same database under another name, or a copy, {twice}"
            )


def say_reason(run: Run, source: str, span: Span) -> None:
    """Say why a source is read again, if it is."""
    if span.reason:
        rows = ", and its rows replaced" if span.replace else ""
        run.steps.say(f"source {source}: {span.table} is read again from the beginning{rows}: {span.reason}")


def _source_error(error: SparkError) -> SparkError | SourceError:
    """Return the SourceError that one of Spark's workers raised, if any, so that the others are still read."""
    _, source, message = str(error).partition(f"{SourceError.__module__}.{SourceError.__name__}: ")
    return SourceError(message) if source else error


def _ingest_span(
    run: Run,
    spark: SparkSession,
    source: Source,
    span: Span,
    target: LakeTable,
    context: IngestContext,
) -> Ledger:
    """Read a span, and commit its rows. It is read a second time if rows go into quarantine."""
    from pyspark.sql import functions as f

    fault = f.col("fault")
    rows = read_tasks(spark, target.table, list(span.tasks))
    staged, counts = stage_clean(
        rows,
        "fault IS NULL",
        target,
        read=f.count(f.lit(1)),
        duplicate=f.count_if(fault == DUPLICATE),
        quarantined=f.count_if(fault != DUPLICATE),
        too_late=f.count_if(fault.isin(*_clock_faults(source))),
    )
    too_late = counts.pop("too_late")
    ledger = span_ledger(span, clean=staged.rows, **counts)
    try:
        _check_counts(ledger, source, span)
        _check_clock_faults(too_late, source, span, context)
        if ledger.quarantined:
            quarantine(run, spark, span.table, [source.name], rows.withColumn("source", f.lit(source.name)))
    except BaseException:
        staged.discard()
        raise
    commit_spans(run, target, staged, {source.name: (span, ledger)})
    return ledger


def read_tasks(spark: SparkSession, table: Table, tasks: Sequence[Task]) -> DataFrame:
    """Return the rows that tasks read for a table, by this process if the job is small, else by Spark's workers.

    These read them when the job runs. They are on this machine, where the sources are.
    """
    if not tasks or small_jobs.is_small(spark):
        batches = [batch for task in tasks for batch in task()]
        return small_jobs.one_task(
            spark.createDataFrame(pa.Table.from_batches(batches, arrow_schema(table)), ddl(table))
        )

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in chain.from_iterable(batch.column("id").to_pylist() for batch in numbers):
            yield from tasks[number]()

    partitions = min(len(tasks), PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism)
    return spark.range(0, len(tasks), 1, partitions).mapInArrow(read, ddl(table))


def stage_clean(
    rows: DataFrame, condition: str, target: LakeTable, **counts: Expression
) -> tuple[StagedFiles, dict[str, int]]:
    """Write the rows that fulfil a condition. Return the files, and counts of all rows."""
    from pyspark.sql import Observation

    observation = Observation("counts")
    observed = rows.observe(observation, *(count.alias(name) for name, count in counts.items()))
    clean = observed.where(condition).select(*(f"`{column.name}`" for column in target.table.columns))
    # Few files per day, even if the days are mixed; a small job writes one anyway.
    staged = target.stage(clean if small_jobs.is_small(rows.sparkSession) else clean.hint("rebalance", "day"))
    return staged, {name: int(count) for name, count in observation.get.items()}


def commit_spans(run: Run, target: LakeTable, staged: StagedFiles, spans: Mapping[str, tuple[Span, Ledger]]) -> None:
    """Commit the rows of spans, given with their ledgers by source."""
    replaced = {source for source, (span, _) in spans.items() if span.replace}
    target.commit(
        [staged],
        info=CommitInfo(
            run=run.name,
            finished=run.now(),
            sources={source: SourceCommit(ledger, dict(span.marks)) for source, (span, ledger) in spans.items()},
        ),
        replace={"source": replaced} if replaced else None,
    )


def span_ledger(span: Span, **counts: int) -> Ledger:
    """Return the ledger of a span that was read, with these counts of its rows."""
    return Ledger(
        **counts,
        missed=span.missed,
        replaced=span.replace,
    )


def _clock_faults(source: Source) -> Sequence[str]:
    """Return the faults of rows that are later than our clock allows. An archive's rows have their own arrivals."""
    return (OUT_OF_RANGE,) if source.is_database else (OUT_OF_RANGE, SENT_TOO_LATE)


def _check_counts(ledger: Ledger, source: Source, span: Span) -> None:
    if ledger.read != span.counted:
        raise SourceError(
            f"source {source.name}: {span.table} counts {counted(span.counted, 'row')}, but {ledger.read:,} could"
            " be read; none was taken. The file is damaged, or was changed by hand: check it"
        )
    if ledger.read != ledger.clean + ledger.duplicate + ledger.quarantined:
        raise StoreError(
            f"of {counted(ledger.read, 'row')} of {span.table} {ledger.clean:,} were written and"
            f" {ledger.duplicate + ledger.quarantined:,} were left out, which does not add up: none was committed."
            " Run this again"
        )


def _check_clock_faults(too_late: int, source: Source, span: Span, context: IngestContext) -> None:
    """Raise SourceError if rows would go into quarantine, and never be read again, because our clock was set back."""
    if too_late and context.set_back:
        raise SourceError(
            f"source {source.name}: the times of {counted(too_late, 'row')} of {span.table} are out of range, perhaps"
            f" only by this machine's clock; none was taken, because {_clock_message(context)}, and run this again"
        )


def quarantine(run: Run, spark: SparkSession, table: str, sources: Collection[str], rows: DataFrame) -> None:
    """Commit those of the rows of sources (sources.rows) that have a fault and are no duplicates.

    Skip those already in quarantine: a run that was killed may have written them.
    """
    from pyspark.sql import functions as f

    target = run.table(QUARANTINE)
    today = datetime.fromtimestamp(run.now(), UTC).date()
    bad = rows.where(f.col("fault") != DUPLICATE).selectExpr("identity", "fault AS reason", "digest", "source")
    bad = bad.withColumns({"table": f.lit(table), "day": f.lit(today)})
    key = ["source", "table", "identity", "digest"]
    new = target.stage(bad.join(target.read(spark, {"source": set(sources)}).select(*key), key, "left_anti"))
    if not new.rows:
        new.discard()
        return
    target.commit([new], info=CommitInfo(run=run.name, finished=run.now()))

"""Reads the extracts of all hosts into the lake's clean tables: one Spark job and one commit per table.

A source whose extracts cannot be read, break a rule of the lake, or do not have the rows that they count is left out,
and those of the others are read. The rows that Spark observes are compared with the sum of the files' counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from restante.common.errors import StoreError
from restante.common.texts import cleaned, counted
from restante.pipeline.ingest import (
    IngestResult,
    Run,
    commit_spans,
    ingest_context,
    quarantine,
    say_reason,
    say_same_start,
    span_ledger,
    stage_clean,
)
from restante.pipeline.lake.staging import StagedFiles
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.lake.url_path import LakePath
from restante.pipeline.schemas import ARCHIVED, CLEAN_TABLES, Table
from restante.pipeline.sources import extracts
from restante.pipeline.sources.extracts import NewExtracts
from restante.pipeline.sources.source import IngestContext, SourceError
from restante.pipeline.spark import small_jobs
from restante.pipeline.spark.errors import JAVA_ENDED, NO_CONNECTOR, SparkError, translated_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "extracts"
"""What results and steps call the folder of all extracts."""

MAX_READS: Final = 3
"""How often extracts are read if Spark observes more rows than they have. Spark repeats the finished tasks of a
worker that it lost, and observes their rows again (DAGScheduler.updateAccumulators, of tasks before a shuffle)."""


def ingest_extracts(
    run: Run, folder: LakePath, other_sources: Collection[str] = (), *, plan: bool = False
) -> list[IngestResult]:
    """Ingest the new rows of all extracts, or only return how many there are (`plan`).

    Sources that are read in place in this run (`other_sources`) are refused. Only sources with new rows, or that
    cannot be read, have results. Raises StoreError if the lake cannot be written, SparkError if a job fails.
    """
    targets = [run.table(table) for table in CLEAN_TABLES.values()]
    context = ingest_context(run, targets)
    sources, results = _find_sources(folder, targets, other_sources)
    max_files = max(1, extracts.MAX_FILES // max(1, len(sources)))
    for table in extracts.TABLES:
        target = run.table(table)
        new_rows = []
        for source in (name for name, tables in sources.items() if table in tables):
            try:
                mark = target.marks(source).get("")
                new, waiting = extracts.find_new(folder, source, table, mark, context, max_files)
                new_rows += [new] if new else []
                if waiting:
                    run.steps.say(waiting)
            except SourceError as error:
                results.append(IngestResult(source, table.name, None, failure=error.with_source(source)))
        if plan:
            results += [IngestResult(new.source, table.name, new.span) for new in new_rows]
        elif new_rows:
            results += _ingest_table(run, target, new_rows, context)
    return results


def _find_sources(
    folder: LakePath, targets: Sequence[LakeTable], other_sources: Collection[str]
) -> tuple[dict[str, list[Table]], list[IngestResult]]:
    """Return the tables of which each source has extracts, and a result for each that cannot be read."""
    sources: dict[str, list[Table]] = {}
    results = []
    try:
        for source in extracts.sources_of(folder):
            try:
                tables = extracts.tables_of(folder, source)
                _check_name(source, tables, targets, other_sources)
                sources[source] = tables
            except SourceError as error:
                results.append(IngestResult(source, "", None, failure=error.with_source(source)))
    except SourceError as error:
        return {}, [IngestResult(NAME, "", None, failure=str(error))]
    if not results and not any(sources.values()):
        text = f"--extracts {folder}: there are no extracts: name the folder that has a folder for each source"
        results.append(IngestResult(NAME, "", None, failure=text))
    return sources, results


def _check_name(
    source: str, tables: Sequence[Table], targets: Sequence[LakeTable], other_sources: Collection[str]
) -> None:
    """Raise SourceError if the lake has rows of another kind under a source's name, or this run reads it in place."""
    if source in other_sources:
        raise SourceError(f"source {source}: it has extracts, and --source names it, too: leave one of them out")
    fed = [target for target in targets if source in target.state.sources]
    same = [target.marks(source) for target in fed if target.table in tables]
    if fed and tables and (not same or any(marks and "" not in marks for marks in same)):
        raise SourceError(
            f"source {source}: the lake has {', '.join(target.table.name for target in fed)} of it, and its extracts"
            " are of another kind: rename its folder"
        )


def _ingest_table(
    run: Run, target: LakeTable, new_rows: Sequence[NewExtracts], context: IngestContext
) -> list[IngestResult]:
    """Read the new rows of sources, and commit those of all that can be read."""
    table = target.table
    for new in new_rows:
        say_reason(run, new.source, new.span)
        if not target.marks(new.source):
            say_same_start(run, target, new.source, new.span)
    files = [file for new in new_rows for file in new.files]
    size = small_jobs.JobSize(sum(new.span.counted for new in new_rows), file_bytes=sum(file.size for file in files))
    if not size.small:
        run.large_jobs()
    spark = run.spark()
    if table is not ARCHIVED:  # few envelopes may have many bytes
        spark = small_jobs.session_for(spark, size)
    results = []
    with run.step(f"{NAME}: {table.name}", spark) as step:
        staged, good, refused = _staged(spark, target, new_rows, context)
        results += [IngestResult(source, table.name, None, failure=text) for source, text in refused.items()]
        if staged is None:
            return results
        ledgers = {
            new.source: span_ledger(
                new.span, read=new.span.counted, clean=new.span.counted - new.rejected, quarantined=new.rejected
            )
            for new in good
        }
        try:
            if any(new.rejected for new in good):
                _quarantine(run, spark, table, good, context)
        except BaseException:
            staged.discard()
            raise
        commit_spans(run, target, staged, {new.source: (new.span, ledgers[new.source]) for new in good})
        read = sum(ledger.read for ledger in ledgers.values())
        step.done(f"{counted(read, 'row')} of {counted(len(good), 'source')}")
    return results + [IngestResult(new.source, table.name, new.span, ledgers[new.source]) for new in good]


def _staged(
    spark: SparkSession, target: LakeTable, new_rows: Sequence[NewExtracts], context: IngestContext
) -> tuple[StagedFiles | None, list[NewExtracts], dict[str, str]]:
    """Write the clean rows; return the files, the sources whose rows they have, and why others were refused.

    If something is wrong, each source is read alone to see which. Raises StoreError if none is the cause.
    """
    good, refused = list(new_rows), dict[str, str]()
    for _ in range(MAX_READS):
        staged = failure = None
        try:
            with translated_errors():
                staged = _stage(spark, target, good, context)
        except SparkError as error:
            failure = error
        if staged is not None:
            return staged, good, refused
        if failure is not None and any(text in str(failure) for text in (JAVA_ENDED, NO_CONNECTOR)):
            raise failure
        broken = {new.source: text for new in good if (text := _fault(spark, target.table, new, context))}
        if failure is not None and not broken:
            raise failure
        refused |= broken
        good = [new for new in good if new.source not in broken]
        if not good:
            return None, [], refused
    raise StoreError(
        f"the rows of {target.table.name} that were read do not add up with what their extracts count: none was"
        " committed. Run this again"
    )


def _stage(
    spark: SparkSession, target: LakeTable, new: Sequence[NewExtracts], context: IngestContext
) -> StagedFiles | None:
    """Write the clean rows of sources. Return None if the counts are not those of the files, or a rule is broken."""
    from pyspark.sql import functions as f

    staged, counts = stage_clean(
        extracts.read(spark, target.table, new, context),
        "fault IS NULL AND broken IS NULL",
        target,
        read=f.count(f.lit(1)),
        rejected=f.count("fault"),
        broken=f.count("broken"),
    )
    expected = {
        "read": sum(of_source.span.counted for of_source in new),
        "rejected": sum(of_source.rejected for of_source in new),
        "broken": 0,
    }
    if counts == expected and staged.rows == expected["read"] - expected["rejected"]:
        return staged
    staged.discard()
    return None


def _fault(spark: SparkSession, table: Table, new: NewExtracts, context: IngestContext) -> str:
    """Read the rows of one source, and return why they cannot be taken, or ""."""
    from pyspark.sql import functions as f

    columns = [f"`{column.name}`" for column in table.columns]
    try:
        with translated_errors():
            frame = extracts.read(spark, table, [new], context)
            all_read = f.bit_xor(f.xxhash64(*columns))  # else Spark reads only the columns that it needs
            counts = frame.agg(f.count(f.lit(1)), f.count("fault"), f.min("broken"), all_read)
            [(read, rejected, broken, _)] = counts.collect()
    except SparkError as error:
        return (
            f"source {new.source}: Spark cannot read its extracts of {table.name}, from {new.files[0].path} to"
            f" {new.files[-1].name} ({cleaned(str(error))}). If one is damaged, {extracts.WRITE_AGAIN}"
        )
    if broken:
        return (
            f"source {new.source}: {broken} in a row of its extracts of {table.name}, so none of them was taken: our"
            " program writes no such row if its clock and ours are right; check its host"
        )
    if (read, rejected) != (new.span.counted, new.rejected):
        return (
            f"source {new.source}: its extracts of {table.name} count {counted(new.span.counted, 'row')},"
            f" {new.rejected:,} with a fault, but {read:,} were read, {rejected:,} with a fault; none was taken:"
            f" {extracts.WRITE_AGAIN}"
        )
    return ""


def _quarantine(
    run: Run, spark: SparkSession, table: Table, new: Sequence[NewExtracts], context: IngestContext
) -> None:
    """Commit the rows with a fault, which are read a second time."""
    of_sources = [of_source for of_source in new if of_source.rejected]
    bad = extracts.read(spark, table, of_sources, context).where("broken IS NULL")
    quarantine(run, spark, table.name, [of_source.source for of_source in of_sources], bad)

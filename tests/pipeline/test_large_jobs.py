"""Which runs ask for a Java for large jobs, before they ask for Spark. Spark is not started."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from restante.cli import pipeline_run
from restante.pipeline.build import run as build_run
from restante.pipeline.build import sources as build_sources
from restante.pipeline.build.run import build
from restante.pipeline.ingest import Run, ingest
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.lake.compact import compact
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.spark import small_jobs
from restante.pipeline.tables import BUILDS
from support.pipeline import busy_week as busy
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import nameplate, ours
from support.pipeline.tables import dicts
from support.pipeline.tables import rows as written
from support.waku.archives import ROWS, archive_of
from support.waku.envelopes import T0 as SENT

FIRST, SECOND = "2026-03-10", "2026-03-11"


class SparkStarts(Exception):  # noqa: N818 - it is no error
    """The run wants its session."""


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    """A lake whose runs end when they ask for Spark."""

    def start() -> None:
        raise SparkStarts

    world = LakeWorld(None, tmp_path)
    world.now = (busy.TODAY + timedelta(days=30)).timestamp()
    world.spark = start  # type: ignore[assignment]
    return world


def watched(run: Run) -> tuple[Run, list[str]]:
    asked: list[str] = []
    return run._replace(large_jobs=lambda: asked.append("large")), asked


def large_ingest(lake: LakeWorld, spec: str) -> bool:
    with lake.run() as opened:
        run, asked = watched(opened)
        with pytest.raises(SparkStarts):
            ingest(run, [recognise(spec)])
    return asked == ["large"]


def large_build(lake: LakeWorld, *names: str) -> bool:
    with lake.run() as opened:
        run, asked = watched(opened)
        with pytest.raises(SparkStarts):
            build(run, builds={name: BUILDS[name] for name in names})
    return asked == ["large"]


def add(lake: LakeWorld, table: str, *days: str, source: str = "relay") -> None:
    """Commit a row of a clean table for each day that is named."""
    noons = [datetime.fromisoformat(f"{day}T12:00:00Z") for day in days]
    if table == "nameplates":
        values = written(table, [{"started": noon.isoformat(), "source": source} for noon in noons])
    else:
        values = written(table, [{"start": noon.timestamp(), "source": source} for noon in noons])
    ledger = Ledger(read=len(days), clean=len(days), counted=len(days))
    lake.add(table, dicts(table, values), source=source, ledger=ledger)


def limit(patch: pytest.MonkeyPatch, *, rows: int = 100, file_rows: int = 100, size: int = 1 << 30) -> None:
    patch.setattr(small_jobs, "MAX_SMALL_JOB_ROWS", rows)
    patch.setattr(small_jobs, "MAX_SMALL_JOB_FILE_ROWS", file_rows)
    patch.setattr(small_jobs, "MAX_SMALL_JOB_FILE_BYTES", size)


# ── ingest ───────────────────────────────────────────────────────────────────────────────────────


def test_usage_records_are_a_large_job_if_there_are_many(
    lake: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ours(tmp_path / "relay", nameplate(1), nameplate(2)):
        limit(monkeypatch, rows=2, size=0)
        assert not large_ingest(lake, f"relay={tmp_path / 'relay'}")
        limit(monkeypatch, rows=1)
        assert large_ingest(lake, f"relay={tmp_path / 'relay'}")


@pytest.mark.parametrize("kind", ["archive", "files"])
def test_envelopes_are_a_large_job_if_they_have_many_bytes(
    lake: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    content = b"".join(each.raw for each in ROWS)
    source = tmp_path / "x.rlp"
    if kind == "archive":
        source = archive_of(tmp_path / "data")
    else:
        source.write_bytes(content)
    size = len(content)
    lake.now = SENT + 86_400.0
    limit(monkeypatch, size=2 * size)
    assert not large_ingest(lake, f"waku={source}")
    limit(monkeypatch, size=size // 2)
    assert large_ingest(lake, f"waku={source}")


# ── build ────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_large_if_it_reads_many_rows(lake: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    add(lake, "nameplates", FIRST, FIRST)
    limit(monkeypatch, rows=2, file_rows=2)
    assert not large_build(lake, "outcomes")
    limit(monkeypatch, rows=1)
    assert large_build(lake, "outcomes")


def test_a_job_of_few_rows_is_large_if_a_file_that_it_opens_is(
    lake: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (FIRST, FIRST, SECOND):
        add(lake, "nameplates", day)
    with lake.run() as run:
        table = run.lake.table(NAMEPLATES)
        assert compact(table, "merge", run.now) != []
        [merged] = table.files()
    limit(monkeypatch, rows=3, file_rows=3, size=merged.size)
    assert not large_build(lake, "outcomes")
    limit(monkeypatch, rows=3, file_rows=2)
    assert large_build(lake, "outcomes")
    limit(monkeypatch, rows=3, size=merged.size - 1)
    assert large_build(lake, "outcomes")


def test_rows_of_a_table_that_is_built_first_are_estimated(lake: LakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten events are at most thirty rows of `timing`."""
    add(lake, "client_events", *[FIRST] * 10)
    limit(monkeypatch, rows=29)
    assert not large_build(lake, "timing")
    assert large_build(lake, "timing", "times")
    limit(monkeypatch, rows=30)
    assert not large_build(lake, "timing", "times")


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def three_sources(lake: LakeWorld) -> DataFile:
    """Nameplates of three sources in one file: three of the last day, four of the one before."""
    add(lake, "nameplates", *[FIRST] * 4)
    add(lake, "nameplates", SECOND, SECOND)
    add(lake, "nameplates", SECOND, source="other")
    with lake.run() as run:
        table = run.lake.table(NAMEPLATES)
        assert compact(table, "merge", run.now) != []
        [merged] = table.files()
    return merged


def large_sources(lake: LakeWorld) -> bool:
    with lake.run() as run:
        return not build_sources.job_size(run).small


def test_the_table_of_sources_is_a_large_job_if_the_latest_days_have_many_rows(
    lake: LakeWorld, three_sources: DataFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, rows=3, file_rows=7, size=three_sources.size)
    assert not large_sources(lake), "of the day before no row is read"
    limit(monkeypatch, rows=2)
    assert large_sources(lake)
    limit(monkeypatch, file_rows=6)
    assert large_sources(lake)
    limit(monkeypatch, size=three_sources.size - 1)
    assert large_sources(lake)


def test_a_large_job_for_sources_is_known_before_the_first_table_is_built(
    lake: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(lake, "nameplates", FIRST, FIRST)

    def note(found: list[str], what: str, *_given: object, **_others: object) -> list[object]:
        found.append(what)
        return []

    def asked(most: int, *, plan: bool = False) -> list[str]:
        limit(monkeypatch, rows=most)
        with lake.run() as opened:
            run, found = watched(opened)
            monkeypatch.setattr(build_run, "build", partial(note, found, "build"))
            pipeline_run.build_into(run, {}, plan=plan)
        return found

    assert asked(1) == ["large", "build"]
    assert asked(1, plan=True) == ["build"]
    assert asked(2) == ["build"]

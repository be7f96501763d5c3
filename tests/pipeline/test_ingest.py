"""What a run takes from sources, what it leaves, and what is in the lake when it was cut off."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from restante.mailbox.reference_import.importing import import_databases
from restante.pipeline import ingest
from restante.pipeline.build import run as build_run
from restante.pipeline.lake.commit_info import Ledger
from restante.pipeline.lake.lake import Lake
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.schemas import NAMEPLATES
from restante.pipeline.sources.source import Span
from restante.pipeline.sources.usage import OpenedUsage
from restante.pipeline.spark import small_jobs
from support.mailbox.reference_sources import Their
from support.pipeline.runs import LakeWorld, no_spark
from support.pipeline.servers import T0, alter, client, current, mailbox, nameplate, ours

SECONDS_PER_DAY = 86_400.0


def test_rows_go_to_the_lake_and_a_second_run_reads_new_ones(world: LakeWorld, tmp_path: Path) -> None:
    specs = [f"relay={tmp_path / 'a'}", f"west={tmp_path / 'b'}"]
    with (
        ours(tmp_path / "a", nameplate(1), nameplate(2), mailbox(2), client(3), current(None)) as server,
        ours(tmp_path / "b", nameplate(2, blur_time=60.0), current(None)),
    ):
        results = world.ingest(*specs)
        tables = ("live", "nameplates", "mailboxes", "client_versions")
        assert [(done.source, done.table) for done in results] == [(n, t) for n in ("relay", "west") for t in tables]
        clean = [done.ledger and done.ledger.clean for done in results]
        assert clean == [1, 2, 1, 1, 1, 1, None, None]
        server.write(nameplate(0, started=T0 - 3 * SECONDS_PER_DAY), nameplate(4))
        second = world.ledger("nameplates", *specs)
        world.spark = no_spark
        assert {(each.span, each.ledger) for each in world.ingest(*specs)} == {(None, None)}
    ledgers = [(ledger.read, ledger.first, ledger.last) for ledger in (results[1].ledger, second) if ledger]
    assert ledgers == [(2, 1, 2), (2, 3, 4)]
    with Lake.open(world.path, write=False) as lake:
        assert [lake.table(NAMEPLATES).transaction(name) for name in ("relay", "west")] == [4, 1]
    [row] = world.rows("mailboxes")
    values = {
        "id": 1,
        "app_id": "x",
        "total_us": 9_000_000,
        "waiting_us": None,
        "result": "lonely",
        "source": "relay",
    }
    assert row.items() >= {**values, "id": 1, "day": date(2023, 11, 14)}.items()
    assert row["started"].timestamp() == T0 + 2
    assert sorted((r["source"], r["id"], str(r["day"]), r["blur_us"]) for r in world.rows("nameplates")) == [
        ("relay", 1, "2023-11-14", None),
        ("relay", 2, "2023-11-14", None),
        ("relay", 3, "2023-11-11", None),  # a late row lands in its own day
        ("relay", 4, "2023-11-14", None),
        ("west", 1, "2023-11-14", 60_000_000),
    ]
    assert world.infos("nameplates")[0].days == ["2023-11-11", "2023-11-14"]


# ── what cannot be taken ─────────────────────────────────────────────────────────────────────────


def a_torn_file(folder: Path) -> Path:
    """The reference server's, with a row that makes no sense."""
    their = Their(folder / "their")
    for number in range(3):
        box = their.claim("s", str(number), T0 + number)
        their.release("s", str(number), T0 + number + 1)
        their.close("s", box, "happy", T0 + number + 2)
    their.prune(T0 + 60)
    their.stop()
    alter(their.usage, "UPDATE nameplates SET result = 'canary' WHERE rowid = 2", "DELETE FROM mailboxes")
    return their.usage


def test_a_faulty_row_is_in_quarantine_once_and_without_content(world: LakeWorld, tmp_path: Path) -> None:
    file = a_torn_file(tmp_path)
    commit = LakeTable.commit

    def cut_off(table: LakeTable, *given: object, **others: object) -> int:
        if table.table.name == "nameplates":
            raise KeyboardInterrupt
        return commit(table, *given, **others)  # type: ignore[arg-type]

    with patch.object(LakeTable, "commit", cut_off), pytest.raises(KeyboardInterrupt):
        world.ingest(f"old={file}")
    assert [len(world.rows(name)) for name in ("quarantine", "nameplates")] == [1, 0]
    ledger = world.ledger("nameplates", f"old={file}")
    assert ledger is not None
    assert (ledger.read, ledger.clean, ledger.quarantined) == (3, 2, 1)
    [row] = world.rows("quarantine")
    assert (row["table"], row["identity"], row["source"]) == ("nameplates", "2", "old")
    assert len(row["digest"]) == 64
    assert b"canary" not in world.bytes()
    assert not list(world.path.glob("quarantine/run-*")), "what was there already is not left lying about"
    assert len(world.rows("nameplates")) == 2


@pytest.mark.parametrize(
    ("small", "rejected_per_task"),
    [
        pytest.param(True, 10, id="a small job"),
        pytest.param(False, 10, id="a large job", marks=pytest.mark.thorough),
        pytest.param(False, 1, id="more rejected rows than a task hands on", marks=pytest.mark.thorough),
    ],
)
def test_faulty_rows_of_a_source_go_to_quarantine(
    world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool, rejected_per_task: int
) -> None:
    """The copy of the source has gone then, unless a task had too many of them."""
    quarantine = ingest._quarantine

    def without_copy(*given: object) -> None:
        for copy in (world.folder / "scratch").rglob("*.sqlite"):
            copy.unlink()
        quarantine(*given)  # type: ignore[arg-type]

    if not small:
        monkeypatch.setattr(small_jobs, "MAX_SMALL_JOB_ROWS", -1)
    if rejected_per_task > 1:
        monkeypatch.setattr(ingest, "_quarantine", without_copy)
    monkeypatch.setattr(ingest, "MAX_REJECTED_PER_TASK", rejected_per_task)
    rows = [nameplate(number, result="canary" if number % 2 else "happy") for number in range(9)]
    with ours(tmp_path / "a", *rows, current(None)):
        ledger = world.ledger("nameplates", f"relay={tmp_path / 'a'}")
    assert ledger is not None
    assert (ledger.read, ledger.clean, ledger.quarantined) == (9, 5, 4)
    rejected = world.rows("quarantine")
    assert sorted(row["identity"] for row in rejected) == ["2", "4", "6", "8"]
    assert {(row["table"], row["source"], len(row["digest"])) for row in rejected} == {("nameplates", "relay", 64)}


@pytest.mark.thorough
def test_rows_that_were_imported_from_another_source_are_duplicates(world: LakeWorld, tmp_path: Path) -> None:
    file = a_torn_file(tmp_path)
    alter(file, "UPDATE nameplates SET result = 'happy'")
    import_databases(tmp_path / "a", None, file, merge=False)
    with ours(tmp_path / "a", nameplate(50), current(None)):
        results = world.ingest(f"new={tmp_path / 'a'}", f"old={file}")
    counts = {
        result.source: (result.ledger.read, result.ledger.clean, result.ledger.duplicate)
        for result in results
        if result.table == "nameplates" and result.ledger
    }
    assert counts == {"new": (4, 1, 3), "old": (3, 3, 0)}


def test_a_source_that_fails_or_miscounts_holds_up_no_other(world: LakeWorld, tmp_path: Path) -> None:
    find_new = OpenedUsage.find_new

    def miscounted(usage: OpenedUsage, *given: Any) -> Span | None:
        found = find_new(usage, *given)
        return found and (found._replace(counted=2) if usage._name == "odd" else found)

    names = ("torn", "odd", "whole")
    for name in names:
        with ours(tmp_path / name, nameplate(1), current(None)) as server:
            if name == "torn":
                alter(server.file, "ALTER TABLE usage_nameplates RENAME COLUMN result TO outcome")
    with patch.object(OpenedUsage, "find_new", miscounted):
        results = world.ingest(*(f"{name}={tmp_path / name}" for name in names))
    first, second = [each.failure for each in results if each.failure]
    assert first == "source torn: table usage_nameplates has no column result"
    assert "counts 2 rows, but 1 could be read; none was taken" in second
    assert [row["source"] for row in world.rows("nameplates")] == ["whole"]
    assert len(list((world.path / "nameplates").rglob("*.parquet"))) == 1
    world.ingest(f"odd={tmp_path / 'odd'}")
    assert sorted(row["source"] for row in world.rows("nameplates")) == ["odd", "whole"]


# ── a source that has changed ───────────────────────────────────────────────────────────────────


def test_a_source_restored_from_a_copy_is_read_again_and_reported(world: LakeWorld, tmp_path: Path) -> None:
    with ours(tmp_path / "a", nameplate(1), current(None)):
        pass
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with ours(tmp_path / "a", nameplate(2, started=T0 - SECONDS_PER_DAY), nameplate(3)):
        world.ingest(f"relay={tmp_path / 'a'}", f"other={tmp_path / 'copy'}")
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "copy", tmp_path / "a")
    with ours(tmp_path / "a", nameplate(9, app_id="new")):
        ledger = world.ledger("nameplates", f"relay={tmp_path / 'a'}")
    assert ledger is not None
    assert ledger.replaced
    sentence = "relay: nameplates is read again from the beginning, and its rows replaced"
    assert any(sentence in words for words in world.steps.said)
    assert sorted((row["source"], row["id"], row["app_id"]) for row in world.rows("nameplates")) == [
        ("other", 1, "x"),
        ("relay", 1, "x"),
        ("relay", 2, "new"),
    ]
    assert world.infos("nameplates")[0].days == ["2023-11-13", "2023-11-14"], "the day that lost a row is touched too"
    shutil.rmtree(tmp_path / "a")
    with ours(tmp_path / "a", current(None)):
        assert world.ledger("nameplates", f"relay={tmp_path / 'a'}") == Ledger(replaced=True)
    assert [row["source"] for row in world.rows("nameplates")] == ["other"]


def test_a_copy_of_a_database_under_another_name_is_reported_and_another_database_is_not(tmp_path: Path) -> None:
    world = LakeWorld(None, tmp_path)
    with ours(tmp_path / "a", nameplate(1), current(None)):
        world.take(f"relay={tmp_path / 'a'}", "nameplates")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with ours(tmp_path / "copy", nameplate(2)) as copy, ours(tmp_path / "b", nameplate(1, started=T0 + 500)) as new:
        world.ingest(f"backup={copy.data}", f"new={new.data}", plan=True)
    said, *more = [words for words in world.steps.said if "begins with the same row" in words]
    assert not more
    assert said.startswith("source backup: nameplates begins with the same row as that of source relay in the lake")


def test_spark_starts_before_a_step_that_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    world = LakeWorld(None, tmp_path)
    step = world.steps.step

    def named(name: str, *tasks: Any) -> Any:
        order.append(name)
        return step(name, *tasks)

    def begin() -> Any:
        order.append("Spark")
        return object()

    world.spark = begin
    monkeypatch.setattr(world.steps, "step", named)
    monkeypatch.setattr(ingest, "_read", lambda *given: Ledger(read=1, clean=1, counted=1))
    monkeypatch.setattr(build_run, "_build_days", lambda *given, **others: 1)
    with ours(tmp_path / "a", nameplate(1)):
        world.ingest(f"relay={tmp_path / 'a'}")
    assert order == ["Spark", "relay: nameplates"]
    order.clear()
    world.lived("2023-11-14")
    world.build(only="outcomes")
    assert (order[0], order[-1]) == ("Spark", "outcomes")

"""Which reports a run writes again."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from restante.cli.report_output import write_reports
from restante.pipeline.report.outdated import outdated
from restante.pipeline.report.periods import parse
from support.pipeline.runs import LakeWorld, Row

DAY, MONTH = parse("2026-11-21"), parse("2026-11")
HOUR: Row = {
    "hour": 12,
    "connections": 1,
    "nameplates": 1,
    "mailboxes": 1,
    "day": date(2026, 11, 21),
    "source": "relay",
}


@pytest.fixture
def world(tmp_path: Path) -> LakeWorld:
    """Return a lake whose reports of a day and a month are in the folder `reports`."""
    world = LakeWorld(None, tmp_path)
    world.now = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    world.add("busy_hours", [HOUR])
    world.now += 1
    with world.run(write=False) as run:
        write_reports(run, [DAY, MONTH], tmp_path / "reports")
    return world


def found(world: LakeWorld) -> list[str]:
    with world.run(write=False) as run:
        return [each.name for each in outdated(run.lake, [DAY, MONTH], world.folder / "reports")]


def test_reports_of_the_tables_as_they_are_stay(world: LakeWorld) -> None:
    assert found(world) == []


def test_a_report_without_its_page_or_its_json_is_written_again(world: LakeWorld) -> None:
    (world.folder / "reports" / "2026-11.html").unlink()
    assert found(world) == ["2026-11"]
    (world.folder / "reports" / "2026-11-21.json").unlink()
    assert found(world) == ["2026-11-21", "2026-11"]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"made": 1}', b'{"made": "2026-12-01T00:00:00Z"', b"\xff"])
def test_a_report_whose_json_is_damaged_is_written_again(world: LakeWorld, content: bytes) -> None:
    (world.folder / "reports" / "2026-11.json").write_bytes(content)
    assert found(world) == ["2026-11"]


def test_reports_that_a_killed_run_left_older_than_a_table_are_written_again(world: LakeWorld) -> None:
    world.now += 1
    world.add("busy_hours", [HOUR | {"hour": 13}])
    assert found(world) == ["2026-11-21", "2026-11"]

"""What is live at a mailbox server: what is read of it, when it is read again, and what `pressure` makes of it."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from restante.mailbox.core.model import (
    Mailbox,
    MailboxMade,
    MailboxSide,
    MailboxSideSet,
    Nameplate,
    NameplateGone,
    NameplateMade,
    NameplateSide,
    NameplateSideSet,
)
from restante.pipeline.lake.table import LakeTable
from restante.pipeline.tables import BUILDS
from support.mailbox.reference_sources import Their
from support.pipeline.runs import LakeWorld
from support.pipeline.servers import T0, Ours, alter, client, current, nameplate, older_schema, ours
from support.pipeline.source_reads import SourceRead, read_source
from support.pipeline.tables import collected, frame, rows

MINUTE_US: Final = 60_000_000


def claimed(key: int, *added: float) -> Nameplate:
    """A live nameplate whose sides joined at these times, in seconds after T0."""
    sides = [NameplateSide(f"side-{place}", T0 + at) for place, at in enumerate(added)]
    return Nameplate(key, "app", str(key), f"mailbox-{key}", sides)


def opened(key: int, *added: float) -> Mailbox:
    sides = [MailboxSide(f"side-{place}", T0 + at) for place, at in enumerate(added)]
    return Mailbox(key, "app", f"mailbox-{key}", True, 0.0, sides)


def add(server: Ours, *things: Nameplate | Mailbox) -> None:
    for each in things:
        if isinstance(each, Nameplate):
            server.write(NameplateMade(each), *(NameplateSideSet(each, side) for side in each.sides))
        else:
            server.write(MailboxMade(each), *(MailboxSideSet(each, side) for side in each.sides))


def saved_at(server: Ours, seconds: float) -> None:
    """Set when the server last wrote, in seconds after T0."""
    alter(server.file, f"UPDATE service SET saved = {T0 + seconds}")


def live(path: Path, before: SourceRead | None = None) -> SourceRead:
    scratch = path.parent / "scratch"
    return read_source(f"relay={path}", "live", scratch, before.marks if before else None)


def shown(found: SourceRead) -> list[tuple[str, float | None, int, float]]:
    """Return kind, start, count and the time of each row; times in seconds after T0."""
    return [
        (
            row["kind"],
            row["started"] and row["started"].timestamp() - T0,
            row["count"],
            row["as_of"].timestamp() - T0,
        )
        for row in found.clean
    ]


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


def test_what_is_live_started_with_its_first_side_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, claimed(1, 10.0), claimed(2, 70.5, 20.25), claimed(3, 10.0), opened(1, 10.0), opened(2))
        saved_at(server, 100)
        first = live(tmp_path / "data")
        assert shown(first) == [
            ("listener", None, 2, 0.0),  # as of the prune
            ("mailbox", 10.0, 1, 100.0),
            ("nameplate", 10.0, 2, 100.0),
            ("nameplate", 20.25, 1, 100.0),
        ]
        assert {(row["blur_us"], str(row["day"]), row["source"]) for row in first.clean} == {
            (None, "2023-11-14", "relay")
        }
        server.write(replace(current(None), updated=T0 + 500, connections_websocket=9))
        saved_at(server, 600)
        assert live(tmp_path / "data", first).span is None, "only time has passed"
        server.write(client(5))
        second = live(tmp_path / "data", first)
        assert shown(second)[0] == ("listener", None, 9, 500.0)
        assert {row[3] for row in shown(second)[1:]} == {600.0}
        assert second.span.replace
        add(server, claimed(4, 20.0))
        third = live(tmp_path / "data", second)
        assert [row[:2] for row in shown(third)][2:] == [("nameplate", at) for at in (10.0, 20.0, 20.25)]
        assert live(tmp_path / "data", third).span is None


def test_times_of_what_is_live_are_rounded_like_those_of_what_has_ended(tmp_path: Path) -> None:
    """T0 is 20 seconds after a whole minute."""
    with ours(tmp_path / "data", replace(current(60), updated=T0 + 50)) as server:
        add(server, claimed(1, 41.5), claimed(2, 99.0), claimed(3, 39.0))
        saved_at(server, 170)
        found = live(tmp_path / "data")
    assert shown(found) == [
        ("listener", None, 2, 40.0),
        ("nameplate", -20.0, 1, 160.0),
        ("nameplate", 40.0, 2, 160.0),
    ]
    assert {row["blur_us"] for row in found.clean} == {60_000_000}
    with ours(tmp_path / "later", current(None), client(0, blur_time=60.0)) as server:
        add(server, claimed(1, 41.5))
        found = live(tmp_path / "later")
    assert [row["blur_us"] for row in found.clean] == [60_000_000] * 2, "it was started so since the last prune"


def test_nothing_is_read_of_a_server_whose_blur_is_not_known(tmp_path: Path) -> None:
    for name, change in (("data", client(0, blur_time=None)), ("nothing", nameplate(1))):
        with ours(tmp_path / name, change) as server:
            add(server, claimed(1, 41.5))
            assert live(tmp_path / name).span is None
    assert live(older_schema(tmp_path / "older")).span is None


def test_the_reference_server_tells_how_many_connections_have_a_mailbox_open(tmp_path: Path) -> None:
    their = Their(tmp_path / "their", blur=60)
    their.claim("side", "1", T0)
    their.prune(T0 + 45)
    assert shown(live(their.usage)) == [("listener", None, 0, 40.0)]


def test_rows_without_sense_are_faults_and_only_times_and_counts_leave_the_copy(tmp_path: Path) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, *(claimed(key, 10.0 * key) for key in range(1, 9)), opened(1, 20.0))
        values = ('[{"added": "canary"}]', '[{"added": 5}]', "canary", "[]", '["canary"]', "{}")
        canary = '[{"side": "canary", "added": 1700000070.0, "mood": "canary"}]'
        alter(
            server.file,
            "UPDATE nameplates SET app_id = 'canary', name = 'canary', mailbox_id = 'canary'",
            f"UPDATE mailboxes SET app_id = 'canary', mailbox_id = 'canary', sides = '{canary}'",
            *(f"UPDATE nameplates SET sides = '{value}' WHERE key = {key}" for key, value in enumerate(values, 1)),
            f"UPDATE nameplates SET sides = '{canary}' WHERE key = 7",
        )
        found = live(tmp_path / "data")
    expected = [("listener", None), ("mailbox", 70.0), ("nameplate", 70.0), ("nameplate", 80.0)]
    assert [row[:2] for row in shown(found)] == expected
    assert sorted(found.faults) == [("nameplate", "out of range"), ("nameplate", "wrong type")]
    assert "canary" not in repr(found)


# ── in the lake ──────────────────────────────────────────────────────────────────────────────────


def test_a_nameplate_is_counted_while_it_is_live_and_once_when_it_has_ended(world: LakeWorld, tmp_path: Path) -> None:
    """T0 is 22:13:20."""
    spec = f"relay={tmp_path / 'a'}"
    commit = LakeTable.commit

    def cut_off(table: LakeTable, *given: object, **others: object) -> int:
        if table.table.name == "nameplates":
            raise KeyboardInterrupt
        return commit(table, *given, **others)  # type: ignore[arg-type]

    with ours(tmp_path / "a", current(None), nameplate(0, total_time=60.0)) as server:
        waiting = claimed(1, 400.0)
        add(server, waiting)
        saved_at(server, 1600)
        world.ingest(spec)
        assert sorted(row["kind"] for row in world.rows("live")) == ["listener", "nameplate"]
        server.write(NameplateGone(waiting), nameplate(400, total_time=3600.0), nameplate(500, total_time=60.0))
        with patch.object(LakeTable, "commit", cut_off), pytest.raises(KeyboardInterrupt):
            world.ingest(spec)
        assert [row["kind"] for row in world.rows("live")] == ["listener"], "it is in neither table for now"
        world.ingest(spec)
        world.build(only="pressure")
    columns = ("hour", "started", "peak", "live_us", "day")
    assert sorted(tuple(row[name] for name in columns) for row in world.rows("pressure")) == [
        (22, 3, 2, (1 + 40 + 1) * MINUTE_US, date(2023, 11, 14)),
        (23, 0, 1, 20 * MINUTE_US, date(2023, 11, 14)),
    ]


@pytest.mark.parametrize("name", ["pressure", pytest.param("mailbox_pressure", marks=pytest.mark.thorough)])
def test_what_ended_before_the_days_to_build_is_left_out(spark: SparkSession, name: str) -> None:
    hour, of = 3_600_000_000, "nameplates" if name == "pressure" else "mailboxes"
    ended = [
        {"started": "2026-03-09T10:00:00", "total_us": hour},
        {"started": "2026-03-09T23:00:00", "total_us": hour},
        {"started": "2026-03-09T23:00:00", "total_us": 30 * hour},
        {"started": "2026-03-03T12:00:00", "total_us": 1000 * hour},
        {"started": "2026-03-10T00:00:00", "total_us": 0},
        {"started": "2026-03-10T10:00:00", "total_us": hour},
        {"started": "2026-03-09T12:00:00", "total_us": hour, "blur_us": 24 * hour},
        {"started": "2026-03-10T12:00:00", "total_us": hour, "blur_us": 24 * hour},
        {"started": "2026-03-09T12:00:00", "total_us": -hour},
    ]
    kind = "nameplate" if name == "pressure" else "mailbox"
    live = [
        {"kind": kind, "started": "2026-03-09T01:00:00", "as_of": "2026-03-09T20:00:00"},
        {"kind": kind, "started": "2026-03-09T02:00:00", "as_of": "2026-03-10T01:30:00"},
    ]
    build, days = BUILDS[name], [date(2026, 3, 10), date(2026, 3, 11)]
    inputs = {of: frame(spark, of, rows(of, ended)), "live": frame(spark, "live", rows("live", live))}
    every = collected(build._replace(needed=None).written(inputs, days))
    assert collected(build.written(inputs, days)) == every
    assert len(every) > 24
    assert build.needed is not None
    kept = {each: build.needed(each, inputs[each], days[0]).count() for each in inputs}
    assert kept == {of: 6, "live": 1}, "those that end at midnight are kept, too"

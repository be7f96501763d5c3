"""What is live at a mailbox server: what is read of it, when it is read again, and what `pressure` makes of it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

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


def live(path: Path, scratch: Path, before: SourceRead | None = None) -> SourceRead:
    return read_source(f"relay={path}", "live", scratch, before.marks if before else None)


def shown(found: SourceRead) -> list[tuple[str, float | None, int, float]]:
    """Return kind, start, count and the time of each row; times in seconds after T0."""

    def after(time: datetime) -> float:
        return time.timestamp() - T0

    return [
        (row["kind"], row["started"] and after(row["started"]), row["count"], after(row["as_of"]))
        for row in found.clean
    ]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


# ── what is read ─────────────────────────────────────────────────────────────────────────────────


def test_nameplates_and_mailboxes_started_with_their_first_side_and_are_live_as_of_the_last_write(
    tmp_path: Path, scratch: Path
) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, claimed(1, 10.0), claimed(2, 70.5, 20.25), claimed(3, 10.0), opened(1, 10.0), opened(2))
        saved_at(server, 100)
        found = live(tmp_path / "data", scratch)
    assert shown(found) == [
        ("listener", None, 2, 0.0),  # as of the prune
        ("mailbox", 10.0, 1, 100.0),
        ("nameplate", 10.0, 2, 100.0),
        ("nameplate", 20.25, 1, 100.0),
    ]
    assert {(row["blur_us"], str(row["day"]), row["source"]) for row in found.clean} == {
        (None, "2023-11-14", "relay")
    }


def test_times_of_what_is_live_are_rounded_like_those_of_what_has_ended(tmp_path: Path, scratch: Path) -> None:
    """T0 is 20 seconds after a whole minute."""
    with ours(tmp_path / "data", replace(current(60), updated=T0 + 50)) as server:
        add(server, claimed(1, 41.5), claimed(2, 99.0), claimed(3, 39.0))
        saved_at(server, 170)
        found = live(tmp_path / "data", scratch)
    assert shown(found) == [
        ("listener", None, 2, 40.0),
        ("nameplate", -20.0, 1, 160.0),
        ("nameplate", 40.0, 2, 160.0),
    ]
    assert {row["blur_us"] for row in found.clean} == {60_000_000}


def test_a_greater_blur_with_which_the_server_was_started_since_the_last_prune_counts(
    tmp_path: Path, scratch: Path
) -> None:
    with ours(tmp_path / "data", current(None), client(0, blur_time=60.0)) as server:
        add(server, claimed(1, 41.5))
        found = live(tmp_path / "data", scratch)
    assert [row["blur_us"] for row in found.clean] == [60_000_000] * 2


def test_nothing_is_read_of_a_server_whose_blur_is_not_known(tmp_path: Path, scratch: Path) -> None:
    for name, change in (("data", client(0, blur_time=None)), ("nothing", nameplate(1))):
        with ours(tmp_path / name, change) as server:
            add(server, claimed(1, 41.5))
            assert live(tmp_path / name, scratch).span is None
    assert live(older_schema(tmp_path / "older"), scratch).span is None


def test_the_reference_server_tells_how_many_connections_have_a_mailbox_open(tmp_path: Path, scratch: Path) -> None:
    their = Their(tmp_path / "their", blur=60)
    their.claim("side", "1", T0)
    their.prune(T0 + 45)
    assert shown(live(their.usage, scratch)) == [("listener", None, 0, 40.0)]


def test_rows_that_make_no_sense_are_faults_or_left_out(tmp_path: Path, scratch: Path) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, *(claimed(key, 10.0 * key) for key in range(1, 8)))
        for key, sides in enumerate(('[{"added": "canary"}]', '[{"added": 5}]', "canary", "[]", '["canary"]', "{}")):
            alter(server.file, f"UPDATE nameplates SET sides = '{sides}' WHERE key = {key + 1}")
        found = live(tmp_path / "data", scratch)
    assert [row[:2] for row in shown(found)] == [("listener", None), ("nameplate", 70.0)]
    assert sorted(found.faults) == [("nameplate", "out of range"), ("nameplate", "wrong type")]
    assert "canary" not in repr(found)


def test_only_times_and_counts_leave_the_copy(tmp_path: Path, scratch: Path) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, claimed(1, 10.0), opened(1, 20.0))
        canary = """'[{"side": "canary", "added": 1700000011.0, "mood": "canary"}]'"""
        alter(
            server.file,
            f"UPDATE nameplates SET app_id = 'canary', name = 'canary', mailbox_id = 'canary', sides = {canary}",
            f"UPDATE mailboxes SET app_id = 'canary', mailbox_id = 'canary', sides = {canary}",
        )
        found = live(tmp_path / "data", scratch)
    assert len(found.clean) == 3
    assert "canary" not in repr(found)


# ── when it is read again ────────────────────────────────────────────────────────────────────────


def test_that_time_has_passed_is_no_reason_to_read_it_again(tmp_path: Path, scratch: Path) -> None:
    with ours(tmp_path / "data", current(None)) as server:
        add(server, claimed(1, 10.0))
        first = live(tmp_path / "data", scratch)
        server.write(replace(current(None), updated=T0 + 500, connections_websocket=9))
        saved_at(server, 600)
        assert live(tmp_path / "data", scratch, first).span is None
        server.write(client(5))
        second = live(tmp_path / "data", scratch, first)
        assert shown(second) == [("listener", None, 9, 500.0), ("nameplate", 10.0, 1, 600.0)]
        assert second.span
        assert second.span.replace
        add(server, claimed(2, 20.0))
        third = live(tmp_path / "data", scratch, second)
        assert [row[:2] for row in shown(third)] == [("listener", None), ("nameplate", 10.0), ("nameplate", 20.0)]
        assert live(tmp_path / "data", scratch, third).span is None


# ── in the lake ──────────────────────────────────────────────────────────────────────────────────


def hours(world: LakeWorld) -> list[tuple[int, int, int, float]]:
    """Return the hour, `started`, the peak and the minutes of each row of pressure."""
    return sorted((row["hour"], row["started"], row["peak"], row["live_us"] / 60e6) for row in world.rows("pressure"))


def test_a_nameplate_is_counted_while_it_is_live_and_once_when_it_has_ended(
    world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T0 is 22:13:20."""
    spec = f"relay={tmp_path / 'a'}"
    with ours(tmp_path / "a", current(None), nameplate(0, total_time=60.0)) as server:
        waiting = claimed(1, 400.0)
        add(server, waiting)
        saved_at(server, 1600)
        world.ingest(spec)
        assert sorted(row["kind"] for row in world.rows("live")) == ["listener", "nameplate"]

        server.write(NameplateGone(waiting), nameplate(400, total_time=3600.0), nameplate(500, total_time=60.0))
        commit = LakeTable.commit

        def cut_off(table: LakeTable, *given: object, **others: object) -> int:
            if table.table.name == "nameplates":
                raise KeyboardInterrupt
            return commit(table, *given, **others)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(LakeTable, "commit", cut_off)
            with pytest.raises(KeyboardInterrupt):
                world.ingest(spec)
        assert [row["kind"] for row in world.rows("live")] == ["listener"], "it is in neither table for now"
        world.ingest(spec)
        world.build(only="pressure")
    assert hours(world) == [(22, 3, 2, 1 + 40 + 1), (23, 0, 1, 20)]
    assert {row["day"] for row in world.rows("pressure")} == {datetime.fromtimestamp(T0, UTC).date()}


@pytest.mark.parametrize("name", ["pressure", pytest.param("mailbox_pressure", marks=pytest.mark.thorough)])
def test_what_ended_before_the_days_to_build_is_left_out_and_changes_none_of_their_rows(
    spark: SparkSession, name: str
) -> None:
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

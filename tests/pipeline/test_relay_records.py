"""Usage records of transit relays: what is read, what is new, and what leaves the copy."""

from __future__ import annotations

from contextlib import closing
from datetime import date
from pathlib import Path
from unittest.mock import patch

import pytest
from wormhole_transit_relay.database import get_db
from wormhole_transit_relay.usage import create_usage_tracker

from restante.pipeline.sources.recognise import recognise
from support.pipeline.servers import T0
from support.pipeline.source_reads import Marks, read


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def theirs(path: Path, *, blur: int | None = None, start: float = T0 + 0.25) -> Path:
    """The reference relay records a pair, a side without another one, and one that it did not understand."""
    with closing(get_db(str(path))) as database, patch("time.time", lambda: start + 60):
        tracker = create_usage_tracker(blur, None, database)
        tracker.record(start + 2.5, start, "happy", 1_234_567, 89)
        tracker.record(start + 5, None, "lonely", 0, 0)
        tracker.record(start + 6, None, "errory", 0, 0)
        tracker.update_stats(rebooted=start, updated=start + 60, connected=1, waiting=2, incomplete_bytes=3)
        database.commit()
    return path


def test_the_records_of_the_reference_relay_are_read_as_it_wrote_them(tmp_path: Path, scratch: Path) -> None:
    [(name, found)] = read(f"old={theirs(tmp_path / 'usage.sqlite')}", scratch).items()
    happy, lonely, errory = found.clean
    assert name == "relay_transfers"
    assert {**happy, "started": happy["started"].timestamp()} == {
        "id": 1,
        "origin": "",
        "started": T0 + 2.75,
        "waiting_us": 2_500_000,
        "total_us": 60_000_000,
        "total_bytes": 1_234_656,
        "result": "happy",
        "blur_us": None,
        "day": date(2023, 11, 14),
        "source": "old",
        "fault": None,
        "identity": None,
        "digest": None,
    }
    assert [(row["id"], row["waiting_us"], row["total_us"], row["result"]) for row in (lonely, errory)] == [
        (2, None, 55_000_000, "lonely"),
        (3, None, 54_000_000, "errory"),
    ]
    blurred = read(f"old={theirs(tmp_path / 'blurred.sqlite', blur=60)}", scratch)["relay_transfers"].clean
    assert [(row["started"].timestamp() % 60, row["total_bytes"], row["blur_us"]) for row in blurred] == [
        (0, 2_000_000, 60_000_000),
        *[(0, 0, 60_000_000)] * 2,
    ]


def test_a_replaced_usage_database_of_the_reference_relay_is_noticed(tmp_path: Path, scratch: Path) -> None:
    marks: Marks = {}
    file = theirs(tmp_path / "usage.sqlite")
    source = recognise(f"old={file}")
    assert (source.kind, source.origins) == ("reference relay's usage database", ("usage.sqlite",))
    read(source, scratch, marks)
    assert read(source, scratch, marks) == {}
    theirs(file, start=T0 + 1000)
    assert read(source, scratch, marks)["relay_transfers"].ids == [4, 5, 6]
    file.unlink()
    found = read(recognise(f"old={theirs(file, start=T0 + 500)}"), scratch, marks)["relay_transfers"]
    assert (found.ids, found.span.replace) == ([1, 2, 3], True)

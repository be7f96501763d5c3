"""Waku archives, made by the Mailserver's own code: what has arrived, each once, whatever happens to the archive."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.pipeline.sources import archive
from restante.pipeline.sources.recognise import recognise
from restante.pipeline.sources.source import SourceError
from restante.waku.archive import ids
from restante.waku.archive.schema import ARCHIVE_FILE
from restante.waku.envelope.envelope import Envelope
from support.effort import examples
from support.pipeline.archives import CAME, Keeping
from support.pipeline.servers import CONTEXT
from support.pipeline.source_reads import Row, SourceRead, read_source, rows_of
from support.sqlite import alter
from support.waku.archives import thaw
from support.waku.envelopes import T0, envelope


def read_new(data: Path, before: SourceRead | None = None) -> SourceRead:
    marks = before.marks if before else {}
    return read_source(f"waku={data}", "archived", data.parent / "scratch", marks)


def hashes(rows: Iterable[Row]) -> list[bytes]:
    return [row["hash"] for row in rows]


def names(envelopes: Iterable[Envelope]) -> list[bytes]:
    return [envelope.hash for envelope in envelopes]


SOME = [envelope(number, number, topic=bytes([number % 3] * 4), size=8 + 90 * number) for number in range(10)]


def test_valid_envelopes_of_an_archive_are_clean_and_others_are_not(tmp_path: Path) -> None:
    late = envelope(30, 30)
    with Keeping(tmp_path / "data", *SOME) as server:
        server.save(late, arrived=T0 + 9)
        read = read_new(server.data)
        assert read_new(server.data, read).span is None
    assert read.faults == [("11", "sent after it arrived")]
    assert late.raw not in repr(read.rows).encode()
    assert len({row.pop("file") for row in read.clean}) == 1

    def at(seconds: int) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    always = {"source_kind": "archive", "source": "waku", "fault": None, "identity": None, "digest": None}
    assert read.clean == [
        {
            "hash": letter.hash,
            "topic": f"0x{letter.topic.hex()}",
            "sent": at(letter.sent),
            "expiry": at(letter.expiry),
            "ttl": letter.ttl,
            "size": len(letter.raw),
            "pow": letter.pow(),
            "arrival": arrival,
            "arrived": at(CAME),
            "raw": letter.raw,
            "day": at(letter.sent).date(),
            **always,
        }
        for arrival, letter in enumerate(SOME, 1)
    ]


STEPS = st.one_of(
    st.tuples(st.just("save"), st.lists(st.integers(0, 40), max_size=8)),
    st.tuples(st.just("prune"), st.integers(0, 40)),
    st.just(("read", None)),
    st.just(("restart", None)),
)


@given(st.lists(STEPS, max_size=12))
@examples(25)
def test_in_whatever_steps_it_is_read_each_arrival_is_read_once_or_missed(steps: Sequence[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        data = Path(folder) / "data"
        server = servers.enter_context(Keeping(data))
        last: SourceRead | None = None
        stored: dict[int, bytes] = {}
        readable: dict[int, bytes] = {}
        rows: list[tuple[int, bytes]] = []
        arrivals, missed = 0, 0
        for step, what in (*steps, ("read", None)):
            if step == "save":
                batch = [envelope(number, number) for number in dict.fromkeys(what)]
                for new in names(batch):
                    if new not in stored.values():
                        arrivals += 1
                        stored[arrivals] = new
                server.save(*batch)
            elif step == "prune":
                server.prune(what)
                gone = {envelope(number, number).hash for number in range(what)}
                stored = {arrival: name for arrival, name in stored.items() if name not in gone}
            elif step == "restart":
                servers.close()
                server = servers.enter_context(Keeping(data))
            else:
                read = read_new(data, last)
                if read.span is not None:
                    last = read
                    missed += read.span.missed
                    assert read.span.reason == ""
                rows += [(row["arrival"], row["hash"]) for row in read.clean]
                readable |= {arrival: name for arrival, name in stored.items() if arrival not in readable}
    assert rows == sorted(readable.items())
    assert len(rows) + missed == arrivals


def test_an_older_copy_or_another_archive_is_noticed_and_the_rows_that_were_read_stay(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Keeping(data, *SOME[:3]):
        pass
    older = (data / ARCHIVE_FILE).read_bytes()
    with Keeping(data, *SOME[3:6]):
        first = read_new(data)
    (data / ARCHIVE_FILE).write_bytes(older)
    with Keeping(data, SOME[7]) as server:
        second = read_new(data, first)
        server.save(SOME[9])
        third = read_new(data, second)
    assert "its last id was 6 and is 4 now" in second.span.reason
    assert "the rows that the lake has of it stay" in second.span.reason
    assert not second.span.replace
    assert hashes(second.rows) == names([*SOME[:3], SOME[7]])
    assert hashes(third.rows) == names(SOME[9:])
    with Keeping(tmp_path / "b", *reversed(SOME)) as other:  # it has more
        fourth = read_new(other.data, first)
    assert "has changed" in fourth.span.reason
    assert hashes(fourth.rows) == names(reversed(SOME))
    assert {row["file"] for row in first.rows}.isdisjoint(row["file"] for row in fourth.rows)


FAULTS = {
    "another envelope": (f"raw = x'{envelope(2, 77).raw.hex()}'", "the hash does not match"),
    "half an envelope": (f"raw = x'{SOME[2].raw[:9].hex()}'", "not an envelope"),
    "another topic": ("topic = topic + 1", "the topic does not match"),
    "an arrival of its own": ("arrival = 77", "not an envelope"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_changed_envelope_is_reported_and_not_read(name: str, tmp_path: Path) -> None:
    change, fault = FAULTS[name]
    with Keeping(tmp_path / "data", *SOME) as server:
        alter(server.data / ARCHIVE_FILE, f"UPDATE envelopes SET {change} WHERE id = {ids.home(SOME[2])}")
        read = read_new(server.data)
    assert read.faults == [("3", fault)]
    assert hashes(read.clean) == names([*SOME[:2], *SOME[3:]])
    [bad] = [row for row in read.rows if row["fault"]]
    present = {name for name, value in bad.items() if value is not None}
    assert present == {"file", "arrival", "source_kind", "source", "fault", "identity", "digest"}


def test_envelopes_that_arrive_during_a_read_are_left_for_the_next(tmp_path: Path) -> None:
    with Keeping(tmp_path / "data", *SOME[:4]) as server:
        with recognise(f"waku={server.data}").opened(tmp_path / "scratch", print, CONTEXT) as opened:
            server.save(SOME[4])
            server.prune(2)
            span = opened.find_new("archived", {})
            assert span is not None
            server.save(SOME[5])
            assert hashes(rows_of(span)) == names(SOME[:4])
        second = read_source(f"waku={server.data}", "archived", tmp_path / "scratch", span.marks)
    assert hashes(second.rows) == names(SOME[4:6])


@pytest.mark.parametrize("version", archive.SCHEMA_VERSIONS)
def test_archives_of_every_schema_are_read(version: int, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    thaw(version, tmp_path / "data" / ARCHIVE_FILE)
    read = read_new(tmp_path / "data" / ARCHIVE_FILE)
    assert hashes(read.clean) == names([envelope(5, 2, topic=b"\xff\xee\xdd\xcc"), envelope(3, 3)])
    assert (read.span.missed, read.span.counted, read.messages) == (1, 2, [])


REFUSED = {
    "PRAGMA user_version = 9": "it has schema 9, this program knows up to 2: use a newer restante",
    "ALTER TABLE arrivals DROP COLUMN arrived": "table arrivals has no column arrived",
    "DELETE FROM totals": "the archive is damaged: run `restante waku check` for details",
    "cut off": "damaged",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_an_archive_of_another_shape_is_refused_with_one_sentence(statement: str, tmp_path: Path) -> None:
    with Keeping(tmp_path / "data", *SOME):
        pass
    if statement == "cut off":
        os.truncate(tmp_path / "data" / ARCHIVE_FILE, 3 * 4096)
    else:
        alter(tmp_path / "data" / ARCHIVE_FILE, statement)
    with pytest.raises(SourceError, match=REFUSED[statement]):
        read_new(tmp_path / "data")

"""`restante pipeline gaps`: rows of the table gaps as requests, without Spark; and the whole way to close a gap.

In a quick run each step of it is tested alone: test_tables.py (the table), here (the ranges),
tests/waku/test_client_commands.py (the requests), tests/waku/files/test_files.py (the import).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from restante.pipeline import gaps as module
from restante.pipeline.gaps import Gap, GapFilter, ranges_to_request
from restante.pipeline.lake.lake import Lake
from restante.pipeline.tables.gaps import GAPS
from restante.waku.files import missing_ranges
from restante.waku.files.archive_files import export
from restante.waku.files.missing_ranges import MAX_TOPICS, MissingRange
from support.bounds import PATIENCE
from support.documents import Document
from support.pipeline.runs import LakeWorld, command
from support.processes import RESTANTE, on_a_terminal, run
from support.waku.archives import archive_of, raws_of
from support.waku.letters import letter
from support.waku.processes import serving

DAY = date(2026, 11, 20)
MIDNIGHT = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp())
HOUR = 3600
ALWAYS = GapFilter(0, 2**32 - 1)


def gap(topic: str | None, first: float, last: float, missing: int = 1, holders: str = "west") -> Gap:
    lower, upper = MIDNIGHT + round(first * HOUR), MIDNIGHT + round(last * HOUR)
    return Gap(datetime.fromtimestamp(lower, UTC).date(), topic, lower, upper, missing, frozenset(holders.split(",")))


def in_hours(ranges: list[MissingRange]) -> list[tuple[Any, ...]]:
    return [
        ((of.lower - MIDNIGHT) / HOUR, (of.upper - MIDNIGHT) / HOUR, of.topics and "".join(of.topics))
        for of in ranges
    ]


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([], []),
        ([gap("aa", 1, 2), gap("bb", 3, 4)], [(1, 4, "aabb")]),
        ([gap("aa", 1, 2), gap("bb", 3.01, 4)], [(1, 2, "aa"), (3.01, 4, "bb")]),
        # midnight ends a range, except where the next day goes on with the same topics
        ([gap("aa", 22, 23.9), gap("aa", 24, 25)], [(22, 25, "aa")]),
        ([gap("aa", 22, 23.9), gap("bb", 24, 25)], [(22, 23.9, "aa"), (24, 25, "bb")]),
        ([gap("aa", 22, 23.9), gap("bb", 22, 23.5), gap("aa", 24.5, 30), gap("bb", 24.1, 24.2)], [(22, 30, "aabb")]),
        # NULL is all topics, and so is what a request cannot name
        ([gap("aa", 1, 2), gap(None, 1, 5)], [(1, 5, None)]),
        ([gap(f"{n:08x}", 1, 2) for n in range(MAX_TOPICS + 1)], [(1, 2, None)]),
    ],
)
def test_gaps_that_are_close_are_joined(gaps: list[Gap], expected: list[Any]) -> None:
    assert in_hours(ranges_to_request(gaps, ALWAYS)) == expected


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ({}, [(1, 4, "aabb"), (8, 8, None)]),
        ({"lower": MIDNIGHT + 2 * HOUR, "upper": MIDNIGHT + 3 * HOUR}, [(2, 3, "aabb")]),
        ({"lower": MIDNIGHT + 9 * HOUR}, []),
        ({"upper": MIDNIGHT}, []),
        ({"topics": frozenset({"aa"})}, [(1, 2.5, "aa")]),
        # cc has no row of its own, so it may be among all others; aa has, and is not
        ({"topics": frozenset({"aa", "cc"})}, [(1, 2.5, "aa"), (8, 8, "cc")]),
        ({"holder": "west"}, [(1, 2.5, "aa"), (8, 8, None)]),
        ({"holder": "nobody"}, []),
    ],
)
def test_ranges_are_clipped_to_times_topics_and_a_holder(clip: Mapping[str, Any], expected: list[Any]) -> None:
    gaps = [gap("aa", 1, 2.5), gap("bb", 2, 4, holders="north"), gap(None, 8, 8)]
    assert in_hours(ranges_to_request(gaps, ALWAYS._replace(**clip))) == expected


def test_however_many_gaps_there_are_the_requests_are_few_and_cover_all_of_them() -> None:
    for seed in range(20):
        dice = Random(seed)
        gaps = []
        for _ in range(dice.choice((3, 30, 300))):
            first = dice.randrange(dice.choice((48, 24 * 4000)))
            last = min(first + dice.choice((0, 0.5, 3)), first // 24 * 24 + 23.99)
            gaps.append(gap(dice.choice(("aa", "bb", "cc", None)), first, last, dice.randrange(1, 9)))
        limit = dice.choice((1, 2, 10, 100))
        ranges = ranges_to_request(gaps, ALWAYS, limit)
        assert 0 < len(ranges) <= limit
        assert all(a.upper < b.lower for a, b in pairwise(ranges)), "they are in order, and none overlap"
        assert sum(range_.missing for range_ in ranges) == sum(lack.missing for lack in gaps)
        for lack in gaps:
            assert any(
                range_.lower <= lack.first <= lack.last <= range_.upper
                and (range_.topics is None or lack.topic in range_.topics)
                and lack.holders <= set(range_.holders)
                for range_ in ranges
            )


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    """Return a lake in which two Mailservers lack something; west has the older part of it no more."""
    world = LakeWorld(None, tmp_path)
    first, last = (datetime(2026, 11, 20, hour, tzinfo=UTC) for hour in (5, 7))
    base = {"first": first, "last": last, "missing": 3, "holders": "north,west", "day": DAY, "source": "east"}
    other = {**base, "topic": None, "first": last, "missing": 5}
    one, two, of_west = (base | {"topic": f"0x0000000{topic}"} for topic in "abc")
    world.add("gaps", [one, two | {"holders": "west"}, other, of_west | {"source": "west"}])
    covered = {"envelopes": 1, "alone": 0, "missing": 9, "day": DAY}
    world.add("coverage", [{**covered, "source": source} for source in ("east", "west", "full")])
    sources = [{"source": source, "sent": "2026-11-20T05:00:00"} for source in ("east", "north", "west", "full")]
    world.write("archived", *sources)
    return world


DAYS = "--from 2026-11-20 --to 2026-11-21"


def gaps_command(lake: LakeWorld, options: str, *more: str | Path, ends: int = 0) -> tuple[str, str]:
    """Run the command for the Mailserver east. Return what it prints, and what is on standard error."""
    done = command("gaps", "--lake", lake.path, "--mailserver", "east", *options.split(), *more, ends=ends)
    return done.stdout, done.stderr


def printed_ranges(lake: LakeWorld, options: str) -> list[tuple[float, list[str] | None, int]]:
    text, _ = gaps_command(lake, options)
    return [((row["to"] - row["from"]) / HOUR, row["topics"], row["missing"]) for row in json.loads(text)["ranges"]]


def test_the_file_has_what_to_request(lake: LakeWorld, tmp_path: Path) -> None:
    file = tmp_path / "east.json"
    for _ in range(2):  # it is replaced
        printed, _ = gaps_command(lake, f"{DAYS} --retention 0", "-o", file)
    assert printed.splitlines() == [
        "east lacks 11 envelopes, in 1 range",
        "  2026-11-20 05:00:00 to 2026-11-20 07:00:00: 11 envelopes of all topics, held by north, west",
    ]
    range_ = {"from": MIDNIGHT + 5 * HOUR, "to": MIDNIGHT + 7 * HOUR, "topics": None, "missing": 11}
    head = {"format": "restante missing ranges", "version": 1, "mailserver": "east", "missing": 11}
    assert json.loads(file.read_text()) == {**head, "ranges": [{**range_, "holders": ["north", "west"]}]}
    assert missing_ranges.write(missing_ranges.read(file)) == file.read_bytes()
    assert printed_ranges(lake, f"{DAYS} --retention 0") == [(2, None, 11)], "without a file it is printed"
    arguments = f"pipeline gaps --mailserver full {DAYS} --retention 0 --lake".split()
    assert "full lacks nothing of these times and topics" in on_a_terminal(*RESTANTE, *arguments, lake.path)


A, B, D = "0000000a", "0000000b", "0000000d"


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the settings of Mailservers to the working directory: how many days they keep, and which topics."""
    monkeypatch.chdir(tmp_path)
    for name, retention, topics in (
        ("all", 0, []),
        ("a", 0, [A]),
        ("ab", 0, [A, B]),
        ("bd", 0, [B, D]),
        ("half-a-day", 0.5, []),
    ):
        (tmp_path / f"{name}.toml").write_text(f"[waku]\nretention = {retention}\ntopics = {topics}\n")


@pytest.mark.usefixtures("configs")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (f"{DAYS} --retention 0 --topic 0x{A} --topic {D}", [(2, [A, D], 8)]),
        (f"{DAYS} --retention 0 --holder north --topic {B}", []),
        (f"--to 2026-11-20T06:00 --retention 0 --topic {B}", [(1, [B], 3)]),
        (f"{DAYS} --config all.toml", [(2, None, 11)]),
        (f"{DAYS} --config a.toml", [(2, [A], 3)]),
        (f"{DAYS} --config a.toml --topic {A} --topic {B}", [(2, [A], 3)]),
        # of two Mailservers, what both keep and accept
        (f"{DAYS} --config all.toml --config ab.toml", [(2, [A, B], 6)]),
        (f"{DAYS} --config ab.toml --config bd.toml", [(2, [B], 3)]),
        # the envelopes were sent longer ago
        ("--from 2026-11-20 --retention 0.5", []),
        ("--from 2026-11-20 --config all.toml --config half-a-day.toml", []),
        ("--from 2026-11-20 --config half-a-day.toml --retention 0", []),
    ],
)
def test_only_what_the_mailservers_keep_and_accept_is_listed(lake: LakeWorld, options: str, expected: object) -> None:
    assert printed_ranges(lake, options) == expected


@pytest.mark.usefixtures("configs")
def test_what_the_mailservers_do_not_keep_or_accept_is_counted(lake: LakeWorld) -> None:
    printed, _ = gaps_command(lake, f"{DAYS} --config ab.toml --config bd.toml -o file.json")
    header, *_, total = printed.splitlines()
    assert header == "east lacks 3 envelopes, in 1 range"
    assert total == "8 more envelopes are too old, or of other topics"
    printed, _ = gaps_command(lake, "--from 2026-11-20 --config half-a-day.toml --holder west -o file.json")
    assert printed.splitlines() == [
        "east lacks nothing of these times and topics that west has",
        "11 more envelopes that west has are too old, or of other topics",
    ]
    _, error = gaps_command(lake, f"--config ab.toml --topic {D}", ends=2)
    assert error.startswith("restante: no topic is in every list of topics: change --topic or ")


def test_only_rows_of_the_mailserver_and_the_days_are_read(lake: LakeWorld, tmp_path: Path) -> None:
    times = {"first": datetime(2026, 11, 22, 5, tzinfo=UTC), "last": datetime(2026, 11, 22, 6, tzinfo=UTC)}
    row = {"topic": None, "missing": 1, "holders": "west", **times}
    lake.add("gaps", [{**row, "day": DAY + timedelta(days), "source": "east"} for days in (1, 2, 3, 19)])
    with Lake.open(lake.path, write=False) as opened:
        assert len(opened.table(GAPS).files()) == 3, "a file has several days"
        gaps = module.read_gaps(opened, "east", GapFilter(MIDNIGHT, MIDNIGHT + 2 * 24 * HOUR), tmp_path)
    assert sorted(lack.day.day for lack in gaps) == [20, 20, 20, 21, 22]


def test_many_ranges_are_shown_in_part(lake: LakeWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gaps = [gap("0000000a", 2.5 * number, 2.5 * number) for number in range(8)]
    monkeypatch.setattr(module, "read_gaps", lambda *_: gaps)
    monkeypatch.setattr("restante.pipeline.cli.gaps.MAX_LINES", 3)
    printed, _ = gaps_command(lake, f"{DAYS} --retention 0", "-o", tmp_path / "all.json")
    lines = printed.splitlines()
    assert (len(lines), lines[-1]) == (5, "  and 5 more ranges; -o writes all of them to a file")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--mailserver nord", "the lake has no Mailserver nord: it has east, full, west (--mailserver)"),
        ("--holder nord", "no envelopes from a source nord (--holder)"),
        ("--from soon", "--from: 'soon' is not a time"),
        ("--to -31d", "no time is left: change --from, --to, --ret"),
        ("--from now --to -1h", "the first time is after the last: change --from or --to"),
        ("--topic x", "--topic: 'x' is not a topic"),
        ("--retention -1", "--retention: '-1' is not a number from 0"),
        ("--config /nowhere", "cannot read /nowhere"),
        (
            " ".join(f"--topic {n:08x}" for n in range(1001)),
            "there are more than 1,000 topics, which no request can name: name fewer with --topic",
        ),
    ],
)
def test_misuse_is_one_sentence(lake: LakeWorld, options: str, sentence: str) -> None:
    printed, errors = gaps_command(lake, options, ends=2)
    [error] = errors.splitlines()
    assert sentence in error
    assert printed == ""


def test_a_lake_without_the_table_or_with_a_damaged_file_is_reported(tmp_path: Path, lake: LakeWorld) -> None:
    (tmp_path / "other").mkdir()
    other = LakeWorld(None, tmp_path / "other")
    other.add("archived", [])
    _, error = gaps_command(other, "", ends=2)
    assert error == "restante: the lake has no table gaps yet: run `restante pipeline build`\n"
    _, error = gaps_command(lake, f"{DAYS} --retention 0", "-o", tmp_path / "no" / "file", ends=1)
    assert error == f"restante: cannot write {tmp_path / 'no' / 'file'}: No such file or directory (-o)\n"
    for file in (lake.path / "gaps").rglob("*.parquet"):
        file.write_bytes(b"PAR1")
    _, error = gaps_command(lake, f"{DAYS} --retention 0", ends=1)
    assert "the lake is damaged" in error
    assert len(error.splitlines()) == 1


GUIDE = Document("docs/pipeline/operating.md")
DAY_SECONDS = 86_400
TOPICS = (b"\1\1\1\1", b"\2\2\2\2", b"\3\3\3\3")


def sh(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run("sh", "-c", line.replace("./run", f"{sys.executable} -m restante"), cwd=folder, bound=PATIENCE)


def done(line: str, folder: Path) -> list[str]:
    process = sh(line, folder)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.thorough
def test_the_commands_of_the_guide_close_a_gap(tmp_path: Path) -> None:
    now = int(time.time())
    yesterday = now // DAY_SECONDS * DAY_SECONDS - DAY_SECONDS  # midnight ends a range
    envelopes = [letter(n, now=yesterday + 600 * n, topic=TOPICS[n % 3]) for n in range(60)]
    lacked = envelopes[20:40]
    only_in_a_file = letter(200, now=yesterday - DAY_SECONDS, topic=TOPICS[0])
    early = letter(300, now=yesterday - 2 * DAY_SECONDS, topic=TOPICS[0])  # gaps before this one would not be listed
    archive_of(tmp_path / "west", envelopes, yesterday + DAY_SECONDS // 2)
    archive_of(tmp_path / "east", [early, *envelopes[:20], *envelopes[40:]], yesterday + DAY_SECONDS // 2)
    archive_of(tmp_path / "north", [only_in_a_file], yesterday)
    export(tmp_path / "north", tmp_path / "export.rlp")
    ingest, gaps, request = GUIDE.commands("gaps", "pipeline run", "pipeline gaps", "waku request")
    [close] = GUIDE.lines("close")
    ingest = f"{ingest} --source export=export.rlp"
    again = request.replace("-o east.rlp", "-o again.rlp")

    with serving(tmp_path / "west") as enode:
        (tmp_path / "west.enode").write_text(f"{enode}\n")
        with serving(tmp_path / "east"):
            done(ingest, tmp_path)
            lines = done(gaps, tmp_path)
            assert lines[0] == "east lacks 21 envelopes, in 2 ranges"
            assert lines[2].endswith(f": {len(lacked)} envelopes of 3 topics, held by west")

            fetched = sh(request, tmp_path)
            assert (fetched.returncode, fetched.stdout) == (0, "fetched 20 envelopes of 2 ranges; 1 range open\n")
            sent = only_in_a_file.sent
            assert fetched.stderr.splitlines()[-1] == (
                f"{sent} to {sent}, topic 01010101: no Mailserver has envelopes of it; it stays open"
            )
            while_it_runs = sh(close, tmp_path)
            assert while_it_runs.returncode == 75
            assert while_it_runs.stderr == (
                "restante: another process is using the data directory east: stop it, or name another with --data\n"
            )
        for new, known in ((20, 0), (0, 20)):  # it may be repeated
            numbers = [line.split()[-1] for line in done(close, tmp_path)]
            assert numbers == ["20", str(new), str(known), "0"]
        with serving(tmp_path / "east"):
            done(ingest, tmp_path)
            lines = done(gaps, tmp_path)
            assert lines[0] == "east lacks 1 envelope, in 1 range", "it is in the exported file, and nobody sends it"
            assert lines[1].endswith("held by export")
            fetched = sh(again, tmp_path)
            assert fetched.stdout == "fetched 0 envelopes of 1 range; 1 range open\n"
    assert set(raws_of(tmp_path / "east")) == {envelope.raw for envelope in (*envelopes, early)}

"""The whole way of envelopes that a Mailserver lacks: two Mailservers, Spark, and the commands of the guide."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from restante.waku.archive.sqlite import open_archive
from restante.waku.envelope.envelope import Envelope
from restante.waku.files.exporting import export
from support.bounds import PATIENCE
from support.documents import Document
from support.pipeline.runs import command
from support.processes import run
from support.waku.archives import raws_of
from support.waku.letters import letter
from support.waku.processes import serving

pytestmark = pytest.mark.thorough
"""In a quick run each step is tested alone: test_tables.py (the table), test_gaps.py (the ranges),
tests/waku/test_client_commands.py (the requests), tests/waku/files/test_files.py (the import)."""

GUIDE = Document("docs/pipeline/operating.md")
DAY = 86_400
TOPICS = (b"\1\1\1\1", b"\2\2\2\2", b"\3\3\3\3")


def archive(data: Path, envelopes: Sequence[Envelope]) -> None:
    """Make the data directory of a Mailserver to which these came as they were sent."""

    async def save() -> None:
        archive = open_archive(data)
        for each in envelopes:
            await archive.save([each], each.sent)
        await archive.close()

    asyncio.run(save())


def sh(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run("sh", "-c", line.replace("./run", f"{sys.executable} -m restante"), cwd=folder, bound=PATIENCE)


def done(line: str, folder: Path) -> list[str]:
    """Run a line of the guide. Return the lines that it prints."""
    ended = sh(line, folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_the_commands_of_the_guide_close_a_gap(tmp_path: Path) -> None:
    now = int(time.time())
    yesterday = now // DAY * DAY - DAY  # midnight ends a range
    kept = [letter(n, now=yesterday + 600 * n, topic=TOPICS[n % 3]) for n in range(60)]
    lacked = kept[20:40]
    only_in_a_file = letter(200, now=yesterday - DAY, topic=TOPICS[0])
    ended = [letter(n, now=yesterday - 35 * DAY, topic=TOPICS[0]) for n in range(100, 105)]
    first = letter(300, now=yesterday - 36 * DAY, topic=TOPICS[0])  # gaps before this one would not be listed
    archive(tmp_path / "west", [*ended, *kept])
    archive(tmp_path / "east", [first, *kept[:20], *kept[40:]])
    archive(tmp_path / "north", [only_in_a_file])
    export(tmp_path / "north", tmp_path / "export.rlp")
    ingest, gaps, request = GUIDE.commands("gaps", "pipeline run", "pipeline gaps", "waku request")
    [close] = GUIDE.lines("close")
    ingest = f"{ingest} --source export=export.rlp"
    again = request.replace("-o east.rlp", "-o again.rlp")

    with serving(tmp_path / "west") as enode:
        (tmp_path / "west.enode").write_text(f"{enode}\n")
        with serving(tmp_path / "east"):
            done(ingest, tmp_path)
            said = done(gaps, tmp_path)
            assert said[0] == "east lacks 21 envelopes, in 2 ranges"
            assert said[2].endswith(f": {len(lacked)} envelopes of 3 topics, held by west")
            assert said[3:] == [f"{len(ended)} more envelopes are too old, or of other topics"]

            fetched = sh(request, tmp_path)
            assert (fetched.returncode, fetched.stdout) == (0, "fetched 20 envelopes of 2 ranges; 1 range open\n")
            sent = only_in_a_file.sent
            assert fetched.stderr.splitlines()[-1] == (
                f"{sent} to {sent}, topic 01010101: no Mailserver has envelopes of it; it stays open"
            )
            while_it_runs = sh(close, tmp_path)
            assert while_it_runs.returncode == 1
            assert while_it_runs.stderr == (
                "restante: another process is using the data directory east: stop it, or name another with --data\n"
            )
        for new, known in ((20, 0), (0, 20)):  # it may be repeated
            numbers = [line.split()[-1] for line in done(close, tmp_path)]
            assert numbers == ["20", str(new), str(known), "0"]
        with serving(tmp_path / "east"):
            done(ingest, tmp_path)
            said = done(gaps, tmp_path)
            assert said[0] == "east lacks 1 envelope, in 1 range", "it is in the exported file, and nobody sends it"
            assert said[1].endswith("held by export")
            fetched = sh(again, tmp_path)
            assert fetched.stdout == "fetched 0 envelopes of 1 range; 1 range open\n"

        # What retention has left out is listed and fetched if it is named, and import warns of it.
        lake = ("--lake", tmp_path / "restante-lake")
        asked = ("gaps", *lake, "--mailserver", "east", "--retention", "0", "--holder", "west")
        found = command(*asked)
        assert json.loads(found.stdout)["missing"] == len(ended)
        (tmp_path / "east.json").write_text(found.stdout)
        fetch_old = request.replace("-o east.rlp", "-o old.rlp")
        assert done(fetch_old, tmp_path) == ["fetched 5 envelopes of 1 range; 0 ranges open"]
        imported = sh(close.replace("east.rlp", "old.rlp"), tmp_path)
        assert imported.stderr.splitlines()[-1] == (
            "5 envelopes sent more than 30 days ago: `restante waku serve` removes these ten minutes after its start,"
            " unless --retention is 0 or more days"
        )
    archived = set(raws_of(tmp_path / "east"))
    assert archived == {each.raw for each in (*kept, *ended, first)}

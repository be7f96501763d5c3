"""docs/timing/guide.md documents the JSON, the options and the causes, as they are."""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec

from restante.timing.comparison.compare import Change, Comparison
from restante.timing.model.elapsed import CAUSES
from restante.timing.model.phases import ALL_PHASES
from restante.timing.model.timeline import Author, Timeline
from support.bounds import bounded
from support.documents import ROOT, Document
from support.processes import RESTANTE, Child, run, serving, spawn
from support.timing.drawn import SIDES, draw
from support.timing.drawn import Path as Route

DOCUMENT = Document("docs/timing/guide.md")
GUIDE = DOCUMENT.text


def keys(struct: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield where each object of the JSON is, and its keys."""
    for field in msgspec.structs.fields(struct):
        for inner in get_args(field.type):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield field.name, [each.name for each in msgspec.structs.fields(inner)]
                yield from keys(inner)


def names(text: str) -> set[str]:
    return set(re.findall(r"`([\w ]+)`", text))


def table(head: str) -> set[str]:
    """Return the names in the table that has this head."""
    return names(GUIDE.partition(head)[2].partition("\n\n")[0])


def row(head: str) -> set[str]:
    """Return the names in the row that begins with this."""
    return names(next(line for line in GUIDE.splitlines() if line.startswith(head)))


def test_the_guide_has_every_key_of_the_json() -> None:
    assert set(Timeline.__struct_fields__) <= table("| key | content |")
    for where, fields in keys(Timeline):
        assert set(fields) <= (row("| `spent`") if where == "spent" else table(f"| in `{where}` |")), where
    of_comparison = {*Comparison.__struct_fields__, *Change.__struct_fields__}
    assert of_comparison <= names(GUIDE.partition("## Compare runs")[2])


def test_the_guide_explains_every_cause_author_and_phase() -> None:
    assert table("| cause | what happened |") == set(CAUSES)
    assert set(get_args(Author)) <= row("| `author`")
    phases = (ROOT / "docs/timing/specification.md").read_text().partition("## Phases")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w ]+)`", phases, re.MULTILINE)) == set(ALL_PHASES)


# ── its commands ─────────────────────────────────────────────────────────────────────────────────


def words_of(block: str) -> tuple[str, ...]:
    """Return the words of a command of the guide, behind `restante`."""
    first, *words = shlex.split(block)
    assert first == "restante"
    return tuple(words)


@asynccontextmanager
async def started(folder: Path, words: tuple[str, ...], url: str) -> AsyncIterator[Child]:
    """Run a command of the client, whose user answers yes."""
    reading, writing = os.pipe()
    os.write(writing, b"yes\n")
    variables = {"RESTANTE_CLIENT_SERVER": url, "RESTANTE_CLIENT_TRANSIT_RELAY": "tcp:127.0.0.1:1"}
    child = Child(await spawn(*RESTANTE, *words, cwd=folder, stdin=reading, variables=variables), "stdout", "stderr")
    os.close(reading)
    try:
        yield child
    finally:
        await child.end()
        os.close(writing)


async def test_logs_are_written_and_rendered_as_the_guide_says(tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (tmp_path / "photo.jpg").write_bytes(b"a photo" * 10_000)
    async with (
        serving(tmp_path / "server", options=("--trace", str(tmp_path / "trace.jsonl"))) as server,
        bounded("the transfer"),
        started(tmp_path, words_of(DOCUMENT.blocks["send"]), server.url) as sender,
    ):
        code = (await sender.says(r"code is: (\S+)")).group(1)
        receiving = tuple(code if word == "7-your-code" else word for word in words_of(DOCUMENT.blocks["receive"]))
        async with started(downloads, receiving, server.url) as receiver:
            assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    (downloads / "receive.json").rename(tmp_path / "receive.json")
    said = run(*RESTANTE, *words_of(DOCUMENT.blocks["render"]), cwd=tmp_path)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    assert (tmp_path / "transfer.html").read_text().startswith("<!DOCTYPE html>")


def test_runs_are_compared_as_the_guide_says(tmp_path: Path) -> None:
    for group, delay in (("old", 0.05), ("new", 0.01)):
        (tmp_path / group).mkdir()
        routes = dict.fromkeys(SIDES, Route(delay, delay, 0.001))
        for number in range(8):
            drawn = draw(random.Random(f"{group} {number}"), dict.fromkeys(SIDES, 0.0), routes)
            (tmp_path / group / f"{number}.json").write_bytes(drawn.log("receiver"))
    line = DOCUMENT.blocks["compare"].removeprefix("restante ")
    said = run("sh", "-c", f"{shlex.join(RESTANTE)} {line}", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "Faster: " in said.stdout

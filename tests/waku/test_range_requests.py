"""`restante waku request --ranges`: what is fetched for a Mailserver, and which ranges stay open."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from restante.waku.client.range_requests import MAX_FAILURES
from restante.waku.envelope.envelope import Envelope
from restante.waku.files import rlp_file
from support.bounds import bounded
from support.ports import nobodys_port
from support.processes import RESTANTE, called, child, restante
from support.waku.fake_node import listening, listening_beside
from support.waku.fixed import KEY
from support.waku.letters import EPOCH, letter
from support.waku.mailservers import Honest, Refusing, Silent

ONE, OTHER = b"\1\1\1\1", b"\2\2\2\2"
LETTERS = [letter(number, age=-number, topic=(ONE, OTHER)[number % 2]) for number in range(30)]
NOBODY = f"enode://{KEY.public.hex()}@127.0.0.1:{nobodys_port()}"
PLAIN = ("--form", "plain")
FINAL = "this server takes no plain requests"
"""What a server says to every request; after other words it is tried again, which takes seconds."""


def file_of(folder: Path, *missing: tuple[int, int, list[str] | None]) -> Path:
    """Write a file of ranges with times after EPOCH."""
    ranges = [
        {"from": EPOCH + lower, "to": EPOCH + upper, "topics": topics, "missing": 1, "holders": ["west"]}
        for lower, upper, topics in missing
    ]
    content = {"format": "restante missing ranges", "version": 1, "mailserver": "east", "missing": 1}
    file = folder / "east.json"
    file.write_text(json.dumps({**content, "ranges": ranges}))
    return file


def request(*words: str | Path) -> tuple[int | None, list[str], list[str]]:
    """Run the command; return its exit code and its lines."""
    done = called("waku", "request", *words, *PLAIN)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def fetched(file: Path) -> list[Envelope]:
    found = list(rlp_file.read(file))
    assert all(isinstance(each, Envelope) for each in found)
    return found  # type: ignore[return-value]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def wanted(lower: int, upper: int, *topics: bytes) -> set[Envelope]:
    return {each for each in LETTERS if lower <= each.sent - EPOCH <= upper and each.topic in topics}


def test_each_range_is_fetched_with_its_topics(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 9, [ONE.hex()]), (12, 14, [ONE.hex(), OTHER.hex()]), (20, 25, None))
    with listening_beside(Honest(LETTERS, size=2)) as (_, enode):
        said = request(str(enode), "--ranges", file, "-o", tmp_path / "some.rlp")
    assert said == (0, ["fetched 14 envelopes of 3 ranges; 0 ranges open"], [])
    found = fetched(tmp_path / "some.rlp")
    assert set(found) == wanted(0, 9, ONE) | wanted(12, 14, ONE, OTHER) | wanted(20, 25, ONE, OTHER)
    assert len(found) == 14


def test_every_mailserver_is_asked_and_each_envelope_is_written_once(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 9, None), (20, 25, None))
    with listening_beside(Honest(LETTERS[:6])) as (_, one), listening_beside(Honest(LETTERS[3:9])) as (_, other):
        code, out, err = request(str(one), str(other), "--ranges", file, "-o", tmp_path / "some.rlp")
    assert (code, out) == (0, ["fetched 9 envelopes of 2 ranges; 1 range open"])
    assert err == [f"{EPOCH + 20} to {EPOCH + 25}, all topics: no Mailserver has envelopes of it; it stays open"]
    found = fetched(tmp_path / "some.rlp")
    assert (set(found), len(found)) == (set(LETTERS[:9]), 9)


def test_a_mailserver_that_fails_does_not_keep_the_others_from_answering(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 9, None), (10, 19, [ONE.hex()]))
    with listening_beside(Refusing(FINAL)) as (_, bad), listening_beside(Honest(LETTERS)) as (_, good):
        code, out, err = request(str(bad), str(good), "--ranges", file, "-o", tmp_path / "some.rlp")
    assert (code, out) == (0, ["fetched 15 envelopes of 2 ranges; 0 ranges open"])
    [reason] = err
    assert FINAL in reason
    assert bad.address in reason


def test_ranges_without_an_answer_end_with_1_and_are_named_up_to_a_limit(tmp_path: Path) -> None:
    file = file_of(tmp_path, *((number, number, [ONE.hex()]) for number in range(30)))
    with listening_beside(Refusing(FINAL)) as (node, enode):
        code, out, err = request(str(enode), "--ranges", file, "-o", tmp_path / "none.rlp")
    assert (code, out) == (1, ["fetched 0 envelopes of 30 ranges; 30 ranges open"])
    reason, *open_ranges, last = err
    assert len(node.asked) == MAX_FAILURES, "it is soon left alone"
    assert FINAL in reason
    assert len(open_ranges) == 20
    assert open_ranges[0] == (
        f"{EPOCH} to {EPOCH}, topic 01010101: no Mailserver answered for all of it; it stays open:"
        " try again later, or name another Mailserver"
    )
    assert last == "10 more ranges stay open"


def test_json_lines_are_printed_without_a_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 3, None), (28, 28, [OTHER.hex()]))
    with listening_beside(Honest(LETTERS)) as (_, enode):
        done = restante("waku", "request", str(enode), "--ranges", file, *PLAIN)
    assert done.returncode == 0
    hashes = {json.loads(line)["hash"] for line in done.stdout.splitlines()}
    assert hashes == {envelope.hash.hex() for envelope in LETTERS[:4]}
    assert done.stderr.splitlines() == [
        f"{EPOCH + 28} to {EPOCH + 28}, topic 02020202: no Mailserver has envelopes of it; it stays open"
    ]


@pytest.mark.thorough
async def test_a_run_that_is_stopped_leaves_no_file_and_can_be_repeated(tmp_path: Path) -> None:
    file, output = file_of(tmp_path, (0, 9, None)), tmp_path / "some.rlp"
    async with listening(Silent()) as (node, enode):
        command = (*RESTANTE, "waku", "request", str(enode), "--ranges", str(file), "-o", str(output), *PLAIN)
        async with child(*command) as first, bounded("the request"):
            await node.was_asked.wait()
            first.send(signal.SIGTERM)
            assert (await first.ended(), first.said) == (130, {"stdout": "", "stderr": ""})
        assert names(tmp_path) == [file.name]
        node.mailserver = Honest(LETTERS)
        async with child(*command) as again:
            assert await again.ended() == 0
    assert len(fetched(output)) == 10


@pytest.mark.parametrize(
    "words", ["--from -1h", "--to now", "--topic 01020304", "--channel status", "--state x", "--live"]
)
def test_ranges_and_times_or_topics_are_refused_together(words: str, tmp_path: Path) -> None:
    code, out, err = request(NOBODY, "--ranges", file_of(tmp_path), *words.split())
    assert (code, out) == (2, [])
    assert err == [
        "restante: --ranges names times and topics: leave --from, --to, --topic, --channel, --state, --live out"
    ]


def test_a_file_without_ranges_gives_an_empty_file(tmp_path: Path) -> None:
    """So that a script can import it, whatever was missing."""
    output = tmp_path / "none.rlp"
    said = request(NOBODY, "--ranges", file_of(tmp_path), "-o", output)
    assert said == (0, ["fetched 0 envelopes of 0 ranges; 0 ranges open"], [])
    assert called("waku", "import", output, "--data", tmp_path / "data").returncode == 0

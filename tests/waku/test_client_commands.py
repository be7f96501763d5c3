"""`restante waku request`, `probe` and `post` as their users run them: their output and their exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from restante.cli.waku_arguments import sealed_for
from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku import key_file
from restante.waku.client.post import post as hand_over
from restante.waku.client.range_requests import MAX_FAILURES
from restante.waku.client.state_file import held
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.payload import SymmetricKey, open_sealed, seal, topic_of
from restante.waku.files import parquet, rlp_file
from restante.waku.passwords import PASSWORD_VARIABLE
from support.bounds import bounded
from support.ports import nobodys_port
from support.processes import RESTANTE, called, child, on_a_terminal, restante, run
from support.waku.fake_node import listening, listening_beside
from support.waku.fixed import KEY
from support.waku.inside import Today, inside
from support.waku.letters import EPOCH, letter
from support.waku.mailservers import Honest, Refusing, Silent

TOPIC = topic_of("status")
LETTERS = [letter(number, age=-number, topic=TOPIC) for number in range(30)]
SINCE = ("--from", str(EPOCH), "--to", str(EPOCH + 500))
PLAIN_FORM = ("--form", "plain")
PLAIN = (*PLAIN_FORM, "--topic", TOPIC.hex())
NOBODY = f"enode://{KEY.public.hex()}@127.0.0.1:{nobodys_port()}"


class Result(NamedTuple):
    code: int | None
    out: str
    err: str


def waku(*words: str | Path, **environment: str) -> Result:
    """Do what a command does in this process."""
    result = called("waku", *words, **environment)
    return Result(result.returncode, result.stdout, result.stderr)


async def posted_hash(url: str, text: str) -> str:
    """Post to a chat; gives the envelope's hash."""
    posted = await hand_over(url, text.encode(), topic=TOPIC, to=SymmetricKey.from_password("status"))
    return posted.envelope.hash.hex()


def lines(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each) for each in text.splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_history_is_printed_on_standard_output() -> None:
    async with listening(Honest(LETTERS, size=20)) as (_, enode):
        result = await asyncio.to_thread(restante, "waku", "request", str(enode), *PLAIN, *SINCE)
    assert (result.returncode, result.stderr) == (0, "")
    found = lines(result.stdout)
    assert {each["hash"] for each in found} == {each.hash.hex() for each in LETTERS}
    first = next(each for each in found if each["hash"] == LETTERS[7].hash.hex())
    again = make(
        first["expiry"], first["ttl"], bytes.fromhex(first["topic"]), bytes.fromhex(first["data"]), first["nonce"]
    )
    assert (again, first["sent"]) == (LETTERS[7], LETTERS[7].sent)


@pytest.mark.parametrize("to_file", [True, pytest.param(False, marks=pytest.mark.thorough)])
async def test_on_a_terminal_progress_is_shown_only_if_results_go_to_a_file(tmp_path: Path, to_file: bool) -> None:
    output = ("-o", tmp_path / "all.rlp") if to_file else ()
    async with listening(Honest(LETTERS, size=20)) as (_, enode):
        command = (*RESTANTE, "waku", "request", str(enode), *PLAIN, *SINCE, *output)
        shown = await asyncio.to_thread(on_a_terminal, *command)
    if to_file:
        assert "30/?" in shown
        assert "fetched 30 envelopes" in shown
    else:
        assert {line["hash"] for line in lines(shown)} == {envelope.hash.hex() for envelope in LETTERS}


def test_history_is_written_to_files(tmp_path: Path) -> None:
    with listening_beside(Honest(LETTERS, size=20)) as (_, enode):
        for suffix in ("jsonl", "rlp", "parquet"):
            result = waku("request", str(enode), *PLAIN, *SINCE, "-o", tmp_path / f"all.{suffix}")
            assert result == (0, "fetched 30 envelopes\n", "")
    said = {each["hash"] for each in lines((tmp_path / "all.jsonl").read_text())}
    assert said == {each.hash.hex() for each in LETTERS}
    for file, read in ((tmp_path / "all.rlp", rlp_file.read), (tmp_path / "all.parquet", parquet.read)):
        assert sorted(each.hash.hex() for each in read(file)) == sorted(said)  # type: ignore[union-attr] # no flaws
    assert names(tmp_path) == ["all.jsonl", "all.parquet", "all.rlp"]


def test_a_channel_is_opened_and_the_password_is_the_mailserver_s(tmp_path: Path) -> None:
    chat = SymmetricKey.from_password("status")
    dice = SystemDice()
    sealed = [
        make(EPOCH + 50, 50, TOPIC, seal(b"held until called for", to=chat, sign=KEY, dice=dice)),
        make(EPOCH + 51, 50, TOPIC, seal(b"\xff\0", to=chat, dice=dice)),
        make(EPOCH + 52, 50, TOPIC, b"for somebody else"),
    ]
    (tmp_path / "password").write_text("swordfish\n")
    by_file, by_variable = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    with listening_beside(Honest(sealed), password="swordfish") as (node, enode):
        command = ("request", str(enode), "--channel", "status", *SINCE)
        for result in (
            waku(*command, "-o", by_file, "--password-file", tmp_path / "password"),
            waku(*command, "-o", by_variable, RESTANTE_WAKU_PASSWORD="swordfish"),
        ):
            assert result == (0, "fetched 3 envelopes\n", "")
    assert (by_file.read_text(), node.wrong) == (by_variable.read_text(), [])
    first, second, third = sorted(lines(by_file.read_text()), key=lambda each: each["sent"])
    assert (first["text"], first["signer"]) == ("held until called for", KEY.public.hex())
    assert (second["payload"], "signer" in second, "text" in second) == ("ff00", False, False)
    assert not {"text", "payload", "signer"} & third.keys()


def test_envelopes_sealed_with_a_password_or_for_a_key_are_opened(tmp_path: Path) -> None:
    dice = SystemDice()
    (tmp_path / "password").write_text("swordfish\n")
    mine = key_file.load_or_make(tmp_path / "my.key")
    sealed = [
        make(EPOCH + 50, 50, TOPIC, seal(b"by password", to=SymmetricKey.from_password("swordfish"), dice=dice)),
        make(EPOCH + 51, 50, TOPIC, seal(b"for me", to=mine.public, dice=dice)),
        make(EPOCH + 52, 50, TOPIC, seal(b"for another", to=KEY.public, dice=dice)),
    ]
    keys = ("--open-password", tmp_path / "password", "--open-key", tmp_path / "my.key")
    with listening_beside(Honest(sealed)) as (_, enode):
        waku("request", str(enode), *PLAIN, *SINCE, *keys, "-o", tmp_path / "all.jsonl")
    found = sorted(lines((tmp_path / "all.jsonl").read_text()), key=lambda each: each["sent"])
    assert [each.get("text") for each in found] == ["by password", "for me", None]


def test_known_envelopes_are_not_fetched_again(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    honest = Honest(LETTERS[:20])
    with listening_beside(honest) as (_, enode):
        command = ("request", str(enode), *PLAIN, "--state", state)
        for number in (20, 0):
            file = tmp_path / f"{number}.rlp"
            first = waku(*command, *SINCE[:2], "--to", str(EPOCH + 19), "-o", file)
            assert first == (0, f"fetched {number} envelopes\n", "")
            file.unlink()
        honest.envelopes = LETTERS
        second = waku(*command, *SINCE, "-o", tmp_path / "rest.rlp")
    assert second == (0, "fetched 10 envelopes\n", "")
    assert msgspec.json.decode(state.read_bytes())["known"] == {TOPIC.hex(): [[EPOCH, EPOCH + 500]]}
    assert names(tmp_path) == ["rest.rlp", "state.json"]


def test_times_without_an_answer_are_reported(tmp_path: Path) -> None:
    file, state = tmp_path / "some.rlp", tmp_path / "state.json"
    with listening_beside(Honest(LETTERS)) as (_, enode):
        result = waku("request", str(enode), *PLAIN, *SINCE, "--limit", "envelopes=12", "-o", file, "--state", state)
    assert (result.code, result.out) == (1, "fetched 12 envelopes\n")
    reason, missing = result.err.splitlines()
    assert reason == f"{enode.address}: its answer takes more than 12 envelopes"
    assert missing == (
        f"no Mailserver answered for these times: {EPOCH} to {EPOCH + 500};"
        " try again later, or name another Mailserver"
    )
    assert len(list(rlp_file.read(file))) == 12
    assert msgspec.json.decode(state.read_bytes())["known"] == {}


async def test_live_runs_until_it_is_stopped_and_continues_from_there(tmp_path: Path) -> None:
    state, file = tmp_path / "state.json", tmp_path / "rest.jsonl"
    async with inside(tmp_path / "data", clock=Today()) as here:
        url = str(here.enode)
        options = ("--channel", "status", "--form", "plain", "--state", str(state), "--live")
        command = (*RESTANTE, "waku", "request", url, *options)
        posted = [await posted_hash(url, "before")]
        async with child(*command) as subscribing:
            await subscribing.says("before")
            posted.append(await posted_hash(url, "meanwhile"))
            await subscribing.says("meanwhile")
            subscribing.send(signal.SIGINT)
            assert (await subscribing.ended(), subscribing.said["stderr"]) == (0, "")
            said = lines(subscribing.said["stdout"])
        posted.append(await posted_hash(url, "between"))

        def size(name: str) -> int:
            return (tmp_path / name).stat().st_size if name.startswith("rest.jsonl") else 0

        async with child(*command, "-o", str(file)) as subscribing, bounded("the line of the second run"):
            while not any(map(size, names(tmp_path))):  # noqa: ASYNC110 - nobody tells when another process has written
                await asyncio.sleep(0.01)
            subscribing.send(signal.SIGTERM)
            assert await subscribing.ended() == 0
            assert subscribing.said == {"stdout": "fetched 1 envelope\n", "stderr": ""}
    said += lines(file.read_text())
    assert [line["text"] for line in said] == ["before", "meanwhile", "between"]
    assert [line["hash"] for line in said] == posted


def test_live_reports_a_server_that_cannot_be_reached() -> None:
    result = waku("request", NOBODY, *PLAIN, "--live", "--for", "1")
    assert (result.code, result.out) == (1, "")
    reason, missing = result.err.splitlines()
    assert reason == f"cannot connect to 127.0.0.1:{nobodys_port()}: Connection refused"
    assert missing.startswith("no Mailserver answered for these times: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--topic", "xx"), "--topic: 'xx' is not a topic"),
        ((), "name what to fetch: --channel NAME, or --topic TOPIC"),
        (("--topic", "01020304", "--from", "soon"), "--from: 'soon' is not a time"),
        (("--topic", "01020304", "--from", "now", "--to", "-1h"), "first time must not be after its last"),
        (("--topic", "01020304", "--form", "letter"), "--form: 'letter' is not envelope or plain"),
        (("--topic", "01020304", "--form", "plain", "--password-file", "x"), "leave --password-file out"),
        (("--topic", "01020304", "--password-file", "/nowhere"), "cannot read /nowhere"),
        (
            ("--topic", "01020304", "--open-password", "/nowhere"),
            "cannot read /nowhere: No such file or directory (--open-",
        ),
        (("--topic", "01020304", "--open-key", "/nowhere"), "(--open-key)"),
        (("--topic", "01020304", "-o", "all.csv"), "must end in .jsonl, .rlp or .parquet"),
        (("--topic", "01020304", "--limit", "pages=0"), "--limit pages: '0' is not a whole number from 1"),
        (
            ("--topic", "01020304", "--limit", "cows=1"),
            "--limit cows=1: write NAME=NUMBER; names are pages, envelopes, bytes, seconds, size",
        ),
        (
            ("--topic", "01020304", "--limit", "seconds=nan"),
            "--limit seconds: 'nan' is not a number over 0 to 1000000000.0",
        ),
        *(
            (
                ("--topic", "01020304", "--live", "--for", wrong),
                f"--for: '{wrong}' is not a number from 0.1 to 1000000000",
            )
            for wrong in ("nan", "-inf", "-1", "0")
        ),
        (("--topic", "01020304", "--state", "/"), "cannot read /"),
        (("--topic", "01020304", "--state", "x" * 300), "File name too long (--state)"),
        (("--topic", "01020304", "-o", "x" * 300 + ".rlp"), "File name too long (-o)"),
        (("--topic", "01020304", "--live", "--to", "now"), "--live has no end: leave --to out"),
        (("--topic", "01020304", "--for", "9"), "add --live, or leave --for out"),
    ],
)
def test_misuse_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    result = waku("request", NOBODY, *words)
    assert (result.code, result.out) == (2, "")
    [sentence] = result.err.splitlines()
    assert said in sentence


@pytest.mark.parametrize(
    "content",
    ['{"name": "app"}', *(f'{{"recent": {{"01020304": {{"{wrong}": 1}}}}}}' for wrong in ("zz", "AB" * 32))],
)
def test_a_json_file_that_is_no_state_is_reported_in_one_sentence_and_stays(content: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(content)
    result = waku("request", NOBODY, *PLAIN, "--state", state)
    assert (result.code, result.out, state.read_text()) == (2, "", content)
    [sentence] = result.err.splitlines()
    assert f"{state} is not a state file" in sentence


@pytest.mark.parametrize(
    ("suffix", "number"),
    [
        ("rlp", signal.SIGTERM),
        pytest.param("jsonl", signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param("parquet", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
async def test_a_stopped_request_leaves_no_unfinished_file(
    suffix: str, number: signal.Signals, tmp_path: Path
) -> None:
    state, file = tmp_path / "state.json", tmp_path / f"all.{suffix}"
    async with listening(Silent()) as (node, enode):
        command = (*RESTANTE, "waku", "request", str(enode), *PLAIN, *SINCE, "-o", str(file), "--state", str(state))
        async with child(*command) as fetching, bounded("the request"):
            await node.was_asked.wait()
            assert len(names(tmp_path)) > 1
            fetching.send(number)
            assert (await fetching.ended(), fetching.said) == (130, {"stdout": "", "stderr": ""})
    assert names(tmp_path) == []


def test_a_request_stopped_while_it_finishes_the_file_leaves_no_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time to listen is over by then, and nobody has told it to stop before."""
    monkeypatch.setattr(parquet, "write", lambda *_: signal.raise_signal(signal.SIGTERM))
    where = ("-o", tmp_path / "all.parquet", "--state", tmp_path / "state.json")
    result = waku("request", NOBODY, *PLAIN, "--live", "--for", "0.1", *where)
    assert (result.code, result.out) == (130, "")
    assert names(tmp_path) == []


def test_a_state_file_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with listening_beside(Honest(LETTERS)) as (_, enode):
        command = ("request", str(enode), *PLAIN, *SINCE, "-o", tmp_path / "all.rlp", "--state", state)
        with held(state):
            assert waku(*command) == (2, "", f"restante: another process is using {state}: wait for it (--state)\n")
        assert waku(*command) == (0, "fetched 30 envelopes\n", "")
    assert names(tmp_path) == ["all.rlp", "state.json"]


@pytest.mark.thorough
async def test_a_killed_request_does_not_hinder_the_next(tmp_path: Path) -> None:
    async with listening(Silent()) as (node, enode):
        command = (*RESTANTE, "waku", "request", str(enode), *PLAIN, *SINCE, "--state", str(tmp_path / "state.json"))
        async with child(*command) as first, bounded("the request"):
            await node.was_asked.wait()
            first.kill()  # and so it cannot tidy up
        node.mailserver = Honest(LETTERS)
        async with child(*command) as second:
            assert (await second.ended(), len(lines(second.said["stdout"]))) == (0, 30)
    assert names(tmp_path) == ["state.json"]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "all.rlp"
    file.write_text("mine")
    result = waku("request", NOBODY, *PLAIN, "-o", file)
    assert (result.code, file.read_text()) == (2, "mine")
    assert "exists already" in result.err


def test_probe() -> None:
    with listening_beside(Honest([])) as (_, enode):
        well = waku("probe", str(enode), "--form", "plain")
    assert (well.code, well.err) == (0, "")
    assert well.out.startswith("all is well: posted, and fetched in ")
    with listening_beside(Refusing("closed"), archives=False) as (_, enode):
        refused = waku("probe", str(enode), "--form", "plain")
    assert refused == (7, "", "it answers the request with an error: closed\n")
    assert waku("probe", str(enode)).code == 3


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1", "0", "1e999", "soon"])
def test_an_invalid_timeout_is_reported_in_one_sentence(wrong: str) -> None:
    error = f"restante: --patience: '{wrong}' is not a number from 0.1 to 1000000\n"
    assert waku("probe", NOBODY, f"--patience={wrong}") == (2, "", error)


ONE, OTHER = b"\1\1\1\1", b"\2\2\2\2"
RANGE_LETTERS = [letter(number, age=-number, topic=(ONE, OTHER)[number % 2]) for number in range(30)]
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
    done = called("waku", "request", *words, *PLAIN_FORM)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def fetched(file: Path) -> list[Envelope]:
    found = list(rlp_file.read(file))
    assert all(isinstance(each, Envelope) for each in found)
    return found  # type: ignore[return-value]


def wanted(lower: int, upper: int, *topics: bytes) -> set[Envelope]:
    return {each for each in RANGE_LETTERS if lower <= each.sent - EPOCH <= upper and each.topic in topics}


def test_each_range_is_fetched_with_its_topics(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 9, [ONE.hex()]), (12, 14, [ONE.hex(), OTHER.hex()]), (20, 25, None))
    with listening_beside(Honest(RANGE_LETTERS, size=2)) as (_, enode):
        said = request(str(enode), "--ranges", file, "-o", tmp_path / "some.rlp")
    assert said == (0, ["fetched 14 envelopes of 3 ranges; 0 ranges open"], [])
    found = fetched(tmp_path / "some.rlp")
    assert set(found) == wanted(0, 9, ONE) | wanted(12, 14, ONE, OTHER) | wanted(20, 25, ONE, OTHER)
    assert len(found) == 14


def test_every_mailserver_is_asked_and_each_envelope_is_written_once(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 9, None), (20, 25, None))
    with (
        listening_beside(Honest(RANGE_LETTERS[:6])) as (_, one),
        listening_beside(Honest(RANGE_LETTERS[3:9])) as (_, other),
    ):
        code, out, err = request(str(one), str(other), "--ranges", file, "-o", tmp_path / "some.rlp")
    assert (code, out) == (0, ["fetched 9 envelopes of 2 ranges; 1 range open"])
    assert err == [f"{EPOCH + 20} to {EPOCH + 25}, all topics: no Mailserver has envelopes of it; it stays open"]
    found = fetched(tmp_path / "some.rlp")
    assert (set(found), len(found)) == (set(RANGE_LETTERS[:9]), 9)


def test_a_mailserver_that_fails_does_not_keep_the_others_from_answering(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 9, None), (10, 19, [ONE.hex()]))
    with listening_beside(Refusing(FINAL)) as (_, bad), listening_beside(Honest(RANGE_LETTERS)) as (_, good):
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
    with listening_beside(Honest(RANGE_LETTERS)) as (_, enode):
        done = restante("waku", "request", str(enode), "--ranges", file, *PLAIN_FORM)
    assert done.returncode == 0
    hashes = {json.loads(line)["hash"] for line in done.stdout.splitlines()}
    assert hashes == {envelope.hash.hex() for envelope in RANGE_LETTERS[:4]}
    assert done.stderr.splitlines() == [
        f"{EPOCH + 28} to {EPOCH + 28}, topic 02020202: no Mailserver has envelopes of it; it stays open"
    ]


@pytest.mark.thorough
async def test_a_run_that_is_stopped_leaves_no_file_and_can_be_repeated(tmp_path: Path) -> None:
    file, output = file_of(tmp_path, (0, 9, None)), tmp_path / "some.rlp"
    async with listening(Silent()) as (node, enode):
        command = (*RESTANTE, "waku", "request", str(enode), "--ranges", str(file), "-o", str(output), *PLAIN_FORM)
        async with child(*command) as first, bounded("the request"):
            await node.was_asked.wait()
            first.send(signal.SIGTERM)
            assert (await first.ended(), first.said) == (130, {"stdout": "", "stderr": ""})
        assert names(tmp_path) == [file.name]
        node.mailserver = Honest(RANGE_LETTERS)
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


def post(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Post from this process."""
    return called("waku", "post", *arguments, **environment)


POST = (*RESTANTE, "waku", "post")


def test_a_posted_text_arrives_byte_for_byte_and_is_opened_with_the_key(tmp_path: Path) -> None:
    bob, alice = new_key(SystemDice()), key_file.load_or_make(tmp_path / "alice")
    mailserver = Honest([])
    with listening_beside(mailserver) as (_, enode):
        to, node = ("--topic", "01020304"), str(enode)
        posted = [
            post(node, "--channel", "status", "to the chat"),
            run(*POST, node, *to, stdin="by password", variables={PASSWORD_VARIABLE: "open sesame"}),
            post(node, *to, "--to", bob.public.hex(), "--sign", str(tmp_path / "alice"), "to Bob"),
            post(node, "--channel", "x", os.fsdecode(b"a\xff")),
        ]
    assert [result.returncode for result in posted] == [0, 0, 0, 0], posted
    assert [envelope.hash.hex() for envelope in mailserver.envelopes] == [result.stdout.strip() for result in posted]
    chat, secret, letter, as_the_shell_gave_it = mailserver.envelopes
    assert chat.topic == topic_of("status")
    assert open_sealed(chat.data, SymmetricKey.from_password("status")).payload == b"to the chat"
    assert open_sealed(secret.data, SymmetricKey.from_password("open sesame")).payload == b"by password"
    opened = open_sealed(letter.data, bob)
    assert (opened.payload, opened.signer) == (b"to Bob", alice.public)
    assert open_sealed(as_the_shell_gave_it.data, SymmetricKey.from_password("x")).payload == b"a\xff"


def test_a_failed_post_is_reported_in_one_sentence() -> None:
    with listening_beside(refuses="full") as (_, enode):
        port = enode.port
        refused = post(str(enode), "--channel", "x", "text")
        assert (refused.returncode, refused.stderr) == (1, "restante: the node refused the envelope: full\n")
        wrong = post(f"enode://{RECEIVER}@127.0.0.1:{port}", "--channel", "x", "text")
        assert wrong.returncode == 1
        assert wrong.stderr.startswith("restante: the node disconnected: ")
    with listening_beside(says_so=False, confirms=False) as (_, other):
        unsure = post(str(other), "--channel", "x", "text")
        assert (unsure.returncode, "does not confirm envelopes" in unsure.stderr) == (0, True)
    gone = post(str(enode), "--channel", "x", "text")
    assert (gone.returncode, gone.stderr) == (
        1,
        f"restante: cannot connect to 127.0.0.1:{port}: Connection refused\n",
    )
    assert post("enode://x", "--channel", "x", "text").returncode == 2


def test_an_error_of_a_flag_names_it(tmp_path: Path) -> None:
    for ttl in ("0", "soon"):
        refused = post("enode://x", "--channel", "x", "--ttl", ttl, "text")
        assert (refused.returncode, refused.stderr) == (
            2,
            f"restante: --ttl: '{ttl}' is not a whole number from 1 to 2147483648\n",
        )
    refused = post(f"enode://{RECEIVER}@127.0.0.1:1", "--channel", "x", "--sign", str(tmp_path / "none"), "text")
    assert (refused.returncode, refused.stderr) == (
        2,
        f"restante: cannot read the key file {tmp_path / 'none'}: No such file or directory (--sign)\n",
    )


def test_a_password_or_channel_that_is_empty_or_no_utf_8_is_refused(tmp_path: Path) -> None:
    file, wrong = tmp_path / "password", os.fsdecode(b"a\xff")
    for content, words in (
        (b"", "--password-file: it is empty"),
        (b"\n", "it is empty"),
        (b"a\xff", "it is not UTF-8"),
    ):
        file.write_bytes(content)
        with pytest.raises(Misuse, match=words):
            sealed_for(None, "01020304", file, None, {})
    for value, words in (("", f"^{PASSWORD_VARIABLE}: it is empty"), (wrong, "UTF-8")):
        with pytest.raises(Misuse, match=words):
            sealed_for(None, "01020304", None, None, {PASSWORD_VARIABLE: value})
    for channel, words in (("", "--channel: it is empty"), (wrong, "UTF-8")):
        with pytest.raises(Misuse, match=words):
            sealed_for(channel, None, None, None, {})


RECEIVER = new_key(SystemDice()).public.hex()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("x", "01020304", None, None), "--channel gives the topic and the key"),
        ((None, None, None, None), "name where to post"),
        ((None, "01020304", None, None), "name who can open it"),
        ((None, "010203", None, RECEIVER), "not a topic, which has 8 hexadecimal digits"),
        ((None, "01020304", Path("none"), RECEIVER), "cannot be combined"),
        ((None, "01020304", Path("none"), None), "cannot read none: No such file"),
        ((None, "01020304", None, "abc"), "not a public key"),
        ((None, "01020304", None, "00" * 64), "not a public key"),
    ],
)
def test_post_requires_exactly_one_destination_and_one_key(
    given: tuple[str | None, str | None, Path | None, str | None], words: str
) -> None:
    with pytest.raises(Misuse, match=words):
        sealed_for(*given, {})


def test_a_password_comes_from_a_file_or_the_environment_without_the_end_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    expected = SymmetricKey.from_password("open sesame").secret
    for file, environment in (
        (tmp_path / "password", {PASSWORD_VARIABLE: "other"}),
        (None, {PASSWORD_VARIABLE: "open sesame"}),
    ):
        topic, key = sealed_for(None, "0x01020304", file, None, environment)
        assert isinstance(key, SymmetricKey)
        assert (topic, key.secret) == (b"\1\2\3\4", expected)


def test_a_public_key_may_have_the_prefix_04() -> None:
    assert sealed_for(None, "01020304", None, f"0x04{RECEIVER}", {}) == (b"\1\2\3\4", bytes.fromhex(RECEIVER))

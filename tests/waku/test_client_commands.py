"""`restante waku request`, `probe` and `post` as their users run them: their output and their exit code."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from restante.common.dice import SystemDice
from restante.common.errors import Misuse
from restante.waku import key_file
from restante.waku.client.arguments import topic_and_seal_key
from restante.waku.client.history import MAX_FAILURES, lock_state_file
from restante.waku.client.post import post as hand_over
from restante.waku.envelope.envelope import Envelope, make
from restante.waku.envelope.keys import new_key
from restante.waku.envelope.payload import SymmetricKey, open_sealed, seal, topic_of
from restante.waku.files import parquet, rlp_file
from restante.waku.passwords import PASSWORD_VARIABLE
from support.bounds import bounded
from support.ports import nobodys_port
from support.processes import RESTANTE, called, child, on_a_terminal, run
from support.waku.fake_node import Honest, listening, listening_beside, refusing, silent
from support.waku.inside import Today, inside
from support.waku.letters import EPOCH, KEY, letter

TOPIC = topic_of("status")
LETTERS = [letter(number, age=-number, topic=TOPIC) for number in range(30)]
SINCE = ("--from", str(EPOCH), "--to", str(EPOCH + 500))
PLAIN_FORM = ("--form", "plain")
PLAIN = (*PLAIN_FORM, "--topic", TOPIC.hex())
NOBODY = f"enode://{KEY.public.hex()}@127.0.0.1:{nobodys_port()}"
RECEIVER = new_key(SystemDice()).public.hex()


class Result(NamedTuple):
    code: int | None
    out: str
    err: str


def waku(*arguments: str | Path, **environment: str) -> Result:
    result = called("waku", *arguments, **environment)
    return Result(result.returncode, result.stdout, result.stderr)


async def posted_hash(url: str, text: str) -> str:
    posted = await hand_over(url, text.encode(), topic=TOPIC, to=SymmetricKey.from_password("status"))
    return posted.envelope.hash.hex()


def lines(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in text.splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def test_on_a_terminal_progress_is_shown_if_results_go_to_a_file(tmp_path: Path) -> None:
    async with listening(Honest(LETTERS, size=20)) as (_, enode):
        command = (*RESTANTE, "waku", "request", str(enode), *PLAIN, *SINCE, "-o", tmp_path / "all.rlp")
        screen = await asyncio.to_thread(on_a_terminal, *command)
    assert "30/?" in screen
    assert "fetched 30 envelopes" in screen


def test_history_is_printed_or_written_to_files(tmp_path: Path) -> None:
    with listening_beside(Honest(LETTERS, size=20)) as (_, enode):
        for suffix in ("jsonl", "rlp", "parquet"):
            result = waku("request", str(enode), *PLAIN, *SINCE, "-o", tmp_path / f"all.{suffix}")
            assert result == (0, "fetched 30 envelopes\n", "")
        assert waku("request", str(enode), *PLAIN, *SINCE) == (0, (tmp_path / "all.jsonl").read_text(), "")
    printed = {line["hash"]: line for line in lines((tmp_path / "all.jsonl").read_text())}
    assert printed.keys() == {envelope.hash.hex() for envelope in LETTERS}
    row = printed[LETTERS[7].hash.hex()]
    again = make(row["expiry"], row["ttl"], bytes.fromhex(row["topic"]), bytes.fromhex(row["data"]), row["nonce"])
    assert (again, row["sent"]) == (LETTERS[7], LETTERS[7].sent)
    for file, read in ((tmp_path / "all.rlp", rlp_file.read), (tmp_path / "all.parquet", parquet.read)):
        assert {envelope.hash.hex() for envelope in read(file)} == printed.keys()  # type: ignore[union-attr] # no flaws
    assert names(tmp_path) == ["all.jsonl", "all.parquet", "all.rlp"]


def test_envelopes_are_opened_with_the_channel_passwords_and_keys_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("swordfish\n")
    (tmp_path / "other").write_text("sesame\n")
    mine = key_file.load_or_make(tmp_path / "my.key")
    chat, dice = SymmetricKey.from_password("status"), SystemDice()
    data = (
        seal(b"held until called for", to=chat, sign=KEY, dice=dice),
        seal(b"\xff\0", to=chat, dice=dice),
        b"for somebody else",
        seal(b"by password\n\x1b[2J", to=SymmetricKey.from_password("sesame"), dice=dice),
        seal(b"for me", to=mine.public, dice=dice),
        seal(b"for another", to=KEY.public, dice=dice),
    )
    sealed = [make(EPOCH + 50 + number, 50, TOPIC, part) for number, part in enumerate(data)]
    by_file, by_variable = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    with listening_beside(Honest(sealed), password="swordfish") as (node, enode):
        keys = ("--open-password", tmp_path / "other", "--open-key", tmp_path / "my.key")
        command = ("request", str(enode), "--channel", "status", *SINCE, *keys)
        for result in (
            waku(*command, "-o", by_file, "--password-file", tmp_path / "password"),
            waku(*command, "-o", by_variable, RESTANTE_WAKU_PASSWORD="swordfish"),
        ):
            assert result == (0, "fetched 6 envelopes\n", "")
        texts = waku(*command, "--text", "--password-file", tmp_path / "password")
    assert [line.partition("Z ")[2] for line in sorted(texts.out.splitlines())] == [
        "held until called for",
        "(2 bytes that are not text)",
        "(no key opens it)",
        r"by password\n\x1b[2J",
        "for me",
        "(no key opens it)",
    ]
    assert min(texts.out.splitlines()).startswith(f"{datetime.fromtimestamp(EPOCH, UTC):%Y-%m-%dT%H:%M:%S}Z held")
    assert (by_file.read_text(), node.wrong) == (by_variable.read_text(), [])
    opened = sorted(lines(by_file.read_text()), key=lambda line: line["sent"])
    assert [(line.get("text"), line.get("payload"), line.get("signer")) for line in opened] == [
        ("held until called for", None, KEY.public.hex()),
        (None, "ff00", None),
        (None, None, None),
        ("by password\n\x1b[2J", None, None),
        ("for me", None, None),
        (None, None, None),
    ]


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
    times = f"no Mailserver answered for these times: {EPOCH} to {EPOCH + 500}"
    assert missing == f"{times}; try again later, or name another Mailserver"
    assert len(list(rlp_file.read(file))) == 12
    assert msgspec.json.decode(state.read_bytes())["known"] == {}
    live = waku("request", NOBODY, *PLAIN, "--live", "--for", "1")
    assert (live.code, live.out) == (1, "")
    reason, missing = live.err.splitlines()
    assert reason == f"cannot connect to 127.0.0.1:{nobodys_port()}: Connection refused"
    assert missing.startswith("no Mailserver answered for these times: ")


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
            printed = lines(subscribing.said["stdout"])
        posted.append(await posted_hash(url, "between"))

        def size(name: str) -> int:
            return (tmp_path / name).stat().st_size if name.startswith("rest.jsonl") else 0

        async with child(*command, "-o", str(file)) as subscribing, bounded("the line of the second run"):
            while not any(map(size, names(tmp_path))):  # noqa: ASYNC110 - nobody tells when another process has written
                await asyncio.sleep(0.01)
            subscribing.send(signal.SIGTERM)
            assert await subscribing.ended() == 0
            assert subscribing.said == {"stdout": "fetched 1 envelope\n", "stderr": ""}
    printed += lines(file.read_text())
    assert [line["text"] for line in printed] == ["before", "meanwhile", "between"]
    assert [line["hash"] for line in printed] == posted


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("request --topic xx", "--topic: 'xx' is not a topic"),
        ("request", "name what to fetch: --channel NAME, or --topic TOPIC"),
        ("request --topic 01020304 --from soon", "--from: 'soon' is not a time"),
        ("request --topic 01020304 --from now --to -1h", "first time must not be after its last"),
        ("request --topic 01020304 --form letter", "--form: 'letter' is not envelope or plain"),
        ("request --topic 01020304 --form plain --password-file x", "leave --password-file out"),
        ("request --topic 01020304 --password-file /nowhere", "cannot read /nowhere"),
        ("request --topic 01020304 --open-password /nowhere", "No such file or directory (--open-password)"),
        ("request --topic 01020304 --open-key /nowhere", "(--open-key)"),
        ("request --topic 01020304 -o all.csv", "must end in .jsonl, .rlp or .parquet"),
        ("request --topic 01020304 --limit pages=0", "--limit pages: '0' is not a whole number from 1"),
        ("request --topic 01020304 --limit cows=1", "names are pages, envelopes, bytes, seconds, size"),
        ("request --topic 01020304 --limit seconds=nan", "'nan' is not a number over 0 to 1000000000.0"),
        ("request --topic 01020304 --live --for nan", "--for: 'nan' is not a number from 0.1 to 1000000000"),
        ("request --topic 01020304 --text", "--text needs a key that opens the envelopes"),
        ("request --channel x --text -o all.rlp", "leave one of them out"),
        ("request --topic 01020304 --state /", "cannot read /"),
        (f"request --topic 01020304 --state {'x' * 300}", "File name too long (--state)"),
        (f"request --topic 01020304 -o {'x' * 300}.rlp", "File name too long (-o)"),
        ("request --topic 01020304 --live --to now", "--live has no end: leave --to out"),
        ("request --topic 01020304 --for 9", "add --live, or leave --for out"),
        ("post --channel x --ttl 0", "--ttl: '0' is not a whole number from 1 to 2147483648"),
        ("post --channel x --sign none", "cannot read the key file none: No such file or directory (--sign)"),
    ],
)
def test_misuse_is_one_sentence(command: str, sentence: str) -> None:
    name, *options = command.split()
    result = waku(name, NOBODY, *options, *(("text",) if name == "post" else ()))
    assert (result.code, result.out) == (2, "")
    [line] = result.err.splitlines()
    assert sentence in line


def test_a_json_file_that_is_no_state_is_reported_in_one_sentence_and_stays(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for wrong in ({"name": "app"}, *({"recent": {"01020304": {key: 1}}} for key in ("zz", "AB" * 32))):
        state.write_text(content := json.dumps(wrong))
        result = waku("request", NOBODY, *PLAIN, "--state", state)
        assert (result.code, result.out, state.read_text()) == (2, "", content)
        [sentence] = result.err.splitlines()
        assert f"{state} is not a state file" in sentence


async def test_a_stopped_request_leaves_no_file(tmp_path: Path) -> None:
    state, file = tmp_path / "state.json", tmp_path / "all.rlp"
    async with listening(silent) as (node, enode):
        command = (*RESTANTE, "waku", "request", str(enode), *PLAIN, *SINCE, "-o", str(file), "--state", str(state))
        async with child(*command) as fetching, bounded("the request"):
            await node.was_asked.wait()
            assert len(names(tmp_path)) > 1
            fetching.send(signal.SIGTERM)
            assert (await fetching.ended(), fetching.said) == (130, {"stdout": "", "stderr": ""})
    assert names(tmp_path) == []


def test_a_request_stopped_at_its_end_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time to listen is over by then, and nobody has told it to stop before."""
    monkeypatch.setattr(parquet, "write", lambda *_: signal.raise_signal(signal.SIGTERM))
    where = ("-o", tmp_path / "all.parquet", "--state", tmp_path / "state.json")
    result = waku("request", NOBODY, *PLAIN, "--live", "--for", "0.1", *where)
    assert (result.code, result.out) == (130, "")
    assert names(tmp_path) == []


def test_a_state_file_is_locked_and_no_file_is_overwritten(tmp_path: Path) -> None:
    state, file = tmp_path / "state.json", tmp_path / "all.rlp"
    with listening_beside(Honest(LETTERS)) as (_, enode):
        command = ("request", str(enode), *PLAIN, *SINCE, "-o", file, "--state", state)
        with lock_state_file(state):
            assert waku(*command) == (75, "", f"restante: another process is using {state}: wait for it (--state)\n")
        assert waku(*command) == (0, "fetched 30 envelopes\n", "")
    assert names(tmp_path) == ["all.rlp", "state.json"]
    written = file.read_bytes()
    result = waku(*command)
    assert (result.code, file.read_bytes()) == (2, written)
    assert "exists already" in result.err


@pytest.mark.thorough
async def test_a_killed_request_does_not_hinder_the_next(tmp_path: Path) -> None:
    async with listening(silent) as (node, enode):
        command = (*RESTANTE, "waku", "request", str(enode), *PLAIN, *SINCE, "--state", str(tmp_path / "state.json"))
        async with child(*command) as first, bounded("the request"):
            await node.was_asked.wait()
            first.kill()  # and so it cannot tidy up
        node.mailserver = Honest(LETTERS)
        async with child(*command) as second:
            assert (await second.ended(), len(lines(second.said["stdout"]))) == (0, 30)
    assert names(tmp_path) == ["state.json"]


def test_probe() -> None:
    with listening_beside(Honest([])) as (_, enode):
        well = waku("probe", str(enode), *PLAIN_FORM)
    assert (well.code, well.err) == (0, "")
    assert well.out.startswith("all is well: posted, and fetched in ")
    with listening_beside(refusing("closed"), archives=False) as (_, enode):
        refused = waku("probe", str(enode), *PLAIN_FORM)
    assert refused == (7, "", "it answers the request with an error: closed\n")
    assert waku("probe", str(enode)).code == 3


ONE, OTHER = b"\1\1\1\1", b"\2\2\2\2"
RANGE_LETTERS = [letter(number, age=-number, topic=(ONE, OTHER)[number % 2]) for number in range(30)]
FINAL = "this server takes no plain requests"
"""What a server says to every request; after other words it is tried again, which takes seconds."""


def file_of(folder: Path, *missing: tuple[int, int, list[str] | None]) -> Path:
    ranges = [
        {"from": EPOCH + lower, "to": EPOCH + upper, "topics": topics, "missing": 1, "holders": ["west"]}
        for lower, upper, topics in missing
    ]
    content = {"format": "restante missing ranges", "version": 1, "mailserver": "east", "missing": 1}
    file = folder / "east.json"
    file.write_text(json.dumps({**content, "ranges": ranges}))
    return file


def letters_between(lower: int, upper: int, *topics: bytes) -> set[Envelope]:
    times = range(EPOCH + lower, EPOCH + upper + 1)
    return {envelope for envelope in RANGE_LETTERS if envelope.sent in times and envelope.topic in topics}


def test_each_range_is_fetched_from_every_mailserver_and_each_envelope_is_written_once(tmp_path: Path) -> None:
    file = file_of(tmp_path, (0, 9, [ONE.hex()]), (12, 14, [ONE.hex(), OTHER.hex()]), (20, 25, None), (40, 50, None))
    with (
        listening_beside(refusing(FINAL)) as (_, bad),
        listening_beside(Honest(RANGE_LETTERS[:14], size=2)) as (_, early),
        listening_beside(Honest(RANGE_LETTERS[3:])) as (_, late),
    ):
        servers = [str(enode) for enode in (bad, early, late)]
        command: list[str | Path] = ["request", *servers, "--ranges", file, *PLAIN_FORM]
        result, printed = waku(*command, "-o", tmp_path / "some.rlp"), waku(*command)
    assert (result.code, result.out) == (0, "fetched 14 envelopes of 4 ranges; 1 range open\n")
    reason, still_open = result.err.splitlines()
    assert FINAL in reason
    assert bad.address in reason
    assert still_open == f"{EPOCH + 40} to {EPOCH + 50}, all topics: no Mailserver has envelopes of it; it stays open"
    fetched = list(rlp_file.read(tmp_path / "some.rlp"))
    expected = letters_between(0, 9, ONE) | letters_between(12, 14, ONE, OTHER) | letters_between(20, 25, ONE, OTHER)
    assert (set(fetched), len(fetched)) == (expected, 14)
    assert (printed.code, printed.err) == (0, result.err)
    assert {line["hash"] for line in lines(printed.out)} == {envelope.hash.hex() for envelope in expected}


def test_ranges_without_an_answer_end_with_1_and_are_named_up_to_a_limit(tmp_path: Path) -> None:
    file = file_of(tmp_path, *((number, number, [ONE.hex()]) for number in range(30)))
    with listening_beside(refusing(FINAL)) as (node, enode):
        result = waku("request", str(enode), "--ranges", file, *PLAIN_FORM, "-o", tmp_path / "none.rlp")
    assert (result.code, result.out) == (1, "fetched 0 envelopes of 30 ranges; 30 ranges open\n")
    reason, *open_ranges, last_line = result.err.splitlines()
    assert len(node.asked) == MAX_FAILURES, "it is soon left alone"
    assert FINAL in reason
    assert len(open_ranges) == 20
    assert open_ranges[0] == (
        f"{EPOCH} to {EPOCH}, topic 01010101: no Mailserver answered for all of it; it stays open:"
        " try again later, or name another Mailserver"
    )
    assert last_line == "10 more ranges stay open"


def test_ranges_and_times_or_topics_are_refused_together(tmp_path: Path) -> None:
    file, others = file_of(tmp_path), "--from, --to, --topic, --channel, --state, --live"
    for option in ("--from -1h", "--to now", "--topic 01020304", "--channel status", "--state x", "--live"):
        result = waku("request", NOBODY, "--ranges", file, *option.split())
        assert result == (2, "", f"restante: --ranges names times and topics: leave {others} out\n")


def test_a_file_without_ranges_gives_an_empty_file(tmp_path: Path) -> None:
    """So that a script can import it, whatever was missing."""
    output = tmp_path / "none.rlp"
    result = waku("request", NOBODY, "--ranges", file_of(tmp_path), "-o", output)
    assert result == (0, "fetched 0 envelopes of 0 ranges; 0 ranges open\n", "")
    assert waku("import", output, "--data", tmp_path / "data").code == 0


def test_a_posted_text_arrives_byte_for_byte_and_is_opened_with_the_key(tmp_path: Path) -> None:
    bob, alice = new_key(SystemDice()), key_file.load_or_make(tmp_path / "alice")
    mailserver = Honest([])
    with listening_beside(mailserver) as (_, enode):
        to, node = ("--topic", "01020304"), str(enode)
        piped = (*RESTANTE, "waku", "post", node, *to)
        posted = [
            called("waku", "post", node, "--channel", "status", "to the chat"),
            run(*piped, stdin="by password", variables={PASSWORD_VARIABLE: "open sesame"}),
            called("waku", "post", node, *to, "--to", bob.public.hex(), "--sign", tmp_path / "alice", "to Bob"),
            called("waku", "post", node, "--channel", "x", os.fsdecode(b"a\xff")),
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
    text = ("--channel", "x", "text")
    with listening_beside(refuses="full") as (_, enode):
        refused = waku("post", str(enode), *text)
        assert (refused.code, refused.out) == (1, "")
        assert re.fullmatch("restante: the node refused the envelope [0-9a-f]{64}: full\n", refused.err)
        wrong = waku("post", f"enode://{RECEIVER}@127.0.0.1:{enode.port}", *text)
        assert (wrong.code, "without an answer: its key is not the one in the enode URL" in wrong.err) == (1, True)
    with listening_beside(says_so=False, confirms=False) as (_, other):
        unsure = waku("post", str(other), *text)
        assert (unsure.code, "does not confirm envelopes" in unsure.err) == (0, True)
    unreachable = f"restante: cannot connect to 127.0.0.1:{enode.port}: Connection refused\n"
    assert waku("post", str(enode), *text) == (1, "", unreachable)
    assert waku("post", "enode://x", *text).code == 2


NO_UTF_8 = os.fsdecode(b"a\xff")
ARGUMENTS: dict[str, Any] = {"channel": None, "topic": None, "password_file": None, "to": None, "environment": {}}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"channel": "x", "topic": "01020304"}, "--channel gives the topic and the key"),
        ({"channel": ""}, "--channel: it is empty"),
        ({"channel": NO_UTF_8}, "UTF-8"),
        ({}, "name where to post"),
        ({"topic": "01020304"}, "name who can open it"),
        ({"topic": "010203", "to": RECEIVER}, "not a topic, which has 8 hexadecimal digits"),
        ({"topic": "01020304", "password_file": b"x", "to": RECEIVER}, "cannot be combined"),
        ({"topic": "01020304", "password_file": b"\n"}, "--password-file: it is empty"),
        ({"topic": "01020304", "password_file": b"a\xff"}, "it is not UTF-8"),
        ({"topic": "01020304", "password_file": Path("none")}, "cannot read none: No such file"),
        ({"topic": "01020304", "environment": {PASSWORD_VARIABLE: NO_UTF_8}}, "UTF-8"),
        ({"topic": "01020304", "to": "abc"}, "not a public key"),
        ({"topic": "01020304", "to": "00" * 64}, "not a public key"),
    ],
)
def test_post_requires_one_destination_and_one_key(arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    if isinstance(content := arguments.get("password_file"), bytes):
        (tmp_path / "password").write_bytes(content)
        arguments = {**arguments, "password_file": tmp_path / "password"}
    with pytest.raises(Misuse, match=text):
        topic_and_seal_key(**{**ARGUMENTS, **arguments})


def test_a_password_is_read_without_the_end_of_its_line_and_a_public_key_may_begin_with_04(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    for file, variable in ((tmp_path / "password", "other"), (None, "open sesame")):
        topic, key = topic_and_seal_key(None, "0x01020304", file, None, {PASSWORD_VARIABLE: variable})
        assert isinstance(key, SymmetricKey)
        assert (topic, key.secret) == (b"\1\2\3\4", SymmetricKey.from_password("open sesame").secret)
    assert topic_and_seal_key(None, "01020304", None, f"0x04{RECEIVER}", {}) == (b"\1\2\3\4", bytes.fromhex(RECEIVER))

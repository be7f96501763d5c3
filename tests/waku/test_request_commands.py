"""`restante waku request` and `restante waku probe` as their users run them: a process, its output, its exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from restante.common.dice import SystemDice
from restante.waku import key_file
from restante.waku.client.actions import Timeouts
from restante.waku.client.fetch import RequestOptions, fetch
from restante.waku.client.post import post as hand_over
from restante.waku.client.ranges import HistoryQuery
from restante.waku.client.state_file import held
from restante.waku.envelope.envelope import make
from restante.waku.envelope.payload import SymmetricKey, seal, topic_of
from restante.waku.files import parquet, rlp_file
from support.bounds import bounded
from support.effort import some
from support.ports import nobodys_port
from support.processes import RESTANTE, called, on_a_terminal, restante, spawn
from support.rows import every
from support.waku.fake_node import listening, listening_beside
from support.waku.fixed import KEY
from support.waku.letters import EPOCH, letter
from support.waku.mailservers import Honest, Refusing, Silent
from support.waku.processes import node_process

TOPIC = topic_of("status")
LETTERS = [letter(number, age=-number, topic=TOPIC) for number in range(30)]
SINCE = ("--from", str(EPOCH), "--to", str(EPOCH + 500))
PLAIN = ("--form", "plain", "--topic", TOPIC.hex())
NOBODY = f"enode://{KEY.public.hex()}@127.0.0.1:{nobodys_port()}"


class Result(NamedTuple):
    code: int | None
    out: str
    err: str


_begun: list[asyncio.subprocess.Process] = []


@pytest.fixture(autouse=True)
async def nobody_stays() -> AsyncIterator[None]:
    """Kill the processes that a test left behind."""
    yield
    while _begun:
        process = _begun.pop()
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def begun(*words: str | Path, **environment: str) -> asyncio.subprocess.Process:
    process = await spawn(*RESTANTE, "waku", *map(str, words), variables=environment)
    _begun.append(process)
    return process


async def run(*words: str | Path, **environment: str) -> Result:
    done = await asyncio.to_thread(restante, "waku", *words, **environment)
    return Result(done.returncode, done.stdout, done.stderr)


def waku(*words: str | Path, **environment: str) -> Result:
    """Do what a command does in this process."""
    result = called("waku", *words, **environment)
    return Result(result.returncode, result.stdout, result.stderr)


async def post(url: str, text: str) -> str:
    """Post to a chat; gives the envelope's hash."""
    posted = await hand_over(url, text.encode(), topic=TOPIC, to=SymmetricKey.from_password("status"))
    return posted.envelope.hash.hex()


def lines(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each) for each in text.splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_history_is_printed_on_standard_output() -> None:
    async with listening(Honest(LETTERS, size=20)) as (_, enode):
        result = await run("request", str(enode), *PLAIN, *SINCE)
    assert (result.code, result.err) == (0, "")
    found = lines(result.out)
    assert {each["hash"] for each in found} == {each.hash.hex() for each in LETTERS}
    first = next(each for each in found if each["hash"] == LETTERS[7].hash.hex())
    again = make(
        first["expiry"], first["ttl"], bytes.fromhex(first["topic"]), bytes.fromhex(first["data"]), first["nonce"]
    )
    assert (again, first["sent"]) == (LETTERS[7], LETTERS[7].sent)


async def test_on_a_terminal_progress_is_shown_only_if_results_go_to_a_file(tmp_path: Path) -> None:
    async with listening(Honest(LETTERS, size=20)) as (_, enode):
        shown = await seen("request", str(enode), *PLAIN, *SINCE)
        assert {each["hash"] for each in lines(shown)} == {each.hash.hex() for each in LETTERS}
        shown = await seen("request", str(enode), *PLAIN, *SINCE, "-o", tmp_path / "all.rlp")
    assert "30/?" in shown
    assert "fetched 30 envelopes" in shown


async def seen(*words: str | Path) -> str:
    return await asyncio.to_thread(on_a_terminal, *RESTANTE, "waku", *words)


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


def test_a_requester_with_key_is_known_to_the_mailserver(tmp_path: Path) -> None:
    key_file.load_or_make(tmp_path / "node.key")
    fetch = ("request", "-o", tmp_path / "all.rlp", *PLAIN, *SINCE)
    with listening_beside(Honest(LETTERS)) as (node, enode):
        for command in (fetch, ("probe", "--form", "plain")):
            assert waku(*command, str(enode), "--key", tmp_path / "node.key").code == 0
    assert node.known == {key_file.load(tmp_path / "node.key").public}


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


async def test_a_password_restricts_access_if_only_sealed_requests_are_answered(tmp_path: Path) -> None:
    """And there the node's public key, which everybody has, opens nothing; where plain ones are answered it does."""
    (tmp_path / "password").write_text("swordfish\n")
    told = ("--password-file", str(tmp_path / "password"))
    now = int(time.time())
    query = HistoryQuery(now - 60, now, frozenset([TOPIC]))
    ways = {
        "plain": RequestOptions(form="plain"),
        "password": RequestOptions(to=SymmetricKey.from_password("swordfish")),
        "everybody's": RequestOptions(to=SymmetricKey.from_password("status-offline-inbox")),
    }
    served = {}
    for forms in (("envelope",), ("envelope", "plain")):
        options = [word for each in forms for word in ("--requests", each)]
        async with node_process(tmp_path / "-".join(forms), *told, *options) as node:
            for name, how in {**ways, "public key": RequestOptions(to=node.enode.public)}.items():
                report = await fetch([node.enode], query, how, print, timeouts=Timeouts(tries=1))
                served[forms, name] = not report.failures
    assert {name for (forms, name), well in served.items() if well and len(forms) == 1} == {"password"}
    assert {name for (forms, name), well in served.items() if well and len(forms) == 2} == {
        *("plain", "password", "public key"),
    }


async def test_live_runs_until_it_is_stopped_and_continues_from_there(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    command = ("--channel", "status", "--state", str(state), "--live")
    async with node_process(tmp_path / "data") as node:
        posted = [await post(node.url, "before")]
        async with bounded("lines"):
            subscribing = await begun("request", node.url, *command)
            assert subscribing.stdout is not None
            said = [await subscribing.stdout.readline()]
            posted.append(await post(node.url, "meanwhile"))
            said.append(await subscribing.stdout.readline())
            subscribing.send_signal(signal.SIGINT)
            rest, err = await subscribing.communicate()
        assert (subscribing.returncode, rest, err) == (0, b"", b"")
        assert [msgspec.json.decode(each)["text"] for each in said] == ["before", "meanwhile"]
        posted.append(await post(node.url, "between"))
        file = tmp_path / "rest.jsonl"
        async with bounded("the line of the second run"):
            subscribing = await begun("request", node.url, *command, "-o", file)
            await asyncio.to_thread(wait_for_bytes, tmp_path, "rest.jsonl*")
            subscribing.send_signal(signal.SIGTERM)
            again = await subscribing.communicate()
    assert (subscribing.returncode, *again) == (0, b"fetched 1 envelope\n", b"")
    assert [msgspec.json.decode(each)["hash"] for each in [*said, file.read_bytes()]] == posted


def wait_for_bytes(folder: Path, name: str) -> None:
    """Wait until a file has some; nobody tells when another process has written."""
    while not any(each.stat().st_size for each in folder.glob(name)):
        time.sleep(0.01)


def test_live_reports_a_server_that_cannot_be_reached() -> None:
    result = waku("request", NOBODY, *PLAIN, "--live", "--for", "1")
    assert (result.code, result.out) == (1, "")
    reason, missing = result.err.splitlines()
    assert reason == f"cannot connect to 127.0.0.1:{nobodys_port()}: Connection refused"
    assert missing.startswith("no Mailserver answered for these times: ")


@every(
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
        (("--topic", "01020304", "--open-password", "/dev/null"), "--open-password: it is empty"),
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
        (("--topic", "01020304", "--limit", "seconds=inf"), "--limit seconds: 'inf' is not a number over 0"),
        (("--topic", "01020304", "--limit", "seconds=-1"), "--limit seconds: '-1' is not a number over 0"),
        *(
            (
                ("--topic", "01020304", "--live", "--for", wrong),
                f"--for: '{wrong}' is not a number from 0.1 to 1000000000",
            )
            for wrong in ("nan", "inf", "-inf", "-1", "1e999")
        ),
        (("--topic", "01020304", "--state", "/"), "cannot read /"),
        (("--topic", "01020304", "--state", "x" * 300), "File name too long (--state)"),
        (("--topic", "01020304", "-o", "x" * 300 + ".rlp"), "File name too long (-o)"),
        (("--topic", "01020304", "--live", "--to", "now"), "--live has no end: leave --to out"),
        (("--topic", "01020304", "--for", "9"), "add --live, or leave --for out"),
        (("--topic", "01020304", "--live", "--for", "0"), "--for: '0' is not a number"),
        (("--topic", "01020304", "--state", __file__), "is not a state file"),
    ],
)
def test_misuse_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    result = waku("request", NOBODY, *words)
    assert (result.code, result.out) == (2, "")
    [sentence] = result.err.splitlines()
    assert said in sentence


@every("wrong", ["zz", "ab", "ab" * 33, "AB" * 32])
def test_a_state_with_an_invalid_hash_is_reported_in_one_sentence(wrong: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(msgspec.json.encode({"recent": {"01020304": {wrong: 1}}}))
    result = waku("request", NOBODY, *PLAIN, "--state", state)
    assert (result.code, result.out) == (2, "")
    [sentence] = result.err.splitlines()
    assert f"{state} is not a state file" in sentence


def test_a_json_file_that_is_no_state_is_reported_and_stays(tmp_path: Path) -> None:
    package = tmp_path / "package.json"
    package.write_text('{"name": "app"}')
    result = waku("request", NOBODY, *PLAIN, "--state", package)
    assert result.code == 2
    assert f"{package} is not a state file" in result.err
    assert package.read_text() == '{"name": "app"}'


def test_a_lock_file_of_another_program_stays(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").touch()
    with held(tmp_path / "uv"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["uv.lock"]


WAYS = [(suffix, number) for suffix in ("jsonl", "rlp", "parquet") for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize(
    "way", some(WAYS, ("jsonl", signal.SIGINT), ("rlp", signal.SIGTERM), ("parquet", signal.SIGTERM)), ids=str
)
async def test_a_stopped_request_leaves_no_unfinished_file(way: tuple[str, signal.Signals], tmp_path: Path) -> None:
    suffix, number = way
    state = tmp_path / "state.json"
    async with listening(Silent()) as (node, enode), bounded("the end"):
        fetching = await begun(
            "request", str(enode), *PLAIN, *SINCE, "-o", tmp_path / f"all.{suffix}", "--state", state
        )
        await node.was_asked.wait()
        assert len(names(tmp_path)) > 1
        fetching.send_signal(number)
        out, err = await fetching.communicate()
    assert (fetching.returncode, out, err) == (130, b"", b"")
    assert names(tmp_path) == []


async def test_live_stopped_twice_leaves_the_complete_file_or_none(tmp_path: Path) -> None:
    async with listening(Silent()) as (node, enode), bounded("the end"):
        listener = await begun("request", str(enode), *PLAIN, "--live", "-o", tmp_path / "all.parquet")
        await node.was_asked.wait()
        listener.send_signal(signal.SIGTERM)
        listener.send_signal(signal.SIGINT)
        listener.send_signal(signal.SIGTERM)
        await listener.communicate()
    assert names(tmp_path) in ([], ["all.parquet"])


async def test_a_request_stopped_while_it_finishes_the_file_leaves_no_unfinished_file(tmp_path: Path) -> None:
    """Its time to listen is over by then, and nobody has told it to stop before."""
    (tmp_path / "history").mkdir()
    state = tmp_path / "history" / "state.json"
    told = (
        "import os, signal, sys\n"
        "from restante.cli.main import main\n"
        "from restante.waku.files import parquet\n"
        "parquet.write = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main()"
    )
    words = ("request", NOBODY, *PLAIN, "--live", "--for", "0.1")
    where = ("-o", tmp_path / "history" / "all.parquet", "--state", state)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", told, "waku", *words, *where),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with bounded("the end"):
        out, _ = await process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert names(tmp_path / "history") == []


async def test_a_state_file_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    async with listening(Silent()) as (node, enode), bounded("the end"):
        command = ("request", str(enode), *PLAIN, *SINCE, "--state", state)
        first = await begun(*command)
        await node.was_asked.wait()
        second = await run(*command)
        assert second == (2, "", f"restante: another process is using {state}: wait for it (--state)\n")
        first.kill()  # and so it cannot tidy up
        await first.communicate()
        node.mailserver = Honest(LETTERS)
        third = await run(*command)
    assert (third.code, third.err, len(lines(third.out))) == (0, "", 30)
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


@every("wrong", ["nan", "inf", "-inf", "-1", "0", "1e999", "soon"])
def test_an_invalid_timeout_is_reported_in_one_sentence(wrong: str) -> None:
    result = waku("probe", NOBODY, f"--patience={wrong}")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"restante: --patience: '{wrong}' is not a number from 0.1 to 1000000\n"

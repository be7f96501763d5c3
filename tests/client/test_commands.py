"""`restante send` and `restante receive` as their users run them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio
import segno

from client.liar import Answer, Liar, Sent, lying
from restante.cli.client_run import Place, own_code
from restante.cli.terminal import MAX_EXCERPT_CHARACTERS, excerpt
from restante.client import (
    DEFAULT_APP_ID,
    CodeExpiredError,
    CrowdedError,
    LonelyError,
    PeerMessageError,
    PermissionNeededError,
    ServerError,
    ServerGoneError,
    TransferError,
    WelcomeError,
    Wormhole,
    WrongPasswordError,
    abandon_transfer,
)
from restante.common.extras import how_to_install
from support.bounds import bounded
from support.mailbox.wormhole import Client
from support.processes import RESTANTE, Child, Serving, called, child, serving, spawn

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "held until called for, é"
LISTENS = "Waiting for the other side"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    async with serving(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


def command(server: Serving | Liar, *words: str, stdin: bytes | None = b"") -> Command:
    """Run a command at the server. With a standard input of None it waits when it asks."""
    return Command(server, words, stdin)


class Command:
    """A running `restante`. Leaving its context ends it."""

    def __init__(self, server: Serving | Liar, words: tuple[str, ...], stdin: bytes | None) -> None:
        self._server, self._words, self._stdin = server, words, stdin

    async def __aenter__(self) -> Child:
        reading, self._writing = os.pipe()
        if self._stdin is not None:
            os.write(self._writing, self._stdin)
            os.close(self._writing)
        process = await spawn(
            *RESTANTE, *self._words, stdin=reading, variables={"RESTANTE_CLIENT_SERVER": self._server.url}
        )
        os.close(reading)
        self._child = Child(process, "stdout", "stderr")
        return self._child

    def write(self, answer: bytes) -> None:
        """Answer a question."""
        os.write(self._writing, answer)

    async def __aexit__(self, *_: object) -> None:
        await self._child.end()
        if self._stdin is None:
            os.close(self._writing)


# ── a text ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_text_arrives(server: Serving) -> None:
    async with command(server, "send", "--text", TEXT) as sender:
        code = (await sender.says(r"Wormhole code is: (\d+-[a-z]+-[a-z]+)\n")).group(1)
        async with command(server, "receive", code) as receiver:
            assert await receiver.ended() == 0, receiver.said
        assert receiver.said == {"stdout": f"{TEXT}\n", "stderr": ""}
        assert await sender.ended() == 0, sender.said
    assert sender.said == {
        "stdout": "",
        "stderr": "Sending a text of 24 characters\n"
        f"Wormhole code is: {code}\n\nOn the other computer, please run:\n\n"
        f"restante receive --server {server.url} {code}\n\nWaiting for the other side …\n"
        "The other side is there.\nThe text has arrived.\n",
    }


async def test_a_text_comes_from_standard_input_and_the_code_may_be_asked_for(server: Serving) -> None:
    async with (
        command(server, "send", "--text", "-", "--code", "21-own-words", stdin=TEXT.encode()) as sender,
        command(server, "receive", stdin=b"21-own-words\n") as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert receiver.said["stdout"] == f"{TEXT}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"x" * 1_000_000, "a message has at most 1,000,000 bytes, and this one has 1,000,0"),
        (b"x" + 2_000_000 * "é".encode(), "the text has more than 1,000,000 bytes, the most that can be sent"),
    ],
    ids=["with its envelope", "by far"],
)
async def test_a_text_that_is_too_long_is_refused_before_there_is_a_code(
    tmp_path: Path, text: bytes, says: str
) -> None:
    (tmp_path / "text").write_bytes(text)
    with (tmp_path / "text").open("rb") as file:
        sender = Child(await spawn(*RESTANTE, "send", "--text", "-", stdin=file.fileno()), "stdout", "stderr")
    assert await sender.ended() == 2
    assert sender.said["stderr"].startswith(f"restante: {says}")


async def test_the_receiver_may_make_the_code(server: Serving) -> None:
    async with command(server, "receive", "--allocate", "--code-length", "4") as receiver:
        code = (await receiver.says(r"Wormhole code is: (\d+(?:-[a-z]+){4})\n")).group(1)
        await receiver.says(f"restante send --server {server.url} --code {code} PATH\n")
        async with command(server, "send", "--code", code, "--text", TEXT) as sender:
            assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)


@pytest.mark.parametrize(
    "words", [("send", "--text", TEXT, "--code", "24-a-b", "-c", "3"), ("receive", "24-a-b", "--code-length", "2")]
)
async def test_a_code_that_is_given_has_no_other_length(words: tuple[str, ...]) -> None:
    async with child(*RESTANTE, *words) as refused:
        assert await refused.ended() == 2
    assert refused.said == {
        "stdout": "",
        "stderr": "restante: --code-length is for a new code, and a code is given: leave one of them out\n",
    }


async def test_a_uri_names_the_code_and_the_server(server: Serving) -> None:
    rendezvous = server.url.removesuffix("/v1").replace("/", "%2F").replace(":", "%3A")
    async with (
        command(server, "send", "--text", TEXT, "--code", "22-a-b") as sender,
        child(*RESTANTE, "receive", f"wormhole-transfer:22-a-b?rendezvous={rendezvous}") as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)


@pytest.mark.parametrize(
    ("columns", "flag", "shown"), [(80, (), True), (40, (), False), (40, ("--qr",), True), (80, ("--no-qr",), False)]
)
async def test_the_qr_code_has_the_uri_if_the_terminal_is_wide_enough(
    server: Serving, columns: int, flag: tuple[str, ...], shown: bool
) -> None:
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, columns))
    words = ("send", "--text", TEXT, "--code", "47-a-b", "--server", server.url, *flag)
    sender = await spawn(*RESTANTE, *words, stderr=terminal)
    os.close(terminal)
    try:
        said = b""
        async with bounded("the words on the terminal"):
            while LISTENS.encode() not in said:
                said += await asyncio.to_thread(os.read, master, 4096)
    finally:
        sender.terminate()
        await sender.wait()
        os.close(master)
    uri, drawn = (
        f"wormhole-transfer:47-a-b?rendezvous={quote(server.url.removesuffix('/v1'), safe='')}",
        io.StringIO(),
    )
    segno.make(uri).terminal(out=drawn, compact=True)
    assert (drawn.getvalue() in said.decode().replace("\r\n", "\n")) == shown
    assert ("█" in said.decode()) == shown


async def test_no_qr_code_names_another_server_than_the_one_in_use() -> None:
    words = ("send", "--text", TEXT, "--code", "48-a-b", "--server", "ws://127.0.0.1:1/v2", "--qr")
    async with child(*RESTANTE, *words) as sender:
        says = "There is no QR code: it can name only servers whose URL ends with /v1."
        await sender.until(says, lambda: says in sender.said["stderr"])
    assert "█" not in sender.said["stderr"]


@pytest.mark.parametrize("scheme", ["wormhole-transfer", "WORMHOLE-TRANSFER"])
async def test_a_uri_is_taken_where_a_code_is_asked_for(server: Serving, scheme: str) -> None:
    rendezvous = quote(server.url.removesuffix("/v1"), safe="")
    uri = f" {scheme}:46-a-b?rendezvous={rendezvous}\n".encode()
    async with (
        command(server, "send", "--text", TEXT, "--code", "46-a-b") as sender,
        command(server, "receive", "--server", "ws://127.0.0.1:1/v1", stdin=uri) as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert receiver.said["stdout"] == f"{TEXT}\n"


async def test_an_application_has_codes_of_its_own(server: Serving) -> None:
    async with (
        command(server, "send", "--text", "first", "--code", "23-a-b", "--appid", "example.com/one") as one,
        command(server, "send", "--text", "second", "--code", "23-a-b") as other,
        command(server, "receive", "23-a-b") as receiver,
        command(server, "receive", "23-a-b", "--appid", "example.com/one") as receiver_of_one,
    ):
        codes = [await each.ended() for each in (one, other, receiver, receiver_of_one)]
        assert codes == [0, 0, 0, 0], [each.said for each in (one, other, receiver, receiver_of_one)]
    assert (receiver.said["stdout"], receiver_of_one.said["stdout"]) == ("second\n", "first\n")


async def test_wormhole_receives_our_text(server: Serving, tmp_path: Path) -> None:
    async with command(server, "send", "--text", TEXT) as sender:
        code = (await sender.says(r"Wormhole code is: (\S+)\n")).group(1)
        receiver = await Client.start(tmp_path, server.url, "receive", code)
        outcome = await receiver.leaves()
        assert (outcome.exit_code, outcome.stdout) == (0, f"{TEXT}\n"), outcome
        assert await sender.ended() == 0, sender.said


async def test_we_receive_the_text_of_wormhole(server: Serving, tmp_path: Path) -> None:
    sender = await Client.start(tmp_path, server.url, "send", "--text", TEXT)
    async with command(server, "receive", await sender.code()) as receiver:
        assert await receiver.ended() == 0, receiver.said
    assert receiver.said["stdout"] == f"{TEXT}\n"
    outcome = await sender.leaves()
    assert outcome.exit_code == 0, outcome
    assert outcome.stderr.endswith("text message sent\n"), outcome


# ── what does not succeed ────────────────────────────────────────────────────────────────────────


async def test_another_code_ends_both_with_3(server: Serving) -> None:
    async with (
        command(server, "send", "--text", TEXT, "--code", "31-right-words") as sender,
        command(server, "receive", "31-wrong-words") as receiver,
    ):
        for each in (sender, receiver):
            assert await each.ended() == 3, each.said
            assert "used another code" in each.said["stderr"]
    assert receiver.said["stdout"] == ""


async def test_each_error_has_the_exit_code_of_what_to_do() -> None:
    again = {WrongPasswordError, CrowdedError, CodeExpiredError}
    server = {ServerGoneError, ServerError, WelcomeError, PermissionNeededError}
    for error in (*again, *server, TransferError, PeerMessageError, LonelyError):
        assert error.exit_code == (3 if error in again else 4 if error in server else 1), error


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ws://127.0.0.1:1/v1", "cannot connect to ws://127.0.0.1:1/v1: Connection refused"),
        ("ws://nowhere.invalid/v1", "cannot connect to ws://nowhere.invalid/v1: "),
    ],
)
async def test_a_server_that_cannot_be_reached_ends_with_4(url: str, words: str) -> None:
    async with child(*RESTANTE, "receive", "7-a-b", "--server", url) as receiver:
        assert await receiver.ended() == 4, receiver.said
    assert receiver.said["stderr"].startswith(f"restante: {words}")


async def test_a_url_without_a_mailbox_server_ends_with_4(server: Serving) -> None:
    async with child(*RESTANTE, "receive", "7-a-b", "--server", server.url.removesuffix("v1") + "other") as receiver:
        assert await receiver.ended() == 4, receiver.said
    assert "is not a mailbox server" in receiver.said["stderr"]


async def test_a_server_without_tls_is_one_sentence_for_who_wants_it(server: Serving) -> None:
    url = f"wss{server.url.removeprefix('ws')}"
    async with child(*RESTANTE, "receive", "7-a-b", "--server", url) as receiver:
        assert await receiver.ended() == 4, receiver.said
    words = "the connection was closed before TLS began: is it a server for ws://?"
    assert receiver.said["stderr"] == f"restante: cannot connect to {url} securely: {words}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_tells_the_other_side(server: Serving, number: signal.Signals) -> None:
    code = f"{100 + number}-a-b"
    async with command(server, "receive", code) as receiver:
        await receiver.says(LISTENS)
        async with command(server, "send", "--text", TEXT, "--code", code, "--verify", stdin=None) as sender:
            await sender.says(r"\(yes/no\)")
            for _ in range(2 if number == signal.SIGHUP else 1):  # the shell and the system may both send it
                sender.send(number)
            assert await sender.ended() == 128 + number, sender.said
        assert await receiver.ended() == 1, receiver.said
        assert "the other side gave up: the sender stopped" in receiver.said["stderr"]


async def test_a_command_that_ignores_the_end_of_its_terminal_goes_on(server: Serving) -> None:
    words = (*RESTANTE, "send", "--text", TEXT, "--code", "44-a-b", "--server", server.url)
    async with child("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words) as sender:  # as nohup does
        await sender.says(LISTENS)
        sender.send(signal.SIGHUP)
        async with command(server, "receive", "44-a-b") as receiver:
            assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)


async def test_ctrl_c_before_anybody_came_leaves_nothing_at_the_server(server: Serving) -> None:
    async with command(server, "send", "--text", TEXT, "--code", "33-a-b") as sender:
        await sender.says(LISTENS)
        sender.send(signal.SIGINT)
        assert await sender.ended() == 130, sender.said
    async with Wormhole.create(DEFAULT_APP_ID, server=server.url) as wormhole:
        assert "33" not in await wormhole.nameplates()
        await wormhole.close()


async def test_the_verifier_is_compared_before_anything_is_sent(server: Serving) -> None:
    async with (
        command(server, "send", "--text", TEXT, "--code", "34-a-b", "--verify", stdin=b"what?\nyes\n") as sender,
        command(server, "receive", "34-a-b", "--verify", stdin=b"y\n") as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
        shown = [(await each.says(r"Verifier ([0-9a-f]{64})\.")).group(1) for each in (sender, receiver)]
        assert shown[0] == shown[1]


async def test_an_answer_that_is_missing_is_a_no(server: Serving) -> None:
    async with (
        command(server, "send", "--text", TEXT, "--code", "37-a-b", "--verify") as sender,
        command(server, "receive", "37-a-b") as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (1, 1), (receiver.said, sender.said)


async def test_a_rejected_verifier_ends_both(server: Serving) -> None:
    async with (
        command(server, "send", "--text", TEXT, "--code", "35-a-b") as sender,
        command(server, "receive", "35-a-b", "--verify", stdin=b"no\n") as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (1, 1), (receiver.said, sender.said)
    assert receiver.said["stdout"] == ""
    assert "the verifier was rejected, and nothing was transferred" in receiver.said["stderr"]
    assert "the other side gave up: the verifier was rejected" in sender.said["stderr"]


@pytest.mark.parametrize("asks", ["sender", "receiver"])
async def test_the_question_for_the_verifier_ends_when_the_other_side_gives_up(server: Serving, asks: str) -> None:
    code = f"{48 + (asks == 'sender')}-a-b"
    words = ("send", "--text", TEXT, "--code", code) if asks == "sender" else ("receive", code)
    async with (
        command(server, *words, "--verify", stdin=None) as asked,
        Wormhole.create(DEFAULT_APP_ID, server=server.url) as peer,
        bounded("the end of the question"),
    ):
        await peer.set_code(code)
        if asks == "receiver":
            await peer.send(b'{"transit": {}}')  # what comes before is not lost
        await asked.says(r"\(yes/no\)")
        await abandon_transfer(peer, "no time")
        assert await asked.ended() == 1, asked.said
    assert asked.said["stderr"].endswith("(yes/no): \nrestante: the other side gave up: no time\n")


async def test_what_the_peer_says_during_the_question_is_heard_after_the_answer(server: Serving) -> None:
    async with Wormhole.create(DEFAULT_APP_ID, server=server.url) as sender, bounded("the text"):
        await sender.set_code("50-a-b")
        receiver = command(server, "receive", "50-a-b", "--verify", stdin=None)
        async with receiver as asked:
            await asked.says(r"\(yes/no\)")
            offer = await sender.send(json.dumps({"offer": {"message": TEXT}}).encode())
            await offer.stored()
            receiver.write(b"yes\n")
            assert json.loads(await sender.receive()) == {"answer": {"message_ack": "ok"}}
            assert await asked.ended() == 0, asked.said
    assert asked.said["stdout"] == f"{TEXT}\n"


async def test_the_question_for_the_verifier_ends_when_the_wormhole_fails() -> None:
    def add_third(answer: Answer) -> list[Sent]:
        third = {"type": "message", "side": "third", "phase": "0", "body": "00"}
        return [answer, third] if answer.get("phase") == "0" else [answer]

    async with (
        lying(add_third) as liar,
        command(liar, "send", "--text", TEXT, "--code", "7-a-b", "--verify", stdin=None) as sender,
        Wormhole.create(DEFAULT_APP_ID, server=liar.url) as peer,
        bounded("the end of the question"),
    ):
        await peer.set_code("7-a-b")
        await sender.says(r"\(yes/no\)")
        await peer.send(b"{}")
        assert await sender.ended() == 3, sender.said
        with pytest.raises(CrowdedError):
            await peer.close()
    assert sender.said["stderr"].endswith("(yes/no): \nrestante: a third side sent a message\n")


async def test_a_text_that_cannot_be_printed_has_not_arrived(server: Serving) -> None:
    async with command(server, "send", "--text", TEXT, "--code", "36-a-b") as sender:
        with open("/dev/full", "wb") as full:  # noqa: ASYNC230, PTH123 - a device
            words = (*RESTANTE, "receive", "36-a-b", "--server", server.url)
            receiver = Child(await spawn(*words, stdout=full.fileno()), "stderr")
        async with bounded("the end of both"):
            assert (await receiver.ended(), await sender.ended()) == (1, 1), (receiver.said, sender.said)
    assert receiver.said["stderr"].endswith("the text could not be printed: No space left on device\n")
    assert "the text could not be printed" in sender.said["stderr"]


@pytest.mark.parametrize("streams", [">&-", ">/dev/full", "2>&-", "2>/dev/full", "<&-"])
async def test_standard_streams_that_cannot_be_used_leave_nobody_waiting(server: Serving, streams: str) -> None:
    """Only the text needs one: standard output. What is said on standard error is lost."""
    printed = not streams.startswith(">")
    words = (*RESTANTE, "receive", "38-a-b", "--server", server.url)
    async with (
        command(server, "send", "--text", TEXT, "--code", "38-a-b") as sender,
        child("sh", "-c", f'exec "$@" {streams}', "sh", *words) as receiver,
        bounded("the end of both"),
    ):
        codes = await receiver.ended(), await sender.ended()
    assert codes == ((0, 0) if printed else (1, 1)), (receiver.said, sender.said)
    assert receiver.said["stdout"] == (f"{TEXT}\n" if printed else "")
    assert "Traceback" not in receiver.said["stderr"]
    if not printed:
        assert "the other side gave up: the text could not be printed: " in sender.said["stderr"]


@pytest.mark.parametrize("streams", [">&-", "2>&-", "2>/dev/full"])
async def test_a_sender_needs_no_standard_streams(server: Serving, streams: str) -> None:
    words = (*RESTANTE, "send", "--text", TEXT, "--code", "39-a-b", "--qr", "--server", server.url)
    async with (
        command(server, "receive", "39-a-b") as receiver,
        child("sh", "-c", f'exec "$@" {streams}', "sh", *words) as sender,
        bounded("the end of both"),
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert receiver.said["stdout"] == f"{TEXT}\n"
    assert sender.said["stdout"] == ""


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    "words", [("receive", "7-a-b", "--server", "no-url"), ("waku", "check", "--data", "nowhere")]
)
async def test_an_error_that_cannot_be_shown_is_not_written_to_standard_output(
    tmp_path: Path, words: tuple[str, ...], streams: str
) -> None:
    async with child("sh", "-c", f'cd "$0" && exec "$@" {streams}', str(tmp_path), *RESTANTE, *words) as failing:
        assert await failing.ended() == 2
    assert failing.said["stdout"] == ""


async def test_a_closed_standard_input_is_a_no(server: Serving) -> None:
    words = (*RESTANTE, "send", "--text", TEXT, "--code", "40-a-b", "--verify", "--server", server.url)
    async with (
        command(server, "receive", "40-a-b") as receiver,
        child("sh", "-c", 'exec "$@" <&-', "sh", *words) as sender,
        bounded("the end of both"),
    ):
        assert (await receiver.ended(), await sender.ended()) == (1, 1), (receiver.said, sender.said)
    assert "the other side gave up: the verifier was rejected" in receiver.said["stderr"]


async def test_a_peer_that_sends_nonsense_is_told(server: Serving) -> None:
    async with (
        command(server, "receive", "41-a-b") as receiver,
        Wormhole.create(DEFAULT_APP_ID, server=server.url) as sender,
        bounded("the error"),
    ):
        await sender.set_code("41-a-b")
        await sender.send(b"nonsense")
        assert b"not a message of a transfer" in await sender.receive()
        assert await receiver.ended() == 1, receiver.said


async def test_a_sender_that_stops_while_the_text_is_on_its_way_tells_the_other_side(server: Serving) -> None:
    async with Wormhole.create(DEFAULT_APP_ID, server=server.url) as receiver, bounded("the error"):
        await receiver.set_code("42-a-b")
        async with command(server, "send", "--text", TEXT, "--code", "42-a-b") as sender:
            assert b"offer" in await receiver.receive()
            sender.send(signal.SIGTERM)
            assert await receiver.receive() == b'{"error":"the sender stopped"}'
            assert await sender.ended() == 143, sender.said


async def test_a_receiver_that_stops_before_the_text_came_tells_the_other_side(server: Serving) -> None:
    async with Wormhole.create(DEFAULT_APP_ID, server=server.url) as sender, bounded("the error"):
        await sender.set_code("43-a-b")
        async with command(server, "receive", "43-a-b") as receiver:
            await sender.verifier()
            receiver.send(signal.SIGTERM)
            assert await sender.receive() == b'{"error":"the receiver stopped"}'
            assert await receiver.ended() == 143, receiver.said


# ── codes that were typed ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("typed", "used"),
    [
        ("7-Guitarist-Revenge", "7-guitarist-revenge"),
        (" 7-GUITARIST-revenge-Adroitness\n", "7-guitarist-revenge-adroitness"),
        ("7-Revenge-Guitarist", "7-Revenge-Guitarist"),  # no client makes this one
        ("7-Guitarist-Own", "7-Guitarist-Own"),
        ("7-Own", "7-Own"),
    ],
)
async def test_a_code_of_listed_words_is_used_without_capitals(typed: str, used: str) -> None:
    assert own_code(typed) == used
    assert Place.of(typed, None, None, None).code == used


async def test_a_code_with_capitals_meets_the_one_without(server: Serving) -> None:
    async with (
        command(server, "send", "--text", TEXT, "--code", "45-Guitarist-Revenge") as sender,
        command(server, "receive", stdin=b"45-GUITARIST-revenge\n") as receiver,
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert "Wormhole code is: 45-guitarist-revenge" in sender.said["stderr"]


# ── what cannot be used ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("send",), "say what to send: a PATH, or --text TEXT"),
        (("send", "--text", "x", "--code", "purple"), "a code begins with a number"),
        (("send", "--text", "x", "--code", "7"), "a code has words after its number"),
        (("send", "--text", "-", "--verify"), "--verify asks on standard input"),
        (("send", "--text", os.fsdecode(b"\xff")), "the text is not UTF-8"),
        (("send", "--text", "x", "--server", "http://example.com"), "begins with ws:// or wss://"),
        (("receive", "7-a-b", "--proxy", "ftp://example.com"), "a proxy's URL begins with"),
        (("receive", "7 purple sausages"), "a code has no spaces"),
        (("receive", "7-" + os.fsdecode(b"\xff")), "a code is a text in UTF-8"),
        (("receive", "wormhole-transfer:7-a?role=leader"), "this URI is for the sender"),
        (("receive", "wormhole-transfer:7-a?colour=red"), "has an unknown field: 'colour'"),
        (("receive", "7-a-b", "--allocate"), "leave the code out"),
        (("receive", "7-a-b", "--server", ""), "begins with ws:// or wss://"),
        (("receive", "7-a-b", "--proxy", ""), "a proxy's URL begins with"),
        (("receive", "7-a-b", "--appid", ""), "an application id is a text like"),
    ],
)
async def test_what_cannot_be_used_ends_with_2(words: tuple[str, ...], says: str) -> None:
    ended = called(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert ended.stderr.startswith("restante: ")
    assert ended.stderr.count("\n") == 1


async def test_without_the_extra_a_sentence_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['nacl'] = None; sys.argv[1:] = ['receive', '7-a']; import restante.cli.main as m"
    async with child(sys.executable, "-c", f"{code}; m.main()") as receiver:
        assert await receiver.ended() == 2, receiver.said
    assert receiver.said["stderr"] == (
        f"restante: this command needs the extra 'client': {how_to_install('client')}\n"
    )


async def test_only_the_beginning_of_a_server_s_long_words_is_shown() -> None:
    shown = excerpt("\x1b[2J" + "x" * 5_000_000)
    assert shown.startswith("\\x1b[2Jxx")
    assert shown.endswith("x …")
    assert len(shown) < 2 * MAX_EXCERPT_CHARACTERS

"""`restante send` and `restante receive` as their users run them: texts, codes, questions, signals and streams."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import sys
import termios
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock
from urllib.parse import quote

import pytest
import segno

from client.commands import TEXT, Desk, end
from client.liar import Answer, Sent, lying
from client.live import Network, meet, wormhole
from restante import client
from restante.client import PeerSilent
from restante.client.cli.code_prompt import QUESTION, WORD_QUESTION, Completer, own_code
from restante.client.cli.event_printer import CAUSES, NOBODY_WAITS, EventPrinter
from restante.client.cli.settings import resolve
from restante.client.cli.transfer import Rendezvous
from restante.client.events import Awaited
from restante.client.protocol.uri import TransferUri, rendezvous_of
from restante.common.terminal import MAX_EXCERPT_CHARACTERS, excerpt
from support.bounds import bounded
from support.documents import Document
from support.processes import RESTANTE, called, child

pytestmark = pytest.mark.asyncio(loop_scope="module")

LISTENS = "Waiting for the other side"


@pytest.mark.parametrize(
    ("code", "typed"),
    [
        ("21-own-words", "21-own-words"),
        ("45-Guitarist-Revenge", "45-GUITARIST-revenge"),
        ("46-a-b", " wormhole-transfer:46-a-b?rendezvous=SERVER"),
        ("46-a-c", "WORMHOLE-TRANSFER:46-a-c?rendezvous=SERVER"),
    ],
)
async def test_texts_and_codes_and_uris_come_from_standard_input(desk: Desk, code: str, typed: str) -> None:
    typed = typed.replace("SERVER", quote(desk.url.removesuffix("/v1"), safe=""))
    elsewhere = {"RESTANTE_CLIENT_SERVER": "ws://127.0.0.1:1/v1"} if "rendezvous" in typed else {}
    async with (
        desk.run("send", "--text", "-", "--code", code, typed=TEXT.encode()) as sender,
        desk.run("receive", typed=f"{typed}\n".encode(), **elsewhere) as receiver,
    ):
        assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
    assert receiver.said["stdout"] == f"{TEXT}\n"
    assert f"Wormhole code is: {code.lower()}" in sender.said["stderr"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"x" * 1_000_000, "a message has at most 1,000,000 bytes, and this one has 1,000,0"),
        (b"x" + 2_000_000 * "é".encode(), "the text has more than 1,000,000 bytes, the most that can be sent"),
    ],
    ids=["with its envelope", "by far"],
)
async def test_a_text_that_is_too_long_is_refused_before_there_is_a_code(desk: Desk, text: bytes, says: str) -> None:
    (desk.folder / "text").write_bytes(text)
    async with desk.run("send", "--text", "-", streams="<text") as sender:
        assert await sender.ended() == 2
    assert sender.said["stderr"].startswith(f"restante: {says}")


async def test_the_receiver_may_make_the_code(desk: Desk) -> None:
    async with desk.run("receive", "--allocate", "--code-length", "4") as receiver:
        desk.code = (await receiver.says(r"Wormhole code is: (\d+(?:-[a-z]+){4})\n")).group(1)
        await receiver.says(f"restante send --server {desk.url} --code {desk.code} PATH\n")
        await receiver.says(LISTENS)
        async with desk.send() as sender:
            assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
    assert NOBODY_WAITS not in receiver.said["stderr"]


async def test_a_receiver_says_that_nobody_waits_with_its_code_and_waits(desk: Desk) -> None:
    async with desk.receive() as receiver:
        await receiver.says(re.escape(NOBODY_WAITS))
        async with desk.send() as sender:
            assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
    assert receiver.said["stderr"].startswith(f"{LISTENS} …\n{NOBODY_WAITS}\nThe other side is there.\n")
    assert NOBODY_WAITS not in sender.said["stderr"]


async def test_a_code_is_used_up_by_a_receiver_that_was_killed_and_the_next_one_is_told(desk: Desk) -> None:
    (desk.folder / "file").touch()
    async with desk.run("send", "file", "--code", desk.code) as sender:
        await sender.says(LISTENS)
        async with desk.receive(typed=None) as killed:
            await killed.says(r"\(yes/no\): ")
            killed.send(signal.SIGKILL)
            await killed.ended()
        assert killed.said["stderr"].startswith(f"{LISTENS} …\nThe other side is there.\nfile exists already.")
        async with desk.receive() as receiver:
            await receiver.says(re.escape(NOBODY_WAITS))


@pytest.mark.parametrize(
    ("event", "says"),
    [
        *((PeerSilent(60.0, awaited), f"for 60 s. {cause} Still waiting") for awaited, cause in CAUSES.items()),
        *(
            (PeerSilent(60.0, awaited, 120.0), "s. The transfer fails after 120 s.\n")
            for awaited in get_args(Awaited)
        ),
        (client.Welcomed("hi\nWormhole code is: 7-a-b", None), "The server says: hi\n    Wormhole code is: 7-a-b\n"),
        (PeerSilent(60.0, "bytes", 600.0), "fails after 600 s, or from 120 s on if its computer, or the relay,"),
    ],
)
async def test_a_user_hears_what_the_server_says_of_a_silent_peer_and_what_happens_next(
    event: client.Event, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    EventPrinter().show(event)  # by commands it would take a minute
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "flag", "drawn"), [(80, (), True), (40, (), False), (40, ("--qr",), True), (80, ("--no-qr",), False)]
)
async def test_the_qr_code_has_the_uri_if_the_terminal_is_wide_enough(
    desk: Desk, columns: int, flag: tuple[str, ...], drawn: bool
) -> None:
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, columns))
    output = b""
    async with desk.send(*flag, streams=f"2>{os.ttyname(its)}"), bounded("what the terminal has"):
        while LISTENS.encode() not in output:
            output += await asyncio.to_thread(os.read, ours, 4096)
    os.close(its)
    os.close(ours)
    code = io.StringIO()
    uri = f"wormhole-transfer:{desk.code}?rendezvous={quote(desk.url.removesuffix('/v1'), safe='')}"
    segno.make(uri).terminal(out=code, compact=True)
    assert (code.getvalue() in output.decode().replace("\r\n", "\n")) == drawn
    assert ("█" in output.decode()) == drawn


async def test_no_qr_code_names_another_server_than_the_one_in_use(desk: Desk) -> None:
    async with desk.send("--qr", RESTANTE_CLIENT_SERVER=f"{desk.url}x") as sender:
        await sender.says("There is no QR code: it can name only servers whose URL ends with /v1.")
    assert "█" not in sender.said["stderr"]


async def test_an_application_has_codes_of_its_own(desk: Desk) -> None:
    async with (
        desk.send("--appid", "example.com/one") as one,
        desk.run("send", "--text", "another", "--code", desk.code) as other,
        desk.receive() as receiver,
        desk.receive("--appid", "example.com/one") as receiver_of_one,
    ):
        assert await end(one, other, receiver, receiver_of_one) == (0, 0, 0, 0)
    assert (receiver.said["stdout"], receiver_of_one.said["stdout"]) == ("another\n", f"{TEXT}\n")


async def test_each_error_has_the_exit_code_of_what_to_do() -> None:
    again = {client.WrongPasswordError, client.CrowdedError, client.CodeExpiredError}
    server = {client.ServerGoneError, client.ServerError, client.WelcomeError, client.PermissionNeededError}
    for error in (*again, *server, client.TransferError, client.PeerMessageError, client.LonelyError):
        assert error.exit_code == (3 if error in again else 4 if error in server else 1), error


async def test_a_wrong_code_ends_both_with_3(desk: Desk) -> None:
    async with desk.send() as sender, desk.run("receive", f"{desk.code}-c") as receiver:
        assert await end(receiver, sender) == (3, 3), (receiver.said, sender.said)
    assert receiver.said["stdout"] == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("127.0.0.1", "127.0.0.2"), "cannot connect to URL: Connection refused (server "),
        (("127.0.0.1", "nowhere.invalid"), "cannot connect to URL: "),
        (("/v1", "/other"), "URL is not a mailbox server"),
    ],
)
async def test_a_server_that_cannot_be_used_ends_with_4(desk: Desk, change: tuple[str, str], reason: str) -> None:
    url = desk.url.replace(*change)
    async with desk.receive(RESTANTE_CLIENT_SERVER=url) as receiver:
        assert await receiver.ended() == 4, receiver.said
    assert receiver.said["stderr"].startswith(f"restante: {reason.replace('URL', url)}")
    assert receiver.said["stderr"].endswith(" (server from RESTANTE_CLIENT_SERVER)\n")
    assert receiver.said["stderr"].count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_tells_the_other_side(desk: Desk, number: signal.Signals) -> None:
    async with desk.receive() as receiver:
        await receiver.says(LISTENS)
        async with desk.send("--verify", typed=None) as sender:
            await sender.says(r"\(yes/no\)")
            for _ in range(2 if number == signal.SIGHUP else 1):  # the shell and the system may both send it
                sender.send(number)
            assert await sender.ended() == 128 + number, sender.said
        assert await receiver.ended() == 1, receiver.said
    assert "the other side gave up: the sender stopped" in receiver.said["stderr"]
    assert sender.said["stderr"].endswith("(yes/no): \nThe other side was told.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_ends_a_command_that_removes_many_files(number: signal.Signals) -> None:
    script = """if True:
        import sys, threading
        from restante.client.cli import running as command
        from restante.client.tasks import in_thread
        command.STOPPING_SECONDS = 0
        async def transfer():
            print("began", file=sys.stderr, flush=True)
            await in_thread(threading.Event().wait, lambda: None)
        command.run(transfer())
    """
    async with child(sys.executable, "-c", script) as running:
        await running.says("began")
        running.send(number)
        await running.says("Still removing unfinished files")
        running.send(number)
        assert await running.ended() == 128 + number


async def test_a_command_that_ignores_the_end_of_its_terminal_goes_on(desk: Desk) -> None:
    arguments = (*RESTANTE, "send", "--text", TEXT, "--code", desk.code, "--server", desk.url)
    async with child("sh", "-c", 'trap "" HUP; exec "$@" 2>&1 >&-', "sh", *arguments) as sender:  # as nohup does
        await sender.says(LISTENS)
        sender.send(signal.SIGHUP)
        async with desk.receive() as receiver:
            assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)


async def test_the_verifier_is_compared_before_anything_is_sent(desk: Desk) -> None:
    async with (
        desk.send("--verify", typed=b"what?\nyes\n") as sender,
        desk.receive("--verify", typed=b"y\n") as receiver,
    ):
        assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
        shown = r"Verifier (\w{64})\.\nIn words:\n([a-z \n]+)\nDoes"
        (verifier, words), other = [(await side.says(shown)).groups() for side in (sender, receiver)]
    assert (verifier, words) == other
    assert [client.word_list(number)[byte] for number, byte in enumerate(bytes.fromhex(verifier), 1)] == words.split()


@pytest.mark.parametrize("answer", [{"typed": b"no\n"}, {"typed": b""}, {"streams": "<&-"}], ids=repr)
async def test_a_rejected_verifier_or_a_missing_answer_ends_both(desk: Desk, answer: dict[str, Any]) -> None:
    async with desk.send() as sender, desk.receive("--verify", **answer) as receiver:
        assert await end(receiver, sender) == (1, 1), (receiver.said, sender.said)
    assert receiver.said["stdout"] == ""
    assert "the verifier was rejected, and nothing was transferred" in receiver.said["stderr"]
    assert "the other side gave up: the verifier was rejected" in sender.said["stderr"]


@pytest.mark.parametrize("asks", ["sender", "receiver"])
async def test_the_question_for_the_verifier_ends_when_the_other_side_gives_up(desk: Desk, asks: str) -> None:
    run = desk.send if asks == "sender" else desk.receive
    async with run("--verify", typed=None) as asked, desk.peer() as peer:
        if asks == "receiver":
            await peer.send(b'{"transit": {}}')  # what comes before is not lost
        await asked.says(r"\(yes/no\)")
        await client.abandon_transfer(peer, "no time")
        assert await asked.ended() == 1, asked.said
    assert asked.said["stderr"].endswith("(yes/no): \nrestante: the other side gave up: no time\n")


async def test_what_the_peer_says_during_the_question_is_heard_after_the_answer(desk: Desk) -> None:
    async with desk.peer() as sender, desk.receive("--verify", typed=None) as asked:
        await asked.says(r"\(yes/no\)")
        offer = await sender.send(json.dumps({"offer": {"message": TEXT}}).encode())
        await offer.stored()
        asked.write(b"yes\n")
        assert json.loads(await sender.receive()) == {"answer": {"message_ack": "ok"}}
        assert await asked.ended() == 0, asked.said
    assert asked.said["stdout"] == f"{TEXT}\n"


async def test_the_question_for_the_verifier_ends_when_the_wormhole_fails(desk: Desk) -> None:
    def add_third(answer: Answer) -> list[Sent]:
        third = {"type": "message", "side": "third", "phase": "0", "body": "00"}
        return [answer, third] if answer.get("phase") == "0" else [answer]

    async with lying(add_third) as liar:
        desk.url = liar.url
        async with desk.send("--verify", typed=None) as sender, desk.peer() as peer:
            await sender.says(r"\(yes/no\)")
            await peer.send(b"{}")
            assert await sender.ended() == 3, sender.said
            with pytest.raises(client.CrowdedError):
                await peer.close()
    assert sender.said["stderr"].endswith("(yes/no): \nrestante: a third side sent a message\n")


@pytest.mark.parametrize("streams", [">&-", ">/dev/full", "2>&-", "2>/dev/full", "<&-"])
async def test_standard_streams_that_cannot_be_used_leave_nobody_waiting(desk: Desk, streams: str) -> None:
    """Only the receiver of a text needs one: standard output. What is said on standard error is lost."""
    printed = not streams.startswith(">")
    async with desk.send() as sender, desk.receive(streams=streams) as receiver:
        assert await end(receiver, sender) == ((0, 0) if printed else (1, 1)), (receiver.said, sender.said)
    assert receiver.said["stdout"] == (f"{TEXT}\n" if printed else "")
    assert "Traceback" not in receiver.said["stderr"]
    if not printed:
        assert "the other side gave up: the text could not be printed: " in sender.said["stderr"]
        assert "the text could not be printed: " in receiver.said["stderr"]


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("arguments", [("receive", "7-a-b", "--server", "no-url"), ("waku", "check", "--data", "x")])
async def test_an_error_that_cannot_be_shown_is_not_written_to_standard_output(
    desk: Desk, arguments: tuple[str, ...], streams: str
) -> None:
    async with desk.run(*arguments, streams=streams) as failing:
        assert await failing.ended() == 2
    assert failing.said["stdout"] == ""


@pytest.mark.parametrize(
    ("typed", "used"),
    [
        *((f"7-{words}", "7-guitarist-revenge") for words in ("Guitarist-Revenge", "guitarist_Revenge")),
        *((code, "7-guitarist-revenge") for code in ("7_guitarist_revenge", "7\u2011guitarist\u2010revenge")),
        *((f"7{dash}guitarist{dash}revenge", "7-guitarist-revenge") for dash in "–—−"),  # noqa: RUF001 - and a minus
        (" 7-GUITARIST-revenge-Adroitness\n", "7-guitarist-revenge-adroitness"),
        *((code, "7-own-words") for code in ("7–own–words", "7_own_words")),  # noqa: RUF001 - en dashes
        ("7–own_words", "7-own_words"),  # noqa: RUF001 - an en dash
        # No client makes the first two. Other clients accept the third, and make no hyphen of it.
        *((code, code) for code in ("7-Revenge-Guitarist", "7-Guitarist-Own", "7-own_words", "7-guitarist")),
    ],
)
async def test_a_typed_code_is_the_one_that_was_made(typed: str, used: str) -> None:
    assert own_code(typed) == used
    assert Rendezvous.of(typed, None, None, None).code == used


@pytest.mark.parametrize(
    ("typed", "answer", "sent_with"),
    [
        ("Guitarist", "revenge", "guitarist-revenge"),
        ("guitarist", "", "guitarist"),
        ("guitarist\n", "revenge", "guitarist-revenge"),
        ("guitarist-\n", " Revenge ", "guitarist-revenge"),
        ("guitarist", None, "guitarist"),
    ],
    ids=["an argument", "a code of one word", "an answer", "completed by the Tab key", "a script, with --accept"],
)
async def test_a_receiver_on_a_terminal_is_asked_for_the_second_word(
    desk: Desk, typed: str, answer: str | None, sent_with: str
) -> None:
    nameplate = desk.code.partition("-")[0]
    ours, its = pty.openpty()
    arguments = [] if typed.endswith("\n") else [f"{nameplate}–{typed}"]  # noqa: RUF001 - an en dash
    async with (
        desk.run("send", "--text", TEXT, "--code", f"{nameplate}-{sent_with}") as sender,
        desk.run("receive", *["--accept"] * (answer is None), *arguments, streams=f"<{os.ttyname(its)}") as receiver,
    ):
        if not arguments:
            await receiver.says(QUESTION)
            os.write(ours, f"{nameplate}-{typed}".encode())
        if answer is not None:
            await receiver.says(re.escape(WORD_QUESTION))
            os.write(ours, f"{answer}\n".encode())
        assert await end(receiver, sender) == (0, 0), (receiver.said, sender.said)
    os.close(its)
    os.close(ours)
    assert receiver.said["stdout"] == f"{TEXT}\n"


BEGINNING = "a server's URL begins with ws:// or wss://, like wss://example.org/v1"
URLS = [
    (
        "server",
        "ws://me:secret@post/v1",
        "a server's URL has no user and no password: leave out what is before the @",
    ),
    ("server", "me:secret@post", "a server's URL has no user and no password: leave out "),
    (
        "server",
        "https://post",
        f"{BEGINNING}, not 'https://post': write wss://post/v1",
    ),
    ("server", "ws://post/v1#7", "a server's URL has no fragment: leave out the # of 'ws://post/v1#7'"),
    ("server", "ws://post/\x1b", r"a server's URL has no spaces and no control characters, not 'ws://post/\x1b'"),
    *(
        ("transit-relay", f"tcp:{text}", "a relay is named by tcp:HOST:PORT")
        for text in ("x:99999", "me:secret@post")
    ),
    ("proxy", "ftp://me:secret@post:1", "a proxy's URL begins with socks5://, socks4://, http:// or https://, like "),
    *(("proxy", f"http://me:{text}/secret@post:1", "a proxy's URL has %2F, %3F and ") for text in ("", "1", "@")),
    ("proxy", "socks5://me:@secret@post:1/path", "a proxy's URL has no path: leave out what is behind the port of "),
    ("proxy", "http://me:secret@post", "a proxy's URL has a port, like socks5://example.org:1080, not "),
    (
        "proxy",
        "http://me@work:secret@post",
        "a proxy's URL has a port, like socks5://example.org:1080, not 'http://***@post'",
    ),
    ("proxy", "http://me:secret@post:secret", "a proxy's URL has a port from 1 to 65535, not 'http://***@post"),
]
NO_LENGTH = "--code-length is for a new code, and a code is given: leave one of them out"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("send",), "say what to send: a PATH, or --text TEXT"),
        (("send", "--text", ""), "the text is empty"),
        (("send", "--text", TEXT, "--code", "24-a-b", "-c", "3"), NO_LENGTH),
        (("receive", "24-a-b", "--code-length", "2"), NO_LENGTH),
        (("receive", "7-guitarist-"), "the code ends with a hyphen: its last word is missing"),
        (("send", "--text", "x", "--code", "7–"), "a code has words after its number"),  # noqa: RUF001 - an en dash
        (("send", "--text", "-", "--verify"), "--verify asks on standard input"),
        (("send", "--text", os.fsdecode(b"\xff")), "the text is not UTF-8"),
        *((("receive", "7-a-b", f"--{key}", url), f"--{key}: {says}") for key, url, says in URLS),
        (("receive", "7-" + os.fsdecode(b"\xff")), "a code is a text in UTF-8"),
        (("receive", "wormhole-transfer:7-a?role=leader"), "this URI is for the sender"),
        (("receive", "wormhole-transfer:7-a?colour=red"), "has an unknown field: 'colour'"),
        (("receive", "7-a-b", "--allocate"), "leave the code out"),
        (("receive", "7-a-b", "--appid", ""), "an application id is a text like"),
        (("send", "x" * 300, "y"), "there is no file or directory"),
        (("send", ""), "a PATH is empty"),
        (("send", "/dev/full"), "is not a file"),
        (("send", "nowhere"), "cannot read 'nowhere': No such file or directory"),
        (("send", "-"), "standard input has no name"),
        (("send", "-", "x", "--name", "y"), "cannot be sent with other files"),
        (("send", "-", "--name", "../x"), "the name '../x' "),
        (("send", "-", "--verify"), "and - reads it: name a file"),
        *((("receive", "-o", "-", option), "--output - stores nothing") for option in ("--replace", "--unpack")),
        (("receive", "7-a-b", "--output", "missing/"), "there is no directory 'missing/'"),
        (("receive", "7-a-b", "--replace", "--output", "/dev/null"), "'/dev/null' leads to a device"),
        *((("receive", "7-a-b", "--dump-timing", path), "for the timing log") for path in (".", "nowhere/log")),
    ],
)
async def test_what_cannot_be_used_ends_with_2(arguments: tuple[str, ...], says: str) -> None:
    ended = called(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert ended.stderr.startswith("restante: ")
    assert ended.stderr.count("\n") == 1
    assert "secret@" not in ended.stderr


SETTINGS = Document("docs/client/guide.md").blocks["settings"].replace("127.0.0.1:1080", "me:secret@127.0.0.1:1080")


def settings_file(folder: Path, content: str, mode: int = 0o600) -> tuple[Path, dict[str, str]]:
    (folder / "restante").mkdir()
    (file := folder / "restante/client.toml").write_text(content)
    file.chmod(mode)
    return file, {"XDG_CONFIG_HOME": str(folder)}


async def test_a_flag_overrides_a_variable_that_the_file_and_each_may_be_a_name(tmp_path: Path) -> None:
    file, variables = settings_file(tmp_path, f"\ufeff{SETTINGS}")
    local = {**variables, "RESTANTE_CLIENT_SERVER": "local"}
    shown = re.findall(r"^(\S+) += (\S+) +# (.+)", called("client", "config", **local).stdout, re.MULTILINE)
    assert shown[:4] == [
        ("server", '"ws://127.0.0.1:4000/v1"', "RESTANTE_CLIENT_SERVER (local)"),
        ("transit-relay", '"tcp:relay.example.org:4001"', f"{file} (home)"),
        ("proxy", '"socks5://***@127.0.0.1:1080"', str(file)),
        ("home", '"wss://relay.example.org/v1"', str(file)),
    ]
    assert resolve("home", "", "", variables)[:3] == ("wss://relay.example.org/v1", "", None)
    assert resolve(None, None, None, {"XDG_CONFIG_HOME": os.devnull}).origins == ("default",) * 3
    assert "RESTANTE_CLIENT_SERVER: 'home' is neither" in called("send", "x", RESTANTE_CLIENT_SERVER="home").stderr
    file.unlink()
    assert called("client", "config", **variables).stdout.startswith(f"# There is no settings file {file}\n")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        ('sever = "home"', 0o600, "'sever' is not known: did you mean server?"),
        (SETTINGS.replace('"home"', '"hoem"'), 0o600, "server: 'hoem' is neither a URL nor a name in [servers]: did"),
        ('server = "home"', 0o600, "server: 'home' is neither a URL nor a name in [servers]: it has no names"),
        ('server = "home"\n[server]\nhome = "ws://post/v1"', 0o600, "[server] is not known: did you mean [servers]?"),
        ("server = 5", 0o600, "server is not a text: write a URL in quotes"),
        ('[servers]\nhome = "http://post"', 0o600, "servers.home: a server's URL begins with ws:// or wss://, like "),
        ('[servers]\nhome = "ws://me:secret@post/v1"', 0o600, "servers.home: a server's URL has no user and no pass"),
        ('[servers]\nserver = "ws://post/v1"', 0o600, "'server' is in [servers]: write it before the first table"),
        ("", 0o600, "is a link to nothing: remove it, or create the file that it names"),
        (SETTINGS, 0o640, "other users may read the password in "),
        ("", 0o620, "other users may change "),
        ("", 0o400, "belongs to another user"),
    ],
)
async def test_a_settings_file_that_cannot_be_used_ends_with_2(
    content: str, mode: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, variables = settings_file(tmp_path, content, mode)
    if "link" in says:
        file.rename(file.with_name("moved"))
        file.symlink_to("nowhere")
    if "another" in says:
        fields = [*file.stat()]
        monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((*fields[:4], os.geteuid() + 1, *fields[5:])))
    refused = called("receive", "7-a-b", **variables)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"{file}" in refused.stderr
    assert says in refused.stderr
    assert "secret" not in refused.stderr


@pytest.mark.parametrize("host", ["localhost", "a.localhost.", "127.9.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
async def test_what_no_other_computer_can_reach_is_known(host: str) -> None:
    server, relay = f"ws://{host}:1/v1", f"tcp:{host}:1"
    addresses = Rendezvous.of(None, server, None, None).local_addresses([relay, "tcp:127.example.com:1"])
    assert addresses == [f"server {server}", f"relay {relay}"]
    assert Rendezvous.of(None, server, "socks5://10.0.0.1:1", None).local_addresses([relay]) == []


@pytest.mark.parametrize(
    ("role", "message", "error", "reason"),
    [
        ("receiver", b'{"offer": {"message": 5}}', client.PeerMessageError, "not a message of a transfer"),
        ("receiver", b'{"offer": {"file": {"filename": "x", "filesize": 3}}}', client.TransferError, "a file or a"),
        ("sender", b'{"offer": {"message": "mine"}}', client.PeerMessageError, "the other side sends, too"),
        ("sender", b'{"answer": {"message_ack": "not now"}}', client.TransferError, "refused the text: 'not now'"),
        ("sender", b'{"answer": {}}', client.TransferError, "refused the text"),
    ],
)
async def test_a_side_is_told_what_the_other_did_wrong(
    network: Network, role: str, message: bytes, error: type[Exception], reason: str
) -> None:
    taken = Mock()
    async with wormhole() as ours, wormhole() as theirs, bounded("an error"):
        await meet(ours, theirs)
        await theirs.send(b'{"transit": {"abilities-v1": []}}')  # is of files
        await theirs.send(message)
        with pytest.raises(error, match=reason):
            await (client.receive_text(ours, taken) if role == "receiver" else client.send_text(ours, "text"))
    taken.assert_not_called()


@pytest.mark.parametrize(
    ("text", "excerpted"),
    [
        ("plain\ttext\nof two lines, é 日本 👩‍🚀", "plain\ttext\nof two lines, é 日本 👩‍🚀"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("a\rb\x00\x7f\x9b", r"a\rb\x00\x7f\x9b"),
        ("\u202etxt.exe\u2066", r"\u202etxt.exe\u2066"),
        ("\x1b" + "x" * 5_000_000, r"\x1b" + "x" * (MAX_EXCERPT_CHARACTERS - 1) + " …"),
    ],
    ids=lambda text: repr(text[:20]),
)
async def test_a_text_of_others_cannot_steer_or_fill_a_terminal(text: str, excerpted: str) -> None:
    assert excerpt(text) == excerpted


def completed(completer: Completer, typed: str) -> list[str]:
    completions: list[str] = []
    while (completion := completer.complete(typed, len(completions))) is not None:
        completions.append(completion)
    return completions


async def test_the_tab_key_completes_nameplates_and_words() -> None:
    nameplates = Mock(return_value=["12", "1", "7"])
    completer = Completer(nameplates, 2)
    assert completed(completer, "1") == ["1-", "12-"]
    assert completed(completer, "") == ["1-", "7-", "12-"]
    assert completed(completer, "7-pur") == []
    assert completed(completer, "7-sardo") == ["7-sardonic-"]
    assert completed(completer, "7-sardonic-sau") == []
    assert completed(completer, "7-sardonic-puppy") == ["7-sardonic-puppy"]
    assert completed(completer, "7–sardonic_pupp") == ["7-sardonic-puppy"]  # noqa: RUF001 - an en dash
    assert completed(Completer(Mock(), 2, "7-Sardonic-"), "pupp") == ["puppy"]
    nameplates.assert_called_once()
    for error in (client.ServerGoneError("gone"), TimeoutError()):
        assert completed(Completer(Mock(side_effect=error), 2), "1") == []


async def test_a_uri_names_the_server_without_its_version() -> None:
    elsewhere = "?rendezvous=wss%3A%2F%2Fexample.com%2Fbox"
    for server, fields in (("wss://relay.magic-wormhole.io/v1", ""), ("wss://example.com/box/v1", elsewhere)):
        made = TransferUri("7-a-b", rendezvous_of(server) or "")
        assert (str(made), made.server) == (f"wormhole-transfer:7-a-b{fields}", server)

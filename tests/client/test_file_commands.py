"""`restante send PATH` and `restante receive` as their users run them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from client.transfer.hostile import names
from restante.pipeline.clean.rules import Fault, limits
from restante.pipeline.clean.timing import event
from restante.timing.logs import events
from restante.timing.logs.records import UNLISTED
from restante.timing.transfers.transfer import read_transfer
from support.bounds import bounded
from support.processes import RESTANTE, Child, Serving, called, serving, spawn

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTENT = b"some bytes"
LARGE = 4 << 30
"""More than is sent before a signal comes. The file is sparse."""

codes = (f"{number}-a-b" for number in count(1))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    async with serving(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@asynccontextmanager
async def command(
    server: Serving, folder: Path, *words: str, stdin: bytes | None = b"", shell: str = ""
) -> AsyncIterator[Child]:
    """Run a command in a folder, without a relay. With a standard input of None it waits when it asks."""
    reading, writing = os.pipe()
    if stdin is not None:
        os.write(writing, stdin)
        os.close(writing)
    variables = {"RESTANTE_CLIENT_SERVER": server.url, "RESTANTE_CLIENT_TRANSIT_RELAY": "tcp:127.0.0.1:1"}
    line = ("sh", "-c", f'exec "$@" {shell}', "sh", *RESTANTE, *words) if shell else (*RESTANTE, *words)
    process = await spawn(*line, cwd=folder, stdin=reading, variables=variables)
    os.close(reading)
    running = Child(process, "stdout", "stderr")
    try:
        yield running
    finally:
        await running.end()
        if stdin is None:
            os.close(writing)


@pytest.fixture
def parcel(tmp_path: Path) -> Path:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from/parcel").write_bytes(CONTENT)
    return tmp_path / "from/parcel"


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "to"


async def both(
    server: Serving, parcel: Path, to: Path, *options: str, stdin: bytes = b"", shell: str = ""
) -> tuple[Child, Child]:
    """Send a file and receive it; return both when they have ended."""
    code = next(codes)
    async with (
        command(server, parcel.parent, "send", parcel.name, "--code", code, shell=shell) as sender,
        command(server, to, "receive", code, *options, stdin=stdin, shell=shell) as receiver,
        bounded("the end of both"),
    ):
        await receiver.ended()
        await sender.ended()
    return sender, receiver


def exits(sides: tuple[Child, Child]) -> tuple[int | None, int | None]:
    return sides[0].process.returncode, sides[1].process.returncode


async def test_a_file_arrives_when_the_receiver_says_yes(server: Serving, parcel: Path, to: Path) -> None:
    sides = await both(server, parcel, to, stdin=b"yes\n")
    assert exits(sides) == (0, 0), [each.said for each in sides]
    assert "Receive the file 'parcel' (10 bytes) as parcel? (yes/no):" in sides[1].said["stderr"]
    assert sides[1].said["stderr"].endswith("Stored as parcel\n")
    assert sides[0].said["stderr"].endswith("The file has arrived.\n")
    assert (sides[0].said["stdout"], sides[1].said["stdout"]) == ("", "")
    assert (to / "parcel").read_bytes() == CONTENT


@pytest.mark.parametrize("stdin", [b"no\n", b""])
async def test_a_receiver_that_does_not_say_yes_gets_nothing(
    server: Serving, parcel: Path, to: Path, stdin: bytes
) -> None:
    sides = await both(server, parcel, to, stdin=stdin)
    assert exits(sides) == (1, 1)
    told = "transfer rejected" if stdin else "nobody was there to accept it"
    assert f"the other side gave up: {told}" in sides[0].said["stderr"]
    assert ("--accept asks nothing" in sides[1].said["stderr"]) == (not stdin)
    assert names(to) == []


@pytest.mark.parametrize(
    ("options", "stdin", "ends", "there"),
    [
        ((), b"yes\n", (0, 0), CONTENT),
        ((), b"no\n", (1, 1), b"mine"),
        ((), b"", (1, 1), b"mine"),
        (("--accept",), b"", (1, 2), b"mine"),
        (("--accept", "--replace"), b"", (0, 0), CONTENT),
    ],
)
async def test_what_is_there_is_replaced_only_if_the_user_wants_it(
    server: Serving,
    parcel: Path,
    to: Path,
    options: tuple[str, ...],
    stdin: bytes,
    ends: tuple[int, int],
    there: bytes,
) -> None:
    (to / "parcel").write_bytes(b"mine")
    sides = await both(server, parcel, to, *options, stdin=stdin)
    assert exits(sides) == ends, [each.said for each in sides]
    assert names(to) == ["parcel"]
    assert (to / "parcel").read_bytes() == there
    if ends == (1, 2):
        assert "gave up: a file or directory of this name exists already" in sides[0].said["stderr"]


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("folder", "folder/parcel"),
        ("other", "other"),
    ],
)
async def test_the_output_is_a_directory_or_a_name(
    server: Serving, parcel: Path, to: Path, output: str, place: str
) -> None:
    (to / "folder").mkdir()
    sides = await both(server, parcel, to, "--accept", "--output", output)
    assert exits(sides) == (0, 0), [each.said for each in sides]
    assert names(to) == sorted({"folder", place.partition("/")[0]})
    assert (to / place).read_bytes() == CONTENT


async def test_an_output_that_cannot_be_used_is_refused_before_the_code_is_used_up(
    server: Serving, parcel: Path, to: Path
) -> None:
    (to / "there").touch()
    code = next(codes)
    async with command(server, parcel.parent, "send", parcel.name, "--code", code) as sender:
        for output, says in (
            ("", "the path of --output is empty"),
            ("missing/other", "there is no directory 'missing'"),
            ("there/other", "there is no directory 'there'"),
            ("there", "there exists already: --replace replaces it, --output names another place"),
            ("x" * 300, "cannot store it as 'xxx"),
        ):
            async with command(server, to, "receive", code, "--accept", "--output", output) as refused:
                assert await refused.ended() == 2
            assert says in refused.said["stderr"]
            assert refused.said["stderr"].count("\n") == 1
        async with command(server, to, "receive", code, "--accept", "--replace", "-o", "there") as receiver:
            assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert (to / "there").read_bytes() == CONTENT


async def test_a_file_does_not_replace_a_directory_and_the_sender_is_told(
    server: Serving, parcel: Path, to: Path
) -> None:
    (to / "folder/parcel").mkdir(parents=True)
    sides = await both(server, parcel, to, "--accept", "--replace", "--output", "folder")
    assert exits(sides) == (1, 2)
    assert "is a directory, and a file does not replace it" in sides[0].said["stderr"]


@pytest.mark.parametrize("log", ["parcel", "link", "folder/log"])
async def test_the_timing_log_does_not_replace_what_the_sender_names(
    server: Serving, parcel: Path, to: Path, log: str
) -> None:
    (to / "link").symlink_to("parcel")
    (to / "folder").mkdir()
    sent = parcel.parent / ("folder" if "/" in log else "parcel")
    (parcel.parent / "folder").mkdir()
    sides = await both(server, sent, to, "--accept", "--replace", "--dump-timing", log)
    assert exits(sides) == (1, 2)
    assert f"--dump-timing would write over {sent.name}, or into it: --output" in sides[1].said["stderr"]
    assert json.loads((to / log).read_bytes())


async def test_a_folder_that_has_gone_is_not_what_comes(server: Serving, parcel: Path, to: Path) -> None:
    """It may come back during the transfer, and `--replace` would replace it."""
    (to / "folder").mkdir()
    code = next(codes)
    async with command(server, to, "receive", code, "--accept", "--replace", "-o", "folder/") as receiver:
        await receiver.says("Waiting for the other side")
        (to / "folder").rename(to / "away")
        async with command(server, parcel.parent, "send", "parcel", "--code", code) as sender, bounded("both"):
            assert (await receiver.ended(), await sender.ended()) == (2, 1), (receiver.said, sender.said)
    assert "there is no directory 'folder' to write 'parcel' in" in receiver.said["stderr"]
    assert names(to) == ["away"]


async def test_what_is_never_replaced_is_refused_without_a_question(server: Serving, parcel: Path, to: Path) -> None:
    (to / "parcel").symlink_to(".")
    sides = await both(server, parcel, to, stdin=b"yes\n")
    assert exits(sides) == (1, 2)
    assert sides[1].said["stderr"].splitlines()[-1] == (
        "restante: 'parcel' leads to a directory that contains it, and is not replaced: name another place"
    )
    assert "(yes/no)" not in sides[1].said["stderr"]


async def test_replace_without_accept_asks_whether_to_replace(server: Serving, parcel: Path, to: Path) -> None:
    (to / "parcel").write_bytes(b"mine")
    sides = await both(server, parcel, to, "--replace", stdin=b"no\n")
    assert exits(sides) == (1, 1)
    assert "parcel exists already. Replace it by the file 'parcel' (10 bytes)?" in sides[1].said["stderr"]
    assert (to / "parcel").read_bytes() == b"mine"


@pytest.mark.parametrize("shell", ["2>&-", "2>/dev/full", ">&-", "<&-"])
async def test_no_standard_stream_is_needed(server: Serving, parcel: Path, to: Path, shell: str) -> None:
    sides = await both(server, parcel, to, "--accept", shell=shell)
    assert exits(sides) == (0, 0), [each.said for each in sides]
    assert (to / "parcel").read_bytes() == CONTENT


async def test_a_dry_run_shows_the_offer_and_stores_nothing(server: Serving, parcel: Path, to: Path) -> None:
    sides = await both(server, parcel, to, "--dry-run")
    assert exits(sides) == (1, 0)
    shown = sides[1].said["stderr"]
    assert "offered: file 'parcel' (10 bytes)\nthe sender is reached at: " in shown
    assert "relay: 127.0.0.1:1" in shown
    assert "the receiver only looks at the offer" in sides[0].said["stderr"]
    assert names(to) == []


async def test_a_dry_run_of_the_sender_shows_what_it_would_offer(parcel: Path) -> None:
    ended = called("send", parcel, "--dry-run", "--transit-relay", "tcp:127.0.0.1:1", "--no-listen")
    assert ended.returncode == 0
    assert ended.stderr == "offered: file 'parcel' (10 bytes)\nreached at: no address; relay: 127.0.0.1:1\n"


async def test_an_empty_variable_is_the_public_relay(parcel: Path) -> None:
    ended = called("send", parcel, "--dry-run", "--no-listen", RESTANTE_CLIENT_TRANSIT_RELAY="")
    assert ended.stderr.endswith("reached at: no address; relay: transit.magic-wormhole.io:4001\n")


async def test_a_dry_run_of_a_directory_and_of_several_paths_shows_what_they_arrive_as(parcel: Path) -> None:
    (parcel.parent / "other").touch()
    options = ("--dry-run", "--transit-relay", "", "--no-listen")
    reached = "reached at: no address; relay: none\n"
    ended = called("send", parcel.parent, *options)
    assert (ended.returncode, ended.stderr) == (0, f"offered: directory 'from' (2 files, 10 bytes)\n{reached}")
    ended = called("send", parcel, parcel.parent / "other", *options)
    assert (ended.returncode, ended.stderr) == (0, f"offered: directory 'files' (2 files, 10 bytes)\n{reached}")


async def test_a_dry_run_of_a_text_shows_no_addresses() -> None:
    ended = called("send", "--text", "x", "--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "offered: a text of 1 character\n")


async def test_the_working_directory_and_its_parent_are_sent_by_their_names(server: Serving, tmp_path: Path) -> None:
    to = tmp_path / "to"
    (to / "inner").mkdir(parents=True)
    (to / "inner/file").write_bytes(CONTENT)
    (to.parent / "other").touch()
    code = next(codes)
    async with (
        command(server, to / "inner", "send", ".", "../../other", "--code", code) as sender,
        command(server, to, "receive", code, "--accept", "-o", "got") as receiver,
        bounded("the end of both"),
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (receiver.said, sender.said)
    assert names(to / "got") == ["inner", "other"]
    assert (to / "got/inner/file").read_bytes() == CONTENT
    async with command(server, to / "inner", "send", "..", "--dry-run") as shown:
        assert await shown.ended() == 0
    assert "offered: directory 'to' (" in shown.said["stderr"]


async def test_a_dry_run_shows_an_offered_directory(server: Serving, parcel: Path, to: Path) -> None:
    sides = await both(server, parcel.parent, to, "--dry-run")
    assert exits(sides) == (1, 0)
    assert "offered: directory 'from' (1 file, 10 bytes)\nthe sender is reached at: " in sides[1].said["stderr"]
    assert names(to) == []


async def test_several_paths_arrive_as_one_directory(server: Serving, parcel: Path, to: Path) -> None:
    (parcel.parent / "folder").mkdir()
    (parcel.parent / "folder/inside").write_bytes(b"inside")
    code = next(codes)
    async with (
        command(server, parcel.parent, "send", parcel.name, "folder", "--code", code) as sender,
        command(server, to, "receive", code, "--accept") as receiver,
        bounded("the end of both"),
    ):
        assert (await receiver.ended(), await sender.ended()) == (0, 0), (sender.said, receiver.said)
    assert (to / "files/parcel").read_bytes() == CONTENT
    assert (to / "files/folder/inside").read_bytes() == b"inside"


@pytest.mark.parametrize(
    ("sent", "output", "place"),
    [
        ("from.tar", (), "from/parcel"),
        ("from.tar", ("--output", "own"), "own/parcel"),
        ("parcel", (), "parcel"),
    ],
)
async def test_unpack_makes_a_directory_of_a_tar_file(
    server: Serving, parcel: Path, to: Path, sent: str, output: tuple[str, ...], place: str
) -> None:
    with tarfile.open(parcel.parent / "from.tar", "w") as archive:
        archive.add(parcel.parent / "parcel", "from/parcel")
    sides = await both(server, parcel.parent / sent, to, "--accept", "--unpack", *output)
    assert exits(sides) == (0, 0), [each.said for each in sides]
    assert (to / place).read_bytes() == CONTENT
    assert names(to) == [place.partition("/")[0]]


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("..tar", ("--accept", "--replace"), "..tar"),
        (".tar", ("--accept", "--replace", "--output", "folder/"), "folder/.tar"),
        ("...tar", ("--output", "folder/"), "folder/...tar"),
    ],
)
async def test_a_tar_file_whose_name_is_only_the_suffix_is_stored_as_a_file(
    server: Serving, parcel: Path, to: Path, name: str, options: tuple[str, ...], path: str
) -> None:
    """What is left without the suffix means the folder that it would be stored in, which `--replace` replaced."""
    (parcel.parent / name).write_bytes(bytes(1024))
    (to / "folder").mkdir()
    (to / "folder/mine").touch()
    sides = await both(server, parcel.parent / name, to, "--unpack", *options, stdin=b"yes\n")
    assert exits(sides) == (0, 0), [each.said for each in sides]
    assert (to / path).read_bytes() == bytes(1024)
    assert (to / "folder/mine").exists()


async def test_unpack_refuses_a_tar_file_that_is_none(server: Serving, parcel: Path, to: Path) -> None:
    (parcel.parent / "parcel.tar").write_bytes(CONTENT)
    sides = await both(server, parcel.parent / "parcel.tar", to, "--accept", "--unpack")
    assert exits(sides) == (1, 1)
    assert "the other side gave up: the archive " in sides[0].said["stderr"]
    assert names(to) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("send", "x" * 300), "cannot read"),
        (("send", "x" * 300, "y"), "there is no file or directory"),
        (("send", ""), "a PATH is empty"),
        (("send", "/dev/null", ""), "a PATH is empty"),
        (("send", "/dev/full"), "is not a file"),
        (("send", "/", "--text", "x"), "say what to send"),
        (("send", "--text", ""), "the text is empty"),
        (("send", "nowhere"), "cannot read 'nowhere': No such file or directory"),
        (("send", "--text", "x", "--transit-relay", "example.com:1"), "a relay is named by tcp:HOST:PORT"),
        (("receive", "7-a-b", "--transit-relay", "tcp:example.com"), "a relay is named by tcp:HOST:PORT"),
        (("receive", "7-a-b", "--output", "missing/"), "there is no directory 'missing/'"),
        (("receive", "7-a-b", "--output", "missing/."), "there is no directory 'missing/.'"),
        (("receive", "7-a-b", "--output", "/dev/null/"), "there is no directory '/dev/null/'"),
        (("receive", "7-a-b", "--replace", "--output", "/dev/null"), "'/dev/null' leads to a device"),
    ],
)
async def test_what_cannot_be_sent_ends_with_2(words: tuple[str, ...], says: str) -> None:
    ended = called(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert ended.stderr.startswith("restante: ")
    assert ended.stderr.count("\n") == 1


async def test_a_directory_arrives(server: Serving, parcel: Path, to: Path) -> None:
    sides = await both(server, parcel.parent, to, "--accept")
    assert exits(sides) == (0, 0), [each.said for each in sides]
    assert "Sending directory 'from' (1 file, 10 bytes)" in sides[0].said["stderr"]
    assert sides[0].said["stderr"].endswith("The directory has arrived.\n")
    assert (to / "from/parcel").read_bytes() == CONTENT


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("phase", ["question", "bytes"])
async def test_a_signal_ends_both_and_leaves_nothing(
    server: Serving, parcel: Path, to: Path, number: signal.Signals, who: str, phase: str
) -> None:
    os.truncate(parcel, LARGE)
    code = next(codes)
    options = () if phase == "question" else ("--accept",)
    async with (
        command(server, parcel.parent, "send", parcel.name, "--code", code) as sender,
        command(server, to, "receive", code, *options, stdin=None) as receiver,
        bounded("the end of both"),
    ):
        if phase == "question":
            await receiver.says(r"\(yes/no\)")
        else:
            await receiver.says("Receiving the file")
            while not any((to / name).stat().st_size for name in names(to)):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0)
        (sender if who == "sender" else receiver).send(number)
        stopped, other = (sender, receiver) if who == "sender" else (receiver, sender)
        assert await stopped.ended() == 128 + number, stopped.said
        assert await other.ended() == 1, other.said
        said = [other.said["stderr"].rsplit("restante: ")[-1], stopped.said["stderr"].rsplit("restante: ")[-1]]
    reason = f"the other side gave up: the {who} stopped"
    if phase == "question":
        assert said[0] == f"{reason}\n"
    else:
        sending = r"after sending [\d,]+ of [\d,]+ bytes: the receiver does not have everything"
        receiving = r"after receiving [\d,]+ of [\d,]+ bytes: nothing was kept"
        ours, theirs = (sending, receiving) if who == "sender" else (receiving, sending)
        assert re.fullmatch(rf"{reason} \({theirs}\)\n", said[0]), said
        assert re.fullmatch(rf"stopped {ours}\n+", said[1]), said
    assert names(to) == []


# ── timing logs ──────────────────────────────────────────────────────────────────────────────────


def logged(file: Path) -> list[dict[str, Any]]:
    """Return the events of a log, and check that the pipeline takes each of them, by a name that it knows."""
    for item in events.items(file.read_bytes()):
        cleaned = event(item.raw, limits(date(2020, 1, 1), time.time()))
        assert not isinstance(cleaned, Fault)
        assert cleaned[0] != UNLISTED
    found: list[dict[str, Any]] = json.loads(file.read_bytes())
    return found


async def timed(
    server: Serving, parcel: Path, to: Path, *options: str, stdin: bytes = b""
) -> tuple[tuple[int | None, int | None], list[list[dict[str, Any]]]]:
    """Send and receive a file; return the exit codes and the timing logs of both sides."""
    code = next(codes)
    async with (
        command(server, parcel.parent, "send", "parcel", "--code", code, "--dump-timing", "log") as sender,
        command(server, to, "receive", code, "--dump-timing", "../log", *options, stdin=stdin) as receiver,
        bounded("the end of both"),
    ):
        await receiver.ended()
        await sender.ended()
    for side, path in ((sender, "log"), (receiver, "../log")):
        assert side.said["stderr"].endswith(f"Timing data written to {path}\n") or side.process.returncode
    logs = [parcel.parent / "log", to / "../log"]
    secrets = (code, CONTENT.hex(), "parcel", '"nameplate"', '"mailbox"', '"body"')
    assert [word for log in logs for word in secrets if word in log.read_text()] == []
    remarks: list[str] = []
    found = read_transfer(logs, None, {}, remarks.append)
    assert [client.role for client in found.clients] == ["sender", "receiver"]
    assert remarks == []
    for client in found.clients:
        assert sum(spent.us for spent in client.spent) == client.stop_us - client.start_us
        assert client.offset_us is not None
        assert client.error_us is not None
        assert abs(client.offset_us) <= client.error_us, "there is one clock"
    return exits((sender, receiver)), [logged(log) for log in logs]


def spans(log: list[dict[str, Any]]) -> list[str]:
    """Return the names of what took time, in order."""
    return [each["name"] for each in log if each["stop"] is not None]


async def test_the_timing_log_has_what_each_side_did_and_when(server: Serving, parcel: Path, to: Path) -> None:
    ends, (sent, received) = await timed(server, parcel, to, stdin=b"yes\n")
    assert ends == (0, 0)
    assert spans(sent) == ["pake1", "pake2", "transit connect", "tx file", "get ack"]
    assert spans(received) == ["pake1", "pake2", "permission", "transit connect", "rx file", "send ack"]
    for log in (sent, received):
        times = [each["start"] for each in log]
        assert times == sorted(times)
        assert all(each["stop"] is None or each["stop"] >= each["start"] for each in log)
        assert [each["name"] for each in (log[0], log[-1])] == ["command dispatch", "exit"]
        waits = {each["name"]: each["details"].get("waiting") for each in log if each["stop"] is not None}
        assert (waits["pake1"], waits["pake2"], waits.get("permission", "user")) == ("crypto", "crypto", "user")


async def test_commands_and_answers_of_a_timing_log_belong_together(server: Serving, parcel: Path, to: Path) -> None:
    _, logs = await timed(server, parcel, to, "--accept")
    added = [{each["details"]["id"] for each in log if each["details"].get("type") == "add"} for log in logs]
    for log, own, peer in zip(logs, added, reversed(added), strict=True):
        heard = [each["details"]["message"] for each in log if each["name"] == "ws_receive"]
        assert own <= {each["id"] for each in heard if each["type"] == "ack"}
        echoes = [each for each in heard if each["type"] == "message"]
        assert {each["id"] for each in echoes} <= own | peer
        assert all(each["server_rx"] <= each["server_tx"] for each in echoes)
        sides = {each["details"]["_side"] for each in log if "_side" in each["details"]}
        assert len(sides) == 1
        assert {each["side"] in sides for each in echoes if each["id"] in own} == {True}
        assert {each["side"] in sides for each in echoes if each["id"] in peer} == {False}


async def test_the_timing_log_of_a_transfer_that_fails_is_written(server: Serving, parcel: Path, to: Path) -> None:
    ends, (sent, received) = await timed(server, parcel, to, stdin=b"no\n")
    assert ends == (1, 1)
    assert spans(received)[-1] == "permission"
    assert "tx file" not in spans(sent)


async def test_the_timing_log_of_a_command_that_was_stopped_is_written(server: Serving, tmp_path: Path) -> None:
    async with (
        command(server, tmp_path, "receive", "--allocate", "--dump-timing", "log") as receiver,
        bounded("its end"),
    ):
        await receiver.says("Waiting for the other side")
        receiver.send(signal.SIGTERM)
        assert await receiver.ended() == 128 + signal.SIGTERM
    assert {"allocated", "claimed"} <= {
        each["details"]["message"]["type"] for each in logged(tmp_path / "log") if each["name"] == "ws_receive"
    }


@pytest.mark.parametrize("path", [".", "nowhere/log"])
async def test_a_timing_log_that_cannot_be_written_ends_with_2(path: str, tmp_path: Path) -> None:
    said = called("receive", "7-a-b", "--dump-timing", tmp_path / path)
    assert said.returncode == 2
    assert "for the timing log" in said.stderr


async def test_the_timing_log_does_not_replace_a_file_that_is_sent(parcel: Path) -> None:
    said = called("send", parcel.parent, parcel, "--dump-timing", parcel.parent / "../from/parcel")
    assert said.returncode == 2
    assert "is sent: name another file for the timing log" in said.stderr
    assert (parcel.parent / "parcel").read_bytes() == CONTENT

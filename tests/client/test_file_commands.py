"""`restante send PATH` and `restante receive` as their users run them, also where they may not read or replace."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import sys
import tarfile
import termios
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from client.commands import Desk, end
from client.live import url_of
from client.transfer.hostile import CONTENT, heard, names, records, say, sends
from restante.client import DEFAULT_APP_ID, Wormhole
from restante.client.cli.files import StandardOutput, outgoing_input, progress_bar
from restante.client.files.draft import draft_directory, draft_file
from restante.common.errors import StoreError
from restante.pipeline.clean.rules import time_limits
from restante.pipeline.clean.timing import clean_event
from restante.timing.logs import UNLISTED, log_items
from support.bounds import bounded
from support.isolation import unavailable
from support.mailbox.servers import Restante
from support.processes import RESTANTE, called, child, run

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE: Final = 4 << 30
"""More than is sent before a signal comes. The file is sparse."""


@pytest.fixture
def to(desk: Desk) -> Path:
    (desk.folder / "from").mkdir()
    (desk.folder / "from/parcel").write_bytes(CONTENT)
    (desk.folder / "to").mkdir()
    return desk.folder / "to"


async def both(
    desk: Desk, *options: str, send: str = "from/parcel", typed: bytes = b"", streams: str = ""
) -> tuple[tuple[int, ...], str, str]:
    folder, _, name = send.rpartition("/")
    async with (
        desk.run("send", name, "--code", desk.code, at=folder, streams=streams) as sender,
        desk.run("receive", desk.code, *options, at="to", typed=typed, streams=streams) as receiver,
        bounded("the end of both"),
    ):
        codes = await end(sender, receiver)
    assert (sender.said["stdout"], receiver.said["stdout"]) == ("", "")
    return codes, sender.said["stderr"], receiver.said["stderr"]


async def arrives(desk: Desk, *options: str, **how: Any) -> None:
    codes, *texts = await both(desk, *options, **how)
    assert codes == (0, 0), texts


REJECTED, NOBODY = "transfer rejected", "nobody was there to accept it"
THERE = "a file or directory of this name exists already"
ANSWERS = ((b"yes\n", (0, 0), ""), (b"no\n", (1, 1), REJECTED), (b"", (1, 1), NOBODY))


@pytest.mark.parametrize(
    ("there", "options", "typed", "codes", "reason"),
    [
        *((there, (), *answer) for there in (False, True) for answer in ANSWERS),
        (True, ("--replace",), b"no\n", (1, 1), REJECTED),
        (True, ("--accept",), b"", (1, 2), THERE),
        (True, ("--accept", "--replace"), b"", (0, 0), ""),
    ],
)
async def test_a_file_is_stored_and_replaces_another_only_if_the_user_wants_it(
    desk: Desk, to: Path, there: bool, options: tuple[str, ...], typed: bytes, codes: tuple[int, ...], reason: str
) -> None:
    if there:
        (to / "parcel").write_bytes(b"mine")
    ended, sender, receiver = await both(desk, *options, typed=typed)
    assert ended == codes, (sender, receiver)
    question = "parcel exists already. Replace it by" if there else "Receive"
    offered = "the file 'parcel' (10 bytes)?" if there else "the file 'parcel' (10 bytes) as parcel?"
    assert (f"{question} {offered} (yes/no):" in receiver) == ("--accept" not in options)
    if reason:
        assert f"the other side gave up: {reason}" in sender
        assert ("--accept asks nothing" in receiver) == (reason == NOBODY)
        assert {name: (to / name).read_bytes() for name in names(to)} == ({"parcel": b"mine"} if there else {})
    else:
        assert sender.endswith("The file has arrived.\n")
        assert receiver.endswith("Stored as parcel\n")
        assert (to / "parcel").read_bytes() == CONTENT


async def test_an_output_is_a_directory_or_a_name_and_a_wrong_one_uses_up_no_code(desk: Desk, to: Path) -> None:
    (to / "folder").mkdir()
    (to / "there").touch()
    for output, says in (
        ("", "the path of --output is empty"),
        ("missing/other", "there is no directory 'missing'"),
        ("there/other", "there is no directory 'there'"),
        ("there", "there exists already: --replace replaces it, --rename adds a number, --output"),
        ("x" * 300, "cannot store it as 'xxx"),
        ("/proc/x", "cannot write in '/proc': "),
    ):
        async with desk.receive("--accept", "--output", output, at="to") as refused:
            assert await refused.ended() == 2
        assert says in refused.said["stderr"]
        assert refused.said["stderr"].count("\n") == 1
    await arrives(desk, "--accept", "--replace", "-o", "there")
    await arrives(desk, "--accept", "--output", "folder")
    await arrives(desk, "--accept", "--output", "other")
    assert names(to) == ["folder", "other", "there"]
    assert {(to / path).read_bytes() for path in ("there", "folder/parcel", "other")} == {CONTENT}


async def test_with_a_name_of_the_receiver_the_sender_s_does_not_count(desk: Desk, to: Path) -> None:
    offer = {"file": {"filename": "../\x1b[2J", "filesize": len(CONTENT)}}
    async with desk.receive("--accept", "-o", ".", at="to") as receiver, desk.peer() as sender:
        await say(sender, offer=offer)
        assert "is a path and not the name of a file" in (await heard(sender, "error"))[0]
        assert await receiver.ended() == 1
    async with desk.receive("--accept", "-o", "own", at="to") as receiver, desk.peer() as sender:
        sending = sends(sender, records(CONTENT), offer)
        assert await receiver.ended() == 0, receiver.said
        await sending
    assert "\x1b" not in receiver.said["stderr"]
    assert names(to) == ["own"]


async def test_names_that_other_systems_cannot_store_arrive_and_the_sender_is_warned(desk: Desk, to: Path) -> None:
    sent = ["README", "aux.c", "back\\slash.txt", "readme"]
    for name in sent:
        (to.parent / "from" / name).write_bytes(CONTENT)
    for path in ("from/aux.c", "from"):
        codes, sender, receiver = await both(desk, "--accept", send=path)
        assert codes == (0, 0), receiver
        assert re.search("may not be able to store these names:\n.*aux.c': its name means a device", sender)
    assert sender.count("its name") == 3
    assert names(to) == ["aux.c", "from"]
    assert names(to / "from") == sorted([*sent, "parcel"])


async def test_standard_input_is_sent_under_a_name_and_a_file_is_written_to_standard_output(desk: Desk) -> None:
    content = os.urandom(300_000)
    (desk.folder / "content").write_bytes(content)
    (desk.folder / "written").touch()
    async with (
        desk.run("send", "-", "--name", "own.bin", "--code", desk.code, streams="<content") as sender,
        desk.receive("-o", "-", "--accept", streams=">written") as receiver,
    ):
        assert await end(sender, receiver) == (0, 0), (sender.said, receiver.said)
    assert (desk.folder / "written").read_bytes() == content
    assert "Receiving the file 'own.bin' (300.0 kB)\n" in receiver.said["stderr"]
    assert names(desk.folder) == ["content", "written"]


@pytest.mark.parametrize(
    ("send", "streams", "code", "reason"),
    [
        ("from/parcel", ">/dev/full", 1, "No space left on device"),
        ("from", "", 2, "a directory cannot be written there"),
    ],
)
async def test_the_sender_is_told_why_nothing_was_written_to_standard_output(
    desk: Desk, to: Path, send: str, streams: str, code: int, reason: str
) -> None:
    async with (
        desk.run("send", send, "--code", desk.code) as sender,
        desk.receive("-o", "-", "--accept", streams=streams) as receiver,
    ):
        assert await end(sender, receiver) == (1, code), (sender.said, receiver.said)
    assert re.search(f"gave up: .*{reason}", sender.said["stderr"])
    assert receiver.said["stdout"] == ""


async def test_without_a_temporary_directory_standard_input_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restante.client.cli.files.gettempdir", partial(os.stat, "/nonexistent"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(StoreError, match=r"set \$TMPDIR"), outgoing_input("name"):
        pass


async def test_with_rename_what_is_there_stays(desk: Desk, to: Path) -> None:
    for path in ("parcel", "parcel (1)"):
        (to / path).mkdir()
    await arrives(desk, "--accept", "--rename")
    await arrives(desk, "--rename", "-o", "new.tar.gz", typed=b"yes\n")
    await arrives(desk, "--accept", "--rename", "-o", "new.tar.gz")
    assert names(to) == ["new (1).tar.gz", "new.tar.gz", "parcel", "parcel (1)", "parcel (2)"]
    assert (to / "parcel (2)").read_bytes() == CONTENT
    await arrives(desk, "--accept", "--rename", "-o", "parcel (2)", send="from")
    assert (to / "parcel (2) (1)/parcel").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("options", "typed", "left"),
    [((), b"yes\nyes\n", 0), ((), b"yes\nno\n", 2), ((), b"yes\n", 2), (("--accept",), b"", 2)],
)
async def test_drafts_of_receivers_that_were_killed_are_removed_if_the_user_wants_it(
    desk: Desk, to: Path, options: tuple[str, ...], typed: bytes, left: int
) -> None:
    (to / f".a.part-{'0' * 16}").touch()
    (to / f".b.part-{'1' * 16}").mkdir()
    (to / f".b.old-{'1' * 16}").mkdir()
    with draft_file(to / "c"), draft_directory(to / "d"):  # of receivers that run
        codes, _, receiver = await both(desk, *options, typed=typed)
    assert codes == (0, 0)
    assert f"left unfinished files in '.': '.a.part-{'0' * 16}', '.b.part-{'1' * 16}'.\n" in receiver
    assert len([name for name in names(to) if ".part-" in name]) == left
    assert set(names(to)) >= {f".b.old-{'1' * 16}", "c", "d", "parcel"}


async def test_what_is_never_replaced_is_refused_without_a_question(desk: Desk, to: Path) -> None:
    (to / "parcel").symlink_to(".")
    codes, _, receiver = await both(desk, typed=b"yes\n")
    assert codes == (1, 2)
    reason = "'parcel' leads to a directory that contains it, and is not replaced: name another place"
    assert receiver.splitlines()[-1] == f"restante: {reason}"
    assert "(yes/no)" not in receiver


async def test_a_folder_that_has_gone_is_not_what_comes(desk: Desk, to: Path) -> None:
    """It may come back during the transfer, and `--replace` would replace it."""
    (to / "folder").mkdir()
    async with desk.receive("--accept", "--replace", "-o", "folder/", at="to") as receiver:
        await receiver.says("Waiting for the other side")
        (to / "folder").rename(to / "away")
        async with desk.run("send", "parcel", "--code", desk.code, at="from") as sender:
            assert await end(receiver, sender) == (2, 1), (receiver.said, sender.said)
    assert "there is no directory 'folder' to write 'parcel' in" in receiver.said["stderr"]
    assert names(to) == ["away"]


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", ">&-", "<&-"])
async def test_no_standard_stream_is_needed(desk: Desk, to: Path, streams: str) -> None:
    await arrives(desk, "--accept", streams=streams)
    assert (to / "parcel").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("from.tar", ("--accept",), "from/parcel"),
        ("from.tar", ("--accept", "--output", "own"), "own/parcel"),
        ("parcel", ("--accept",), "parcel"),
        ("..tar", ("--accept", "--replace"), "..tar"),
        ("...tar", ("--output", "folder/"), "folder/...tar"),
    ],
)
async def test_unpack_makes_a_directory_of_a_tar_file_that_has_a_name_without_its_suffix(
    desk: Desk, to: Path, name: str, options: tuple[str, ...], path: str
) -> None:
    """What is left of `..tar` means the folder that it would be stored in, which `--replace` replaced."""
    sent = to.parent / "from" / name
    if name == "from.tar":
        with tarfile.open(sent, "w") as archive:
            archive.add(to.parent / "from/parcel", "from/parcel")
    else:
        sent.write_bytes(CONTENT)
    (to / "folder").mkdir()
    (to / "folder/mine").touch()
    codes, _, receiver = await both(desk, "--unpack", *options, send=f"from/{name}", typed=b"yes\n")
    assert codes == (0, 0)
    assert ("It is stored as one file: --unpack" in receiver) == (name != "from.tar")
    assert (to / path).read_bytes() == CONTENT
    assert names(to) == sorted({"folder", path.partition("/")[0]})
    assert (to / "folder/mine").exists()


@pytest.mark.parametrize(
    ("sent", "offer"), [("from/parcel", "file 'parcel' (10 bytes)"), ("from", "directory 'from' (1 file, 10 bytes)")]
)
async def test_a_dry_run_shows_the_offer_and_stores_nothing(desk: Desk, to: Path, sent: str, offer: str) -> None:
    codes, sender, receiver = await both(desk, "--dry-run", send=sent)
    assert codes == (1, 0)
    assert f"offered: {offer}\nthe sender is reached at: " in receiver
    assert "relay: 127.0.0.1:1" in receiver
    assert "the receiver only looks at the offer" in sender
    assert names(to) == []


@pytest.mark.parametrize(
    ("arguments", "offer", "relay"),
    [
        (("parcel", "--transit-relay", "tcp:127.0.0.1:1"), "file 'parcel' (10 bytes)", "127.0.0.1:1"),
        (("parcel",), "file 'parcel' (10 bytes)", "transit.magic-wormhole.io:4001"),
        ((".", "--transit-relay", ""), "directory 'from' (1 file, 10 bytes)", "none"),
        (("parcel", "../other", "--transit-relay", ""), "directory 'files' (2 files, 10 bytes)", "none"),
        (("--text", "x"), "a text of 1 character", None),
    ],
)
async def test_a_dry_run_of_the_sender_shows_what_it_would_offer(
    to: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], offer: str, relay: str | None
) -> None:
    (to.parent / "other").touch()
    monkeypatch.chdir(to.parent / "from")
    ended = called("send", *arguments, "--dry-run", "--no-listen", RESTANTE_CLIENT_TRANSIT_RELAY="")
    assert ended.returncode == 0
    reached = f"reached at: no address; relay: {relay}\n" if relay else ""
    assert ended.stderr == f"offered: {offer}\n{reached}"


@pytest.mark.parametrize(("number", "who"), [(signal.SIGTERM, "sender"), (signal.SIGINT, "receiver")])
async def test_a_signal_leaves_nothing(desk: Desk, to: Path, number: signal.Signals, who: str) -> None:
    os.truncate(to.parent / "from/parcel", LARGE)
    async with (
        desk.run("send", "parcel", "--code", desk.code, at="from") as sender,
        desk.receive("--accept", at="to") as receiver,
        bounded("the end of both"),
    ):
        await receiver.says("Receiving the file")
        while not any((to / name).stat().st_size for name in names(to)):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        stopped, other = (sender, receiver) if who == "sender" else (receiver, sender)
        stopped.send(number)
        assert await stopped.ended() == 128 + number, stopped.said
        assert await other.ended() == 1, other.said
    sending = r"after sending [\d,]+ of [\d,]+ bytes: the receiver does not have everything"
    receiving = r"after receiving [\d,]+ of [\d,]+ bytes: nothing was kept"
    ours, theirs = (sending, receiving) if who == "sender" else (receiving, sending)
    reason = rf"restante: the other side gave up: the {who} stopped \({theirs}\)\n$"
    assert re.search(reason, other.said["stderr"]), other.said
    assert re.search(rf"restante: stopped {ours}\nThe other side was told.\n$", stopped.said["stderr"]), stopped.said
    assert names(to) == []


def logged(file: Path) -> list[dict[str, Any]]:
    """Return the events of a log, and check that the pipeline takes each of them, by a name that it knows."""
    for item in log_items(file.read_bytes()):
        cleaned = clean_event(item.raw, time_limits(time.time()))
        assert cleaned[0] != UNLISTED
    log: list[dict[str, Any]] = json.loads(file.read_bytes())
    return log


async def test_the_timing_log_has_what_each_side_did_and_when_and_no_secrets(desk: Desk, to: Path) -> None:
    async with Restante(desk.folder / "server").running() as server:  # its clock runs
        desk.url = url_of(server)
        async with (
            desk.run("send", "parcel", "--code", desk.code, "--dump-timing", "../sent", at="from") as sender,
            desk.receive("--dump-timing", "../received", at="to", typed=b"yes\n") as receiver,
        ):
            assert await end(sender, receiver) == (0, 0)
    for side, name in ((sender, "../sent"), (receiver, "../received")):
        assert side.said["stderr"].endswith(f"Timing data written to {name}\n")
    files = [desk.folder / "sent", desk.folder / "received"]
    secrets = (desk.code, CONTENT.hex(), "parcel", '"nameplate"', '"mailbox"', '"body"')
    assert [secret for file in files for secret in secrets if secret in file.read_text()] == []
    logs = [logged(file) for file in files]
    spans = [[event["name"] for event in log if event["stop"] is not None] for log in logs]
    assert spans[0] == ["pake1", "pake2", "transit connect", "tx file", "get ack"]
    assert spans[1] == ["pake1", "pake2", "permission", "transit connect", "rx file", "send ack"]
    for log in logs:
        assert [event["name"] for event in (log[0], log[-1])] == ["command dispatch", "exit"]
        waits = {event["name"]: event["details"].get("waiting") for event in log if event["stop"] is not None}
        assert (waits["pake1"], waits["pake2"], waits.get("permission", "user")) == ("crypto", "crypto", "user")


async def test_a_command_that_is_stopped_before_anybody_came_leaves_nothing_and_writes_its_log(desk: Desk) -> None:
    async with desk.send("--dump-timing", "log") as sender:
        await sender.says("Waiting for the other side")
        sender.send(signal.SIGINT)
        assert await sender.ended() == 130, sender.said
    assert "was told" not in sender.said["stderr"]
    log = logged(desk.folder / "log")
    answers = {event["details"]["message"]["type"] for event in log if event["name"] == "ws_receive"}
    assert {"claimed", "released", "closed"} <= answers
    async with Wormhole.create(DEFAULT_APP_ID, server=desk.url) as wormhole:
        assert desk.code.partition("-")[0] not in await wormhole.nameplates()


@pytest.mark.parametrize("log", ["parcel", "link", "folder/log"])
async def test_the_timing_log_does_not_replace_what_the_sender_names(desk: Desk, to: Path, log: str) -> None:
    (to / "link").symlink_to("parcel")
    (to / "folder").mkdir()
    (to.parent / "from/folder").mkdir()
    sent = "folder" if "/" in log else "parcel"
    codes, _, receiver = await both(desk, "--accept", "--replace", "--dump-timing", log, send=f"from/{sent}")
    assert codes == (1, 2)
    assert f"--dump-timing would write over {sent}, or into it: --output" in receiver
    assert json.loads((to / log).read_bytes())


async def test_the_timing_log_does_not_replace_a_file_that_is_sent(to: Path) -> None:
    parcel = to.parent / "from/parcel"
    ended = called("send", parcel.parent, parcel, "--dump-timing", parcel.parent / "../from/parcel")
    assert ended.returncode == 2
    assert "is sent: name another file for the timing log" in ended.stderr
    assert parcel.read_bytes() == CONTENT


SIZE: Final = 64 << 20


@pytest.mark.parametrize(("columns", "drawn"), [(100, True), (60, True), (40, False), (20, False)])
async def test_the_bar_and_figures_have_one_row(columns: int, drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (24, columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with os.fdopen(its, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar(SIZE, "waiting") as on_progress:
            on_progress(SIZE // 2)
            on_progress(SIZE)
    content = b""
    with suppress(OSError):  # EIO: that was all
        while part := os.read(ours, 1 << 16):
            content += part
    os.close(ours)
    shown = content.decode()
    rows = [row.rstrip() for row in re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)) if row.strip()]
    assert all(len(row) <= columns for row in rows)
    assert any("━" in row for row in rows) is drawn
    assert columns == 20 or re.search(r"67\.1/67\.1 MB +\d+(\.\d)? [kMGT]?B/s 0:00:00 waiting$", rows[-1]), rows
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.rstrip().endswith("\x1b[2K")


async def test_a_file_on_a_terminal_is_shown_with_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also characters that two writes have in part, and one that the file has in part only."""
    ours, its = os.openpty()
    with os.fdopen(its, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        output = StandardOutput()
        for data in (b"a\x1b[2J\xc3", b"\xbc\xff\x9b\n", b"\xe2\x82"):
            output.write(memoryview(data), lambda: None)
        output.end()
        expected, content = "a\\x1b[2Jü\\xff\\x9b\r\n\\xe2\\x82".encode(), b""
        while len(content) < len(expected):  # the kernel brings what was written in parts
            content += os.read(ours, 100)
    assert content == expected
    os.close(ours)


unshares = pytest.mark.skipif(bool(unavailable()), reason=f"disks and users of their own: {unavailable()}")
"""Root may do everything, so such a command runs in a user namespace and a mount namespace of its own."""


@unshares
@pytest.mark.parametrize("mount", ["-t tmpfs none", '--bind "$PWD/a parcel/in\rside"'])
@pytest.mark.parametrize("mount_point", ["a parcel", "a parcel/in\rside"])
async def test_what_is_on_a_mounted_disk_is_not_replaced(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, mount: str, mount_point: str
) -> None:
    """Who unpacks into a folder, and has a disk mounted there, would lose what is on the disk."""
    (desk.folder / "a parcel/in\rside").mkdir(parents=True)
    mounted = f'"$PWD/{mount_point}"'
    disk = f'mount {mount} {mounted} && touch {mounted}/mine && {{ "$@"; ended=$?; ls -A {mounted}; exit $ended; }}'
    arguments = ("receive", "--server", desk.url, "--transit-relay", "", "--accept", "--replace", desk.code)
    line = ("unshare", "--user", "--mount", "--map-root-user", "sh", "-c", disk, "sh", *RESTANTE, *arguments)
    monkeypatch.chdir(desk.folder)
    async with child(*line) as receiver, desk.peer() as sender:
        directory = {"mode": "zipfile", "dirname": "a parcel", "zipsize": 1, "numbytes": 1, "numfiles": 1}
        await say(sender, offer={"directory": directory})
        assert (await heard(sender, "error"))[0] == "what is at its place is never replaced"
        assert await receiver.ended() == 2
    reason = "'a parcel' leads to a mount point, or to a directory that contains one, and is not replaced"
    assert reason in receiver.said["stderr"]
    assert receiver.said["stdout"] == "mine\n"


@unshares
@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (("folder/secret",), 2, ["restante: cannot read 'folder/secret': Permission denied"]),
        (("folder",), 1, ["restante: cannot send 'folder/locked': Permission denied"]),
        (
            ("--ignore-unsendable", "--transit-relay", "", "--no-listen", "folder"),
            0,
            [
                "left out: cannot send 'folder/locked': Permission denied",
                "left out: cannot send 'folder/secret': Permission denied",
                "offered: directory 'folder' (1 file, 1 byte)",
                "reached at: no address; relay: none",
            ],
        ),
    ],
)
async def test_files_that_the_user_may_not_read_are_named_or_left_out(
    tmp_path: Path, arguments: tuple[str, ...], code: int, lines: list[str]
) -> None:
    (tmp_path / "folder/locked").mkdir(parents=True)
    (tmp_path / "folder/open").write_bytes(b"1")
    (tmp_path / "folder/secret").touch(0)
    (tmp_path / "folder/locked").chmod(0)
    done = run("unshare", "--user", *RESTANTE, "send", "--dry-run", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (code, lines)

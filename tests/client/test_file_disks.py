"""`restante send` and `restante receive` on a full disk, a read-only one, and with files that nobody may read.

Root may do everything, so each command runs in a user namespace and a mount namespace of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from client.transfer.hostile import heard, names, play, until_closed
from restante.client import DEFAULT_APP_ID, Wormhole
from restante.client.transfer.sending import send_directory
from restante.client.transit.connecting import TransitOptions
from restante.client.transit.pipe import RecordPipe
from restante.client.transit.records import Role
from restante.common.errors import RestanteError
from support.bounds import bounded
from support.isolation import unavailable
from support.processes import RESTANTE, Child, Serving, serving, spawn

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB: Final = 1 << 20
HERE: Final = 'cd "$PWD" && "$@"; ended=$?; ls -A; exit $ended'
"""Run a command on what was mounted at the working directory. Then list what is there."""
SMALL: Final = f'mount -t tmpfs -o size=4m,nr_inodes=20 none "$PWD" && {HERE}'
DIRECTORY: Final = {"mode": "zipfile", "dirname": "a parcel", "zipsize": 1, "numbytes": 1, "numfiles": 1}
READ_ONLY: Final = f'mount --bind "$PWD" "$PWD" && mount -o remount,bind,ro "$PWD" && {HERE}'

codes = (f"{number}-c-d" for number in count(1))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    if reason := unavailable():
        pytest.skip(f"disks of their own: {reason}")
    async with serving(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture
def to(tmp_path: Path) -> Path:
    folder = tmp_path / "to"
    folder.mkdir()
    return folder


@asynccontextmanager
async def unshared(namespaces: tuple[str, ...], script: str, folder: Path, *words: str) -> AsyncIterator[Child]:
    line = ("unshare", *namespaces, "sh", "-c", script, "sh", *RESTANTE, *words)
    running = Child(await spawn(*line, cwd=folder), "stdout", "stderr")
    try:
        yield running
    finally:
        await running.end()


@asynccontextmanager
async def receiving(server: Serving, disk: str, to: Path, *options: str) -> AsyncIterator[tuple[Child, Wormhole]]:
    """Receive into a folder on a disk of this kind. Yields the command, and the sender's wormhole."""
    code = next(codes)
    words = ("receive", "--server", server.url, "--transit-relay", "", "--accept", *options, code)
    namespaces = ("--user", "--mount", "--map-root-user")
    async with (
        bounded("the end of both"),
        Wormhole.create(DEFAULT_APP_ID, server=server.url) as sender,
        unshared(namespaces, disk, to, *words) as receiver,
    ):
        await sender.set_code(code)
        yield receiver, sender


async def test_a_disk_that_fills_ends_both_and_nothing_is_left(server: Serving, to: Path) -> None:
    size = 3 * MIB

    def script(pipe: RecordPipe) -> None:
        """The receiver has seen that there is room. Now another program takes it."""
        inside = Path(f"/proc/{receiver.pid}/root{to}/filler")
        with suppress(OSError), inside.open("wb", buffering=0) as filler:
            while filler.write(bytes(MIB)):
                pass
        with suppress(RestanteError):
            for _ in range(size // MIB * 16):
                pipe.send(bytes(MIB // 16))
        until_closed(pipe)

    async with receiving(server, SMALL, to) as (receiver, sender):
        await play(sender, Role.SENDER, script, {"file": {"filename": "parcel", "filesize": size}})
        assert (await heard(sender, "error"))[0] == "cannot store it: No space left on device"
        assert await receiver.ended() == 1
    assert receiver.said["stderr"].endswith("restante: cannot write 'parcel': No space left on device\n")
    assert receiver.said["stdout"] == "filler\n"


async def test_a_disk_without_room_is_told_before_anything_is_sent(server: Serving, to: Path) -> None:
    async with receiving(server, SMALL, to) as (receiver, sender):
        await sender.send(b'{"offer":{"file":{"filename":"parcel","filesize":5000000}}}')
        said = (await heard(sender, "error"))[0]
        assert said == "the disk has room for 4,194,304 bytes, and 5,000,000 are offered"
        assert await receiver.ended() == 1
    assert receiver.said["stdout"] == ""


async def test_a_disk_that_fills_while_a_directory_is_unpacked_keeps_nothing(
    server: Serving, to: Path, tmp_path: Path
) -> None:
    """The disk has room for the bytes, and not for so many files."""
    (tmp_path / "many").mkdir()
    for number in range(50):
        (tmp_path / "many" / str(number)).touch()
    async with receiving(server, SMALL, to) as (receiver, sender):
        with pytest.raises(RestanteError, match=r"gave up: cannot write '\d+': No space left on device"):
            await send_directory(sender, tmp_path / "many", transit=TransitOptions(relays=()))
        assert await receiver.ended() == 1
    assert "No space left on device" in receiver.said["stderr"]
    assert receiver.said["stdout"] == ""


@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_a_read_only_folder_ends_both(server: Serving, to: Path, kind: str) -> None:
    offers = {"file": {"filename": "parcel", "filesize": 1}, "directory": DIRECTORY}
    async with receiving(server, READ_ONLY, to) as (receiver, sender):
        await play(sender, Role.SENDER, until_closed, {kind: offers[kind]})
        assert (await heard(sender, "error"))[0] == "cannot store it: Read-only file system"
        assert await receiver.ended() == 1
    assert receiver.said["stderr"].count("Read-only file system\n") == 1
    assert names(to) == []


@pytest.mark.parametrize("mount", ["-t tmpfs none", '--bind "$PWD/a parcel/in\rside"'])
@pytest.mark.parametrize("mount_point", ["a parcel", "a parcel/in\rside"])
async def test_what_is_on_a_mounted_disk_is_not_replaced(
    server: Serving, to: Path, mount: str, mount_point: str
) -> None:
    """Who unpacks into a folder, and has a disk mounted there, would lose what is on the disk."""
    (to / "a parcel/in\rside").mkdir(parents=True)
    mounted = f'"$PWD/{mount_point}"'
    disk = f'mount {mount} {mounted} && touch {mounted}/mine && {{ "$@"; ended=$?; ls -A {mounted}; exit $ended; }}'
    async with receiving(server, disk, to, "--replace") as (receiver, sender):
        await sender.send(json.dumps({"offer": {"directory": DIRECTORY}}).encode())
        assert (await heard(sender, "error"))[0] == "what is at its place is never replaced"
        assert await receiver.ended() == 2
    assert (
        "'a parcel' leads to a mount point, or to a directory that contains one, and is not replaced"
        in receiver.said["stderr"]
    )
    assert receiver.said["stdout"] == "mine\n"


# ── files that the user may not read ─────────────────────────────────────────────────────────────


async def sends(folder: Path, *words: str) -> Child:
    """Send as a user without the rights of root."""
    async with bounded("the end"), unshared(("--user",), '"$@"', folder, "send", "--dry-run", *words) as running:
        await running.ended()
    return running


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    if reason := unavailable():
        pytest.skip(f"users without the rights of root: {reason}")
    (tmp_path / "folder/locked").mkdir(parents=True)
    (tmp_path / "folder/open").write_bytes(b"1")
    path = tmp_path / "folder/secret"
    path.touch()
    path.chmod(0)
    (tmp_path / "folder/locked").chmod(0)
    return path


async def test_an_unreadable_file_is_one_sentence(secret: Path) -> None:
    running = await sends(secret.parent, "secret")
    assert await running.ended() == 2
    assert running.said["stderr"] == "restante: cannot read 'secret': Permission denied\n"


async def test_an_unreadable_file_of_a_directory_is_named(secret: Path) -> None:
    running = await sends(secret.parent.parent, "folder")
    assert await running.ended() == 1
    assert running.said["stderr"] == "restante: cannot send 'folder/locked': Permission denied\n"


async def test_unreadable_files_are_left_out_if_the_user_says_so(secret: Path) -> None:
    running = await sends(secret.parent.parent, "--ignore-unsendable", "--transit-relay", "", "--no-listen", "folder")
    assert await running.ended() == 0
    assert running.said["stderr"].splitlines() == [
        "left out: cannot send 'folder/locked': Permission denied",
        "left out: cannot send 'folder/secret': Permission denied",
        "offered: directory 'folder' (1 file, 1 byte)",
        "reached at: no address; relay: none",
    ]

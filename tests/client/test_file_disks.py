"""`restante send` and `restante receive` on a full disk, a read-only one, and with files that nobody may read.

Root may do everything, so each command runs in a user namespace and a mount namespace of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from client.commands import Desk
from client.transfer.hostile import heard, names, play, until_closed
from restante.client import Wormhole
from restante.client.transfer.sending import send_directory
from restante.client.transit.connecting import TransitOptions
from restante.client.transit.records import Role
from restante.common.errors import RestanteError
from support.bounds import bounded
from support.isolation import unavailable
from support.processes import RESTANTE, Child, spawn

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(bool(unavailable()), reason=f"disks and users of their own: {unavailable()}"),
]

HERE: Final = 'cd "$PWD" && "$@"; ended=$?; ls -A; exit $ended'
"""Run a command on what was mounted at the working directory. Then list what is there."""
SMALL: Final = f'mount -t tmpfs -o size=4m,nr_inodes=20 none "$PWD" && {HERE}'
READ_ONLY: Final = f'mount --bind "$PWD" "$PWD" && mount -o remount,bind,ro "$PWD" && {HERE}'
DIRECTORY: Final = {"mode": "zipfile", "dirname": "a parcel", "zipsize": 1, "numbytes": 1, "numfiles": 1}


@asynccontextmanager
async def unshared(namespaces: tuple[str, ...], script: str, folder: Path, *words: str) -> AsyncIterator[Child]:
    line = ("unshare", *namespaces, "sh", "-c", script, "sh", *RESTANTE, *words)
    running = Child(await spawn(*line, cwd=folder), "stdout", "stderr")
    try:
        yield running
    finally:
        await running.end()


@asynccontextmanager
async def receiving(desk: Desk, disk: str, *options: str) -> AsyncIterator[tuple[Child, Wormhole]]:
    """Receive into a folder on a disk of this kind. Yields the command, and the sender's wormhole."""
    words = ("receive", "--server", desk.url, "--transit-relay", "", "--accept", *options, desk.code)
    namespaces = ("--user", "--mount", "--map-root-user")
    async with unshared(namespaces, disk, desk.folder, *words) as receiver, desk.peer() as sender:
        yield receiver, sender


async def test_a_disk_that_fills_while_a_directory_is_unpacked_keeps_nothing(desk: Desk, tmp_path: Path) -> None:
    """The disk has room for the bytes, and not for so many files."""
    (tmp_path / "many").mkdir()
    for number in range(50):
        (tmp_path / "many" / str(number)).touch()
    async with receiving(desk, SMALL) as (receiver, sender):
        with pytest.raises(RestanteError, match=r"gave up: cannot write '\d+': No space left on device"):
            await send_directory(sender, tmp_path / "many", transit=TransitOptions(relays=()))
        assert await receiver.ended() == 1
    assert "No space left on device" in receiver.said["stderr"]
    assert receiver.said["stdout"] == ""


@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_a_read_only_folder_ends_both(desk: Desk, kind: str) -> None:
    offers = {"file": {"filename": "parcel", "filesize": 1}, "directory": DIRECTORY}
    async with receiving(desk, READ_ONLY) as (receiver, sender):
        await play(sender, Role.SENDER, until_closed, {kind: offers[kind]})
        assert (await heard(sender, "error"))[0] == "cannot store it: Read-only file system"
        assert await receiver.ended() == 1
    assert receiver.said["stderr"].count("Read-only file system\n") == 1
    assert names(desk.folder) == []


@pytest.mark.parametrize("mount", ["-t tmpfs none", '--bind "$PWD/a parcel/in\rside"'])
@pytest.mark.parametrize("mount_point", ["a parcel", "a parcel/in\rside"])
async def test_what_is_on_a_mounted_disk_is_not_replaced(desk: Desk, mount: str, mount_point: str) -> None:
    """Who unpacks into a folder, and has a disk mounted there, would lose what is on the disk."""
    (desk.folder / "a parcel/in\rside").mkdir(parents=True)
    mounted = f'"$PWD/{mount_point}"'
    disk = f'mount {mount} {mounted} && touch {mounted}/mine && {{ "$@"; ended=$?; ls -A {mounted}; exit $ended; }}'
    async with receiving(desk, disk, "--replace") as (receiver, sender):
        await sender.send(json.dumps({"offer": {"directory": DIRECTORY}}).encode())
        assert (await heard(sender, "error"))[0] == "what is at its place is never replaced"
        assert await receiver.ended() == 2
    assert (
        "'a parcel' leads to a mount point, or to a directory that contains one, and is not replaced"
        in receiver.said["stderr"]
    )
    assert receiver.said["stdout"] == "mine\n"


@pytest.mark.parametrize(
    ("words", "code", "lines"),
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
    tmp_path: Path, words: tuple[str, ...], code: int, lines: list[str]
) -> None:
    """The command has no rights of root."""
    (tmp_path / "folder/locked").mkdir(parents=True)
    (tmp_path / "folder/open").write_bytes(b"1")
    (tmp_path / "folder/secret").touch(0)
    (tmp_path / "folder/locked").chmod(0)
    async with bounded("the end"), unshared(("--user",), '"$@"', tmp_path, "send", "--dry-run", *words) as running:
        assert await running.ended() == code
    assert running.said["stderr"].splitlines() == lines

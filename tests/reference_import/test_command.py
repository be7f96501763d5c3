"""`restante import` and `restante export` as their users run them: their output, their exit code."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.mailbox.reference_sources import Their
from support.mailbox.scene import BEFORE, RECEIVER, SENDER, Scene, assert_text_arrives, to_client
from support.mailbox.servers import Reference, Restante
from support.processes import RESTANTE, called, child, restante, serving
from support.sqlite import alter


def play(their: Their) -> None:
    their.bind("a", 1000)
    their.claim("a", "4", 1000)
    their.add("a", "m", "p", "b", 1001)
    their.open("b", "n", 1003)
    their.close("b", "n", "happy", 1004)
    alter(
        their.relay,
        "INSERT INTO messages VALUES ('x', 'gone', 'a', 'p', 'b', 1000, NULL)",
        "INSERT INTO mailboxes VALUES ('x', 'bare', 1000, 0)",
    )


IMPORTED = """\
imported  mailboxes                  2
imported  mailbox sides              2
imported  nameplates                 1
imported  nameplate sides            1
imported  messages                   1
imported  usage nameplates           0
imported  usage mailboxes            1
imported  usage client versions      1
skipped   mailboxes without sides    1
skipped   messages without mailbox   1
"""

EXPORTED = """\
exported  nameplates       0
exported  mailboxes        1
exported  client versions  1
"""


def files(their: Their) -> list[str]:
    return ["--channel", str(their.relay), "--usage", str(their.usage)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_what_root_restores_or_imports_belongs_to_the_owner_of_the_directory(their: Their, tmp_path: Path) -> None:
    nobody = 65534
    for data in ("restored", "imported"):
        (tmp_path / data).mkdir()
        os.chown(tmp_path / data, nobody, nobody)
    play(their)
    for command in (
        ("import", *files(their), "--data", tmp_path / "imported"),
        ("backup", tmp_path / "copy", "--data", tmp_path / "imported"),
        ("restore", tmp_path / "copy", "--data", tmp_path / "restored"),
    ):
        result = called(*map(str, command))
        assert result.returncode == 0, result.stderr
    for data in ("restored", "imported"):
        made = list((tmp_path / data).iterdir())
        assert {path.name for path in made} >= {"lock", "restante.sqlite"}
        assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(nobody, nobody)}


def test_an_import_reports_imported_and_skipped_rows(their: Their, data: Path) -> None:
    play(their)
    result = restante("import", *files(their), "--data", data)
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [line.split() for line in IMPORTED.splitlines()]
    assert len({len(line) for line in result.stdout.splitlines()}) == 1  # one below the other
    assert data.stat().st_mode & 0o777 == 0o700
    assert (data / "restante.sqlite").stat().st_mode & 0o777 == 0o600


def test_an_import_reports_as_json_and_nothing_to_import_is_misuse(their: Their, data: Path) -> None:
    play(their)
    report = json.loads(called("import", *files(their), "--json", RESTANTE_DATA=str(data)).stdout)
    assert report["imported"]["usage_client_versions"] == 1
    assert report["skipped"] == {"mailboxes_without_sides": 1, "messages_without_mailbox": 1}
    for arguments in ([], ["--merge"], ["--usage", "gone.sqlite"]):
        result = called("import", *arguments, "--data", data)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)


async def test_a_running_server_blocks_imports_and_allows_exports(their: Their, data: Path, tmp_path: Path) -> None:
    play(their)
    assert called("import", "--usage", str(their.usage), "--data", data).returncode == 0
    async with serving(data):
        result = called("import", "--channel", str(their.relay), "--merge", "--data", data)
        assert result.returncode == 75
        assert result.stderr.startswith("restante: another process is using the data directory")
        result = called("export", str(tmp_path / "export.sqlite"), "--data", data)
        assert (result.returncode, result.stdout) == (0, EXPORTED)
    assert (tmp_path / "export.sqlite").stat().st_mode & 0o777 == 0o600


TEXT = "begun there, ended here"


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with Scene(tmp_path, Reference(tmp_path / "reference")) as scene:
        yield scene


@asynccontextmanager
async def taken_over(scene: Scene) -> AsyncIterator[None]:
    """The reference server is gone: import what it left, and start ours in its place."""
    folder = scene.server.folder
    ours = Restante(folder.with_name("restante"))
    ours.port = scene.server.port
    files = ("--channel", str(folder / "relay.sqlite"), "--usage", str(folder / "usage.sqlite"))
    async with child(*RESTANTE, "import", "--data", str(ours.folder / "data"), *files) as importing:
        assert await importing.ended() == 0, importing.said
    scene.server = ours
    try:
        await ours.start()
        yield
    except BaseException:
        await ours.end()
        raise


async def test_the_reference_server_may_be_killed_in_mid_transfer(scene: Scene) -> None:
    """The sender has said its pake, and not heard the other one."""
    killed = scene.kill_at(to_client(SENDER, "message", phase="pake", author=RECEIVER), BEFORE)
    sender = await scene.send_text(TEXT)
    receiver = await scene.receive(await sender.code())
    await killed.reached()
    await scene.server.end()
    async with taken_over(scene):
        await assert_text_arrives(sender, receiver, TEXT)
        scene.assert_one_happy_session()


async def test_going_back_to_the_reference_server(scene: Scene) -> None:
    """As the guide says: the reference server starts on its own files, with the usage records of both servers."""

    async def transfer() -> None:
        sender = await scene.send_text(TEXT)
        await assert_text_arrives(sender, await scene.receive(await sender.code()), TEXT)

    theirs = scene.server
    await transfer()
    await theirs.stop()
    async with taken_over(scene):
        ours = scene.server
        await transfer()
        await ours.stop()
    usage = theirs.folder / "usage.sqlite"
    usage.unlink()
    async with child(*RESTANTE, "export", str(usage), "--data", str(ours.folder / "data")) as exporting:
        assert await exporting.ended() == 0, exporting.said
    scene.server = theirs
    await theirs.start()
    await transfer()
    assert theirs.usage() == (["happy"] * 3, ["happy"] * 3)
    assert theirs.live() == {}

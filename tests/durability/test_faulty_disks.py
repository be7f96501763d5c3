"""A disk that hangs, fills or turns read-only under `restante serve`: /readyz says so, and what clients see."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from restante.common.disk_probe import FILE
from support.bounds import bounded
from support.faulty_disk import FULL, HANGS, KIB, READ_ONLY, CommandedDisk, Look, looking, small_disk
from support.mailbox.clients import Client, Clients, LostError
from support.metrics import counts
from support.ports import held_port
from support.proc import waiting
from support.processes import RESTANTE, Serving, altered, evidence, serving, started

WAYS: Final = ("slow-disk", "fast-disk")
"""All commits are in the thread, or those of small batches on the event loop."""

NEARLY_FULL: Final = "the disk is nearly full\n"
NOT_STORED: Final = "the last batch could not be stored: the database refused: database or disk is full\n"
FREE_DISK: Final = 1024 * KIB


@asynccontextmanager
async def served(
    data: Path, program: tuple[str, ...] = RESTANTE, *options: str, variables: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Serving, Look]]:
    """Run a server with an admin port."""
    with held_port() as port:
        words = ("--admin", f"127.0.0.1:{port}", "--limit", "mailbox_messages=0", *options)
        async with serving(data, program, words, **(variables or {})) as server, looking(port) as look:
            yield server, look


@asynccontextmanager
async def talking(clients: Clients, url: str) -> AsyncIterator[list[Client]]:
    """Let two sides add messages to a mailbox until the block ends, each when the one before was answered."""
    sides = [await clients.opened(url, "app", side, "m") for side in "ab"]
    over = asyncio.Event()

    async def talk(client: Client, side: str) -> None:
        with contextlib.suppress(LostError):
            for number in itertools.count():
                await client.answers(await client.say("add", phase="p", body=f"{side}-{number}"))
                if over.is_set():
                    return

    talks = [asyncio.create_task(talk(client, side)) for client, side in zip(sides, "ab", strict=True)]
    try:
        await more(sides)
        yield sides
    finally:
        over.set()
        await asyncio.gather(*talks)


async def more(sides: list[Client]) -> None:
    """Wait until both have heard ten more messages."""
    for each in sides:
        wanted = len(each.heard) + 10
        await each.until("ten messages", lambda each=each, wanted=wanted: len(each.heard) >= wanted)  # type: ignore[misc]


def added(sides: list[Client]) -> Counter[str]:
    """Return the bodies whose `add` was answered without an error."""
    said = [command for side in sides for command in side.said if command.kind == "add"]
    return Counter(each.fields["body"] for each in said if each.error is None and each.ack is not None)


async def heard_once(sides: list[Client]) -> None:
    """Both have heard each message that was added once, and no other."""
    for each in sides:
        await each.call("ping", ping=1)
        assert Counter(frame["body"] for frame in each.heard) == added(sides)


def stored(data: Path) -> Counter[str]:
    with evidence(data) as db:
        return Counter(body.strip('"') for (body,) in db.execute("SELECT body FROM messages"))


async def signalled(server: Serving) -> None:
    """Send SIGTERM, and wait until it is taken."""
    server.send(signal.SIGTERM)
    async with bounded("a signal that is taken"):
        while signal.SIGTERM in waiting(server.pid):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


# ── a disk that hangs ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["fast-disk", pytest.param("slow-disk", marks=pytest.mark.thorough)])
async def test_a_disk_that_hangs_is_reported_and_delays_clients_and_loses_nothing(tmp_path: Path, way: str) -> None:
    disk = CommandedDisk(tmp_path)
    async with served(disk.data, altered(way), variables=disk.variables) as (server, look), Clients() as clients:
        async with talking(clients, server.url) as sides:
            await look.reports(disk.hang, HANGS)
            assert counts(await look.works())["restante_ready"] == 0
            shown = await look.shown()
            assert shown["unready"] == HANGS.strip()
            assert shown["connections"]["open"] == 2, "the dashboard has figures, also while the event loop waits"
            assert "problem" not in shown
            disk.go_on()
            await look.recovers(HANGS)
            await more(sides)
        await heard_once(sides)
        assert not [frame for side in sides for frame in side.frames if frame["type"] == "error"]
        assert counts(await look.works())["restante_ready"] == 1
        await server.stop()
    assert stored(disk.data) == added(sides)
    assert not (disk.data / FILE).exists()


@pytest.mark.parametrize("way", ["fast-disk", pytest.param("slow-disk", marks=pytest.mark.thorough)])
async def test_a_second_sigterm_during_a_hang_ends_the_server_and_loses_nothing(tmp_path: Path, way: str) -> None:
    disk = CommandedDisk(tmp_path)
    async with served(disk.data, altered(way), variables=disk.variables) as (server, look), Clients() as clients:
        async with talking(clients, server.url) as sides:
            await look.reports(disk.hang, HANGS)
            await signalled(server)
            server.send(signal.SIGTERM)
            assert await server.ended() == 1
        assert [each.close_code for each in sides] == [None, None]
    assert added(sides) <= stored(disk.data)
    disk.go_on()
    async with served(disk.data, variables=disk.variables) as (server, _), Clients() as clients:
        back = await clients.opened(server.url, "app", "a", "m")
        await back.fence()
        assert Counter(frame["body"] for frame in back.heard) == stored(disk.data)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
async def test_one_sigterm_during_a_hang_answers_everything_when_the_disk_goes_on(tmp_path: Path, way: str) -> None:
    disk = CommandedDisk(tmp_path)
    async with (
        served(disk.data, altered(way), variables=disk.variables) as (server, look),
        Clients() as clients,
        talking(clients, server.url) as sides,
    ):
        await look.reports(disk.hang, HANGS)
        await signalled(server)
        disk.go_on()
        assert await server.ended() == 0
    assert stored(disk.data) >= added(sides)


# ── a disk that fills ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["slow-disk", pytest.param("fast-disk", marks=pytest.mark.thorough)])
async def test_a_disk_that_fills_refuses_clients_until_there_is_room(tmp_path: Path, way: str) -> None:
    async with small_disk(tmp_path, 8 * FREE_DISK // KIB) as disk:
        program = (*disk.enter, *altered(way))
        limit = ("--limit", f"free_disk={FREE_DISK}")
        async with served(disk.data, program, *limit) as (server, look), Clients() as clients:
            async with talking(clients, server.url) as sides:
                await look.reports(disk.fill, FULL, NEARLY_FULL, NOT_STORED)
                await look.works()
                await sides[0].until("an error", lambda: sides[0].frames[-1]["type"] == "error")
                disk.make_room()
                await look.recovers(FULL, NEARLY_FULL, NOT_STORED)
                await more(sides)
            await heard_once(sides)
            errors = {frame["error"] for side in sides for frame in side.frames if frame["type"] == "error"}
            assert errors <= {
                "the server is full: its disk has no room for more; try again later",
                "the server could not store this, try again",
            }
            await server.stop()
        shutil.copytree(disk.outside / "data", tmp_path / "data")
    assert stored(tmp_path / "data") == added(sides)


# ── a disk that turns read-only ──────────────────────────────────────────────────────────────────


async def test_a_read_only_disk_is_reported_without_a_client_until_it_is_writable(tmp_path: Path) -> None:
    disk = CommandedDisk(tmp_path)
    async with served(disk.data, variables=disk.variables) as (server, look), Clients() as clients:
        await look.reports(disk.turn_read_only, READ_ONLY)
        await look.works()
        disk.turn_writable()
        await look.recovers(READ_ONLY)
        client = await clients.opened(server.url, "app", "a", "m")
        await client.call("add", phase="p", body="kept")
        await server.stop()
    assert stored(disk.data) == Counter(["kept"])


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
async def test_a_disk_that_turns_read_only_ends_a_server_that_has_clients(tmp_path: Path, way: str) -> None:
    disk = CommandedDisk(tmp_path)
    async with served(disk.data, altered(way), variables=disk.variables) as (server, _), Clients() as clients:
        async with talking(clients, server.url) as sides:
            disk.turn_read_only()
            assert await server.ended() == 1
        assert server.log[-1] == "restante: commit failed: disk I/O error"
        assert [each.close_code for each in sides] == [None, None]
    kept = stored(disk.data)
    assert added(sides) <= kept
    async with started(disk.data, RESTANTE, (), DEVNULL, **disk.variables) as second:
        assert await second.ended() == 1
        assert second.log[-1].startswith(
            f"restante: cannot use the data directory {disk.data}: Read-only file system"
        )
    disk.turn_writable()
    async with served(disk.data, variables=disk.variables) as (server, _), Clients() as clients:
        back = await clients.opened(server.url, "app", "a", "m")
        await back.fence()
        assert Counter(frame["body"] for frame in back.heard) == kept

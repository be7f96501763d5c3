"""The progress of a transfer on a real terminal, also on a narrow one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import struct
import termios
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from client.transfer.hostile import names, play, until_closed
from restante.client import DEFAULT_APP_ID, Wormhole
from restante.client.transit.pipe import RecordPipe
from restante.client.transit.records import Role
from restante.common.errors import RestanteError
from support.bounds import bounded
from support.processes import RESTANTE, Child, Serving, serving, spawn

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZE: Final = 64 << 20
PIECE: Final = 64 << 10
PACE: Final = 0.02
"""Seconds between two records of a slow sender."""

FIGURES: Final = re.compile(r"\d+\.\d/\d+\.\d MB +\d+(\.\d)? [kMG]?B/s \d:\d\d:\d\d left")
CONTROL: Final = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")

codes = (f"{number}-e-f" for number in count(1))


class Terminal:
    """A terminal of so many columns, and the rows that its user sees."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.sent = ""
        self.most_rows = 0
        """How many rows were filled at once."""
        self._ours, self.its = os.openpty()
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        with suppress(OSError):  # EIO is how Linux says that nobody has the other end
            self.sent += os.read(self._ours, 1 << 16).decode()
            self.most_rows = max(self.most_rows, len(self.rows))
            self._news.set()
            return
        asyncio.get_running_loop().remove_reader(self._ours)

    @property
    def rows(self) -> list[str]:
        """The rows that have something on them, from the top."""
        rows, row, column = [""], 0, 0
        for number, what, line_end, letter in CONTROL.findall(self.sent):
            if what == "A":
                row = max(0, row - int(number or 1))
            elif what == "K":
                assert number == "2"
                rows[row] = ""
            elif line_end == "\r":
                column = 0
            elif line_end == "\n" or (letter and column == self.columns):
                row, column = row + 1, 0 if letter else column
                rows.extend([""] * (row + 1 - len(rows)))
            else:
                assert letter or what in "mhl", what
            if letter:
                rows[row] = rows[row][:column].ljust(column) + letter + rows[row][column + 1 :]
                column += 1
        return [each.rstrip() for each in rows if each.strip()]

    @property
    def cursor_is_shown(self) -> bool:
        return self.sent.rfind("\x1b[?25l") <= self.sent.rfind("\x1b[?25h")

    async def until(self, pattern: re.Pattern[str]) -> None:
        """Wait until a row has this."""
        async with bounded(f"{pattern} on the terminal"):
            while not any(pattern.search(row) for row in self.rows):
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    async with serving(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@asynccontextmanager
async def receiving(
    server: Serving, folder: Path, columns: int
) -> AsyncIterator[tuple[Terminal, Child, threading.Event, asyncio.Task[None]]]:
    """Receive a file on a terminal from a slow sender, who sends what is left at once when the event is set."""
    terminal, code, hurry = Terminal(columns), next(codes), threading.Event()
    words = ("receive", "--server", server.url, "--transit-relay", "", "--accept", code)
    process = await spawn(
        *(*RESTANTE, *words), cwd=folder, stderr=terminal.its, variables={"TERM": "xterm", "COLUMNS": ""}
    )
    os.close(terminal.its)
    receiver = Child(process, "stdout")

    def script(pipe: RecordPipe) -> None:
        left = SIZE
        with suppress(RestanteError):  # it was stopped
            while left:
                hurry.wait(PACE)
                pipe.send(bytes(PIECE))
                left -= PIECE
        until_closed(pipe)

    try:
        async with bounded("the end of both"), Wormhole.create(DEFAULT_APP_ID, server=server.url) as sender:
            await sender.set_code(code)
            offer = {"file": {"filename": "parcel", "filesize": SIZE}}
            sending = asyncio.create_task(play(sender, Role.SENDER, script, offer))
            yield terminal, receiver, hurry, sending
    finally:
        hurry.set()
        await receiver.end()
        terminal.close()


@pytest.mark.parametrize(("columns", "drawn"), [(100, True), (60, True), (40, False)])
async def test_the_bar_shows_the_rate_and_the_time_left_in_one_row(
    server: Serving, tmp_path: Path, columns: int, drawn: bool
) -> None:
    async with receiving(server, tmp_path, columns) as (terminal, receiver, hurry, sending):
        await terminal.until(FIGURES)
        (row,) = [row for row in terminal.rows if FIGURES.search(row)]
        above = terminal.rows.index(row)
        assert ("━" in row) is drawn
        assert not terminal.cursor_is_shown
        hurry.set()
        assert await receiver.ended() == 0
        await sending
        await terminal.until(re.compile("Stored as parcel"))
    assert terminal.rows[above:] == ["Stored as parcel"]
    assert terminal.most_rows == above + 1
    assert terminal.cursor_is_shown


async def test_a_terminal_that_is_too_narrow_for_the_figures_still_has_them_in_one_row(
    server: Serving, tmp_path: Path
) -> None:
    async with receiving(server, tmp_path, 20) as (terminal, receiver, hurry, sending):
        await terminal.until(re.compile(r"^\d+\.\d/"))
        above = len(terminal.rows) - 1
        hurry.set()
        assert await receiver.ended() == 0
        await sending
        await terminal.until(re.compile("Stored as parcel"))
    assert terminal.rows[above:] == ["Stored as parcel"]
    assert terminal.most_rows == above + 1


async def test_when_all_is_sent_the_bar_says_that_the_receiver_is_waited_for(server: Serving, tmp_path: Path) -> None:
    (tmp_path / "parcel").write_bytes(bytes(PIECE))
    terminal, code = Terminal(60), next(codes)
    words = ("send", "--server", server.url, "--transit-relay", "", "--no-qr", "--code", code, "parcel")
    process = await spawn(
        *(*RESTANTE, *words), cwd=tmp_path, stderr=terminal.its, variables={"TERM": "xterm", "COLUMNS": ""}
    )
    os.close(terminal.its)
    sender = Child(process, "stdout")
    try:
        async with bounded("the end of both"), Wormhole.create(DEFAULT_APP_ID, server=server.url) as receiver:
            await receiver.set_code(code)
            receiving = asyncio.create_task(play(receiver, Role.RECEIVER, until_closed))
            await terminal.until(re.compile(r"━ 65\.5/65\.5 kB .* waiting$"))
            sender.send(signal.SIGINT)
            await sender.ended()
            await receiving
    finally:
        await sender.end()
        terminal.close()


async def test_a_transfer_that_is_stopped_leaves_no_bar_and_a_cursor(server: Serving, tmp_path: Path) -> None:
    async with receiving(server, tmp_path, 100) as (terminal, receiver, _hurry, sending):
        await terminal.until(FIGURES)
        receiver.send(signal.SIGINT)
        assert await receiver.ended() == 128 + signal.SIGINT
        await sending
    assert not any("MB/s" in row for row in terminal.rows)
    assert terminal.cursor_is_shown
    assert names(tmp_path) == []

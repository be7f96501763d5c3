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
from typing import Final

import pytest

from client.commands import Command, Desk
from client.transfer.hostile import names, receives, sends, until_closed
from restante.client.transit.pipe import RecordPipe
from restante.common.errors import RestanteError
from support.bounds import bounded

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZE: Final = 64 << 20
PIECE: Final = 64 << 10
PACE: Final = 0.02
"""Seconds between two records of a slow sender."""

FIGURES: Final = re.compile(r"\d+\.\d/\d+\.\d MB +\d+(\.\d)? [kMG]?B/s \d:\d\d:\d\d left")
SIZES: Final = re.compile(r"^\d+\.\d/")
CONTROL: Final = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")


class Terminal:
    """A terminal of so many columns, and the rows that its user sees."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.sent = ""
        self.most_rows = 0
        """How many rows were filled at once."""
        self._ours, self._its = os.openpty()
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.streams = {"streams": f"2>{os.ttyname(self._its)}", "TERM": "xterm", "COLUMNS": ""}
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        self.sent += os.read(self._ours, 1 << 16).decode()
        self.most_rows = max(self.most_rows, len(self.rows))
        self._news.set()

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
        os.close(self._its)


@asynccontextmanager
async def receiving(
    desk: Desk, columns: int
) -> AsyncIterator[tuple[Terminal, Command, threading.Event, asyncio.Task[None]]]:
    """Receive a file on a terminal from a slow sender, who sends what is left at once when the event is set."""
    terminal, hurry = Terminal(columns), threading.Event()

    def script(pipe: RecordPipe) -> None:
        left = SIZE
        with suppress(RestanteError):  # it was stopped
            while left:
                hurry.wait(PACE)
                pipe.send(bytes(PIECE))
                left -= PIECE
        until_closed(pipe)

    try:
        async with desk.receive("--accept", **terminal.streams) as receiver, desk.peer() as sender:
            sending = sends(sender, script, {"file": {"filename": "parcel", "filesize": SIZE}})
            yield terminal, receiver, hurry, sending
    finally:
        hurry.set()
        terminal.close()


@pytest.mark.parametrize(
    ("columns", "figures", "drawn"),
    [(100, FIGURES, True), (60, FIGURES, True), (40, FIGURES, False), (20, SIZES, False)],
)
async def test_the_bar_shows_the_rate_and_the_time_left_in_one_row(
    desk: Desk, columns: int, figures: re.Pattern[str], drawn: bool
) -> None:
    """Also where the terminal is too narrow for all of them."""
    async with receiving(desk, columns) as (terminal, receiver, hurry, sending):
        await terminal.until(figures)
        (row,) = [row for row in terminal.rows if figures.search(row)]
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


async def test_when_all_is_sent_the_bar_says_that_the_receiver_is_waited_for(desk: Desk) -> None:
    (desk.folder / "parcel").write_bytes(bytes(PIECE))
    terminal = Terminal(60)
    words = ("send", "--no-qr", "--code", desk.code, "parcel")
    async with desk.run(*words, **terminal.streams) as sender, desk.peer() as receiver:
        receiving = receives(receiver, until_closed)
        await terminal.until(re.compile(r"━ 65\.5/65\.5 kB .* waiting$"))
        sender.send(signal.SIGINT)
        await sender.ended()
        await receiving
    terminal.close()


async def test_a_transfer_that_is_stopped_leaves_no_bar_and_a_cursor(desk: Desk) -> None:
    async with receiving(desk, 100) as (terminal, receiver, _hurry, sending):
        await terminal.until(FIGURES)
        receiver.send(signal.SIGINT)
        assert await receiver.ended() == 128 + signal.SIGINT
        await sending
    assert not any("MB/s" in row for row in terminal.rows)
    assert terminal.cursor_is_shown
    assert names(desk.folder) == []

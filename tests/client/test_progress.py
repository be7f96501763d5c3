"""The progress of a transfer on a terminal, also on a narrow one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import time
from typing import Final

import pytest

from client.commands import Desk
from client.transfer.hostile import names, sends, stopped_halfway
from restante.cli.client_files import bar
from support.bounds import BOUND, bounded

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZE: Final = 64 << 20
FIGURES: Final = re.compile(r"\d+\.\d/67\.1 MB +\d+(\.\d)? [kMG]?B/s \d:\d\d:\d\d left$")
SHOWN, HIDDEN = "\x1b[?25h", "\x1b[?25l"
"""The cursor."""


class Terminal:
    """A terminal of so many columns, and what was sent to it."""

    def __init__(self, columns: int) -> None:
        self._ours, self.its = os.openpty()
        termios.tcsetwinsize(self.its, (24, columns))
        os.set_blocking(self._ours, False)
        self.sent = ""

    @property
    def rows(self) -> list[str]:
        """All that was ever shown in one row, without the colours."""
        try:
            self.sent += os.read(self._ours, 1 << 20).decode()
        except BlockingIOError:
            time.sleep(0.001)
        rows = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.sent))
        return [row.rstrip() for row in rows if row.strip()]

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.its)


@pytest.mark.parametrize(("columns", "drawn"), [(100, True), (60, True), (40, False), (20, False)])
async def test_the_bar_and_its_figures_have_one_row(
    columns: int, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a terminal that is too narrow for all of them."""
    terminal, done, until = Terminal(columns), 0, time.monotonic() + BOUND
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    figures = FIGURES if columns > 20 else re.compile(r"^\d+\.\d/")
    with open(terminal.its, "w", closefd=False) as stream:  # noqa: ASYNC230 - a terminal
        monkeypatch.setattr(sys, "stderr", stream)
        with bar(SIZE, "waiting") as on_progress:
            while not any(figures.search(row) for row in terminal.rows) and time.monotonic() < until:
                done = min(done + 1000, SIZE - 1)
                on_progress(done)
            on_progress(SIZE)
            assert SHOWN not in terminal.sent
    rows = terminal.rows
    assert any(figures.search(row) for row in rows), rows
    assert any("━" in row for row in rows) is drawn
    assert all(len(row) <= columns for row in rows)
    assert "waiting" in rows[-1] or columns == 20
    assert terminal.sent.count("\n") <= 1
    assert terminal.sent.rindex(SHOWN) > terminal.sent.rindex(HIDDEN)
    assert terminal.sent.rstrip().endswith("\x1b[2K")
    terminal.close()


async def test_a_transfer_that_is_stopped_leaves_no_bar_and_a_cursor(desk: Desk) -> None:
    terminal = Terminal(100)
    script, _, over = stopped_halfway(lambda pipe: pipe.send(bytes(1 << 16)))
    streams = {"streams": f"2>{os.ttyname(terminal.its)}", "TERM": "xterm", "COLUMNS": ""}
    async with desk.receive("--accept", **streams) as receiver, desk.peer() as sender:
        sending = sends(sender, script, {"file": {"filename": "parcel", "filesize": SIZE}})
        async with bounded("the bar"):
            while not any("0.1/67.1 MB" in row for row in terminal.rows):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
        receiver.send(signal.SIGINT)
        assert await receiver.ended() == 128 + signal.SIGINT
        over.set()
        await sending
    assert "stopped after receiving" in terminal.rows[-1]
    assert "MB" not in terminal.sent[terminal.sent.rindex("\x1b[2K") :]
    assert terminal.sent.rindex(SHOWN) > terminal.sent.rindex(HIDDEN)
    assert names(desk.folder) == []
    terminal.close()

"""Makes a real slow transfer: a receiver far away, whose user takes time. Its logs are those of the docs' picture.

python -m support.timing.slow_transfer FOLDER
"""

from __future__ import annotations

import asyncio
import os
import pty
import re
from asyncio import StreamReader, StreamWriter
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import ViewportSize

from restante.timing.outputs.page import page
from restante.timing.transfers.transfer import read_transfer
from support.bounds import bounded
from support.documents import ROOT
from support.processes import RESTANTE, child, environment, serving
from support.timing.browser import chromium, opened

DELAYS: Final = {"sender": 0.020, "receiver": 0.140}
"""Seconds that each byte takes between a client and the server, in one direction."""

TYPING: Final = 2.5
"""Seconds until the receiver's user has typed the code."""

READING: Final = 1.5
"""Seconds until the receiver's user has answered the question."""

FILE_BYTES: Final = 3 << 20

VIEWPORT: Final = ViewportSize(width=1280, height=1000)
"""Of the picture, in pixels."""


class DelayingProxy:
    """Forwards connections to a server. Each byte arrives after the delay; the order stays."""

    def __init__(self, server_port: int, seconds: float) -> None:
        self._server_port, self._seconds = server_port, seconds

    async def __call__(self, reader: StreamReader, writer: StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        with suppress(asyncio.CancelledError):  # the end
            await asyncio.gather(self._forward(reader, back), self._forward(there, writer))

    async def _forward(self, source: StreamReader, sink: StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    break
                sink.write(data)
            with suppress(OSError):
                sink.write_eof()

        delivering = asyncio.ensure_future(deliver())
        with suppress(ConnectionError):
            while data := await source.read(65536):
                waiting.put_nowait((loop.time() + self._seconds, data))
        waiting.put_nowait((loop.time() + self._seconds, b""))
        await delivering


async def slow_transfer(folder: Path) -> None:
    """Write send.json, receive.json and trace.jsonl into a folder."""
    (folder / "photo.raw").write_bytes(os.urandom(FILE_BYTES))
    (folder / "downloads").mkdir()
    async with serving(folder / "server", options=("--trace", str(folder / "trace.jsonl"))) as server:
        proxies = [
            await asyncio.start_server(DelayingProxy(server.port, seconds), "127.0.0.1", 0)
            for seconds in DELAYS.values()
        ]
        try:
            await _transfer(folder, *(f"ws://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/v1" for proxy in proxies))
        finally:
            for proxy in proxies:
                proxy.close()


async def _transfer(folder: Path, sender_url: str, receiver_url: str) -> None:
    sending = ("send", "--server", sender_url, "--dump-timing", str(folder / "send.json"), str(folder / "photo.raw"))
    async with child(*RESTANTE, *sending) as sender, bounded("a slow transfer"):
        code = (await sender.says(r"code is: (\S+)")).group(1)
        await _receive(folder, receiver_url, code)
        assert await sender.ended() == 0, sender.said


async def _receive(folder: Path, url: str, code: str) -> None:
    """Receive the file, with a terminal at which someone types slowly."""
    main, terminal = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(*RESTANTE, "receive", "--server", url, "--dump-timing", str(folder / "receive.json")),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder / "downloads",
        env=environment(),
    )
    os.close(terminal)
    said = ""
    with closing(os.fdopen(main, "r+b", buffering=0)) as screen:
        answers = [(r"[Cc]ode:? *$", TYPING, code), (r"\(yes/no\)", READING, "yes")]
        while True:
            try:
                said += (await asyncio.to_thread(os.read, screen.fileno(), 65536)).decode(errors="replace")
            except OSError:  # Linux: the other end of the terminal is closed
                break
            if answers and re.search(answers[0][0], re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", said)):
                _, seconds, words = answers.pop(0)
                await asyncio.sleep(seconds)
                os.write(screen.fileno(), words.encode() + b"\r")
    assert await process.wait() == 0, said


def take_picture(folder: Path, picture: Path) -> None:
    """Render the logs of a folder, and store a picture of the page."""
    logs = [folder / "send.json", folder / "receive.json"]
    rendered = page(read_transfer(logs, folder / "trace.jsonl", {}, print))
    with chromium() as browser, opened(browser, rendered, folder, viewport=VIEWPORT) as found:
        found.next_frame()
        found.page.screenshot(path=picture)


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        asyncio.run(slow_transfer(Path(name)))
        take_picture(Path(name), ROOT / "docs/timing/slow-transfer.png")

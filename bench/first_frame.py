"""A server that welcomes a client and notes when its first frame comes: how long a process takes to be of use."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from wire import HOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

WELCOME = b'{"type":"welcome","welcome":{},"server_tx":0}'
FRAME_SECONDS = 60.0


class _Greeter(WSListener):
    def __init__(self, came: list[asyncio.Future[float]]) -> None:
        self._came = came

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send(WSMsgType.TEXT, WELCOME)

    def on_ws_frame(self, _transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT and self._came and not self._came[-1].done():
            self._came[-1].set_result(time.perf_counter())


class FirstFrame:
    """The server, and the time of the first frame that each client sends to it."""

    def __init__(self, port: int, came: list[asyncio.Future[float]]) -> None:
        self._url = f"ws://{HOST}:{port}/v1"
        self._came = came

    @classmethod
    @asynccontextmanager
    async def listen(cls) -> AsyncIterator[FirstFrame]:
        came: list[asyncio.Future[float]] = []
        server = await ws_create_server(lambda _request: _Greeter(came), HOST, 0)
        try:
            yield cls(server.sockets[0].getsockname()[1], came)
        finally:
            server.close()

    async def time(self, *program: str, env: Mapping[str, str]) -> tuple[float, float]:
        """Start a program, with the URL as its last argument. Return the seconds to its first frame, and its CPU."""
        self._came.append(asyncio.get_running_loop().create_future())
        began = time.perf_counter()
        process = subprocess.Popen([*program, self._url], env=env)  # noqa: ASYNC220 - wait4 tells its CPU
        try:
            async with asyncio.timeout(FRAME_SECONDS):
                ended = await self._came[-1]
        finally:
            process.kill()
            _, status, used = os.wait4(process.pid, 0)  # noqa: ASYNC222 - it was killed
            process.returncode = os.waitstatus_to_exitcode(status)
        return ended - began, used.ru_utime + used.ru_stime

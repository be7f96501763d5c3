"""`restante`, and programs that use the library, in forks (support/forks.py), with streams that a test chooses."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from restante.cli.main import main as restante
from restante.client import DEFAULT_APP_ID, Wormhole
from support.bounds import bounded
from support.forks import Forked
from support.processes import Child, environment

NAMES: Final = ("stdin", "stdout", "stderr")

TEXT: Final = "held until called for, é"

_numbers = count(1)


def main() -> None:
    """Run the command, or the program of this path; STREAMS are redirections, and TYPED is all of standard input."""
    if (typed := os.environ.pop("TYPED", None)) is not None:
        reading, writing = os.pipe()
        os.write(writing, os.fsencode(typed))
        os.close(writing)
        os.dup2(reading, 0)
        os.close(reading)
    for descriptor, mark, target in re.findall(r"(\d?)([<>])(\S+)", os.environ.pop("STREAMS", "")):
        number = int(descriptor or (mark == ">"))
        if target == "&-":
            os.close(number)
            setattr(sys, NAMES[number], None)
        else:
            opened = os.open(target, os.O_WRONLY if number else os.O_RDONLY)
            os.dup2(opened, number)
            os.close(opened)
    if sys.argv[0] == "restante":
        restante()
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.stdout.flush()


class Command(Child):
    def __init__(self, process: Forked, typing: int | None) -> None:
        super().__init__(process, "stdout", "stderr")
        self._typing = typing

    def write(self, answer: bytes) -> None:
        assert self._typing is not None
        os.write(self._typing, answer)

    async def end(self) -> None:
        await super().end()
        if self._typing is not None:
            os.close(self._typing)


@asynccontextmanager
async def command(
    folder: Path,
    *arguments: str,
    typed: bytes | None = b"",
    streams: str = "",
    program: str = "restante",
    **variables: str,
) -> AsyncIterator[Command]:
    """Run `restante` in a folder, without a relay, until the block ends. If None is typed, it waits when it asks."""
    typing = None
    variables = {"RESTANTE_CLIENT_TRANSIT_RELAY": "tcp:127.0.0.1:1", "STREAMS": streams, **variables}
    if typed is None:
        pipe = folder.parent / f"typed-{next(_numbers)}"
        os.mkfifo(pipe)
        typing = os.open(pipe, os.O_RDWR)
        variables["STREAMS"] += f" <{pipe}"
    else:
        variables["TYPED"] = os.fsdecode(typed)
    process = await Forked.start(
        "client.commands:main", program, *arguments, cwd=folder, variables=environment(**variables)
    )
    async with Command(process, typing) as running:
        yield running


class Desk:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.folder.mkdir()
        self.code = f"{next(_numbers)}-a-b"

    def run(self, *arguments: str, at: str = ".", **options: Any) -> Any:
        return command(self.folder / at, *arguments, **{"RESTANTE_CLIENT_SERVER": self.url, **options})

    def send(self, *options: str, **streams: Any) -> Any:
        return self.run("send", "--text", TEXT, "--code", self.code, *options, **streams)

    def receive(self, *options: str, **streams: Any) -> Any:
        return self.run("receive", self.code, *options, **streams)

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[Wormhole]:
        async with Wormhole.create(DEFAULT_APP_ID, server=self.url) as peer, bounded("the end of both"):
            await peer.set_code(self.code)
            yield peer


async def end(*commands: Command) -> tuple[int, ...]:
    return tuple([await running.ended() for running in commands])

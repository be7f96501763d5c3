"""The real `wormhole`, one process per call, each in a folder of its own."""

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from interop.bounds import bounded
from interop.processes import environment

WORMHOLE = str(Path(sys.executable).parent / "wormhole")
WORMHOLE_CODE = re.compile(r"Wormhole code is: (\S+)")


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str


class Client:
    """A running `wormhole` and what it has said so far."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._news = asyncio.Condition()
        self._said = {"stdout": "", "stderr": ""}
        assert process.stdout is not None
        assert process.stderr is not None
        self._listening = [
            asyncio.create_task(self._listen("stdout", process.stdout)),
            asyncio.create_task(self._listen("stderr", process.stderr)),
        ]

    @classmethod
    async def start(cls, folder: Path, bytecode: Path, relay_url: str, *command: str) -> Self:
        """Run `wormhole COMMAND` in FOLDER, which is its home too: nothing of the user's is read or written."""
        homes = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
        settings = environment(bytecode, "WORMHOLE_") | {name: str(folder) for name in homes}
        # An empty transit helper: a file goes from one client to the other directly, never by the public relay.
        process = await asyncio.create_subprocess_exec(
            *(WORMHOLE, "--transit-helper", "", "--relay-url", relay_url, *command),
            cwd=folder,
            env=settings | {"LC_ALL": "C.UTF-8"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        return cls(process)

    async def says(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Wait until the client has printed PATTERN; fail when it leaves without."""
        async with bounded(f"the client says {pattern}"), self._news:
            while (match := self._search(pattern)) is None:
                if all(task.done() for task in self._listening):
                    raise AssertionError(f"the client left without saying {pattern}: {self._said}")
                await self._news.wait()
        return match

    async def code(self) -> str:
        """The code, as soon as it is printed."""
        return (await self.says(WORMHOLE_CODE)).group(1)

    async def leaves(self) -> Outcome:
        """Wait for the end of the process."""
        async with bounded(f"the client leaves; so far {self._said}"):
            exit_code = await self._process.wait()
            await asyncio.gather(*self._listening)
        return Outcome(exit_code, **self._said)

    def press_ctrl_c(self) -> None:
        """SIGINT. The client then stops its reactor without a word to the server, and exits with 0."""
        self._process.send_signal(signal.SIGINT)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def end(self) -> None:
        """Whatever state it is in: no process stays behind."""
        if self.running:
            self._process.kill()
        await self.leaves()

    def _search(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        return next((m for said in self._said.values() if (m := re.search(pattern, said))), None)

    async def _listen(self, name: str, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(4096):
            # Names, codes and the texts of these tests are ASCII; a progress bar cut in half must not raise.
            self._said[name] += data.decode("utf-8", errors="replace")
            async with self._news:
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

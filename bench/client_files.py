"""Files and directories between two commands, as bench/client.py measures them. Each is a whole process.

Sender and receiver are started at once with a code that both know, and connect to each other directly. The time is
that from the first start to the last end: imports, the exchange of keys and the last flush are part of it.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from client_scenarios import NO_LIMITS, WrongError, both, next_code, program
from wire import HOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from client_scenarios import Run
    from servers import Kind, Server

NO_RELAY = "tcp:127.0.0.1:1"
"""Nobody listens there."""

SMALL_FILE_BYTES = 1_000
FILES_IN_A_FOLDER = 50
MIB = 1 << 20

ALL_CPUS = os.sched_getaffinity(0)
"""Those of this process before it is pinned: this module is imported earlier."""

Command = tuple[str, ...]
RESTANTE = (sys.executable, "-m", "restante")
WORMHOLE = (str(Path(sys.executable).with_name("wormhole")), "--transit-helper", NO_RELAY, "--relay-url")


class Took(msgspec.Struct):
    """What a command took, from client_whole.py."""

    began: float
    ended: float
    """By the clock that all processes share."""
    cpu: float
    peak: int
    """Bytes resident, at the most."""


class Sides(msgspec.Struct):
    """The commands of one client."""

    send: Command
    receive: Command

    @classmethod
    def of(cls, kind: Kind, url: str, code: str, path: Path, into: Path) -> Sides:
        """Return the commands of ours, or of the Python client."""
        if kind == "restante":
            place = ("--server", url, "--transit-relay", NO_RELAY)
            return cls(
                (*RESTANTE, "send", *place, "--code", code, str(path)),
                (*RESTANTE, "receive", *place, "--accept", "--output", str(into), code),
            )
        return cls(
            (*WORMHOLE, url, "send", "--hide-progress", "--no-qr", "--code", code, str(path)),
            (*WORMHOLE, url, "receive", "--hide-progress", "--accept-file", "--output-file", str(into), code),
        )

    @classmethod
    def of_rust(cls, rust: Path, url: str, code: str, path: Path, into: Path) -> Sides:
        """Return the commands of magic-wormhole.rs, whose binary is named."""
        place = ("--rendezvous-server", url, "--relay-server", f"tcp://{HOST}:1")
        return cls(
            (str(rust), "send", *place, "--code", code, str(path)),
            (str(rust), "receive", *place, "--noconfirm", "--out-dir", str(into), code),
        )


async def whole(*command: str) -> Took:
    """Run a command on any CPU, and return what it took."""
    launcher = str(Path(__file__).with_name("client_whole.py"))
    return msgspec.json.decode(await program("-S", "-E", launcher, *command, cpus=ALL_CPUS), type=Took)


class Transfer(msgspec.Struct):
    """What a transfer took."""

    sender: Took
    receiver: Took

    @property
    def seconds(self) -> float:
        """Wall time."""
        began = min(self.sender.began, self.receiver.began)
        return max(self.sender.ended, self.receiver.ended) - began


PEER_ATTEMPTS = 3
"""A peer's transfer that fails now and then is no fault of ours, and must not cost the measurement."""


async def transfer(run: Run, kind: Kind | None, server: Server, path: Path) -> Transfer:
    """Send a file or directory from one command to another, and compare what came. Without a kind it is Rust's.

    A transfer of a peer that fails is repeated, and what it said is shown. One of ours fails at once.
    """
    for _ in range(1 if kind == "restante" else PEER_ATTEMPTS):
        try:
            return await _transfer(run, kind, server, path)
        except WrongError as error:
            failure = error
            print(f"  {kind or 'rust'} failed: {error}", file=sys.stderr)
    raise failure


async def _transfer(run: Run, kind: Kind | None, server: Server, path: Path) -> Transfer:
    into = run.bench.folder()
    url, code = f"ws://{HOST}:{server.port}/v1", next_code()
    if kind is not None:
        sides = Sides.of(kind, url, code, path, into)
    else:
        assert run.rust is not None
        sides = Sides.of_rust(run.rust, url, code, path, into)
    sender, receiver = await both(whole(*sides.send), whole(*sides.receive))
    compare(path, into / path.name)
    shutil.rmtree(into)
    os.sync()  # or the next transfer would wait for the flush of this one
    return Transfer(sender, receiver)


def compare(sent: Path, received: Path) -> None:
    """Raise WrongError if what was received is not what was sent."""
    files = [each for each in sent.rglob("*") if each.is_file()] if sent.is_dir() else [sent]
    for each in files:
        other = received / each.relative_to(sent)
        if not other.is_file() or not filecmp.cmp(each, other, shallow=False):
            raise WrongError(f"{each.name} did not arrive as it was sent")


def in_memory(path: Path) -> None:
    """Read a file once: the first one that is measured would otherwise pay for it."""
    with path.open("rb", buffering=0) as opened:
        while opened.read(MIB):
            pass


async def file(run: Run) -> None:
    """A large file."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    path = run.bench.folder() / "large.bin"
    with path.open("wb") as large:
        large.truncate(run.file_bytes)
    in_memory(path)
    for kind in run.turns():
        took = await transfer(run, kind, server, path)
        rate = run.file_bytes / took.seconds / 1e6
        run.add("file", kind, rate)
        run.add("file_seconds", kind, took.seconds)
        for role, side in (("sender", took.sender), ("receiver", took.receiver)):
            run.add(f"file_{role}_cpu", kind, side.cpu)
            run.add(f"file_{role}_memory", kind, side.peak / MIB)
        if kind == "restante" and run.rust is not None:
            run.add("file_rust", "restante", rate)
            took = await transfer(run, None, server, path)
            run.add("file_rust", "reference", run.file_bytes / took.seconds / 1e6)
    if run.rust is None:
        print("  magic-wormhole.rs is left out: --rust names its binary", file=sys.stderr)
    await server.stop()


async def directory(run: Run) -> None:
    """A directory with many small files."""
    server = await run.bench.start("restante", run.bench.folder(), *NO_LIMITS)
    path = run.bench.folder() / "small"
    for number in range(run.results.filled):
        folder = path / f"folder-{number // FILES_IN_A_FOLDER}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file-{number}.txt").write_bytes(number.to_bytes(8, "big") * (SMALL_FILE_BYTES // 8))
    for kind in run.turns():
        took = await transfer(run, kind, server, path)
        run.add("directory", kind, took.seconds)
        run.add("directory_sender_cpu", kind, took.sender.cpu)
        run.add("directory_receiver_cpu", kind, took.receiver.cpu)
    await server.stop()


FILE_SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {"file": file, "directory": directory}

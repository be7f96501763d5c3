"""Programs of Debian: from the PATH, else unpacked into `.tools` from their package, without root."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from support.bounds import BOUND
from support.tools import MissingError, build, fetch, installed

DOWNLOAD: Final = 5 * BOUND
"""Seconds for a download. Chromium with all that it needs has at most 240 MB."""

STALL: Final = 20
"""Seconds after which apt gives up a connection that brings nothing."""

STATUS: Final = Path("/var/lib/dpkg/status")
"""The packages that the machine has."""


@dataclass(frozen=True)
class Program:
    """A program that is not Python's: its file, and the environment variables that it needs."""

    path: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def debian_programs(package: str, *programs: str) -> dict[str, Program]:
    """Return programs by name: those of the PATH, else those of a Debian package. Raises MissingError."""
    # Servers are in folders that are on the PATH of root only.
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    found = {name: shutil.which(name, path=path) for name in programs}
    if all(found.values()):
        return {name: Program(Path(path)) for name, path in found.items() if path is not None}
    return unpacked(package, *programs)


def unpacked(package: str, *programs: str, bare: bool = False) -> dict[str, Program]:
    """Return programs that are unpacked from a package and the packages that it needs. Raises MissingError.

    Those that the machine has are not unpacked. `bare`: as if it had none but the C library.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingError(f"{', '.join(programs)}: missing, and this is no Debian (Debian: apt install {package})")
    name = f"{package}-bare" if bare else package
    has = "" if bare else others(STATUS.read_text(), package)
    folder = installed(name, f"2 {name} {debian_release()}".encode(), lambda new: _unpack(package, has, new))
    variables = _variables(folder)
    found = {}
    for program in programs:
        # What is in usr/bin may be a script that expects the program in its usual place.
        files = [folder / "usr" / each / program for each in (f"lib/{program}", "bin", "sbin")]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise MissingError(f"{program} is missing, and the package {package} of this system does not have it")
        found[program] = Program(file, variables)
    return found


def debian_release() -> str:
    """Return the name and version of the distribution, by which unpacked packages are told apart."""
    file = Path("/etc/os-release")
    lines = file.read_text().splitlines() if file.exists() else []
    return " ".join(line for line in lines if line.startswith(("ID=", "VERSION_ID=")))


def others(status: str, package: str) -> str:
    """Return the status of the machine's packages, without those that are built from the same source as a package."""
    own = re.compile(rf"^(Package|Source): {re.escape(package)}( .*)?$", re.MULTILINE)
    return "\n\n".join(each for each in status.split("\n\n") if not own.search(each))


def _unpack(package: str, has: str, new: Path) -> None:
    """Unpack a package and what it needs; first with the machine's lists of packages, else with lists of our own."""
    scratch = new / "scratch"
    archives = scratch / "cache" / "archives"
    for each in (archives / "partial", scratch / "state" / "lists" / "partial"):
        each.mkdir(parents=True)
    (scratch / "status").write_text(has)
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
    try:
        _download(package, scratch, *options)
    except MissingError:
        options += ["-o", f"Dir::State={scratch}/state", "-o", f"Dir::State::status={scratch}/status"]
        fetch("apt", "apt-get", *options, "update", "--error-on=any", cwd=scratch, seconds=2 * BOUND)
        _download(package, scratch, *options)
    for file in archives.glob("*.deb"):
        if not file.name.startswith("libc6_"):  # it must be of the same version as the machine's program loader
            build("dpkg", "-x", file, new, cwd=scratch, seconds=DOWNLOAD)
    shutil.rmtree(scratch)


def _download(package: str, scratch: Path, *options: str) -> None:
    install = ("--yes", "--no-install-recommends", "--download-only", "install", package)
    fetch("apt", "apt-get", *options, *install, cwd=scratch, seconds=DOWNLOAD)


def _variables(folder: Path) -> dict[str, str]:
    """Return the variables with which programs find libraries and fonts in the folder."""
    libraries = {file.parent for top in ("usr/lib", "lib") for file in (folder / top).glob("**/lib*.so*")}
    variables = {}
    if libraries:
        found = [*(str(each) for each in sorted(libraries)), os.environ.get("LD_LIBRARY_PATH", "")]
        variables["LD_LIBRARY_PATH"] = ":".join(each for each in found if each)
    if (folder / "etc" / "fonts").exists():
        variables["FONTCONFIG_SYSROOT"] = str(folder)
    return variables

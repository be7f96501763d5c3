"""Programs of Debian: from the PATH, else unpacked into `.tools` from their package, without root."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from support.bounds import PATIENCE
from support.tools import MissingError, build, fetch, installed


def debian_programs(package: str, *programs: str) -> dict[str, Path]:
    """Return the paths of a package's programs. Raises MissingError.

    The package must need no other packages than those that the machine has.
    """
    found = {name: shutil.which(name) for name in programs}
    if all(found.values()):
        return {name: Path(path) for name, path in found.items() if path is not None}
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingError(f"{', '.join(programs)}: missing, and this is no Debian (Debian: apt install {package})")
    folder = installed(package, f"{package} {debian_release()}".encode(), lambda new: _unpack(package, new))
    return {name: folder / "usr" / "bin" / name for name in programs}


def debian_release() -> str:
    """Return the name and version of the distribution, by which unpacked packages are told apart."""
    file = Path("/etc/os-release")
    lines = file.read_text().splitlines() if file.exists() else []
    return " ".join(line for line in lines if line.startswith(("ID=", "VERSION_ID=")))


def _unpack(package: str, new: Path) -> None:
    """Unpack a package into a folder; first with the machine's lists of packages, else with lists of our own."""
    scratch = new / "scratch"
    scratch.mkdir()
    try:
        _download(package, scratch)
    except MissingError:
        own = _own_lists(scratch)
        fetch("apt", "apt-get", *own, "update", cwd=scratch, seconds=PATIENCE)
        _download(package, scratch, *own)
    [file] = scratch.glob(f"{package}_*.deb")
    build("dpkg", "-x", file, new, cwd=scratch, seconds=PATIENCE)
    shutil.rmtree(scratch)


def _download(package: str, scratch: Path, *options: str) -> None:
    fetch("apt", "apt-get", *options, "download", package, cwd=scratch, seconds=PATIENCE)


def _own_lists(scratch: Path) -> Sequence[str]:
    """Return the options with which apt keeps its lists in a folder, where it needs no root."""
    for each in ("state/lists/partial", "cache/archives/partial"):
        (scratch / each).mkdir(parents=True)
    settings = {
        "Dir::State": f"{scratch}/state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": f"{scratch}/cache",
        "APT::Sandbox::User": "",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]

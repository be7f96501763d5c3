"""The wheel and the sdist, and environments in which they are installed as their users do it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from support.documents import ROOT
from support.tools import TOOLS, MissingError, build, fetch

ENV: Final = ("env", "-u", "PYTHONPATH", "-u", "VIRTUAL_ENV")
"""Before a program that shall import nothing of the tests or of the checkout."""


def uv() -> str:
    """Return the path of uv. Raises MissingError."""
    found = shutil.which("uv") or shutil.which("uv", path=TOOLS / "uv" / "bin")
    if found is None:
        raise MissingError("uv is missing (./run test fetches it)")
    return found


def build_packages(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the sdist with the hatchling of our own environment, without a network; return both."""
    options = ("--offline", "--no-build-isolation", "--python", sys.executable)
    build(uv(), "build", *options, "--out-dir", folder, source, cwd=folder)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def changed_sources(folder: Path, dependency: str) -> Path:
    """Copy what a build needs, with a name `CHANGED` in the package and one more dependency; return the folder.

    The version stays, as it does between two releases.
    """
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "deploy/systemd"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "src" / "restante" / "__init__.py").open("a") as file:
        file.write("CHANGED = True\n")
    project = folder / "pyproject.toml"
    before = project.read_text()
    after = before.replace("\ndependencies = [\n", f'\ndependencies = [\n    "{dependency}",\n')
    assert after != before
    project.write_text(after)
    return folder


def write_constraints(folder: Path) -> Path:
    """Write the versions of uv.lock, as constraints."""
    file = folder / "constraints.txt"
    options = ("--frozen", "--all-extras", "--no-hashes", "--no-emit-project", "--quiet")
    build(uv(), "export", *options, "--project", ROOT, "--output-file", file, cwd=folder)
    return file


def install(package: Path, folder: Path, extras: str = "") -> Path:
    """Install the package and its extras into a new environment; return its folder of programs. Raises MissingError.

    The versions are those of uv.lock.
    """
    folder.mkdir(parents=True)
    environment = folder / "environment"
    build(uv(), "venv", "--quiet", "--python", sys.executable, environment, cwd=folder)
    wanted = f"restante[{extras}] @ {package.as_uri()}" if extras else f"restante @ {package.as_uri()}"
    into = ("--python", environment / "bin" / "python", "--constraint", write_constraints(folder))
    fetch("uv", uv(), "pip", "install", "--quiet", *into, wanted, cwd=folder)
    return environment / "bin"


def program(folder: Path) -> tuple[str, ...]:
    """Return the words that call the `restante` of an environment's folder of programs."""
    return (*ENV, str(folder / "restante"))

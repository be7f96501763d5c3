"""The extras of the package: which of them are installed, and how to install one that a command needs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse

MODULES: Final = {"client": ("nacl",), "waku": ("coincurve",), "pipeline": ("pyspark", "deltalake")}
"""For each extra the modules that show whether it is installed: nothing else of ours depends on them."""

INSTALLERS: Final = {"uv-receipt.toml": "uv tool install --force", "pipx_metadata.json": "pipx install --force"}
"""Files in the environments that uv and pipx make for one program, and the commands that add an extra there."""


def require_extra(extra: str) -> None:
    """Raise Misuse with the command that installs an extra, if it is not installed."""
    if _installed(extra):
        return
    prefix = Path(sys.prefix)
    for file, command in INSTALLERS.items():
        if (prefix / file).exists():  # these commands replace what is there: name the other extras, too
            named = ",".join(each for each in MODULES if each == extra or _installed(each))
            raise Misuse(f"this command needs the extra '{extra}': {command} 'restante[{named}]'")
    raise Misuse(f"this command needs the extra '{extra}': pip install 'restante[{extra}]'")


def _installed(extra: str) -> bool:
    return all(importlib.util.find_spec(module) for module in MODULES[extra])

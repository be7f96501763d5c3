"""The extras of the package: which of them are installed, and how to install one that is needed."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from restante.common.errors import Misuse

MODULES: Final = {
    "server": ("aiohttp", "prometheus_client", "structlog", "uvloop"),
    "postgres": ("asyncpg",),
    "waku": ("coincurve",),
    "extract": ("pyarrow", "numpy"),
    "pipeline": ("pyspark", "deltalake"),
    "leveldb": ("plyvel",),
}
"""For each extra the modules that show whether it is installed: nothing else of ours depends on them."""

INSTALLERS: Final = {"uv-receipt.toml": "uv tool install --force", "pipx_metadata.json": "pipx install --force"}
"""Files in the environments that uv and pipx make for one program, and the commands that add an extra there."""


def require_extra(extra: str) -> None:
    """Raise Misuse with the command that installs an extra, if it is not installed."""
    if not _is_installed(extra):
        raise Misuse(f"this command needs the extra '{extra}': {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra into this environment, from where Restante was installed."""
    prefix = Path(sys.prefix)
    for file, command in INSTALLERS.items():
        if (prefix / file).exists():  # these commands replace what is there: name the other extras, too
            return f"{command} {_requirement(*(name for name in MODULES if name == extra or _is_installed(name)))}"
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is not None:
        return f"{python} -m pip install {_requirement(extra)}"
    return f"{_uv()} pip install --python {python} {_requirement(extra)}"  # uv makes environments without pip


def _requirement(*extras: str) -> str:
    """Return the words that name Restante with extras.

    They name the file, the folder or the URL from which it was installed. They name the package only if it came from
    an index: on an index, somebody else may have registered this name.
    """
    origin, suffix = _origin(), f"[{','.join(extras)}]"
    if not origin:
        return shlex.quote(f"restante{suffix}")
    url = origin["url"]
    if url.startswith("file:"):
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return editable + shlex.quote(unquote(urlsplit(url).path) + suffix)
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return shlex.quote(f"restante{suffix} @ {url}")


def _uv() -> str:
    """Return the program uv: the one that `./run` has fetched into the checkout if there is no other."""
    own_uv = Path(sys.prefix).parent / ".tools" / "uv" / "bin" / "uv"
    return shlex.quote(str(own_uv)) if shutil.which("uv") is None and own_uv.exists() else "uv"


def _origin() -> dict[str, Any]:
    """Return from where Restante was installed (PEP 610); nothing if it was an index."""
    import json  # here, because most commands need none of this
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution("restante").read_text("direct_url.json")
    except PackageNotFoundError:  # its folder is on the path, and it is not installed
        return {}
    return json.loads(text) if text else {}


def _is_installed(extra: str) -> bool:
    return all(importlib.util.find_spec(module) for module in MODULES[extra])

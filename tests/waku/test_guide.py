"""The guide to the library runs."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

GUIDE = Path(__file__).parent.parent.parent / "docs" / "waku" / "library.md"


def test_every_example_of_the_guide_prints_what_it_shows() -> None:
    results = doctest.testfile(str(GUIDE), module_relative=False)
    assert results.failed == 0
    assert results.attempted == len(re.findall(r"^>>> ", GUIDE.read_text(), re.MULTILINE)) > 30


def test_every_name_that_the_library_has_is_in_the_guide() -> None:
    guide = GUIDE.read_text()
    for name in (
        *("SymmetricKey", "from_password", "topic_of", "seal(", "open_sealed(", "WrongKeyError", "UnreadableError"),
        *("make(", "parse(", "mine(", "hashes(", "NotMined", "judge(", "Policy", "SystemDice"),
    ):
        assert name in guide, name

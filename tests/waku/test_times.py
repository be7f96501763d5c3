"""Times as people write them."""

from __future__ import annotations

import pytest

from restante.cli.times import read_time
from restante.common.errors import Misuse

NOW = 1_795_223_193


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("0", 0),
        ("1700000000", 1_700_000_000),
        ("-1s", NOW - 1),
        ("-90m", NOW - 5400),
        ("-24h", NOW - 86400),
        ("-7d", NOW - 7 * 86400),
        ("2023-11-14T22:13:20", 1_700_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000),
        ("2023-11-14", 1_699_920_000),
    ],
)
def test_every_form_of_a_time_is_read(text: str, expected: int) -> None:
    assert read_time(text, NOW, "--from") == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "24h", "1.5", "-99999999999s", "4294967296", "1969-12-31", "2200-01-01", "٣"]
)
def test_a_text_that_is_no_time_is_misuse(text: str) -> None:
    with pytest.raises(Misuse, match=r"--to: '.*' is not a time"):
        read_time(text, NOW, "--to")

"""Which names of a peer's files are used, and how errors show the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante.client.errors import UnsafeNameError
from restante.client.files.names import MAX_NAME_BYTES, file_name, shown

LEGAL = [
    *(
        "a",
        "notes.txt",
        "-rf",
        ".bashrc",
        "...",
        "trailing ",
        "trailing.",
        "50%",
        "a:b",
        "C:",
        "console",
        "~",
        "$HOME",
    ),
    *("Übung", "Отчёт.pdf", "年度報告.docx", "گزارش\u200cها", "דוח\u200f.txt"),  # noqa: RUF001
    *("รายงาน", "👩\u200d🚀.png", "e\u0301", "a\u00a0b", "com10", "auxiliary", "con-text", "\ue000"),
    *("a" * MAX_NAME_BYTES, "é" * 127),
]

PATHS = ("/etc/passwd", "a/b", "../x", "a/", "~/.ssh/authorized_keys", "..\\x", "C:\\x", "\\\\host\\share", "a\\")
CONTROLS = "\0\a\n\r\t\x1b\x7f\x85\x9b\u2028\u2029\u202a\u202e\u2066\u2069"
INVISIBLE = (" ", "\u00a0\u2003", "\u200b", "\U000e0001", "\u3164", "\u2800 \u115f")
DEVICES = ("CON", "nul", "NUL.txt", "aux.tar.gz", "Com1", "LPT9.", "COM\xb9", "con ", "CONIN$")

UNSAFE = [
    ("", "is empty"),
    *((name, "means a directory") for name in (".", "..")),
    *((name, "is a path") for name in PATHS),
    *((f"a{control}b", "control") for control in CONTROLS),
    *((name, "control") for name in ("\x1b[2J\x1b]0;owned\a", "invoice\u202efdp.exe")),
    *((name, "no visible character") for name in INVISIBLE),
    *((name, "longer than 255 bytes") for name in ("a" * 256, "é" * 128)),
    *((name, "not UTF-8") for name in ("\udcff", "\ud83d")),
    *((name, "device") for name in DEVICES),
]


@pytest.mark.parametrize("name", LEGAL)
def test_a_name_in_any_script_is_used_as_it_is(name: str) -> None:
    assert file_name(name) == name


@pytest.mark.parametrize(("name", "why"), UNSAFE)
def test_an_unsafe_name_is_refused_in_one_printable_sentence(name: str, why: str) -> None:
    with pytest.raises(UnsafeNameError, match=why) as refused:
        file_name(name)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


@given(st.text(st.characters()))
def test_every_text_is_a_name_or_refused(text: str) -> None:
    try:
        assert file_name(text) == text
    except UnsafeNameError as error:
        assert str(error).isprintable()  # noqa: PT017 - not every text is refused
    else:
        assert 0 < len(text.encode()) <= MAX_NAME_BYTES
        assert not set("/\\\0\n\x1b") & set(text)


def test_a_name_is_shown_with_escapes_and_not_at_any_length() -> None:
    assert shown("a\x1b[0m\u202e\udcffé") == r"'a\x1b[0m\u202e\udcffé'"
    assert shown("x" * 5000) == f"'{'x' * 80}…'"

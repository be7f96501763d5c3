"""The text of a frame, which stays UTF-8 if it is long."""

from __future__ import annotations

import codecs
from typing import Final

MAX_DECODED_TEXT_BYTES: Final = 256 * 1024
"""Bytes of a text beyond which it stays UTF-8 and does not become a str. One emoji makes a str four times as large:
to parse and store 2 MiB took 25 ms. A short message (parsing.MAX_SHORT_MESSAGE_CHARACTERS) is never longer."""

CHECKED_BYTES: Final = 32 * 1024
"""Bytes of a long text that are decoded at a time to check that they are UTF-8. To decode 2 MiB at once took 5 ms."""

FrameText = str | bytes
"""The text of a frame. If it is bytes, they are valid UTF-8."""


def text_of(payload: bytes | bytearray) -> FrameText:
    """Return the text of a frame. Raises UnicodeDecodeError if the payload is not UTF-8."""
    if len(payload) <= MAX_DECODED_TEXT_BYTES:
        return payload.decode()
    if not payload.isascii():
        _check_utf_8(payload)
    return bytes(payload)


def _check_utf_8(payload: bytes | bytearray) -> None:
    view, end, checked = memoryview(payload), len(payload), 0
    while checked < end:
        slice_end = checked + CHECKED_BYTES
        checked += codecs.utf_8_decode(view[checked:slice_end], "strict", slice_end >= end)[1]

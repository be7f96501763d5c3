"""The text of a frame, which stays UTF-8 if it is long."""

from __future__ import annotations

from typing import Final

MAX_DECODED_TEXT_BYTES: Final = 256 * 1024
"""Bytes of a text beyond which it stays UTF-8 and does not become a str. One emoji makes a str four times as large:
to parse and store 2 MiB took 25 ms. A short message (messages.MAX_SHORT_MESSAGE_CHARACTERS) is never longer."""

FrameText = str | bytes
"""The text of a frame. If it is bytes, they are valid UTF-8."""


def text_of(payload: bytes | bytearray) -> FrameText:
    """Return the text of a frame. Raises UnicodeDecodeError if the payload is not UTF-8."""
    if len(payload) <= MAX_DECODED_TEXT_BYTES:
        return payload.decode()
    if not payload.isascii():
        payload.decode()
    return bytes(payload)

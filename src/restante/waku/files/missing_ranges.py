"""Files of ranges: the times and topics of which a Mailserver lacks envelopes, as JSON.

`restante pipeline gaps` writes them, and `restante waku request --ranges` reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from restante.common.errors import Misuse, plain
from restante.common.texts import counted
from restante.waku.envelope.envelope import U32
from restante.waku.protocol.request import MAX_REQUEST_TOPICS

FORMAT_VERSION: Final = 1
"""The version of the format. A greater number means a later version of Restante."""

MAX_RANGES: Final = 1_000
"""Ranges in a file. Each takes a request of its own; `restante pipeline gaps` writes a tenth of this at most."""

MAX_TOPICS: Final = MAX_REQUEST_TOPICS
"""Topics of a range: as many as a request can name."""

MAX_FILE_BYTES: Final = 16 << 20
"""Bytes of a file, which is read into memory whole: MAX_RANGES ranges, each with MAX_TOPICS topics."""

MAX_HOLDERS: Final = 10_000
"""Names of holders in a range. The name is what an operator gave a source; no fleet has so many Mailservers."""

Seconds = Annotated[int, Meta(ge=0, le=U32)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
TopicText = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
SourceName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]


class MissingRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of times of which a Mailserver lacks envelopes."""

    lower: Seconds = msgspec.field(name="from")
    """Seconds since 1970; both ends are included."""
    upper: Seconds = msgspec.field(name="to")
    topics: Annotated[tuple[TopicText, ...], Meta(min_length=1, max_length=MAX_TOPICS)] | None
    """Eight hexadecimal digits each, sorted. None: all topics."""
    missing: Count
    """Envelopes that the Mailserver lacks; at most so many if the range was clipped."""
    holders: Annotated[tuple[SourceName, ...], Meta(max_length=MAX_HOLDERS)]
    """Sources that have at least one of them, sorted."""

    def describe(self) -> str:
        """Return the times and the topics, for a person."""
        if self.topics is None:
            topics = "all topics"
        elif len(self.topics) == 1:
            topics = f"topic {self.topics[0]}"
        else:
            topics = counted(len(self.topics), "topic")
        return f"{self.lower} to {self.upper}, {topics}"


class MissingRanges(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges of a Mailserver."""

    format: Literal["restante missing ranges"] = "restante missing ranges"
    version: Annotated[int, Meta(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    mailserver: SourceName
    missing: Count
    """The sum over the ranges."""
    ranges: Annotated[tuple[MissingRange, ...], Meta(max_length=MAX_RANGES)]
    """Sorted by time."""


class _Head(msgspec.Struct, frozen=True):
    """What every version of the format has."""

    format: Literal["restante missing ranges"]
    version: Annotated[int, Meta(ge=1)]


def write(ranges: MissingRanges) -> bytes:
    """Return the content of a file."""
    return msgspec.json.format(msgspec.json.encode(ranges)) + b"\n"


def read(path: Path) -> MissingRanges:
    """Read a file. Raises Misuse if it cannot be read, or is not a file of ranges of a version that is known."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Misuse(f"cannot read {path}: {plain(error)} (--ranges)") from error
    if len(content) > MAX_FILE_BYTES:
        raise Misuse(f"{path} is larger than any file of ranges, which has {MAX_FILE_BYTES >> 20} MiB (--ranges)")
    try:
        if msgspec.json.decode(content, type=_Head).version > FORMAT_VERSION:
            raise Misuse(
                f"{path} was made by a newer version of Restante: use that version, or a newer one (--ranges)"
            )
        missing = msgspec.json.decode(content, type=MissingRanges)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(
            f"{path} is not a file of `restante pipeline gaps`: {str(error).splitlines()[0]} (--ranges)"
        ) from None
    for number, range_ in enumerate(missing.ranges, 1):
        if range_.lower > range_.upper or not range_.upper:  # on the wire, an upper end of 0 means now
            raise Misuse(f"{path}: range {number} ends before it begins, or in 1970 (--ranges)")
    return missing

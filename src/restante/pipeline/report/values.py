"""A value of a report as people read it, as CSV and as JSON. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final

from restante.common.texts import in_one_line
from restante.common.units import duration
from restante.pipeline.report.model import Cell, ValueKind

MAX_CELL_CHARACTERS: Final = 160
"""Characters of a text that the page shows. Clients' texts have 128; a reason or a list of sources may have more. CSV
and JSON have all."""

INVISIBLE: Final = " \u200c\u200d"
"""Characters that `in_one_line` leaves, and show nothing without others: a reader must see that there is a text."""

_BYTE_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")

_COMPACT: Final = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def value_text(value: Cell, kind: ValueKind, absent: str = "?") -> str:
    """Return a value as people read it, in one line without control characters. None is the text `absent`."""
    if value is None:
        return absent
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number_text(value, kind)
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if isinstance(value, date):
        return value.isoformat()
    if not value:
        return "(empty)"
    text = in_one_line(value, MAX_CELL_CHARACTERS)
    return text if text.strip(INVISIBLE) else "(blank)"


def _number_text(value: float, kind: ValueKind) -> str:
    match kind:
        case ValueKind.SHARE:
            return share_text(value)
        case ValueKind.DURATION:
            return duration(value)
        case ValueKind.BYTES:
            return size_text(value)
        case ValueKind.AVERAGE:
            return average_text(value)
    return f"{value:,}"


def average_text(value: float) -> str:
    """Return an average with one decimal, such as 12.3. Only 0 is 0."""
    text = f"{value:,.1f}"
    return "<0.1" if text == "0.0" and value > 0 else text.removesuffix(".0") if value == 0 else text


def share_text(value: float) -> str:
    """Return a share in percent, such as 12.3 %. Only 0 is 0 % and only 1 is 100 %."""
    text = f"{100 * value:.1f}"
    if text == "0.0" and value > 0:
        return "<0.1 %"
    if text == "100.0" and value < 1:
        return ">99.9 %"
    return f"{text.removesuffix('.0') if value in {0, 1} else text} %"


def size_text(count: float) -> str:
    """Return a number of bytes, such as 1.2 MB."""
    scaled, unit = float(count), 0
    while scaled >= 999.5 and unit + 1 < len(_BYTE_UNITS):
        scaled, unit = scaled / 1000, unit + 1
    digits = f"{scaled:.0f}" if unit == 0 or scaled >= 99.95 else f"{scaled:.1f}"
    return f"{digits} {_BYTE_UNITS[unit]}"


def compact_text(count: float, kind: ValueKind = ValueKind.COUNT) -> str:
    """Return a round number of an axis in few characters, such as 25k."""
    if kind in {ValueKind.COUNT, ValueKind.AVERAGE, ValueKind.BYTES}:
        for unit, sign in _COMPACT:
            if count >= unit:
                return f"{count / unit:g}{sign}"
        return f"{count:g}"
    return value_text(count, kind)


def csv_text(value: Cell) -> str | None:
    """Return a value as the text of a field of CSV."""
    if isinstance(value, bool):
        return "true" if value else "false"
    written = json_value(value)
    return None if written is None else str(written)


def json_value(value: Cell) -> str | bool | int | float | None:
    """Return a value as JSON has it. Times are in UTC and in ISO 8601."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value

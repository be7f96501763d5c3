"""When a certificate expires. The ssl module shows that only for a peer's certificate, so it is read from the DER."""

from __future__ import annotations

import datetime as dt
import math
import re
import ssl
from typing import Final

_BLOCK: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


def expires(pem: str) -> float:
    """Return when the first certificate of a PEM text expires, in seconds since 1970; NaN if that cannot be read."""
    found = _BLOCK.search(pem)
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(found[0])) if found else math.nan
    except (ValueError, IndexError):
        return math.nan


def _not_after(der: bytes) -> float:
    """Read notAfter (RFC 5280 section 4.1)."""
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    if tag == _VERSION:  # it is optional; what was read else is the serial number
        _, _, rest = _element(rest)
    for _ in ("signature", "issuer"):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, after_not_before = _element(validity)
    tag, content, _ = _element(after_not_before)
    if tag not in {_UTC_TIME, _GENERALIZED_TIME}:
        raise ValueError(tag)
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # section 4.1.2.5.1: two digits of the year
        text = ("19" if text >= "50" else "20") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the content of the first element, and what follows it (X.690 section 8.1)."""
    size, start = data[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
    if start + size > len(data):
        raise ValueError(size)
    return data[0], data[start : start + size], data[start + size :]

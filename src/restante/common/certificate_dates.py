"""When a certificate expires, and its names. The ssl module shows them only for a peer's certificate.

So they are read from the DER.
"""

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
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_OCTET_STRING: Final = 0x04
_ALTERNATIVE_NAME: Final = bytes.fromhex("0603551d11")
"""The object identifier 2.5.29.17, subjectAltName."""


def expires(pem: str) -> float:
    """Return when the first certificate of a PEM text expires, in seconds since 1970; NaN if that cannot be read."""
    found = _BLOCK.search(pem)
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(found[0])) if found else math.nan
    except (ValueError, IndexError):
        return math.nan


def host_names(pem: str) -> list[str]:
    """Return the names of hosts of the first certificate of a PEM text, without those with a wildcard."""
    block = _BLOCK.search(pem)
    try:
        names = _dns_names(ssl.PEM_cert_to_DER_cert(block[0])) if block else []
    except (ValueError, IndexError):
        return []
    return [name for name in names if re.fullmatch(r"[A-Za-z0-9.-]{1,253}", name)]


def _dns_names(der: bytes) -> list[str]:
    """Read the names of subjectAltName (RFC 5280 section 4.2.1.6)."""
    rest, tag, extensions = _from_validity(der), 0, b""
    while tag != _EXTENSIONS:
        tag, extensions, rest = _element(rest)
    _, rest, _ = _element(extensions)
    while rest:
        _, extension, rest = _element(rest)
        if extension.startswith(_ALTERNATIVE_NAME):
            break
    else:
        return []
    value = extension[len(_ALTERNATIVE_NAME) :]
    tag = 0
    while tag != _OCTET_STRING:  # `critical` may come before it
        tag, names, value = _element(value)
    _, rest, _ = _element(names)
    dns_names = []
    while rest:
        tag, name, rest = _element(rest)
        if tag == _DNS_NAME:
            dns_names.append(name.decode("ascii"))
    return dns_names


def _from_validity(der: bytes) -> bytes:
    """Return the fields of a certificate from its validity on (RFC 5280 section 4.1)."""
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    if tag == _VERSION:  # it is optional; what was read else is the serial number
        _, _, rest = _element(rest)
    for _ in ("signature", "issuer"):
        _, _, rest = _element(rest)
    return rest


def _not_after(der: bytes) -> float:
    """Read notAfter."""
    _, validity, _ = _element(_from_validity(der))
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

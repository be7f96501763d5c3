"""The certificate of the server: read at the start, and again when its files change."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import math
import os
import re
import ssl
import time
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse, plain
from restante.common.logs import log

# ── when a certificate expires, and its names ────────────────────────────────────────────────────
# They are read from the DER: the ssl module returns them only for the certificate of a peer.

_BLOCK: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_OCTET_STRING: Final = 0x04
_ALTERNATIVE_NAME: Final = bytes.fromhex("0603551d11")
"""The object identifier 2.5.29.17, subjectAltName."""


CERTIFICATE_SECONDS: Final = 2
"""Seconds between looks at the files of the certificate."""


def expiry_time(pem: str) -> float:
    """Return when the first certificate of a PEM text expires, in seconds since 1970; NaN if that cannot be read."""
    block = _BLOCK.search(pem)
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(block[0])) if block else math.nan
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
    remaining, tag, extensions = _from_validity(der), 0, b""
    while tag != _EXTENSIONS:
        tag, extensions, remaining = _element(remaining)
    _, remaining, _ = _element(extensions)
    while remaining:
        _, extension, remaining = _element(remaining)
        if extension.startswith(_ALTERNATIVE_NAME):
            break
    else:
        return []
    value = extension[len(_ALTERNATIVE_NAME) :]
    tag = 0
    while tag != _OCTET_STRING:  # `critical` may come before it
        tag, names, value = _element(value)
    _, remaining, _ = _element(names)
    dns_names = []
    while remaining:
        tag, name, remaining = _element(remaining)
        if tag == _DNS_NAME:
            dns_names.append(name.decode("ascii"))
    return dns_names


def _from_validity(der: bytes) -> bytes:
    """Return the fields of a certificate from its validity on (RFC 5280 section 4.1)."""
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, remaining = _element(fields)
    if tag == _VERSION:  # it is optional; what was read else is the serial number
        _, _, remaining = _element(remaining)
    for _ in ("signature", "issuer"):
        _, _, remaining = _element(remaining)
    return remaining


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


# ── the certificate that is in use ───────────────────────────────────────────────────────────────

Stamp = tuple[tuple[int, int, int], ...]
"""What changes with the two files: inode, size and time of modification of each."""

NOT_PEM: Final = "they are not in PEM form"
NO_PAIR: Final = "they do not belong together"
REASONS: Final[dict[str | None, str]] = {
    None: NOT_PEM,
    "KEY_VALUES_MISMATCH": NO_PAIR,
    "KEY_TYPE_MISMATCH": NO_PAIR,
    "NO_CERTIFICATE_ASSIGNED": NO_PAIR,
    "NO_START_LINE": NOT_PEM,
    "BAD_BASE64_DECODE": NOT_PEM,
    "BAD_END_LINE": NOT_PEM,
    "PEM_LIB": NOT_PEM,
    "EE_KEY_TOO_SMALL": "the key is too short: use RSA of 2048 bits or more, or P-256",
}
"""What is wrong with the files, by the reason that OpenSSL gives (openssl/sslerr.h, pemerr.h, x509err.h). Python 3.11
has no name for some of those of PEM files."""


class ServerCertificate:
    """A certificate and its key. `context` is what new connections use, and `expires` when the certificate does.

    `names` are the hosts that the certificate is for.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read the files. Raises Misuse if they cannot be used."""
        self._files = certificate, key
        self._loaded = self._last_stamp = self._stamp()
        self.context, self.expires, self.names = self._read()
        if self.expires <= time.time():
            log.warning("the certificate has expired: clients refuse it", file=str(certificate))
        self._check: asyncio.Task[None] | None = None
        self._reload_requested = False
        """Whether `reload_soon` was called and the files were not read since."""

    def _read(self) -> tuple[ssl.SSLContext, float, list[str]]:
        """Read both files; return what they hold, when the certificate expires, and its names. Raises Misuse."""
        certificate, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make us repeat the expensive part for nothing
        context.num_tickets = 0  # no shipped client resumes a session of TLS 1.3, and two tickets cost 0.03 ms
        context.set_alpn_protocols(["http/1.1"])  # WebSockets over HTTP/2 are RFC 8441, which nobody here speaks
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
            text = certificate.read_text(errors="replace")
        except ssl.SSLError as error:
            fault = REASONS.get(error.reason, f"OpenSSL says {error.reason}")
            raise Misuse(f"{certificate} and {key} cannot be used: {fault} (--tls-cert, --tls-key)") from error
        except OSError as error:
            name = certificate if not os.access(certificate, os.R_OK) or certificate.is_dir() else key
            raise Misuse(f"cannot read {name}: {plain(error)} (--tls-cert, --tls-key)") from error
        except _EncryptedKeyError:
            raise Misuse(f"{key} is encrypted: remove its password, because nobody is there to type it") from None
        return context, expiry_time(text), host_names(text)

    def _read_again(self) -> tuple[ssl.SSLContext, float, list[str]]:
        """Read both files. Raises Misuse if they cannot be used, or if only the new certificate has expired."""
        context, expiry, names = self._read()
        if expiry <= time.time() < self.expires:
            raise Misuse(f"{self._files[0]} has expired (--tls-cert)")
        return context, expiry, names

    def _stamp(self) -> Stamp:
        """Return the stamp of those files that can be found. `_read` says what is wrong with the others."""
        statuses = []
        for file in self._files:
            with contextlib.suppress(OSError):
                statuses.append(file.stat())
        return tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses)

    def check_soon(self) -> None:
        """Begin a check, unless one is under way: the disk may hang. Call this every few seconds."""
        if self._check is None or self._check.done():
            self._check = asyncio.get_running_loop().create_task(self._check_and_reload())

    def reload_soon(self) -> None:
        """Begin to read the files again, if need be after the check that is under way."""
        self._reload_requested = True
        self.check_soon()

    async def _check_and_reload(self) -> None:
        await self.check()
        while self._reload_requested:
            self._reload_requested = False
            await self.reload()

    async def check(self) -> None:
        """Read the files again if they have changed and are not being written.

        They must be the same as at the last check. Files that cannot be used are logged, and the previous ones stay
        in use.
        """
        stamp = await asyncio.to_thread(self._stamp)
        is_stable, self._last_stamp = stamp == self._last_stamp, stamp
        if is_stable and stamp != self._loaded:
            await self.reload()

    async def reload(self) -> None:
        """Read the files again, now."""
        self._loaded = self._last_stamp = await asyncio.to_thread(self._stamp)
        try:
            self.context, self.expires, self.names = await asyncio.to_thread(self._read_again)
        except Misuse as error:
            log.error("the new certificate is not used; the previous one stays in use", error=str(error))
        else:
            log.info("the certificate was read again", file=str(self._files[0]))


def read_certificate(cert: str | None, key: str | None) -> ServerCertificate | None:
    """Return the certificate of a server from its files, or None without one. Raises Misuse."""
    return None if cert is None or key is None else ServerCertificate(Path(cert), Path(key))


class _EncryptedKeyError(Exception):
    """The key has a password."""


def _no_password() -> str:
    raise _EncryptedKeyError

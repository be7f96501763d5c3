"""Who may use the admin port: a token for ports that other machines reach, and checks of Host and Origin headers."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from restante.common.errors import Misuse, plain
from restante.common.settings import parse_address

MIN_TOKEN_CHARACTERS: Final = 16
"""Characters of a token. Shorter ones can be guessed: 16 hexadecimal digits have 64 bits."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def read_admin_token(admin: str, file: str | None) -> str | None:
    """Return the token of a file, or None if there is no file. `admin` is the setting --admin.

    Raises Misuse if the file cannot be read or has no good token, or if a port that is not on loopback has none.
    """
    if file is not None:
        return read_token(Path(file), "--admin-token-file")
    if admin != "off" and not _is_loopback(parse_address(admin, "--admin")[0]):
        raise Misuse(
            f"--admin {admin}: other machines could read it: name a file with a token (--admin-token-file),"
            " or listen on 127.0.0.1"
        )
    return None


def read_token(file: Path, flag: str) -> str:
    """Return the token of a file that a flag names. Raises Misuse if it cannot be read or has no good token."""
    try:
        token = file.read_text("ascii").strip()
    except OSError as error:
        raise Misuse(f"{flag} {file}: {plain(error)}") from error
    except ValueError:  # not ASCII
        token = ""
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise Misuse(
            f"{flag} {file}: a token has at least {MIN_TOKEN_CHARACTERS} printable ASCII characters"
            " and no spaces: make one with `openssl rand -hex 32`"
        )
    return token


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "0.0.0.0").is_loopback  # noqa: S104 - all interfaces
    except ValueError:
        return False


def known_host(header: str, names: Collection[str]) -> bool:
    """Return whether a Host header is an address or one of these names of ours, with a port or without.

    A name that anybody can point at this machine would let a web page read the admin port through the browser of
    somebody who can reach it (DNS rebinding).
    """
    parts = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]+)?", header)  # RFC 3986, 3.2.2
    name = (parts[1] or parts[2] or "").lower() if parts else ""
    if name == "localhost" or (name and name in map(str.lower, names)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(origin: str, host: str) -> bool:
    """Return whether an Origin header names the server as the Host header does, which `known_host` has accepted.

    A browser writes no port that is the scheme's own one (RFC 6454 section 6.2). A proxy may write it.
    """
    scheme = origin.partition(":")[0]
    default_port = _DEFAULT_PORTS.get(scheme)
    if default_port is None:
        return False
    try:
        urls = urlsplit(origin), urlsplit(f"{scheme}://{host}")
        page, server = ((url.hostname, url.port or default_port) for url in urls)
    except ValueError:  # not a URL
        return False
    return page == server


def authorized(header: str, token: str) -> bool:
    """Return whether an Authorization header has the token (RFC 6750 section 2.1)."""
    scheme, _, credentials = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        credentials.strip().encode(errors="surrogateescape"), token.encode()
    )

"""Passwords of Mailservers and of envelopes: from a file, or from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse, plain

PASSWORD_VARIABLE: Final = "RESTANTE_WAKU_PASSWORD"  # noqa: S105 - the name of a variable

OFFLINE_INBOX: Final = "status-offline-inbox"
"""The password of every Mailserver that was not told another (status-go params/config.go:68-146)."""


def read_password(path: Path | str | None, environment: Mapping[str, str]) -> str | None:
    """Read a password, from its file or the variable; None where neither is given.

    Raises Misuse, also for an empty one: it is a secret that did not arrive, and would be taken for none.
    """
    if path is not None:
        return password_in(path, "--password-file")
    password = environment.get(PASSWORD_VARIABLE)
    if password is not None:
        check_password(password, PASSWORD_VARIABLE)
    return password


def password_in(path: Path | str, flag: str) -> str:
    """Read a file's text, less the end of its line."""
    try:
        password = Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        words = plain(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise Misuse(f"cannot read {path}: {words} ({flag})") from error
    check_password(password, flag)
    return password


def check_password(password: str, flag: str) -> None:
    """Refuse a password that everybody knows."""
    if not password:
        raise Misuse(f"{flag}: it is empty, so that everybody could open what is sealed with it")

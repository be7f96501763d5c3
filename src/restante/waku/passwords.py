"""Passwords of Mailservers and of envelopes, from a file or from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from restante.common.errors import Misuse, plain

PASSWORD_VARIABLE: Final = "RESTANTE_WAKU_PASSWORD"  # noqa: S105 - the name of a variable

OFFLINE_INBOX: Final = "status-offline-inbox"
"""The default password of every Mailserver (status-go params/config.go:68-146)."""


def read_password(path: Path | str | None, environment: Mapping[str, str]) -> str | None:
    """Return the password of the file or of the variable; None without both.

    Raises Misuse, also for an empty password: then a secret was lost, and the program must not go on without one.
    """
    if path is not None:
        return read_password_file(path, "--password-file")
    password = environment.get(PASSWORD_VARIABLE)
    if password is not None:
        check_password(password, PASSWORD_VARIABLE)
    return password


def read_password_file(path: Path | str, flag: str) -> str:
    """Return a file's password: its text without the end of the line. `flag` is for errors. Raises Misuse."""
    try:
        password = Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = plain(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise Misuse(f"cannot read {path}: {reason} ({flag})") from error
    check_password(password, flag)
    return password


def check_password(password: str, flag: str) -> None:
    """Raise Misuse for an empty password."""
    if not password:
        raise Misuse(f"{flag}: it is empty, so anybody could open what is sealed with it")

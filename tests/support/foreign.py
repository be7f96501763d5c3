"""Programs of others that tests run: from the PATH, else from their Debian package, else the test is skipped."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from support.debian import Program, debian_programs
from support.tools import MissingError


def foreign(package: str, *programs: str) -> dict[str, Program]:
    """Return programs by name; skip the test if the machine has none and cannot get them."""
    found = _found(package, *programs)
    if isinstance(found, MissingError):
        pytest.skip(str(found))
    return found


@cache
def _found(package: str, *programs: str) -> dict[str, Program] | MissingError:
    """Look once in this process: without a network, to look takes a while."""
    try:
        return debian_programs(package, *programs)
    except MissingError as missing:
        return missing


def nginx() -> Program:
    return foreign("nginx", "nginx")["nginx"]


def haproxy() -> Program:
    return foreign("haproxy", "haproxy")["haproxy"]


def caddy() -> Program:
    return foreign("caddy", "caddy")["caddy"]


def chromium() -> Program:
    """Return Chromium, or another browser that is built from it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return Program(Path(path))
    return foreign("chromium", "chromium")["chromium"]

"""The server, relay and proxy of the commands: defaults < settings file < RESTANTE_CLIENT_* environment < flags.

The library does not read the file: a program names its server itself.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from restante.client.connection.server import ServerEndpoint
from restante.client.defaults import DEFAULT_SERVER, DEFAULT_TRANSIT_RELAY
from restante.client.transit.hints import parse_relay
from restante.common.errors import Misuse

PREFIX: Final = "RESTANTE_CLIENT_"

FILE: Final = "restante/client.toml"
"""The settings file, in $XDG_CONFIG_HOME."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
"""A name of a server or a relay: a key that TOML takes without quotes. It has no colon, which every URL has."""

PASSWORD: Final = re.compile(r"(?<=//)([^/?#:]*):[^/?#]*@")


class Key(NamedTuple):
    """A key of the file. Its flag is the same with --."""

    default: str
    table: str
    """The table of the file that has names for its URLs. Empty if there is none."""
    example: str


KEYS: Final = {
    "server": Key(DEFAULT_SERVER, "servers", "wss://example.org/v1"),
    "transit-relay": Key(DEFAULT_TRANSIT_RELAY, "relays", "tcp:example.org:4001"),
    "proxy": Key("", "", "socks5://example.org:1080"),
}
TABLES: Final = {key.table: name for name, key in KEYS.items() if key.table}


class SettingsFile(NamedTuple):
    """What the settings file says."""

    path: Path
    values: Mapping[str, str]
    """The keys that are set, each with a URL or a name."""
    urls: Mapping[str, Mapping[str, str]]
    """For each table the names and their URLs."""

    def url(self, key: str, value: str, origin: str) -> str:
        """Return the URL that a value names, or the value if it is a URL. Raises Misuse."""
        table = KEYS[key].table
        urls = self.urls.get(table, {})
        if value in urls:
            return urls[value]
        if urls and value and ":" not in value:
            from restante.common.settings import did_you_mean

            advice = did_you_mean(value, urls) or f"its names are {', '.join(urls)}"
            raise Misuse(f"{origin}: '{value}' is neither a URL nor a name in [{table}] of {self.path}: {advice}")
        return value


class ClientSettings(NamedTuple):
    """What the commands use, and the origins of the three values."""

    server: str
    transit_relay: str
    """Empty: this side uses no relay."""
    proxy: str | None
    origins: tuple[str, ...]
    file: SettingsFile


def resolve(
    server: str | None, transit_relay: str | None, proxy: str | None, environment: Mapping[str, str]
) -> ClientSettings:
    """Return the settings. Flags that were not given are None. Raises Misuse."""
    path = settings_path(environment)
    file = _read(path) if path is not None and _exists(path) else SettingsFile(path or Path(FILE), {}, {})
    urls, origins = [], []
    for (name, key), flag in zip(KEYS.items(), (server, transit_relay, proxy), strict=True):
        variable = PREFIX + name.upper().replace("-", "_")
        if flag is not None:
            value, origin = flag, f"--{name}"
        elif environment.get(variable):
            value, origin = environment[variable], variable
        elif name in file.values:
            value, origin = file.values[name], str(file.path)
        else:
            value, origin = key.default, "default"
        url = file.url(name, value, origin)
        _check(name, url)
        urls.append(url)
        origins.append(origin if url == value else f"{origin} ({value})")
    return ClientSettings(urls[0], urls[1], urls[2] or None, tuple(origins), file)


def settings_path(environment: Mapping[str, str]) -> Path | None:
    """Return where the settings file may be. None: this user has no home directory.

    A relative $XDG_CONFIG_HOME is ignored (XDG Base Directory Specification, "Environment variables").
    """
    folder = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():
        folder = Path(os.path.expanduser("~/.config"))  # noqa: PTH111 - Path's raises an error without a home
    return folder / FILE if folder.is_absolute() else None


def _exists(path: Path) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # reading it says why it cannot be read
    return True


def _read(path: Path) -> SettingsFile:
    """Read the settings file. Raises Misuse."""
    from restante.common.settings import did_you_mean, read_toml  # here, because most users have no such file

    content = read_toml(path, _own_text)
    for name, value in content.items():
        if name in TABLES and not isinstance(value, dict):
            raise Misuse(f"{path}: '{name}' must be a table, [{name}]")
        if name not in {*KEYS, *TABLES}:
            known = f"keys are {', '.join(KEYS)}; tables are {' and '.join(f'[{table}]' for table in TABLES)}"
            advice = did_you_mean(name, (*KEYS, *TABLES))
            raise Misuse(f"{path}: '{name}' is not known" + (f": {advice}" if advice else f"; {known}"))
    urls = {table: dict(_table(path, table, content.get(table, {}))) for table in TABLES}
    file = SettingsFile(path, {name: content[name] for name in KEYS if name in content}, urls)
    for name, value in file.values.items():
        if not isinstance(value, str):
            raise _not_a_url(path, name, name)
        _check_own(path, name, name, file.url(name, value, name))
    if PASSWORD.search(file.values.get("proxy", "")) and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise Misuse(f"other users may read the password in {path}: run chmod 600 {path}")
    return file


def _own_text(path: Path) -> str:
    """Return the text of the settings file. Raises Misuse if another user may have written it, or OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="utf-8") as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Misuse(f"{path} is not a file")
        if status.st_uid not in {0, os.geteuid()}:
            raise Misuse(f"{path} belongs to another user, who may name servers in it: make it yours, or remove it")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Misuse(f"other users may change {path}: run chmod go-w {path}")
        return file.read()


def _table(path: Path, table: str, urls: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of a table, and their URLs. Raises Misuse."""
    for name, url in urls.items():
        if name in KEYS:
            raise Misuse(f"{path}: '{name}' is in [{table}]: write it before the first table")
        if NAME.fullmatch(name) is None:
            raise Misuse(f"{path}: [{table}] has the name {name!r}: names have letters, digits, - and _")
        if not isinstance(url, str) or not url:
            raise _not_a_url(path, f"{table}.{name}", TABLES[table])
        _check_own(path, f"{table}.{name}", TABLES[table], url)
        yield name, url


def _check_own(path: Path, where: str, key: str, url: str) -> None:
    """Raise Misuse if the file has what is no URL for a key. The text does not have it: there may be a password."""
    try:
        _check(key, url)
    except Misuse:
        raise _not_a_url(path, where, key) from None
    if key == "server" and "@" in urlsplit(url).netloc:
        raise Misuse(f"{path}: {where} has a user or a password, which no mailbox server reads: leave it out")


def _not_a_url(path: Path, where: str, key: str) -> Misuse:
    return Misuse(f"{path}: {where} is not a URL like {KEYS[key].example}")


def _check(key: str, url: str) -> None:
    """Raise Misuse if a URL cannot be used for a key."""
    if key == "server":
        ServerEndpoint(url)
    elif key == "proxy" and url:
        ServerEndpoint(DEFAULT_SERVER, url)
    elif key == "transit-relay" and url:
        parse_relay(url)


def show(settings: ClientSettings, *, json: bool) -> None:
    """Print the settings with their origins, and the names of the file, without passwords."""
    from restante.common.settings import ResolvedSetting, as_json, as_toml

    proxy = settings.proxy and PASSWORD.sub(r"\1:***@", settings.proxy)
    values = zip(KEYS, (settings.server, settings.transit_relay, proxy), settings.origins, strict=True)
    path, tables = str(settings.file.path), settings.file.urls
    resolved = [ResolvedSetting(*setting) for setting in values]
    resolved += [
        ResolvedSetting(f"{table}.{name}", url, path) for table in tables for name, url in tables[table].items()
    ]
    print(as_json(resolved) if json else "\n".join(as_toml("", resolved)))

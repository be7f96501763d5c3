"""The server, relay and proxy of the commands: defaults < settings file < RESTANTE_CLIENT_* environment < flags.

The library does not read the file: a program names its server itself.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from restante.client.connection.server import check_proxy_url, check_server_url
from restante.client.defaults import DEFAULT_SERVER, DEFAULT_TRANSIT_RELAY
from restante.client.errors import ServerGoneError
from restante.client.transit.hints import parse_relay
from restante.common.errors import Misuse
from restante.common.texts import in_one_line, redacted_url

PREFIX: Final = "RESTANTE_CLIENT_"

FILE: Final = "restante/client.toml"
"""The settings file, in $XDG_CONFIG_HOME."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
"""A name of a server or a relay: a key that TOML takes without quotes. It has no colon, which every URL has."""

TABLE: Final = re.compile(r"^[ \t]*\[([^][\n]*)\]", re.MULTILINE)
"""A table of a TOML file. With `[server]` beside the key `server` it is no TOML: names are checked before."""


class Key(NamedTuple):
    """A key of the file. Its flag is the same with --."""

    default: str
    table: str
    """The table of the file that has names for its URLs. Empty if there is none."""
    check: Callable[[str], object]
    """Raises Misuse if a URL cannot be used. An empty one is no relay or no proxy."""


KEYS: Final = {
    "server": Key(DEFAULT_SERVER, "servers", check_server_url),
    "transit-relay": Key(DEFAULT_TRANSIT_RELAY, "relays", lambda url: parse_relay(url) if url else None),
    "proxy": Key("", "", lambda url: check_proxy_url(url) if url else None),
}
TABLES: Final = {key.table: name for name, key in KEYS.items() if key.table}


class SettingsFile(NamedTuple):
    """What the settings file says."""

    path: Path
    values: Mapping[str, str]
    """The keys that are set, each with a URL or a name."""
    urls: Mapping[str, Mapping[str, str]]
    """For each table the names and their URLs."""

    exists: bool = True

    def url(self, key: str, value: str, origin: str) -> str:
        """Return the URL that a value names, or the value if it is a URL. Raises Misuse that names the origin."""
        table = KEYS[key].table
        urls = self.urls.get(table, {})
        if value in urls:
            return urls[value]
        if table and NAME.fullmatch(value):
            from restante.common.settings import did_you_mean

            names = f"its names are {', '.join(urls)}" if urls else "it has no names"
            advice = (did_you_mean(value, urls) or names) if self.exists else "there is no such file"
            file = "" if origin.startswith(f"{self.path}: ") else f" of {self.path}"
            raise Misuse(f"{origin}: '{value}' is neither a URL nor a name in [{table}]{file}: {advice}")
        _check(key, value, origin)
        return value


class ClientSettings(NamedTuple):
    """What the commands use, and the origins of the three values."""

    server: str
    transit_relay: str
    """Empty: this side uses no relay."""
    proxy: str | None
    origins: tuple[str, ...]
    file: SettingsFile

    @contextmanager
    def origins_named(self, server: str) -> Iterator[None]:
        """Name the origins of the URLs in the error of a server that cannot be used, unless they were typed."""
        try:
            yield
        except ServerGoneError as error:
            used = {"server": self.origins[0] if server == self.server else "", "proxy": self.origins[2]}
            origins = [f"{key} from {origin}" for key, origin in used.items() if PREFIX in origin or "/" in origin]
            if not origins:
                raise
            raise type(error)(f"{error} ({', '.join(origins)})") from error


def resolve(
    server: str | None, transit_relay: str | None, proxy: str | None, environment: Mapping[str, str]
) -> ClientSettings:
    """Return the settings. Flags that were not given are None. Raises Misuse."""
    path = settings_path(environment)
    file = (
        _read(path) if path is not None and _exists(path) else SettingsFile(path or Path(FILE), {}, {}, exists=False)
    )
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

    content = read_toml(path, _own_text, " (XDG_CONFIG_HOME may name another directory)")
    for name, value in content.items():
        if name in TABLES and not isinstance(value, dict):
            raise Misuse(f"{path}: '{name}' must be a table, [{name}]")
        if name not in {*KEYS, *TABLES}:
            advice = did_you_mean(name, (*KEYS, *TABLES)) or f"keys are {', '.join(KEYS)}"
            raise Misuse(f"{path}: '{name}' is not known: {advice}")
    urls = {table: dict(_table(path, table, content.get(table, {}))) for table in TABLES}
    file = SettingsFile(path, {name: content[name] for name in KEYS if name in content}, urls)
    for name, value in file.values.items():
        _check_text(value, f"{path}: {name}")
        file.url(name, value, f"{path}: {name}")
    if urlsplit(file.values.get("proxy", "")).password and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise Misuse(f"other users may read the password in {path}: run chmod 600 {path}")
    return file


def _own_text(path: Path) -> str:
    """Return the text of the settings file.

    Raises Misuse if another user may have written it, or a table has an unknown name; or OSError.
    """
    from restante.common.settings import did_you_mean

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Misuse(f"{path} is a link to nothing: remove it, or create the file that it names") from None
    with open(descriptor, encoding="utf-8") as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Misuse(f"{path} is not a file")
        if status.st_uid not in {0, os.geteuid()}:
            raise Misuse(f"{path} belongs to another user, who may name servers in it: make it yours, or remove it")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Misuse(f"other users may change {path}: run chmod go-w {path}")
        text = file.read()
    for match in TABLE.finditer(text):
        name = match[1].strip(" \t'\"")
        if name not in TABLES:
            tables = [f"[{table}]" for table in TABLES]
            advice = did_you_mean(f"[{name}]", tables) or f"tables are {' and '.join(tables)}"
            raise Misuse(f"{path}: [{name}] is not known: {advice}")
    return text


def _table(path: Path, table: str, urls: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of a table, and their URLs. Raises Misuse."""
    for name, url in urls.items():
        if name in KEYS:
            raise Misuse(f"{path}: '{name}' is in [{table}]: write it before the first table")
        if NAME.fullmatch(name) is None:
            raise Misuse(f"{path}: [{table}] has the name {name!r}: names have letters, digits, - and _")
        origin = f"{path}: {table}.{name}"
        _check_text(url, origin)
        _check(TABLES[table], url, origin)
        yield name, url


def _check_text(value: object, origin: str) -> None:
    """Raise Misuse if the file has another value than a text."""
    if not isinstance(value, str):
        raise Misuse(f"{origin} is not a text: write a URL in quotes")


def _check(key: str, url: str, origin: str) -> None:
    """Raise Misuse, which begins with the origin, if a URL cannot be used for a key."""
    try:
        KEYS[key].check(url)
    except Misuse as error:
        raise Misuse(f"{origin}: {error}") from None


def show(settings: ClientSettings, *, json: bool) -> None:
    """Print the settings with their origins, and the names of the file, without passwords."""
    from restante.common.settings import ResolvedSetting, as_json, as_toml

    proxy = settings.proxy and redacted_url(settings.proxy)
    values = zip(KEYS, (settings.server, settings.transit_relay, proxy), settings.origins, strict=True)
    path, tables = str(settings.file.path), settings.file.urls
    resolved = [ResolvedSetting(*setting) for setting in values]
    resolved += [
        ResolvedSetting(f"{table}.{name}", url, path) for table in tables for name, url in tables[table].items()
    ]
    absent = [] if settings.file.exists else [f"# There is no settings file {in_one_line(path)}"]
    print(as_json(resolved) if json else "\n".join((*absent, *as_toml("", resolved))))

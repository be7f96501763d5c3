"""Settings: defaults < TOML file < RESTANTE_* environment < flags.

One struct per part; its fields are the whole truth about that part's options: the TOML table and the environment
variables are read from them, and the command line and `restante config show` list them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from restante.errors import Misuse


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """`restante serve`: table [serve] of the file, RESTANTE_<NAME> in the environment, --<name> as a flag."""

    data: Annotated[str, Meta(min_length=1)] = "restante-data"
    listen: str = "127.0.0.1:4000"
    admin: str = "127.0.0.1:4010"
    motd: str | None = None
    signal_error: str | None = None
    advertise_version: str | None = None
    no_list: bool = False
    frames: Literal["text", "binary"] = "text"
    blur_usage: Annotated[int, Meta(ge=0)] = 0
    keep_usage: Annotated[float, Meta(gt=0, le=36525)] | None = None
    prune_every: Annotated[float, Meta(ge=1)] = 300.0
    prune_after: Annotated[float, Meta(ge=1)] = 660.0
    log_format: Literal["auto", "console", "json"] = "auto"


class Source(msgspec.Struct, frozen=True):
    """A settled value and where it came from."""

    name: str
    value: Any
    source: str


TABLE: Final = "serve"
PREFIX: Final = "RESTANTE_"


def settle(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> tuple[Serve, list[Source]]:
    """Settle the options of `serve`; flags that were not given are None.

    Raises Misuse for an unknown key, a value of a wrong type and a file that cannot be read.
    """
    named = environment.get(f"{PREFIX}CONFIG")
    path = file or (Path(named) if named else None)
    table = read_file(path) if path else {}
    fields = {field.name: field for field in msgspec.structs.fields(Serve)}
    for key in table:
        if key not in fields:
            raise Misuse(f"{path}: [{TABLE}] has no key '{key}'; there are: {', '.join(fields)}")
    sources = []
    for name, field in fields.items():
        value, source = field.default, "default"
        if name in table:
            value = _convert(table[name], field.type, f"{path}: {name}", strict=True)
            source = str(path)
        variable = PREFIX + name.upper()
        if variable in environment:
            value, source = _convert(environment[variable], field.type, variable), variable
        if flags.get(name) is not None:
            flag = "--" + name.replace("_", "-")
            value, source = _convert(flags[name], field.type, flag), flag
        sources.append(Source(name, value, source))
    settings = Serve(**{each.name: each.value for each in sources})
    address(settings.listen, "--listen")
    if settings.admin != "off":
        address(settings.admin, "--admin")
    return settings, sources


def read_file(path: Path) -> dict[str, Any]:
    """Read the [serve] table of a TOML file."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--config)") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is not TOML: {error}") from error
    for key, value in content.items():
        if key != TABLE or not isinstance(value, dict):
            raise Misuse(f"{path}: '{key}' is not known; the only table is [{TABLE}]")
    table: dict[str, Any] = content.get(TABLE, {})
    return table


def _convert(value: Any, wanted: Any, name: str, *, strict: bool = False) -> Any:
    try:
        # strict=False reads the text of an environment variable: "660" as a number, "true" as a truth value
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        raise Misuse(f"{name}: {error}") from None


def address(text: str, flag: str) -> tuple[str | None, int]:
    """Read HOST:PORT, [IPV6]:PORT or *:PORT; a host of None is every interface."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Misuse(f"{flag}: '{text}' is not HOST:PORT, like 127.0.0.1:4000, [::1]:4000 or *:4000")
    return None if host == "*" else host, int(port)


def unusable(host: str | None, port: int, flag: str, error: OSError) -> Misuse:
    """Say why nothing can listen there, and which flag names another place."""
    # Look-ups that fail have (negative) numbers of their own.
    words = os.strerror(error.errno) if error.errno and error.errno > 0 else error
    return Misuse(f"cannot listen on {host or '*'}:{port}: {words} ({flag})")

"""Settings: defaults < TOML file < RESTANTE_* environment < flags.

One struct per part; its fields are the whole truth about that part's options: the TOML table and the environment
variables are read from them, and the command line and `restante config show` list them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from restante.errors import Misuse
from restante.mailbox.addresses import networks
from restante.mailbox.limits import Limits
from restante.mailbox.permission import MOST_BITS, Mode


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
    permission: Mode = "none"
    permission_bits: Annotated[int, Meta(ge=1, le=MOST_BITS)] = 20
    permission_load: Annotated[float, Meta(gt=0, le=1e6)] = 200.0
    trust_proxy: tuple[str, ...] = ()
    trace: Annotated[str, Meta(min_length=1)] | None = None
    log_format: Literal["auto", "console", "json"] = "auto"
    limits: Limits = Limits()


RELOADED: Final = frozenset({"motd", "signal_error", "permission", "permission_bits", "permission_load", "limits"})
"""What a running server takes from its file anew on SIGHUP."""


class Source(msgspec.Struct, frozen=True):
    """A settled value and where it came from."""

    name: str
    value: Any
    source: str
    fixed: bool = False
    """By a flag or the environment: the file has no say."""


class _Option(NamedTuple):
    """One value to be settled."""

    name: str
    type: Any
    default: Any
    table: str
    variable: str
    flag: str


TABLE: Final = "serve"
LIMITS: Final = "limits"
PREFIX: Final = "RESTANTE_"


def _options() -> list[_Option]:
    found = []
    for field in msgspec.structs.fields(Serve):
        if field.name != LIMITS:
            variable, flag = PREFIX + field.name.upper(), "--" + field.name.replace("_", "-")
            found.append(_Option(field.name, field.type, field.default, TABLE, variable, flag))
    for field in msgspec.structs.fields(Limits):
        variable, flag = f"{PREFIX}LIMIT_{field.name.upper()}", f"--limit {field.name}"
        found.append(_Option(field.name, field.type, field.default, LIMITS, variable, flag))
    return found


def settle(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> tuple[Serve, list[Source]]:
    """Settle the options of `serve`; flags that were not given are None. `limit` is a list of NAME=NUMBER.

    Raises Misuse for an unknown key, a value of a wrong type and a file that cannot be read.
    """
    named = environment.get(f"{PREFIX}CONFIG")
    path = file or (Path(named) if named else None)
    tables = read_file(path) if path else {}
    given = {(TABLE, name): value for name, value in flags.items() if value is not None}
    given |= {(LIMITS, name): value for name, value in _limits_given(flags.get("limit"))}
    settled: dict[str, dict[str, Any]] = {TABLE: {}, LIMITS: {}}
    sources = []
    for option in _options():
        value, source, fixed = option.default, "default", False
        table = tables.get(option.table, {})
        if option.name in table:
            value = _convert(table[option.name], option.type, f"{path}: {option.name}", strict=True)
            source = str(path)
        if option.variable in environment:
            value, source, fixed = environment[option.variable], option.variable, True
            if option.type is tuple[str, ...]:
                value = [part.strip() for part in value.split(",") if part.strip()]
            value = _convert(value, option.type, option.variable)
        if (option.table, option.name) in given:
            value = _convert(given[option.table, option.name], option.type, option.flag)
            source, fixed = option.flag, True
        settled[option.table][option.name] = value
        shown = option.name if option.table == TABLE else f"{LIMITS}.{option.name}"
        sources.append(Source(shown, value, source, fixed))
    settings = Serve(**settled[TABLE], limits=Limits(**settled[LIMITS]))
    _check(settings)
    return settings, sources


def _check(settings: Serve) -> None:
    address(settings.listen, "--listen")
    if settings.admin != "off":
        address(settings.admin, "--admin")
    try:
        networks(settings.trust_proxy)
    except ValueError as error:
        raise Misuse(f"--trust-proxy: {error}; write a network like 127.0.0.0/8 or fd00::/8") from error


def _limits_given(texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Read --limit NAME=NUMBER."""
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or name not in Limits.__struct_fields__:
            raise Misuse(f"--limit {text}: write NAME=NUMBER; names are {', '.join(Limits.__struct_fields__)}")
        yield name, value


def read_file(path: Path) -> dict[str, dict[str, Any]]:
    """Read the tables of a TOML file, [serve] and [serve.limits]; the latter as `limits`."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror} (--config)") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is not TOML: {error}") from error
    for key, value in content.items():
        if key != TABLE or not isinstance(value, dict):
            raise Misuse(f"{path}: '{key}' is not known; the only table is [{TABLE}]")
    table = dict(content.get(TABLE, {}))
    limits = table.pop(LIMITS, {})
    if not isinstance(limits, dict):
        raise Misuse(f"{path}: '{LIMITS}' is a table, [{TABLE}.{LIMITS}]")
    for keys, struct, shown in ((table, Serve, TABLE), (limits, Limits, f"{TABLE}.{LIMITS}")):
        for key in keys:
            if key not in struct.__struct_fields__:
                raise Misuse(
                    f"{path}: [{shown}] has no key '{key}'; there are: {', '.join(struct.__struct_fields__)}"
                )
    return {TABLE: table, LIMITS: limits}


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

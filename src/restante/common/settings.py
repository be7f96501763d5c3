"""Settings of servers: defaults < TOML file < RESTANTE_* environment < flags.

Each server has one struct. Its fields define the keys of the TOML table and the environment variables; the command
line and `restante config show` list them.
"""

from __future__ import annotations

import difflib
import errno
import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
import msgspec.inspect
from msgspec import Meta

from restante.common.errors import AddressInUse, Misuse, plain
from restante.common.net import host_and_port, parse_ip
from restante.common.texts import in_one_line

PREFIX: Final = "RESTANTE_"

PREFIXES: Final = (PREFIX, f"{PREFIX}RELAY_", f"{PREFIX}WAKU_")
"""Prefixes of each server's variables. A variable belongs to the server with the longest prefix that fits."""

OTHER_VARIABLES: Final = frozenset({f"{PREFIX}CONFIG", f"{PREFIX}LAKE", f"{PREFIX}WAKU_PASSWORD"}) | {
    f"{PREFIX}CLIENT_SERVER",
    f"{PREFIX}CLIENT_TRANSIT_RELAY",
    f"{PREFIX}CLIENT_PROXY",
}
"""Variables that commands read and that belong to no struct."""

KUBERNETES: Final = re.compile(r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?")
"""Endings of the variables that Kubernetes sets for a service, which may be called RESTANTE
(kubernetes.io/docs/concepts/services-networking/service, "Environment variables")."""

TABLES: Final = ("serve", "relay", "waku")
"""Tables of a file, one for each server. A server reads its own and ignores the others."""

LIMITS: Final = "limits"

S = TypeVar("S", bound=msgspec.Struct)

BYTE_ORDER_MARK: Final = "\ufeff"
"""What editors on Windows write before a text in UTF-8 (RFC 3629 section 6)."""

MAX_HOST_NAME: Final = 253
"""Characters of a host's name (RFC 1035, 2.3.4)."""


class Description(NamedTuple):
    """What the help and the guide say of a flag."""

    name: str
    metavar: str
    """Empty for a flag without a value."""
    text: str
    default: str = ""
    guide: str = ""
    """Sentences that only the guide has."""
    repeatable: bool = False

    @property
    def flag(self) -> str:
        """The name of the flag, with --."""
        return "--" + self.name.replace("_", "-")

    @property
    def help(self) -> str:
        """The text of `--help`."""
        return f"{self.text} Default: {self.default}." if self.default else self.text


def help_text(text: str, metavar: str = "", **extra: str) -> Meta:
    """Return the help of a field. A flag with choices needs no metavar. `default` may stand for an empty default."""
    return Meta(description=text, extra={"metavar": metavar, **extra} if metavar else extra)


def guide_text(text: str) -> Meta:
    """Return sentences about a field that only the guide has."""
    return Meta(extra={"guide": text})


def _default_text(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(default)
    if default is None or default is False or isinstance(default, msgspec.Struct):
        return ""
    return f"{default:.10g}" if isinstance(default, float) else str(default)


def _is_list(hint: Any) -> bool:
    return get_origin(_bare(hint)) is tuple


def _choices(hint: Any) -> str:
    kind = _bare(hint)
    choices = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return "|".join(get_args(choices)) if get_origin(choices) is Literal else ""


def _bare(hint: Any) -> Any:
    """Return a type without its annotations."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


NonEmpty = Annotated[str, Meta(min_length=1)]

DataDirectory = Annotated[
    NonEmpty,
    help_text("Data directory; created if it does not exist.", "DIR"),
    guide_text("Its parent must exist. One server at a time can use it."),
]

Listen = Annotated[
    tuple[str, ...],
    help_text(
        "Where clients connect: HOST:PORT, *:PORT for every interface, unix:PATH, or fd:N."
        " proxy: before it demands a PROXY header, plain: before it leaves TLS out.",
        "ADDRESS",
    ),
    guide_text("See [where the server listens](../mailbox/network.md#where-the-server-listens)."),
]

TlsCertificate = Annotated[
    NonEmpty | None,
    help_text("Certificate in PEM form, with the chain; clients then use wss://.", "FILE"),
    guide_text("See [TLS](../mailbox/network.md#tls)."),
]

TlsKey = Annotated[
    NonEmpty | None, help_text("Private key of the certificate, in PEM form, without password.", "FILE")
]

TrustProxy = Annotated[
    tuple[str, ...],
    help_text("Network of proxies whose headers name the client, like 127.0.0.0/8.", "NETWORK"),
    guide_text(
        "See [addresses of clients behind a proxy](../mailbox/network.md#addresses-of-clients-behind-a-proxy)."
    ),
]

KeepUsage = Annotated[
    Annotated[float, Meta(gt=0, le=36525)] | None,
    help_text("Delete usage records that are older than this.", "DAYS", default="keep all"),
]

Admin = Annotated[
    str,
    help_text("Address of health checks and metrics, over HTTP.", "HOST:PORT|off"),
    guide_text("It also has JSON pages and a dashboard ([monitoring](../monitoring.md))."),
]

AdminTokenFile = Annotated[
    NonEmpty | None,
    help_text(
        "File with the token that requests to the admin port must send; needed if it is not on loopback.", "FILE"
    ),
    guide_text("See [who can use the admin port](../monitoring.md#who-can-use-the-admin-port)."),
]

AdminHosts = Annotated[
    tuple[str, ...],
    help_text("Name of a host by which requests may reach the admin port, besides that of --admin.", "NAME"),
    guide_text("See [who can use the admin port](../monitoring.md#who-can-use-the-admin-port)."),
]

ReportsUrl = Annotated[
    Annotated[str, Meta(pattern=r"\Ahttps?://[^\s]+\Z", max_length=2000)] | None,
    help_text("Where the reports of the pipeline are, for a link in the dashboard.", "URL"),
    guide_text("For example `https://example.org/reports/`."),
]
"""An address that a dashboard links to. Another scheme, such as javascript, could run in the dashboard."""

LogFormat = Annotated[
    Literal["auto", "console", "json"],
    help_text("Format of the log; auto is console on a terminal, else json."),
]


class ResolvedSetting(msgspec.Struct, frozen=True):
    """The value of a setting and its origin."""

    name: str
    value: Any
    source: str
    fixed: bool = False
    """Whether a flag or the environment set it, so that the file cannot."""


class _Option(NamedTuple):
    """One option of a server."""

    name: str
    type: Any
    default: Any
    table: str
    variable: str
    flag: str

    @property
    def is_list(self) -> bool:
        return _is_list(self.type)


Origins = Mapping[str, str]
"""For each setting, its origin in errors: file and key, variable, or flag (also for a default)."""


class ServerSettings(Generic[S]):
    """The options of one server: its struct, its table and the prefix of its environment variables."""

    def __init__(
        self,
        table: str,
        settings: type[S],
        limits: type[msgspec.Struct],
        prefix: str,
        check: Callable[[S, Origins], None],
    ) -> None:
        self.table, self.settings, self.limits, self.prefix, self.check = table, settings, limits, prefix, check

    def options(self) -> Iterator[_Option]:
        """Yield each setting and each limit, with its variable and its flag."""
        for field in msgspec.structs.fields(self.settings):
            if field.name != LIMITS:
                variable, flag = self.prefix + field.name.upper(), "--" + field.name.replace("_", "-")
                yield _Option(field.name, field.type, field.default, self.table, variable, flag)
        for field in msgspec.structs.fields(self.limits):
            variable, flag = f"{self.prefix}LIMIT_{field.name.upper()}", f"--limit {field.name}"
            yield _Option(field.name, field.type, field.default, LIMITS, variable, flag)

    def descriptions(self) -> Iterator[Description]:
        """Yield the flags, in the order of the help."""
        config = f"TOML file with a table [{self.table}]; keys are the flags with _ in place of -."
        yield Description("config", "FILE", config)
        for field in msgspec.structs.fields(self.settings):
            name, repeatable = ("limit", True) if field.name == LIMITS else (field.name, _is_list(field.type))
            texts = {"metavar": _choices(field.type), "default": _default_text(field.default)}
            for meta in field.type.__metadata__:
                texts |= {"text": meta.description} if meta.description else {}
                texts |= meta.extra or {}
            if repeatable:
                texts["text"] = re.sub(r"\.(?= |$)", "; repeatable.", texts["text"], count=1)
            yield Description(name, repeatable=repeatable, **texts)

    def check_variables(self, environment: Mapping[str, str]) -> None:
        """Raise Misuse for a variable with our prefix that is no setting: its name is misspelt."""
        own_names = {option.variable.removeprefix(self.prefix) for option in self.options()}
        own_names |= {name.removeprefix(self.prefix) for name in OTHER_VARIABLES if name.startswith(self.prefix)}
        other_prefixes = tuple(prefix for prefix in PREFIXES if len(prefix) > len(self.prefix))
        for name in environment:
            if not name.startswith(self.prefix) or name.startswith(other_prefixes) or name in OTHER_VARIABLES:
                continue
            own_name = name.removeprefix(self.prefix)
            if own_name not in own_names and KUBERNETES.fullmatch(own_name) is None:
                advice = did_you_mean(own_name, own_names, self.prefix) or "unset it"
                raise Misuse(f"{name} in the environment is not a setting: {advice}")

    def read_file(self, path: Path) -> dict[str, dict[str, Any]]:
        """Read this server's table of a TOML file, and its table of limits as `limits`."""
        content = read_settings_file(path)
        for key, value in content.items():
            if key not in TABLES or not isinstance(value, dict):
                *tables, last_table = (f"[{name}]" for name in TABLES)
                raise Misuse(f"{path}: '{key}' is not known; tables are {', '.join(tables)} and {last_table}")
        table = dict(content.get(self.table, {}))
        limits = table.pop(LIMITS, {})
        if not isinstance(limits, dict):
            raise Misuse(f"{path}: '{LIMITS}' must be a table, [{self.table}.{LIMITS}]")
        options = [name for name in self.settings.__struct_fields__ if name != LIMITS]
        limit_names = self.limits.__struct_fields__
        for keys, names, similar_names, table_name in (
            (table, options, [f"{LIMITS}.{name}" for name in limit_names], self.table),
            (limits, limit_names, [], f"{self.table}.{LIMITS}"),
        ):
            for key in keys:
                if key not in names:
                    advice = did_you_mean(key, (*names, *similar_names)) or f"its keys are {', '.join(names)}"
                    raise Misuse(f"{path}: [{table_name}] has no key '{key}': {advice}")
        return {self.table: table, LIMITS: limits}


def read_settings_file(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises Misuse."""
    return read_toml(path, lambda path: path.read_text("utf-8"), " (--config)")


def read_toml(path: Path, read_text: Callable[[Path], str], advice: str = "") -> dict[str, Any]:
    """Return what a TOML file has. `advice` follows why it cannot be read. Raises Misuse."""
    try:
        return tomllib.loads(read_text(path).removeprefix(BYTE_ORDER_MARK))
    except OSError as error:
        raise Misuse(f"cannot read {path}: {plain(error)}{advice}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} is not TOML: {error}") from error
    except RecursionError:
        raise Misuse(f"{path} cannot be read: its lists or tables are nested too deeply") from None


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a question with the name that is most like a misspelt one; "" if none is."""
    similar = difflib.get_close_matches(name, names, 1)
    return f"did you mean {prefix}{similar[0]}?" if similar else ""


def parse_limits(names: Collection[str], texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the names and values of --limit NAME=NUMBER. Raises Misuse for an unknown name."""
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or name not in names:
            similar = did_you_mean(name, names) if equals else ""
            advice = similar or f"write NAME=NUMBER; names are {', '.join(names)}"
            raise Misuse(f"--limit {text}: {advice}")
        yield name, value


def settings_file(environment: Mapping[str, str], file: Path | None) -> Path | None:
    """Return the TOML file of --config, else that of RESTANTE_CONFIG, else None."""
    file_variable = environment.get(f"{PREFIX}CONFIG")
    return file or (Path(file_variable) if file_variable else None)


def resolve_settings(
    server: ServerSettings[S], flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> tuple[S, list[ResolvedSetting]]:
    """Return the settings of a server and the origin of each. Flags that were not given are None.

    `limit` is a list of NAME=NUMBER. Raises Misuse for an unknown key, a wrong type, or an unreadable file. The
    command line has refused unknown variables before.
    """
    path = settings_file(environment, file)
    tables = server.read_file(path) if path else {}
    flag_values = {(server.table, name): value for name, value in flags.items() if value is not None}
    flag_values |= {
        (LIMITS, name): value for name, value in parse_limits(server.limits.__struct_fields__, flags.get("limit"))
    }
    values: dict[str, dict[str, Any]] = {server.table: {}, LIMITS: {}}
    resolved, origins = [], {}
    for option in server.options():
        name = option.name if option.table == server.table else f"{LIMITS}.{option.name}"
        value, source, origin, fixed = option.default, "default", option.flag, False
        table = tables.get(option.table, {})
        if option.name in table:
            source, origin = str(path), f"{path}: {name}"
            value = table[option.name]
            if option.is_list and isinstance(value, str):
                value = [value]  # a list of one may be written without brackets
            value = convert(value, option.type, origin, strict=True)
        if option.variable in environment:
            value, source, fixed = environment[option.variable], option.variable, True
            origin = option.variable
            if option.is_list:
                value = [text.strip() for text in value.split(",") if text.strip()]
            value = convert(value, option.type, origin)
        if (option.table, option.name) in flag_values:
            value = convert(flag_values[option.table, option.name], option.type, option.flag)
            source, origin, fixed = option.flag, option.flag, True
        values[option.table][option.name] = value
        origins[name] = origin
        resolved.append(ResolvedSetting(name, value, source, fixed))
    settings = server.settings(**values[server.table], limits=server.limits(**values[LIMITS]))
    server.check(settings, origins)
    for setting in resolved:
        texts = setting.value if isinstance(setting.value, tuple) else (str(setting.value),)
        if "\0" in "".join(texts):
            raise Misuse(
                f"{origins[setting.name]}: {setting.value!r} has a NUL, which no path and no address may have"
            )
    return settings, resolved


def as_toml(table: str, resolved: Iterable[ResolvedSetting]) -> Iterator[str]:
    """Yield the lines of a TOML file with all settings, which are in a table or in none. A comment has their origins.

    Settings whose names have a prefix follow the others. Raises Misuse for a value that TOML cannot have.
    """
    last_prefix = ""
    if table:
        yield f"[{table}]"
    for setting in resolved:
        prefix, _, name = setting.name.rpartition(".")
        if prefix != last_prefix:
            last_prefix = prefix
            yield f"\n[{table}.{prefix}]" if table else f"\n[{prefix}]"
        if setting.value is None:
            yield f"# {name} is not set"
        else:
            yield f"{name:<24} = {_toml(setting):<24} # {in_one_line(setting.source)}"


def _toml(setting: ResolvedSetting) -> str:
    """Return a value as TOML, which is JSON but for `inf` and U+007F (toml.io/en/v1.0.0)."""
    if setting.value == math.inf:
        return "inf"
    text = json.dumps(setting.value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misuse(f"{setting.name} ({setting.source}) is not UTF-8, and TOML is: add --json") from None
    return text


def without_password(url: str) -> str:
    """Return the URL of a database with *** in place of a password (postgresql.org/docs/18/libpq-connect.html).

    A password that lacks percent-encoding is taken to end at the last @.
    """
    return re.sub(r"(?<=://)([^:]*:).+(?=@)|([?&](?:ssl)?password=)[^&]+", r"\1\2***", url)


def as_json(resolved: Iterable[ResolvedSetting]) -> str:
    """Return all settings, and the origin of each, as JSON. A number without end is null."""
    settings: dict[str, Any] = {}
    origins: dict[str, Any] = {}
    for setting in resolved:
        prefix, _, name = setting.name.rpartition(".")
        for values, value in ((settings, setting.value), (origins, setting.source)):
            (values.setdefault(prefix, {}) if prefix else values)[name] = None if value == math.inf else value
    return json.dumps({"settings": settings, "sources": origins})


def convert(value: Any, target: Any, name: str, *, strict: bool = False) -> Any:
    """Convert a value, which may be text, to a type. Raises Misuse that says what to write."""
    try:
        return msgspec.convert(value, target, strict=strict)
    except msgspec.ValidationError:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
        raise Misuse(f"{name}: {text} is not {_type_text(msgspec.inspect.type_info(target))}") from None


def _type_text(target: msgspec.inspect.Type) -> str:
    """Return what a value of a type looks like, for an error."""
    if isinstance(target, msgspec.inspect.Metadata):
        return _type_text(target.type)
    if isinstance(target, msgspec.inspect.UnionType):
        return _type_text(next(member for member in target.types if not isinstance(member, msgspec.inspect.NoneType)))
    if isinstance(target, msgspec.inspect.LiteralType):
        *choices, last_choice = map(str, target.values)
        return f"{', '.join(choices)} or {last_choice}"
    if isinstance(target, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return ("a whole number" if isinstance(target, msgspec.inspect.IntType) else "a number") + _range(target)
    if isinstance(target, msgspec.inspect.BoolType):
        return "true or false"
    if isinstance(target, msgspec.inspect.VarTupleType):
        item = target.item_type
        return "a list of strings" if isinstance(item, msgspec.inspect.StrType) else f"a list of {_type_text(item)}"
    return "a name" if isinstance(target, msgspec.inspect.StrType) and target.min_length else "a string"


def _range(number: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    low = f" from {number.ge}" if number.ge is not None else f" over {number.gt}" if number.gt is not None else ""
    high = f" to {number.le}" if number.le is not None else " up" if number.ge is not None else ""
    return low + high


def parse_address(text: str, flag: str) -> tuple[str | None, int]:
    """Parse HOST:PORT, [IPV6]:PORT or *:PORT. A host of None means every interface."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if not colon or not host or not is_port or (":" in host and parse_ip(host) is None):
        raise Misuse(f"{flag}: '{text}' is not HOST:PORT, like 127.0.0.1:4000, [::1]:4000 or *:4000")
    return None if host == "*" else host, int(port)


def check_host_names(names: Iterable[str], origin: str) -> None:
    """Check names of hosts, which have no port and no wildcard. Raises Misuse that begins with the origin."""
    for name in names:
        if len(name) > MAX_HOST_NAME or re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", name) is None:
            raise Misuse(f"{origin}: '{name}' is not the name of a host without a port, like relay.example.org")


def cannot_listen(address: str, flag: str, error: OSError) -> Misuse:
    """Return the error for an address that cannot be listened on. It names the flag."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"cannot listen on {address}: {plain(error)}: stop the program that listens there, or name another"
            f" address with {flag}"
        )
    return Misuse(f"cannot listen on {address}: {plain(error)} ({flag})")


def unusable_address(host: str | None, port: int, flag: str, error: OSError) -> Misuse:
    """Return the error for a host and port that cannot be listened on. It names the flag."""
    return cannot_listen(host_and_port(host or "*", port), flag, error)

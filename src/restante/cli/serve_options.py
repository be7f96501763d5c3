"""What the two servers' commands share: how options become settings, and what is done before a server starts."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from restante.common.errors import Misuse
from restante.common.settings import Part, Source, address, as_json, as_toml, resolve

ReadSettings = Callable[[], tuple[Any, list[Source]]]
"""Reads the settings of a server, and says where each comes from. Raises Misuse."""

LogFormat = Annotated[
    str | None,
    typer.Option(
        metavar="auto|console|json",
        help="Format of the log; auto is console on a terminal, else json. Default: auto.",
    ),
]


def data_directory(name: str | Path) -> Path:
    """Return the path that --data names. Raises Misuse for an empty name, which a Path takes for `.`."""
    if name == "":
        raise Misuse("--data is empty: name a directory")
    return Path(name)


AdminTokenFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="File with the token that requests to the admin port must send; needed if it is not on loopback.",
    ),
]

AdminHosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Name of a host by which requests may reach the admin port, besides that of --admin; repeatable.",
    ),
]

ReportsUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where the reports of the pipeline are, for a link in the dashboard."),
]


def with_options(
    declared: Callable[..., None], part: Callable[[], Part[Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the declared options, besides its own.

    The command is called with a function that reads the settings of a part, and with its own options.
    """

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        signature, own = inspect.signature(declared, eval_str=True), _own_options(run)

        @functools.wraps(declared)
        def command(*, config: Path | None = None, **flags: Any) -> None:
            own_flags = {name: flags.pop(name) for name in own}
            given = {name: None if value == [] else value for name, value in flags.items()}
            run(lambda: resolve(part(), given, os.environ, config), **own_flags)

        command.__doc__ = run.__doc__
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), *own.values()]
        )
        return command

    return decorate


def _own_options(run: Callable[..., None]) -> dict[str, inspect.Parameter]:
    _read_settings, *own = inspect.signature(run, eval_str=True).parameters.values()
    return {option.name: option for option in own}


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_settings(part: Part[Any], sources: list[Source], *, json: bool) -> None:
    """Print the settings and where each comes from, as TOML or JSON. Raises Misuse if TOML cannot have a value."""
    print(as_json(sources) if json else "\n".join(as_toml(part, sources)))


def prepare(settings: Any) -> None:
    """Check the addresses of a server, start its log, and let only the owner read what it writes. Raises Misuse.

    The addresses are tried before anything is created, but the server listens last: until the store is open, clients
    are refused and try again, while the kernel would let them wait. A program that takes an address in between leaves
    a new data directory without data.
    """
    from restante.common.listening import refuse_unusable, refuse_unusable_addresses

    refuse_unusable_addresses(settings.listen, "--listen", Path(settings.data))
    if settings.admin != "off":
        refuse_unusable(*address(settings.admin, "--admin"), "--admin")
    from restante.common import logs

    logs.start(settings.log_format)
    os.umask(0o077)

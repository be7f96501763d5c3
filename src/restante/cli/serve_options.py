"""What the two servers' commands share: how options become settings, and what is done before a server starts."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from restante.common.errors import Misuse
from restante.common.settings import Part, Source, address, resolve

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
) -> Callable[[Callable[[ReadSettings], None]], Callable[..., None]]:
    """Return a decorator that gives a command the declared options. The command reads the settings of a part."""

    def decorate(run: Callable[[ReadSettings], None]) -> Callable[..., None]:
        @functools.wraps(declared)
        def command(*, config: Path | None = None, **flags: Any) -> None:
            given = {name: None if value == [] else value for name, value in flags.items()}
            run(lambda: resolve(part(), given, os.environ, config))

        command.__doc__ = run.__doc__
        return command

    return decorate


def prepare(settings: Any) -> None:
    """Check the addresses of a server, start its log, and let only the owner read what it writes. Raises Misuse."""
    from restante.common.listening import refuse_unusable_addresses
    from restante.common.ports import refuse_unusable

    refuse_unusable_addresses(settings.listen, "--listen")
    if settings.admin != "off":
        refuse_unusable(*address(settings.admin, "--admin"), "--admin")
    from restante.common import logs

    logs.start(settings.log_format)
    os.umask(0o077)

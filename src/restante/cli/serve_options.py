"""What the two servers' commands share: how options become settings, and what is done before a server starts."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from restante.common.errors import Misuse
from restante.common.settings import (
    Description,
    ResolvedSetting,
    ServerSettings,
    as_json,
    as_toml,
    parse_address,
    resolve_settings,
)

ReadSettings = Callable[[], tuple[Any, list[ResolvedSetting]]]
"""Reads the settings of a server with their origins. Raises Misuse."""


def data_path(name: str | Path) -> Path:
    """Return the path that --data names. Raises Misuse for an empty name, which a Path takes for `.`."""
    if name == "":
        raise Misuse("--data is empty: name a directory")
    return Path(name)


def with_options(server: ServerSettings[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the flags of a server, besides its own.

    The command is called with a function that reads the server's settings, and with its own options.
    """
    options = [_option(description) for description in server.descriptions()]

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        _read_settings, *own_options = inspect.signature(run, eval_str=True).parameters.values()

        @functools.wraps(run)
        def command(*, config: str | None, **flags: Any) -> None:
            own_flags = {option.name: flags.pop(option.name) for option in own_options}
            values = {name: None if value == [] else value for name, value in flags.items()}
            run(
                lambda: resolve_settings(server, values, os.environ, None if config is None else Path(config)),
                **own_flags,
            )

        command.__signature__ = inspect.Signature([*options, *own_options])  # type: ignore[attr-defined]
        return command

    return decorate


def _option(description: Description) -> inspect.Parameter:
    """Return the option of a flag. Its value is text, which `resolve_settings` converts."""
    value: Any = bool if not description.metavar else list[str] if description.repeatable else str
    names = () if description.metavar else (description.flag,)  # else there would be --no-FLAG, too
    option = typer.Option(*names, metavar=description.metavar or None, help=description.help)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(description.name, keyword, default=None, annotation=Annotated[value | None, option])


JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_settings(server: ServerSettings[Any], resolved: list[ResolvedSetting], *, json: bool) -> None:
    """Print the settings and the origin of each, as TOML or JSON. Raises Misuse if TOML cannot have a value."""
    print(as_json(resolved) if json else "\n".join(as_toml(server.table, resolved)))


def prepare(settings: Any, listening: Collection[str] = ()) -> None:
    """Check the addresses of a server, start its log, and let only the owner read what it writes. Raises Misuse.

    The addresses are tried before anything is created, but the server listens last: until the store is open, clients
    are refused and try again, while the kernel would let them wait. A program that takes an address in between leaves
    a new data directory without data. On those of `listening` (`Head.listening`) this process listens already.
    """
    check_addresses(settings, listening)
    from restante.common import logs

    logs.start_log(settings.log_format)
    os.umask(0o077)


def check_addresses(settings: Any, listening: Collection[str] = ()) -> None:
    """Raise Misuse if a server cannot listen on an address of its settings. Those of `listening` are not tried."""
    from restante.common.handover import key_of_admin
    from restante.common.listening import refuse_unusable_address, refuse_unusable_addresses

    addresses = [address for address in settings.listen if address not in listening]
    if addresses or not settings.listen:
        refuse_unusable_addresses(addresses, "--listen", Path(settings.data))
    if settings.admin != "off" and key_of_admin(settings.admin) not in listening:
        refuse_unusable_address(*parse_address(settings.admin, "--admin"), "--admin")

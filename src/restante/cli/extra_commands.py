"""Commands that need an extra."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from typer.core import TyperGroup

from restante.common.extras import require_extra


def group_that_needs(extra: str) -> type[TyperGroup]:
    """Return the class of a group whose commands raise Misuse if an extra is not installed. Their help does not."""

    class Group(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for command in self.commands.values():
                if command.callback is not None:
                    command.callback = _with_check(extra, command.callback)

    return Group


def _with_check(extra: str, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def checked(*arguments: Any, **options: Any) -> Any:
        require_extra(extra)
        return run(*arguments, **options)

    return checked

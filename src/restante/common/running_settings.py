"""The settings of a running server, which SIGHUP reads again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from restante.common.errors import Misuse
from restante.common.logs import log
from restante.common.settings import LIMITS, ResolvedSetting

S = TypeVar("S", bound=msgspec.Struct)


ReadSettings = Callable[[], tuple[S, list[ResolvedSetting]]]
"""Reads the settings of a server again, with their origins."""


class RunningSettings(Generic[S]):
    """The settings of a running server."""

    def __init__(
        self,
        settings: S,
        read_settings: ReadSettings[S],
        *,
        reloaded: Collection[str],
        fixed_limits: Collection[str],
        apply: Callable[[S], None],
    ) -> None:
        """Keep the settings that a server was started with.

        `read_settings` reads them again, with their origins. `reloaded` are those that a running server can change,
        and `fixed_limits` the limits that it cannot. `apply` makes the server use new ones.
        """
        self.settings = settings
        self._read_settings = read_settings
        self._reloaded = reloaded
        self._fixed_limits = fixed_limits
        self._apply = apply

    def reload(self) -> None:
        """Read the settings again, and apply those that a running server can change. Log each change."""
        try:
            settings, sources = self._read_settings()
        except Misuse as error:
            log.error("the settings were not reloaded; the previous ones stay in effect", error=str(error))
            return
        any_change = False
        for source in sources:
            name, _, limit = source.name.partition(".")
            before, after = getattr(self.settings, name), getattr(settings, name)
            reloaded = name in self._reloaded and limit not in self._fixed_limits
            if reloaded and source.fixed:
                log.info("the setting is fixed; the file has no effect on it", setting=source.name, by=source.source)
            elif limit:
                before, after = getattr(before, limit), getattr(after, limit)
            if before != after:
                any_change = True
                event = "the setting has changed" if reloaded else "the setting needs a restart"
                log.info(event, setting=source.name, before=before, after=after)
        new_values: dict[str, Any] = {name: getattr(settings, name) for name in self._reloaded}
        limits = getattr(self.settings, LIMITS)
        fixed_limits = {limit: getattr(limits, limit) for limit in self._fixed_limits}
        new_values[LIMITS] = replace(getattr(settings, LIMITS), **fixed_limits)
        self.apply(replace(self.settings, **new_values))
        if not any_change:
            log.info("SIGHUP changed no setting; only those in the file of --config can change without a restart")

    def apply(self, settings: S) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self._apply(settings)

"""The settings of a running relay, which SIGHUP reads again."""

from __future__ import annotations

from restante.common.running_settings import ReadSettings, RunningSettings
from restante.relay.server.server import Server
from restante.relay.settings import RELOADED, RelayServe


class RelaySettings(RunningSettings[RelayServe]):
    """The settings of a running relay."""

    def __init__(self, settings: RelayServe, read_settings: ReadSettings[RelayServe], server: Server) -> None:
        super().__init__(
            settings,
            read_settings,
            reloaded=RELOADED,
            fixed_limits=(),
            apply=lambda new: server.apply_limits(new.limits),
        )
        self._server = server

    def reload(self) -> None:
        """Read the settings again, and the files of the certificate."""
        super().reload()
        if self._server.certificate is not None:
            self._server.certificate.reload_soon()

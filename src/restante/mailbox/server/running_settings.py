"""The settings of a running server, and how they change: SIGHUP, and the dashboard."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from restante.common.errors import Misuse
from restante.common.logs import log
from restante.common.net import parse_networks
from restante.common.running_settings import ReadSettings, RunningSettings
from restante.mailbox.core.admission import AdmissionTerms
from restante.mailbox.protocol.hashcash import MAX_BITS, Mode
from restante.mailbox.server.server import Server, WelcomeOptions
from restante.mailbox.server.trace import TraceFile
from restante.mailbox.settings import RELOADED, SHOWN_BY_CLIENTS, Serve, check_shown

LIMITS_FIXED_AT_START: Final = ("message_bytes", "handshake")
"""Limits that need a restart, because the listening sockets are created with them."""


MAX_MOTD_CHARACTERS: Final = 2000
"""Characters of a message of the day that the dashboard sets. It is sent to every client."""


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that the dashboard changes."""

    motd: Annotated[str, Meta(max_length=MAX_MOTD_CHARACTERS)] | UnsetType | None = UNSET
    permission: Mode | UnsetType = UNSET
    permission_bits: Annotated[int, Meta(ge=1, le=MAX_BITS)] | UnsetType = UNSET


def welcome_options(settings: Serve) -> WelcomeOptions:
    """Return the settings of the welcome."""
    return WelcomeOptions(
        motd=settings.motd,
        current_cli_version=settings.advertise_version,
        error=settings.signal_error,
    )


def admission_terms(settings: Serve) -> AdmissionTerms:
    """Return the terms on which connections are admitted."""
    return AdmissionTerms(
        mode=settings.permission,
        bits=settings.permission_bits,
        load=settings.permission_load,
        trusted=parse_networks(settings.trust_proxy, "--trust-proxy"),
    )


class MailboxSettings(RunningSettings[Serve]):
    """The settings of a running mailbox server. The dashboard changes some of them, until the next SIGHUP."""

    def __init__(
        self, settings: Serve, read_settings: ReadSettings[Serve], server: Server, trace_file: TraceFile | None = None
    ) -> None:
        super().__init__(
            settings,
            read_settings,
            reloaded=RELOADED,
            fixed_limits=LIMITS_FIXED_AT_START,
            apply=lambda new: server.apply_settings(welcome_options(new), admission_terms(new), new.limits),
        )
        self._server = server
        self._trace_file = trace_file

    def reload(self) -> None:
        """Read the settings again, and the files that they name."""
        super().reload()
        if self._trace_file is not None:
            self._trace_file.reopen()
        if self._server.certificate is not None:
            self._server.certificate.reload_soon()

    def changeable(self) -> dict[str, Any]:
        """Return the settings that `change` takes, with their values."""
        return {name: getattr(self.settings, name) for name in Changes.__struct_fields__}

    def change(self, values: dict[str, Any]) -> dict[str, Any]:
        """Change settings until the next SIGHUP or start, log each, and return them all. Raises Misuse."""
        try:
            changes = msgspec.convert(values, Changes)
        except msgspec.ValidationError as error:
            raise Misuse(f"the settings were not changed: {error}") from error
        new_values = {name: value for name, value in msgspec.structs.asdict(changes).items() if value is not UNSET}
        if new_values.get("motd") == "":
            new_values["motd"] = None
        settings = replace(self.settings, **new_values)
        check_shown(settings, {name: f"the settings were not changed: {name}" for name in SHOWN_BY_CLIENTS})
        for name, after in new_values.items():
            before = getattr(self.settings, name)
            if before != after:
                log.info("the setting has changed", setting=name, before=before, after=after, by="dashboard")
        self.apply(settings)
        return self.changeable()

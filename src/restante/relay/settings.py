"""Settings of `restante relay serve`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from restante.common.listening import check_network
from restante.common.settings import (
    PREFIX,
    Admin,
    AdminHosts,
    AdminTokenFile,
    DataDirectory,
    KeepUsage,
    Listen,
    LogFormat,
    ReportsUrl,
    ServerSettings,
    TlsCertificate,
    TlsKey,
    TrustProxy,
    guide_text,
    help_text,
)
from restante.relay.core.limits import Limits


class RelayServe(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `restante relay serve`: keys of [relay], variables RESTANTE_RELAY_<NAME>, flags --<name>."""

    data: DataDirectory = "restante-relay"
    listen: Listen = ("127.0.0.1:4001",)
    tls_cert: TlsCertificate = None
    tls_key: TlsKey = None
    admin: Admin = "127.0.0.1:4012"
    admin_token_file: AdminTokenFile = None
    admin_host: AdminHosts = ()
    reports_url: ReportsUrl = None
    blur_usage: Annotated[
        int,
        Meta(ge=0),
        help_text("Round times in usage records down to a multiple of this, and bytes up.", "SECONDS"),
        guide_text("Bytes are rounded to 10 kB below 1 MB, to 1 MB below 1 GB, else to 100 MB."),
    ] = 0
    keep_usage: KeepUsage = None
    trust_proxy: TrustProxy = ()
    drain: Annotated[
        float,
        Meta(ge=0, le=604_800),
        help_text("How long pairs may go on after SIGTERM.", "SECONDS"),
        guide_text(
            "A supervisor must wait longer before it kills the relay; systemd waits 90 s (`TimeoutStopSec=`)."
        ),
    ] = 60.0
    limits: Annotated[
        Limits,
        help_text("Set a limit; `restante relay config` lists them.", "NAME=NUMBER"),
        guide_text("See [limits](#limits)."),
    ] = Limits()
    log_format: LogFormat = "auto"


RELOADED: Final = frozenset({"limits"})
"""Settings that a running relay reloads from its file on SIGHUP."""

RELAY: Final = ServerSettings("relay", RelayServe, Limits, f"{PREFIX}RELAY_", check_network)

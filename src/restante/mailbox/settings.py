"""Settings of `restante serve`."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from restante.common.errors import Misuse
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
    NonEmpty,
    Origins,
    ReportsUrl,
    ServerSettings,
    TlsCertificate,
    TlsKey,
    TrustProxy,
    guide_text,
    help_text,
)
from restante.common.texts import unsuitable
from restante.mailbox.core.limits import Limits
from restante.mailbox.protocol.hashcash import MAX_BITS, Mode


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `restante serve`: keys of the table [serve], variables RESTANTE_<NAME>, flags --<name>."""

    data: DataDirectory = "restante-data"
    database: Annotated[
        NonEmpty | None,
        help_text("Keep the data in this PostgreSQL database, which several servers may share.", "URL"),
        guide_text("Then `--data` is refused, and `RESTANTE_DATA` is not used. See [a second host](standby.md)."),
    ] = None
    listen: Listen = ("127.0.0.1:4000",)
    tls_cert: TlsCertificate = None
    tls_key: TlsKey = None
    admin: Admin = "127.0.0.1:4010"
    admin_token_file: AdminTokenFile = None
    admin_host: AdminHosts = ()
    reports_url: ReportsUrl = None
    motd: Annotated[
        str | None,
        help_text("Message that clients show to their users.", "TEXT"),
        guide_text("Line breaks and tabs are its only control characters."),
    ] = None
    signal_error: Annotated[
        str | None, help_text("Clients show this message and give up; those that ignore it are still served.", "TEXT")
    ] = None
    advertise_version: Annotated[
        str | None, help_text("Clients older than this version tell their users to upgrade.", "VERSION")
    ] = None
    no_list: Annotated[
        bool,
        help_text("Answer `list` with no nameplates."),
        guide_text(
            "Then tab completion does not reveal which are in use."
            " Clients that look for a code in the list before they claim it (magic-wormhole.rs) fail."
        ),
    ] = False
    frames: Annotated[
        Literal["text", "binary"],
        help_text("Type of the frames that the server sends."),
        guide_text("`binary` is what the specification says. Every shipped client expects `text`."),
    ] = "text"
    blur_usage: Annotated[
        int, Meta(ge=0), help_text("Round times in usage records down to a multiple of this.", "SECONDS")
    ] = 0
    keep_usage: KeepUsage = None
    prune_every: Annotated[float, Meta(ge=1), help_text("Time between prunes.", "SECONDS")] = 300.0
    prune_after: Annotated[
        float, Meta(ge=1), help_text("Prune mailboxes that are not open and were not used for this long.", "SECONDS")
    ] = 660.0  # as in the reference server (server_tap.py:63, 0.8.0)
    permission: Annotated[
        Mode,
        help_text("When clients must show proof of work."),
        guide_text("See [permission](limits.md#permission)."),
    ] = "none"
    permission_bits: Annotated[
        int,
        Meta(ge=1, le=MAX_BITS),
        help_text(
            "Difficulty of the proof of work; each extra bit doubles it.", "BITS", guide=f"At most {MAX_BITS}."
        ),
    ] = 20
    permission_load: Annotated[
        float,
        Meta(gt=0, le=1e6),
        help_text("adaptive: new connections a second above which all clients must show work.", "RATE"),
        guide_text("The default is a tenth of what one core carries."),
    ] = 200.0
    trust_proxy: TrustProxy = ()
    limits: Annotated[
        Limits,
        help_text("Set a limit; `restante config show` lists them.", "NAME=NUMBER"),
        guide_text("See [limits](limits.md)."),
    ] = Limits()
    trace: Annotated[
        NonEmpty | None,
        help_text("Append the times of each command to this file.", "FILE"),
        guide_text("See [trace](#trace)."),
    ] = None
    log_format: LogFormat = "auto"


RELOADED: Final = frozenset({"motd", "signal_error", "permission", "permission_bits", "permission_load", "limits"})
"""Settings that a running server reloads from its file on SIGHUP."""


SHOWN_BY_CLIENTS: Final = ("motd", "signal_error")
"""Settings that clients show to their users. Some print them to a terminal as they are."""


def check_shown(settings: Serve, origins: Origins) -> None:
    """Raise Misuse if clients cannot show what they are told to show."""
    for name in SHOWN_BY_CLIENTS:
        if fault := unsuitable(getattr(settings, name) or ""):
            raise Misuse(f"{origins[name]}: {fault}")


def _check(settings: Serve, origins: Origins) -> None:
    check_shown(settings, origins)
    check_network(settings, origins)
    if settings.database is None:
        return
    if not is_postgres_url(settings.database):
        raise Misuse(f"{origins['database']}: write postgresql://USER@HOST/DATABASE")
    # The variable is set in the image of containers.
    if settings.data != Serve().data and origins["data"] != f"{PREFIX}DATA":
        raise Misuse(f"{origins['data']}: there is a database, too ({origins['database']}): name only one")


def is_postgres_url(text: str) -> bool:
    """Return whether a text begins as the URL of a PostgreSQL database."""
    try:
        return urlsplit(text).scheme in {"postgresql", "postgres"}
    except ValueError:  # brackets without an IPv6 address
        return False


SERVE: Final = ServerSettings("serve", Serve, Limits, PREFIX, _check)

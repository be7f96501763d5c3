"""Settings of `restante serve`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from restante.common.errors import Misuse
from restante.common.listening import checked_addresses
from restante.common.settings import PREFIX, Part, Places, ReportsUrl, check_host_names
from restante.common.texts import unsuitable
from restante.mailbox.core.limits import Limits
from restante.mailbox.protocol.hashcash import MAX_BITS, Mode


class Serve(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `restante serve`: keys of the table [serve], variables RESTANTE_<NAME>, flags --<name>."""

    data: Annotated[str, Meta(min_length=1)] = "restante-data"
    listen: tuple[str, ...] = ("127.0.0.1:4000",)
    tls_cert: Annotated[str, Meta(min_length=1)] | None = None
    tls_key: Annotated[str, Meta(min_length=1)] | None = None
    admin: str = "127.0.0.1:4010"
    admin_token_file: Annotated[str, Meta(min_length=1)] | None = None
    admin_host: tuple[str, ...] = ()
    reports_url: ReportsUrl | None = None
    motd: str | None = None
    signal_error: str | None = None
    advertise_version: str | None = None
    no_list: bool = False
    frames: Literal["text", "binary"] = "text"
    blur_usage: Annotated[int, Meta(ge=0)] = 0
    keep_usage: Annotated[float, Meta(gt=0, le=36525)] | None = None
    prune_every: Annotated[float, Meta(ge=1)] = 300.0
    prune_after: Annotated[float, Meta(ge=1)] = 660.0
    permission: Mode = "none"
    permission_bits: Annotated[int, Meta(ge=1, le=MAX_BITS)] = 20
    permission_load: Annotated[float, Meta(gt=0, le=1e6)] = 200.0
    trust_proxy: tuple[str, ...] = ()
    trace: Annotated[str, Meta(min_length=1)] | None = None
    log_format: Literal["auto", "console", "json"] = "auto"
    limits: Limits = Limits()


RELOADED: Final = frozenset({"motd", "signal_error", "permission", "permission_bits", "permission_load", "limits"})
"""Settings that a running server reloads from its file on SIGHUP."""


SHOWN_BY_CLIENTS: Final = ("motd", "signal_error")
"""Settings that clients show to their users. Some print them to a terminal as they are."""


def check_shown(settings: Serve, places: Places) -> None:
    """Raise Misuse if clients cannot show what they are told to show."""
    for name in SHOWN_BY_CLIENTS:
        if why := unsuitable(getattr(settings, name) or ""):
            raise Misuse(f"{places[name]}: {why}")


def _check(settings: Serve, places: Places) -> None:
    check_shown(settings, places)
    checked_addresses(settings.listen, settings.admin, settings.trust_proxy, places)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise Misuse(f"{places['tls_cert']} and {places['tls_key']} belong together: set both or neither")
    check_host_names(settings.admin_host, places["admin_host"])


SERVE: Final = Part("serve", Serve, Limits, PREFIX, _check)

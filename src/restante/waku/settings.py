"""Settings of `restante waku serve`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from restante.common.errors import Misuse
from restante.common.listening import checked_addresses
from restante.common.settings import PREFIX, Part, Places, ReportsUrl, check_host_names
from restante.waku.devp2p import enode
from restante.waku.limits import Limits

SECONDS_PER_DAY: Final = 86400

DEFAULT_RETENTION_DAYS: Final = 30.0
"""Days for which envelopes are kept by default."""


class WakuServe(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `restante waku serve`: keys of [waku], variables RESTANTE_WAKU_<NAME>, flags --<name>."""

    data: Annotated[str, Meta(min_length=1)] = "restante-waku"
    listen: tuple[str, ...] = ("127.0.0.1:30303",)
    trust_proxy: tuple[str, ...] = ()
    admin: str = "127.0.0.1:4011"
    admin_token_file: Annotated[str, Meta(min_length=1)] | None = None
    admin_host: tuple[str, ...] = ()
    reports_url: ReportsUrl | None = None
    key: Annotated[str, Meta(min_length=1)] | None = None
    min_pow: Annotated[float, Meta(ge=0, le=1e9)] = 2e-6
    max_ttl: Annotated[int, Meta(ge=1, le=2**31)] = 7 * SECONDS_PER_DAY
    retention: Annotated[float, Meta(ge=0, le=36525)] = DEFAULT_RETENTION_DAYS
    retention_bytes: Annotated[int, Meta(ge=1 << 20)] | None = None
    topics: tuple[str, ...] = ()
    requests: tuple[Literal["plain", "envelope"], ...] = ("plain", "envelope")
    order: Literal["asc", "desc"] = "asc"
    password_file: Annotated[str, Meta(min_length=1)] | None = None
    require_signature: bool = False
    allow: tuple[str, ...] = ()
    peer: tuple[str, ...] = ()
    max_peers: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    max_peers_per_address: Annotated[int, Meta(ge=1)] = 50
    log_format: Literal["auto", "console", "json"] = "auto"
    limits: Limits = Limits()


def read_topic(text: str, flag: str) -> bytes:
    """Parse a topic of 8 hexadecimal digits, with or without 0x. Raises Misuse."""
    try:
        topic = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        topic = b""
    if len(topic) != 4:
        raise Misuse(f"{flag}: '{text}' is not a topic, which has 8 hexadecimal digits, like cd423760")
    return topic


def _check(settings: WakuServe, places: Places) -> None:
    for listen in checked_addresses(settings.listen, settings.admin, settings.trust_proxy, places):
        if listen.plain and not listen.is_unix:
            raise Misuse(f"{places['listen']}: '{listen.text}': leave plain: out, since the node has no TLS")
    check_host_names(settings.admin_host, places["admin_host"])
    for name, enodes in (("peer", settings.peer), ("allow", settings.allow)):
        for url in enodes:
            try:
                enode.parse(url)
            except Misuse as error:
                raise Misuse(f"{places[name]}: {error}") from None
    for topic in settings.topics:
        read_topic(topic, places["topics"])


WAKU: Final = Part("waku", WakuServe, Limits, f"{PREFIX}WAKU_", _check)

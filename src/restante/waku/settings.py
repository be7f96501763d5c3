"""Settings of `restante waku serve`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from restante.common.errors import Misuse
from restante.common.listening import checked_addresses
from restante.common.settings import (
    PREFIX,
    Admin,
    AdminHosts,
    AdminTokenFile,
    LogFormat,
    NonEmpty,
    Origins,
    ReportsUrl,
    ServerSettings,
    check_host_names,
    guide_text,
    help_text,
)
from restante.waku.limits import Limits
from restante.waku.protocol.policy import MAX_TTL_SECONDS, MIN_POW

SECONDS_PER_DAY: Final = 86400

DEFAULT_DATA: Final = "restante-waku"
"""The data directory by default."""

DEFAULT_RETENTION_DAYS: Final = 30.0
"""Days for which envelopes are kept by default."""


class WakuServe(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `restante waku serve`: keys of [waku], variables RESTANTE_WAKU_<NAME>, flags --<name>."""

    data: Annotated[
        NonEmpty,
        help_text("Data directory; created if it does not exist.", "DIR"),
        guide_text("Its parent must exist. One node at a time can use it."),
    ] = DEFAULT_DATA
    listen: Annotated[
        tuple[str, ...],
        help_text(
            "Where peers connect: HOST:PORT, *:PORT for every interface, unix:PATH, or fd:N."
            " proxy: before it demands a PROXY header.",
            "ADDRESS",
        ),
        guide_text(
            "See [the forms](../mailbox/network.md#where-the-server-listens)"
            " and [PROXY headers](../mailbox/network.md#proxy-headers) of version 1 and 2."
        ),
    ] = ("127.0.0.1:30303",)
    trust_proxy: Annotated[
        tuple[str, ...],
        help_text("Network of proxies that send PROXY headers, like 127.0.0.0/8.", "NETWORK"),
        guide_text(
            "The header names the peer. Without it, or from another network, a connection to a `proxy:` address"
            " is closed and counted as `no proxy header` in the log of the minute. With `0.0.0.0/0` or `::/0` any"
            " peer can claim any address, and the node logs a warning if other machines reach it."
        ),
    ] = ()
    admin: Admin = "127.0.0.1:4011"
    admin_token_file: AdminTokenFile = None
    admin_host: AdminHosts = ()
    reports_url: ReportsUrl = None
    key: Annotated[
        NonEmpty | None,
        help_text(
            "The node's private key; created if it does not exist.", "FILE", default="node.key in the data directory"
        ),
        guide_text("It has 64 hexadecimal digits. Only its owner can read it."),
    ] = None
    min_pow: Annotated[
        float,
        Meta(ge=0, le=1e9),
        help_text("Refuse envelopes with less proof of work.", "POW"),
        guide_text("It is 2 to the number of leading zero bits, divided by bytes and by seconds."),
    ] = MIN_POW
    max_ttl: Annotated[
        int, Meta(ge=1, le=2**31), help_text("Refuse envelopes with a longer time to live.", "SECONDS")
    ] = MAX_TTL_SECONDS
    retention: Annotated[
        float,
        Meta(ge=0, le=36525),
        help_text("Keep envelopes for this long after they were sent; 0 is for ever.", "DAYS"),
        guide_text(
            "An envelope that is older on arrival is relayed and not archived, and its sender"
            " [is told](protocol.md#confirmation)."
        ),
    ] = DEFAULT_RETENTION_DAYS
    retention_bytes: Annotated[
        Annotated[int, Meta(ge=1 << 20)] | None,
        help_text(
            "Remove the oldest envelopes when the archive has more bytes than this.", "BYTES", default="no limit"
        ),
        guide_text(
            "While the node removes some every minute, an envelope that is older than those that it has removed"
            " is relayed and not archived."
        ),
    ] = None
    topics: Annotated[
        tuple[str, ...],
        help_text("Archive only this topic, 8 hexadecimal digits.", "TOPIC", default="all"),
        guide_text("The others are only relayed, and their senders [are told](protocol.md#confirmation) so."),
    ] = ()
    requests: Annotated[
        tuple[Literal["plain", "envelope"], ...],
        help_text("Form of the requests to answer.", default="both"),
        guide_text("A request is plain, or sealed in an envelope."),
    ] = ("plain", "envelope")
    order: Annotated[
        Literal["asc", "desc"],
        help_text("Send history with the oldest or the newest envelope first."),
        guide_text("Do not change it on a running service: requesters with a cursor would go on in the other order."),
    ] = "asc"
    password_file: Annotated[
        NonEmpty | None,
        help_text(
            "File with the password that requests in envelopes are sealed with; or RESTANTE_WAKU_PASSWORD.", "FILE"
        ),
        guide_text(
            "By default the password of the Status fleet, `status-offline-inbox`, which is public. A password"
            " restricts access only with `--requests envelope`; `--allow` restricts it in any case."
        ),
    ] = None
    require_signature: Annotated[
        bool,
        help_text("Require that requests in envelopes are signed."),
        guide_text("status-go signs them, nim-waku does not."),
    ] = False
    allow: Annotated[tuple[str, ...], help_text("Answer only requests of this node.", "ENODE", default="all")] = ()
    peer: Annotated[tuple[str, ...], help_text("Stay connected to this node.", "ENODE")] = ()
    max_peers: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        help_text("Peers at once.", "NUMBER"),
        guide_text(
            "Beyond that, [another peer gives way](#when-places-are-short) to a new one, or the new one is"
            ' disconnected with the reason "too many peers". Nodes of `--peer` and `--allow` are always accepted.'
        ),
    ] = 1000
    max_peers_per_address: Annotated[
        int,
        Meta(ge=1),
        help_text("Connections at once from one address.", "NUMBER"),
        guide_text("An address is an IPv4 address or an IPv6 /64. An IPv6 /56 may have four times as many."),
    ] = 50
    limits: Annotated[
        Limits,
        help_text("Set a limit; `restante waku config` lists them.", "NAME=NUMBER"),
        guide_text("See [limits](#limits)."),
    ] = Limits()
    log_format: LogFormat = "auto"


def read_topic(text: str, flag: str) -> bytes:
    """Parse a topic of 8 hexadecimal digits, with or without 0x. Raises Misuse."""
    try:
        topic = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        topic = b""
    if len(topic) != 4:
        raise Misuse(f"{flag}: '{text}' is not a topic, which has 8 hexadecimal digits, like cd423760")
    return topic


def _check(settings: WakuServe, origins: Origins) -> None:
    for listen in checked_addresses(settings.listen, settings.admin, settings.trust_proxy, origins):
        if listen.plain and not listen.is_unix:
            raise Misuse(f"{origins['listen']}: '{listen.text}': leave plain: out, since the node has no TLS")
    check_host_names(settings.admin_host, origins["admin_host"])
    from restante.waku.devp2p import enode  # it needs the extra, and the help does not

    for name, enodes in (("peer", settings.peer), ("allow", settings.allow)):
        for url in enodes:
            try:
                enode.parse(url)
            except Misuse as error:
                raise Misuse(f"{origins[name]}: {error}") from None
    for topic in settings.topics:
        read_topic(topic, origins["topics"])


WAKU: Final = ServerSettings("waku", WakuServe, Limits, f"{PREFIX}WAKU_", _check)

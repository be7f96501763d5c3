"""How long the library waits for nodes, how much a Mailserver may cost it, and how it names itself."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from restante.common.errors import Misuse
from restante.common.settings import convert
from restante.waku.devp2p.hello import CLIENT
from restante.waku.protocol.request import MAX_PAGE_ENVELOPES

Seconds = Annotated[float, Meta(gt=0, le=1e9)]
PositiveInt = Annotated[int, Meta(ge=1)]


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for nodes, how much each Mailserver may cost, and how the program names itself.

    Raises Misuse for a value that is out of range.
    """

    connect_seconds: Seconds = 10.0
    """Seconds within which a node must be connected and have greeted. Half of them are for its handshake."""
    answer_seconds: Seconds = 30.0
    """Seconds within which a node must confirm an envelope, or send something that was requested. status-go waits as
    long (protocol/messenger_mailserver.go)."""
    ping_seconds: Seconds = 15.0
    """Seconds of silence after which a node is pinged. After twice as many the connection is lost (geth p2p/peer.go,
    pingInterval, and p2p/server.go, frameReadTimeout)."""
    close_seconds: Seconds = 5.0
    """Seconds within which a node must read what was sent before the connection is closed."""
    stop_seconds: Seconds = 2.0
    """Seconds for which a request that is under way may go on after `Subscription.stop`."""

    first_delay_seconds: Seconds = 1.0
    """Seconds before a subscription connects to a lost node again. Each further attempt waits twice as long."""
    max_delay_seconds: Seconds = 60.0
    """Seconds between these attempts, at most."""
    retry_seconds: Seconds = 2.0
    """Seconds before a Mailserver that failed is asked for history again. Each failure in a row doubles them."""
    max_failures: PositiveInt = 3
    """Failures in a row after which a Mailserver is not asked again."""
    history_seconds: Seconds = 60.0
    """Seconds between two requests of a subscription for history."""
    overlap_seconds: Seconds = 80.0
    """Age in seconds below which envelopes are requested again in the next run. An envelope lives for 50 s, is still
    accepted for 20 s after that, and clocks may differ by 10 s."""

    page_envelopes: Annotated[int, Meta(ge=1, le=MAX_PAGE_ENVELOPES)] = MAX_PAGE_ENVELOPES
    """Envelopes that are requested at a time."""
    max_pages: PositiveInt = 1_000
    """Answers that a Mailserver may send."""
    max_envelopes: PositiveInt = 200_000
    """Envelopes that a Mailserver may send, requested or not."""
    max_bytes: PositiveInt = 256 << 20
    """Bytes of these envelopes. Also bytes of a subscription's envelopes that wait for the program."""
    max_seconds: Seconds = 600.0
    """Seconds that may be spent on a Mailserver: connecting, asking, and waiting after a failure."""
    max_envelope_bytes: PositiveInt = 1 << 20
    """Bytes of one envelope. The program does not get larger ones."""

    user_agent: str = CLIENT
    """What the program calls itself when it connects: up to 256 printable ASCII characters, like `chat/1.0`."""

    def __post_init__(self) -> None:
        """Raise Misuse if one of them cannot be used."""
        for field in msgspec.structs.fields(self):
            convert(getattr(self, field.name), field.type, field.name, strict=True)
        if not re.fullmatch("[ -~]{1,256}", self.user_agent):
            raise Misuse(f"user_agent: {self.user_agent!r} is not 1 to 256 printable ASCII characters")


DEFAULT_OPTIONS: Final = ConnectionOptions()


def check_options(options: ConnectionOptions) -> None:
    """Raise Misuse if a program passed something else as its options."""
    if not isinstance(options, ConnectionOptions):
        raise Misuse(f"`options` are ConnectionOptions, not {options!r}")

"""The times and sizes of a wormhole's connection to its server, and how the program names itself there."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from restante.client.arguments import check_seconds, is_integer
from restante.common.errors import Misuse

_LOGGER: Final = logging.getLogger("restante.client")
_LOGGER.addHandler(logging.NullHandler())


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long a wormhole waits for its server and for its peer, how much it keeps, and how it names itself."""

    connect_seconds: float = 30.0
    """Seconds within which a connection must be made, with its TLS and WebSocket. To enter a `Wormhole` takes as long
    at most, and then its server has sent its welcome."""
    answer_seconds: float = 60.0
    """Seconds, at least, and at most twice as many, without an answer that is owed. Then a connection is given up. A
    server under load delays by some seconds, and a busy disk by some more."""
    ping_seconds: float = 30.0
    """Seconds of silence after which the server is pinged, and seconds for its answer. Then the connection is
    lost. In the Python client these are 30 and 60 (_rendezvous.py:87)."""
    first_delay_seconds: float = 1.5
    """Seconds before the first attempt to connect again. Each further one waits 1.5 times as long, and all wait up to
    a second more, but at most twice as long (twisted.application.internet, `backoffPolicy`, in the Python client)."""
    max_delay_seconds: float = 60.0
    """Seconds between attempts to connect again, at most, and so much more, as in the Python client."""
    storing_seconds: float = 30.0
    """Seconds without any answer of the server, after which a wormhole that ends happily waits no longer for the
    storage of a message. The peer may wait for it. A server whose database is locked sends its clients away after
    5 s."""
    receipt_seconds: float = 5.0
    """Seconds without a receipt of the peer, after which a closing `Wormhole` waits no longer for further ones."""
    close_seconds: float = 5.0
    """Seconds without any answer of the server, after which a closing wormhole waits no longer. The server prunes the
    rest."""
    max_received_bytes: int = 8 * 1024 * 1024
    """Bytes of a message from the server. A larger one ends the connection. A server of this project sends at most a
    message of 2 MiB and what is around it."""
    max_unread_messages: int = 1000
    """Messages of the peer that wait for the application. Then no more are read from the server, until half of them
    are read."""
    max_unread_bytes: int = 16 * 1024 * 1024
    """Bytes of messages that wait for the application, likewise."""
    max_unstored_messages: int = 1000
    """Messages that `send` accepts while none of them is stored. The next call waits until one is."""
    max_unstored_bytes: int = 16 * 1024 * 1024
    """Bytes of such messages, likewise; the last one may exceed it. They are in memory twice as large, in hex."""
    user_agent: str | None = None
    """What the program calls itself in its request to the server, like `chat/1.0`. None: nothing."""
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger] = _LOGGER
    """Where the WebSocket's requests, frames and failures are logged, by default `restante.client`. Methods raise the
    failures in any case."""

    def __post_init__(self) -> None:
        """Raise Misuse if one of them cannot be used."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name.endswith("_seconds"):
                check_seconds(name, value)
            elif name.startswith("max_") and not is_integer(value, 1):
                raise Misuse(f"`{name}` is a whole number, 1 or more, not {value!r}")
        if self.user_agent is not None and not _is_field_value(self.user_agent):
            raise Misuse(f"`user_agent` is a text of printable ASCII characters, not {self.user_agent!r}")
        if not isinstance(self.logger, logging.Logger | logging.LoggerAdapter):
            raise Misuse(f"`logger` is a logging.Logger or LoggerAdapter, not {self.logger!r}")


def _is_field_value(value: object) -> bool:
    """Return whether a value can be that of a header (RFC 9110 section 5.5)."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and value.strip() != ""


DEFAULT_OPTIONS: Final = ConnectionOptions()

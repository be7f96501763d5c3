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
    """How long a wormhole waits for its server and for its peer, how much it keeps, and how it names the program."""

    connect_seconds: float = 30.0
    """Seconds within which a connection must be made, with TLS and WebSocket. When a `Wormhole` is entered, the
    server must also send its welcome within this time."""
    answer_seconds: float = 60.0
    """Seconds after which a connection is ended if the server owes an answer and sends none. It is checked only once
    in this time, so that it may take twice as long. A server under load answers some seconds late, and one with a
    busy disk even later."""
    ping_seconds: float = 30.0
    """Seconds of silence after which the server is pinged. If it does not answer for as long, the connection is
    lost. In the Python client these times are 30 and 60 (_rendezvous.py:87)."""
    first_delay_seconds: float = 1.5
    """Seconds before the first attempt to connect again. The delay before each further attempt is 1.5 times as long.
    A random time is added: up to a second, and no more than the delay (twisted.application.internet, `backoffPolicy`,
    in the Python client)."""
    max_delay_seconds: float = 60.0
    """Longest delay between these attempts in seconds, before the random time is added, as in the Python client."""
    storing_seconds: float = 30.0
    """Seconds without any answer of the server, after which a wormhole that closes as `happy` waits no longer until
    its messages are stored. This is more than `close_seconds`, because the peer may wait for a message. A server of
    this project whose database is locked closes the connection after 5 s."""
    receipt_seconds: float = 5.0
    """Seconds without a receipt of the peer, after which a closing `Wormhole` waits for no more receipts."""
    close_seconds: float = 5.0
    """Seconds without any answer of the server, after which a closing wormhole waits no longer. The server prunes
    what was not closed."""
    max_received_bytes: int = 8 * 1024 * 1024
    """Bytes of a message from the server. A larger message ends the connection. A server of this project sends
    messages of little more than 2 MiB."""
    max_unread_messages: int = 1000
    """Messages of the peer that the application has not read. With so many, nothing more is read from the server
    until at most half of them are left."""
    max_unread_bytes: int = 16 * 1024 * 1024
    """The same limit in bytes."""
    max_unstored_messages: int = 1000
    """Messages of this side that the server has not stored. With so many, `send` waits until one is stored."""
    max_unstored_bytes: int = 16 * 1024 * 1024
    """The same limit in bytes. The last message may exceed it. In memory the messages are twice as large, in hex."""
    user_agent: str | None = None
    """What the program calls itself in its request to the server, like `chat/1.0`. None: nothing."""
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger] = _LOGGER
    """Where the opening and the end of each WebSocket are logged (INFO), and its requests and reads (level 9, below
    DEBUG). By default `restante.client`. Failures are not logged: methods raise them, and `Reconnecting` has them."""

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

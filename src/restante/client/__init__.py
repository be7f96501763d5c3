"""Magic Wormhole for asyncio programs.

Import from here. The names in `__all__` are stable (docs/client/guide.md); everything else in this package may change
at any time. A name's module is loaded when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from restante.common.lazy_names import lazy_names

__all__ = [
    "DEFAULT_APP_ID",
    "DEFAULT_SERVER",
    "BaseWormhole",
    "CheckpointError",
    "Closed",
    "ClosedError",
    "CodeError",
    "CodeExpiredError",
    "CodeKnown",
    "Connecting",
    "CrowdedError",
    "Event",
    "Failed",
    "Journal",
    "JournaledWormhole",
    "KeyAgreed",
    "LonelyError",
    "Message",
    "MessageDelivered",
    "MessageStored",
    "Misuse",
    "NoReceiptsError",
    "NoSeedError",
    "OldCheckpointError",
    "PeerConfirmed",
    "PeerMessageError",
    "PermissionNeededError",
    "Reconnecting",
    "ReplayEnded",
    "RestanteError",
    "SentMessage",
    "ServerError",
    "ServerGoneError",
    "StoreError",
    "TransferError",
    "TransferUri",
    "UriError",
    "WaitingForPeer",
    "WelcomeError",
    "Welcomed",
    "Working",
    "Wormhole",
    "WormholeError",
    "WrongPasswordError",
    "abandon",
    "completions",
    "parse_uri",
    "receive_text",
    "seed_code",
    "send_text",
]

if TYPE_CHECKING:
    from restante.client.base import BaseWormhole
    from restante.client.checkpoint import CheckpointError
    from restante.client.defaults import DEFAULT_APP_ID, DEFAULT_SERVER
    from restante.client.errors import (
        ClosedError,
        CodeExpiredError,
        CrowdedError,
        LonelyError,
        NoReceiptsError,
        NoSeedError,
        OldCheckpointError,
        PeerMessageError,
        PermissionNeededError,
        ServerError,
        ServerGoneError,
        TransferError,
        WelcomeError,
        WormholeError,
        WrongPasswordError,
    )
    from restante.client.events import (
        Closed,
        CodeKnown,
        Connecting,
        Event,
        Failed,
        KeyAgreed,
        MessageDelivered,
        MessageStored,
        PeerConfirmed,
        Reconnecting,
        ReplayEnded,
        WaitingForPeer,
        Welcomed,
        Working,
    )
    from restante.client.journal import Journal, JournaledWormhole, Message
    from restante.client.protocol.code import CodeError, completions
    from restante.client.protocol.seeds import seed_code
    from restante.client.protocol.uri import TransferUri, UriError
    from restante.client.protocol.uri import parse as parse_uri
    from restante.client.sent_message import SentMessage
    from restante.client.text import abandon, receive_text, send_text
    from restante.client.wormhole import Wormhole
    from restante.common.errors import Misuse, RestanteError, StoreError
else:
    _MODULES = {
        "restante.client.base": "BaseWormhole",
        "restante.client.checkpoint": "CheckpointError",
        "restante.client.defaults": "DEFAULT_APP_ID DEFAULT_SERVER",
        "restante.client.errors": "ClosedError CodeExpiredError CrowdedError LonelyError NoReceiptsError NoSeedError "
        "OldCheckpointError PeerMessageError PermissionNeededError ServerError ServerGoneError TransferError "
        "WelcomeError WormholeError WrongPasswordError",
        "restante.client.events": "Closed CodeKnown Connecting Event Failed KeyAgreed MessageDelivered MessageStored "
        "PeerConfirmed Reconnecting ReplayEnded WaitingForPeer Welcomed Working",
        "restante.client.journal": "Journal JournaledWormhole Message",
        "restante.client.protocol.code": "CodeError completions",
        "restante.client.protocol.seeds": "seed_code",
        "restante.client.protocol.uri": "TransferUri UriError parse_uri=parse",
        "restante.client.sent_message": "SentMessage",
        "restante.client.text": "abandon receive_text send_text",
        "restante.client.wormhole": "Wormhole",
        "restante.common.errors": "Misuse RestanteError StoreError",
    }
    """The imports above, which are made when a name is used."""

    __getattr__ = lazy_names(__name__, _MODULES)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

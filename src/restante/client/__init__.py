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
    "DEFAULT_TRANSIT_RELAY",
    "Address",
    "ArchiveError",
    "BaseWormhole",
    "CheckpointError",
    "Closed",
    "ClosedError",
    "CodeError",
    "CodeExpiredError",
    "CodeKnown",
    "Connecting",
    "ConnectionLostError",
    "ConnectionOptions",
    "CrowdedError",
    "Event",
    "Failed",
    "GaveUpError",
    "Hints",
    "Journal",
    "JournaledWormhole",
    "KeyAgreed",
    "LonelyError",
    "Message",
    "MessageDelivered",
    "MessageStored",
    "Misuse",
    "Mood",
    "NoReceiptsError",
    "NoSeedError",
    "OfferedDirectory",
    "OfferedFile",
    "OfferedText",
    "OldCheckpointError",
    "PeerConfirmed",
    "PeerMessageError",
    "PeerSilent",
    "PeerStalledError",
    "PermissionNeededError",
    "Reconnecting",
    "Relay",
    "ReplayEnded",
    "RestanteError",
    "SentMessage",
    "ServerError",
    "ServerGoneError",
    "StoreError",
    "TimingLog",
    "TransferError",
    "TransferUri",
    "TransitOptions",
    "UndeliveredError",
    "UnsafeNameError",
    "UnsendableFileError",
    "Until",
    "UriError",
    "WaitingForPeer",
    "WelcomeError",
    "Welcomed",
    "Working",
    "Wormhole",
    "WormholeError",
    "WrongPasswordError",
    "abandon_transfer",
    "completions",
    "parse_uri",
    "receive",
    "receive_text",
    "seed_code",
    "send_directory",
    "send_file",
    "send_text",
    "word_list",
]

if TYPE_CHECKING:
    from restante.client.connection.options import ConnectionOptions
    from restante.client.core.machine import Mood
    from restante.client.defaults import DEFAULT_APP_ID, DEFAULT_SERVER, DEFAULT_TRANSIT_RELAY
    from restante.client.errors import (
        ArchiveError,
        ClosedError,
        CodeExpiredError,
        ConnectionLostError,
        CrowdedError,
        GaveUpError,
        LonelyError,
        NoReceiptsError,
        NoSeedError,
        OldCheckpointError,
        PeerMessageError,
        PeerStalledError,
        PermissionNeededError,
        ServerError,
        ServerGoneError,
        TransferError,
        UndeliveredError,
        UnsafeNameError,
        UnsendableFileError,
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
        PeerSilent,
        Reconnecting,
        ReplayEnded,
        WaitingForPeer,
        Welcomed,
        Working,
    )
    from restante.client.journal_mode.checkpoint import CheckpointError
    from restante.client.journal_mode.journal import Journal
    from restante.client.journal_mode.journaled_wormhole import JournaledWormhole, Message
    from restante.client.protocol.code import CodeError, completions, word_list
    from restante.client.protocol.seeds import seed_code
    from restante.client.protocol.uri import TransferUri, UriError, parse_uri
    from restante.client.timing_log import TimingLog
    from restante.client.transfer.messages import abandon_transfer
    from restante.client.transfer.receiving import OfferedDirectory, OfferedFile, OfferedText, receive
    from restante.client.transfer.sending import send_directory, send_file
    from restante.client.transfer.text import receive_text, send_text
    from restante.client.transit.connecting import TransitOptions
    from restante.client.transit.hints import Address, Hints, Relay
    from restante.client.wormhole import BaseWormhole, SentMessage, Until, Wormhole
    from restante.common.errors import Misuse, RestanteError, StoreError
else:
    _MODULES = {
        "restante.client.journal_mode.checkpoint": "CheckpointError",
        "restante.client.connection.options": "ConnectionOptions",
        "restante.client.core.machine": "Mood",
        "restante.client.defaults": "DEFAULT_APP_ID DEFAULT_SERVER DEFAULT_TRANSIT_RELAY",
        "restante.client.errors": "ArchiveError ClosedError CodeExpiredError ConnectionLostError CrowdedError "
        "GaveUpError LonelyError NoReceiptsError NoSeedError "
        "OldCheckpointError PeerMessageError PeerStalledError PermissionNeededError ServerError ServerGoneError "
        "TransferError UndeliveredError UnsafeNameError UnsendableFileError WelcomeError WormholeError "
        "WrongPasswordError",
        "restante.client.events": "Closed CodeKnown Connecting Event Failed KeyAgreed MessageDelivered MessageStored "
        "PeerConfirmed PeerSilent Reconnecting ReplayEnded WaitingForPeer Welcomed Working",
        "restante.client.journal_mode.journal": "Journal",
        "restante.client.journal_mode.journaled_wormhole": "JournaledWormhole Message",
        "restante.client.protocol.code": "CodeError completions word_list",
        "restante.client.protocol.seeds": "seed_code",
        "restante.client.protocol.uri": "TransferUri UriError parse_uri",
        "restante.client.transfer.messages": "abandon_transfer",
        "restante.client.transfer.receiving": "OfferedDirectory OfferedFile OfferedText receive",
        "restante.client.transfer.sending": "send_directory send_file",
        "restante.client.transfer.text": "receive_text send_text",
        "restante.client.transit.connecting": "TransitOptions",
        "restante.client.transit.hints": "Address Hints Relay",
        "restante.client.wormhole": "BaseWormhole SentMessage Until Wormhole",
        "restante.client.timing_log": "TimingLog",
        "restante.common.errors": "Misuse RestanteError StoreError",
    }
    """The imports above, which are made when a name is used."""

    __getattr__ = lazy_names(__name__, _MODULES)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

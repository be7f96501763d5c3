"""Waku v1: the library for other programs, and behind it a Mailserver and its clients.

Import from here. The names in `__all__` are stable (docs/waku/library.md); everything else in this package may change
at any time. A name's module is loaded when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from restante.common.lazy_names import lazy_names

__all__ = [
    "Archive",
    "Archived",
    "ConnectionOptions",
    "Enode",
    "Envelope",
    "EnvelopeStream",
    "FetchState",
    "IncompleteError",
    "Key",
    "LaggingError",
    "Misuse",
    "NodeUnavailableError",
    "NotMined",
    "Opened",
    "Page",
    "PageQuery",
    "PeerError",
    "Policy",
    "Posted",
    "Poster",
    "RefusalReason",
    "RefusedError",
    "RestanteError",
    "RlpError",
    "SilentError",
    "StoreError",
    "Subscription",
    "SymmetricKey",
    "UnconfirmedError",
    "UnreadableError",
    "UnreadableItem",
    "WrongKeyError",
    "fetch",
    "make_envelope",
    "mine",
    "new_key",
    "open_archive",
    "open_sealed",
    "parse_enode",
    "parse_envelope",
    "post",
    "post_envelope",
    "read_envelopes",
    "refusal",
    "seal",
    "subscribe",
    "topic_of",
]

if TYPE_CHECKING:
    from restante.common.errors import Misuse, PeerError, RestanteError, StoreError
    from restante.waku.archive.query import Page, PageQuery
    from restante.waku.archive.records import Archived
    from restante.waku.archive.sqlite import Archive, open_archive
    from restante.waku.client.options import ConnectionOptions
    from restante.waku.client.outbound_connection import NodeUnavailableError, SilentError
    from restante.waku.client.post import Posted, Poster, RefusedError, UnconfirmedError, post, post_envelope
    from restante.waku.client.ranges import FetchState
    from restante.waku.client.streams import (
        EnvelopeStream,
        IncompleteError,
        LaggingError,
        Subscription,
        fetch,
        subscribe,
    )
    from restante.waku.defaults import make_envelope, mine, new_key, refusal, seal
    from restante.waku.devp2p.enode import Enode
    from restante.waku.devp2p.enode import parse as parse_enode
    from restante.waku.envelope.envelope import Envelope
    from restante.waku.envelope.envelope import parse as parse_envelope
    from restante.waku.envelope.keys import Key
    from restante.waku.envelope.mining import NotMined
    from restante.waku.envelope.payload import (
        Opened,
        SymmetricKey,
        UnreadableError,
        WrongKeyError,
        open_sealed,
        topic_of,
    )
    from restante.waku.envelope.rlp import RlpError
    from restante.waku.files import UnreadableItem
    from restante.waku.files.reading import read_envelopes
    from restante.waku.protocol.acceptance import Policy, RefusalReason
else:
    _MODULES = {
        "restante.common.errors": "Misuse PeerError RestanteError StoreError",
        "restante.waku.archive.query": "Page PageQuery",
        "restante.waku.archive.records": "Archived",
        "restante.waku.archive.sqlite": "Archive open_archive",
        "restante.waku.client.options": "ConnectionOptions",
        "restante.waku.client.outbound_connection": "NodeUnavailableError SilentError",
        "restante.waku.client.post": "Posted Poster RefusedError UnconfirmedError post post_envelope",
        "restante.waku.client.ranges": "FetchState",
        "restante.waku.client.streams": "EnvelopeStream IncompleteError LaggingError Subscription fetch subscribe",
        "restante.waku.defaults": "make_envelope mine new_key refusal seal",
        "restante.waku.devp2p.enode": "Enode parse_enode=parse",
        "restante.waku.envelope.envelope": "Envelope parse_envelope=parse",
        "restante.waku.envelope.keys": "Key",
        "restante.waku.envelope.mining": "NotMined",
        "restante.waku.envelope.payload": "Opened SymmetricKey UnreadableError WrongKeyError open_sealed topic_of",
        "restante.waku.envelope.rlp": "RlpError",
        "restante.waku.files": "UnreadableItem",
        "restante.waku.files.reading": "read_envelopes",
        "restante.waku.protocol.acceptance": "Policy RefusalReason",
    }
    """The imports above, which are made when a name is used."""

    __getattr__ = lazy_names(__name__, _MODULES, extra="waku")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

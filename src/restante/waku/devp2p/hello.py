"""Hello and Disconnect, the first and the last message of devp2p.

Source: devp2p, rlpx.md.

    Hello      = [version, client id, [[name, version], …], port, public key(64), …]
    Disconnect = [reason], or the reason alone as a byte
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from restante.common.errors import PeerError
from restante.waku.envelope import rlp
from restante.waku.envelope.keys import PUBLIC_BYTES

CLIENT: Final = "restante"
"""The client id in our Hello."""

DEVP2P_VERSION: Final = 5
SNAPPY_VERSION: Final = 5
"""The version from which all messages but Hello are compressed, if both ends have it (EIP-706)."""

CAPABILITY_NAME: Final = "waku"
"""The name of our only capability."""

CAPABILITY_ID: Final = 16
"""First message id of the capability. Lower ids belong to devp2p itself. Ids are assigned from 16 on to the shared
capabilities (rlpx.md, "Capability Messaging"; geth p2p/peer.go:377-398), so they do not depend on what else a peer
has."""

CAPABILITY_CODES: Final = 128
"""Number of message ids of the capability, in every version (status-go waku/v1/const.go:18)."""


class Reason(IntEnum):
    """Why a connection ends (rlpx.md, "Disconnect")."""

    REQUESTED = 0x00
    TCP_ERROR = 0x01
    BREACH = 0x02
    USELESS_PEER = 0x03
    TOO_MANY_PEERS = 0x04
    ALREADY_CONNECTED = 0x05
    INCOMPATIBLE_VERSION = 0x06
    NULL_IDENTITY = 0x07
    CLIENT_QUITTING = 0x08
    UNEXPECTED_IDENTITY = 0x09
    SELF_CONNECTION = 0x0A
    PING_TIMEOUT = 0x0B
    SUBPROTOCOL = 0x10

    @classmethod
    def parse(cls, payload: bytes) -> Reason:
        """Parse the payload of a Disconnect in any of its forms. Returns REQUESTED if it cannot be parsed.

        go-ethereum encodes its `[]DiscReason` as a byte string, so it sends a bare byte instead of the specified list
        (p2p/transport.go:121). status-go reads a payload that it cannot parse as 0 (p2p/peer.go:337).
        """
        try:
            item = rlp.decode(payload, tail=True)
            while isinstance(item, list):
                item = item[0]
            return cls(int.from_bytes(item, "big"))
        except (PeerError, IndexError, ValueError):
            return cls.REQUESTED

    def encode_as_list(self) -> bytes:
        """Encode the reason as specified, for a peer that has read our Hello."""
        return rlp.encode([self.value])

    def encode_as_byte(self) -> bytes:
        """Encode the reason as geth reads it in place of a Hello (p2p/transport.go:167-169)."""
        return bytes((self.value,))


class Capability(NamedTuple):
    """A protocol that a node supports."""

    name: str
    version: int


class Hello(msgspec.Struct, frozen=True, gc=False):
    """A node's public key and capabilities."""

    client_id: str
    capabilities: tuple[Capability, ...]
    port: int
    """The port on which the node listens; 0 if it does not listen."""
    public: bytes
    version: int = DEVP2P_VERSION

    @lru_cache(maxsize=16)  # noqa: B019 - the cache is small, and a node has one Hello
    def encode(self) -> bytes:
        """Encode the Hello."""
        capabilities = [[name.encode(), version] for name, version in self.capabilities]
        return rlp.encode([self.version, self.client_id.encode(), capabilities, self.port, self.public])

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """Parse a Hello. Raises PeerError.

        As EIP-8 requires, further items, bytes after the list, and the version number are ignored.
        """
        fields = rlp.items(rlp.decode(payload, tail=True))
        if len(fields) < 5:
            raise rlp.RlpError(f"a Hello has at least five items, not {len(fields)}")
        version, client_id, capabilities, port, public = fields[:5]
        hello = cls(
            version=rlp.uint(version, 64),
            client_id=_decode_text(client_id),
            capabilities=tuple(map(_parse_capability, rlp.items(capabilities))),
            port=rlp.uint(port, 64),
            public=rlp.string(public),
        )
        if len(hello.public) != PUBLIC_BYTES or not any(hello.public):
            raise PeerError(Reason.NULL_IDENTITY, "a Hello without a public key")
        return hello


def _parse_capability(item: rlp.Item) -> Capability:
    name, version = rlp.items(item, 2)
    return Capability(_decode_text(name), rlp.uint(version, 64))


def _decode_text(item: rlp.Item) -> str:
    return rlp.string(item).decode(errors="replace")

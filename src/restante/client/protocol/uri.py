"""`wormhole-transfer:` URIs, which a QR code carries: a code and the server at which it is valid.

Source: magic-wormhole-protocols, uri-scheme.md; magic-wormhole.rs 0.8.1: uri.rs.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from restante.client.defaults import DEFAULT_SERVER
from restante.client.protocol.code import CodeError, nameplate_of
from restante.common.errors import Misuse

SCHEME: Final = "wormhole-transfer"

SERVER_PATH: Final = "/v1"
"""What URIs leave out of a server's URL (magic-wormhole.rs appends it)."""

DEFAULT_RENDEZVOUS: Final = "ws://relay.magic-wormhole.io:4000"
"""The server of a URI that names none (uri-scheme.md)."""

FOLLOWER: Final = "follower"
LEADER: Final = "leader"
"""What the reader of a URI does: a follower receives and is the default, a leader sends."""

MAX_FIELDS: Final = 10
"""Fields that are read. There are three."""


class UriError(Misuse, ValueError):
    """A text is no `wormhole-transfer:` URI, or says what this version does not know. The text says what is wrong."""


class TransferUri(msgspec.Struct, frozen=True):
    """What a `wormhole-transfer:` URI says, for example in a QR code: a code, and the server where it is valid."""

    code: str
    """The code, as `BaseWormhole.set_code` takes it."""
    rendezvous: str = DEFAULT_RENDEZVOUS
    """The server, as URIs name it: without the path `/v1`, and the public one as `ws://relay.magic-wormhole.io:4000`,
    which is the default."""
    role: str = FOLLOWER
    """What the reader of the URI does: `follower` receives and is the default, `leader` sends."""

    @property
    def server(self) -> str:
        """The URL of the server, as `Wormhole.create` takes it. For the public one it is `DEFAULT_SERVER`."""
        if self.rendezvous == DEFAULT_RENDEZVOUS:
            return DEFAULT_SERVER
        return self.rendezvous.rstrip("/") + SERVER_PATH

    def __str__(self) -> str:
        """Return the URI, which leaves out what is the default."""
        fields = {}
        if self.rendezvous != DEFAULT_RENDEZVOUS:
            fields["rendezvous"] = self.rendezvous
        if self.role != FOLLOWER:
            fields["role"] = self.role
        query = f"?{urlencode(fields, quote_via=quote, safe='')}" if fields else ""
        return f"{SCHEME}:{quote(self.code, safe='')}{query}"


def rendezvous_of(server: str) -> str | None:
    """Return how a URI names a server. None: no URI can, because the path of its URL does not end with /v1."""
    if server == DEFAULT_SERVER:
        return DEFAULT_RENDEZVOUS
    return server.removesuffix(SERVER_PATH) if server.endswith(SERVER_PATH) else None


def parse_uri(text: str) -> TransferUri:
    """Return what a `wormhole-transfer:` URI says.

    Raises:
        UriError: the text has another scheme, no code, or a field or value that this version does not know.

    """
    parts = _split(text, "a transfer's URI is not encoded correctly")
    if parts.scheme != SCHEME:
        raise UriError(f"a transfer's URI begins with {SCHEME}:")
    if parts.netloc or parts.fragment:
        raise UriError(f"a transfer's URI has neither a host nor a fragment: write {SCHEME}:CODE?rendezvous=URL")
    try:
        pairs = parse_qsl(
            parts.query,
            keep_blank_values=True,
            strict_parsing=bool(parts.query),
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
        code = unquote(parts.path, errors="strict")
        nameplate_of(code)
    except CodeError as error:
        raise UriError(str(error)) from error
    except ValueError as error:
        raise UriError("a transfer's URI is not encoded correctly") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise UriError("a transfer's URI has a field twice")
    if fields.pop("version", "0") != "0":
        raise UriError("the URI has a later version than 0: use a newer restante")
    uri = TransferUri(code, fields.pop("rendezvous", DEFAULT_RENDEZVOUS), fields.pop("role", FOLLOWER))
    if fields:
        raise UriError(f"a transfer's URI has an unknown field: {min(fields)!r}")
    if uri.role not in {FOLLOWER, LEADER}:
        raise UriError(f"a transfer's role is {FOLLOWER} or {LEADER}, not {uri.role!r}")
    requirement = "the server of a transfer's URI begins with ws:// or wss:// and names a host"
    if _split(uri.rendezvous, requirement).scheme not in {"ws", "wss"}:
        raise UriError(requirement)
    return uri


def _split(url: str, message: str) -> SplitResult:
    """Return the parts of a URL. Raises UriError with this message."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise UriError(message) from error

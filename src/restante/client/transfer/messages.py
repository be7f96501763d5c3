"""The messages of a transfer. Each is one JSON object with one key: `transit`, `offer`, `answer` or `error`.

Sources: magic-wormhole-protocols, file-transfer-protocol.md; magic-wormhole 0.24, cli/cmd_send.py and
cli/cmd_receive.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any, Final

import msgspec

from restante.client.errors import ConnectionLostError, PeerMessageError, TransferError, WormholeError
from restante.client.files.names import one_line
from restante.client.transit.records import Role
from restante.client.wormhole import Wormhole
from restante.common.errors import Misuse, RestanteError, StoreError

ARRIVED: Final = "ok"
"""What an answer says of a text that arrived, and of a file or directory that is wanted."""

ZIP: Final = "zipfile"
"""How the mode of a directory begins that is a zip file (mw cli/cmd_receive.py:329)."""

ZIP_MODE: Final = "zipfile/deflated"
"""The mode that shipped clients send, whether the files are compressed or not (mw cli/cmd_send.py:358-386)."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Bytes, or a number of files."""


class FileOffer(msgspec.Struct):
    """A file that the sender offers."""

    filename: str
    filesize: Size


class DirectoryOffer(msgspec.Struct):
    """A directory that the sender offers, as an archive."""

    mode: str
    dirname: str
    zipsize: Size
    """Bytes of the archive."""
    numbytes: Size
    """Bytes of all files in it."""
    numfiles: Size


class Offer(msgspec.Struct, omit_defaults=True):
    """What the sender offers: one of these."""

    message: str | None = None
    file: FileOffer | None = None
    directory: DirectoryOffer | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """What the receiver says to an offer."""

    message_ack: str | None = None
    file_ack: str | None = None


class PeerMessage(msgspec.Struct, omit_defaults=True):
    """A message of the peer. What it says of other things is ignored."""

    transit: Any = None
    offer: Offer | None = None
    answer: Answer | None = None
    error: str | None = None


class Acknowledgement(msgspec.Struct, omit_defaults=True):
    """The last record of a transfer: the receiver has all of it. Shipped clients may leave out the digest."""

    ack: str = ""
    sha256: str | None = None


class GaveUpError(TransferError):
    """The peer said why there will be no transfer."""


class NotAMessageError(PeerMessageError):
    """The peer sent something that is not a message of a transfer."""


REASON_SECONDS: Final = 2.0
"""Seconds for which the peer's reason is waited for, after it has closed a connection. Shipped clients say none."""

_decode: Final = msgspec.json.Decoder(PeerMessage).decode
_decode_acknowledgement: Final = msgspec.json.Decoder(Acknowledgement).decode
encode: Final = msgspec.json.encode


async def tell(wormhole: Wormhole, message: PeerMessage) -> None:
    """Send the peer a message."""
    await wormhole.send(encode(message))


async def hear(wormhole: Wormhole) -> PeerMessage:
    """Wait for the peer's next message. Raises TransferError if it gave up, PeerMessageError if it is not one."""
    try:
        heard = _decode(await wormhole.receive())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAMessageError(f"the peer sent something that is not a message of a transfer: {error}") from error
    if heard.error is not None:
        raise GaveUpError(f"the other side gave up: {one_line(heard.error)}")
    return heard


async def offer_of(wormhole: Wormhole) -> tuple[Offer, Any]:
    """Wait for the sender's offer. Return it, and the last `transit` before it."""
    transit = None
    while True:
        heard = await hear(wormhole)
        transit = transit if heard.transit is None else heard.transit
        if heard.answer is not None:
            raise PeerMessageError("the other side receives, too: one of the two has to send")
        if heard.offer is not None:
            return heard.offer, transit


async def answer_of(wormhole: Wormhole) -> tuple[Answer, Any]:
    """Wait for the receiver's answer. Return it, and the last `transit` before it."""
    transit = None
    while True:
        heard = await hear(wormhole)
        transit = transit if heard.transit is None else heard.transit
        if heard.offer is not None:
            raise PeerMessageError("the other side sends, too: one of the two has to receive")
        if heard.answer is not None:
            return heard.answer, transit


def refusal(said: str | None) -> str:
    """Return what a receiver answered in place of `ARRIVED`, for an error's text."""
    return "it does not say why" if said is None else one_line(repr(said))


async def abandon_transfer(wormhole: Wormhole, words: str) -> None:
    """Send the peer the reason why there will be no transfer, before the wormhole is closed. Its user sees it."""
    await tell(wormhole, PeerMessage(error=words))


@asynccontextmanager
async def reasons_told(wormhole: Wormhole, role: Role) -> AsyncIterator[None]:
    """If the block ends with an error, tell the peer why: it would wait for ever. If the peer ended, hear why.

    Raises TransferError in place of ConnectionLostError if the peer says why.
    """
    try:
        yield
    except ConnectionLostError as error:
        if (reason := await _reason(wormhole)) is not None:
            raise reason from error
        raise
    except GaveUpError:
        raise  # the peer knows
    except asyncio.CancelledError:
        await _abandon(wormhole, f"the {role} stopped")
        raise
    except RestanteError as error:
        ours = isinstance(error, (Misuse, StoreError))
        await _abandon(wormhole, error.told or (f"the {role} failed" if ours else str(error)))
        raise
    except Exception:
        await _abandon(wormhole, f"the {role} failed")
        raise


@contextmanager
def peer_heard(wormhole: Wormhole) -> Iterator[asyncio.Future[TransferError]]:
    """Hear what the peer says while the block runs. Yield a future that is done when the peer has given up.

    What else it says is ignored, and so is a wormhole that fails: the connection goes on without it.
    """
    hearing = asyncio.create_task(_given_up(wormhole))
    try:
        yield hearing
    finally:
        hearing.cancel()


async def _given_up(wormhole: Wormhole) -> TransferError:
    while True:
        try:
            await hear(wormhole)
        except GaveUpError as error:
            return error
        except NotAMessageError:
            continue
        except Exception:  # noqa: BLE001 - every other call raises it, too
            return await asyncio.Future()


async def _abandon(wormhole: Wormhole, words: str) -> None:
    with suppress(WormholeError):  # one that has failed cannot tell
        await abandon_transfer(wormhole, words)


async def _reason(wormhole: Wormhole) -> GaveUpError | None:
    """Return what the peer says about the end of a connection, if it says anything."""
    try:
        async with asyncio.timeout(REASON_SECONDS):
            while True:
                await hear(wormhole)
    except GaveUpError as error:
        return error
    except (TimeoutError, RestanteError):
        return None


def acknowledgement_of(record: bytes | memoryview) -> Acknowledgement:
    """Return what the last record says. Raises PeerMessageError."""
    try:
        return _decode_acknowledgement(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerMessageError(f"the receiver's last record is not an acknowledgement: {error}") from error

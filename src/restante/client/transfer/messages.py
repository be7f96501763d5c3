"""The messages of a transfer. Each is one JSON object with one key: `transit`, `offer`, `answer` or `error`.

Sources: magic-wormhole-protocols, file-transfer-protocol.md; magic-wormhole 0.24, cli/cmd_send.py and
cli/cmd_receive.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec

from restante.client.errors import (
    ConnectionLostError,
    GaveUpError,
    PeerMessageError,
    PeerStalledError,
    TransferError,
    WormholeError,
)
from restante.client.transit.records import Role
from restante.client.wormhole import Wormhole
from restante.common.errors import Misuse, RestanteError, StoreError
from restante.common.texts import cleaned

ARRIVED: Final = "ok"
"""What an answer says of a text that arrived, and of a file or directory that is wanted."""

ZIP: Final = "zipfile"
"""How the mode of a directory begins that is a zip file (mw cli/cmd_receive.py:329)."""

ZIP_MODE: Final = "zipfile/deflated"
"""The mode that shipped clients send, whether the files are compressed or not (mw cli/cmd_send.py:358-386)."""

Result = TypeVar("Result")

Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Bytes, or a number of files."""


class FileOffer(msgspec.Struct):
    """A file that the sender offers."""

    filename: str
    filesize: Size


class DirectoryOffer(msgspec.Struct, omit_defaults=True):
    """A directory that the sender offers, as an archive."""

    mode: str
    dirname: str
    zipsize: Size
    """Bytes of the archive."""
    numbytes: Size
    """Bytes of all files in it."""
    numfiles: Size
    numdirs: Size | None = None
    """Directories in it, without itself. Only this client says so; others ignore it."""


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
    """The last record of a transfer: the receiver has all of it (mw cmd_receive.py:491-497)."""

    ack: str = ""
    sha256: str | None = None
    """The digest of all bytes, hexadecimal. Without it the sender does not know what the receiver has."""


class NotAMessageError(PeerMessageError):
    """The peer sent something that is not a message of a transfer."""


REASON_SECONDS: Final = 2.0
"""Seconds for which the peer's reason is waited for, after it has closed a connection. Shipped clients say none."""

UNCONFIRMED: Final = "before the receiver confirmed: it may have everything"
"""The outcome for a sender whose connection is lost at the end."""

NOT_STORED: Final = "after sending everything: the receiver has not stored it"
"""The outcome if the receiver then gives a reason: no receiver gives one for what it has stored."""

STORED: Final = "after everything was stored"
"""The outcome for a receiver that has stored everything, and for a sender that knows it."""

_decode: Final = msgspec.json.Decoder(PeerMessage).decode
_decode_acknowledgement: Final = msgspec.json.Decoder(Acknowledgement).decode
encode: Final = msgspec.json.encode


async def send_message(wormhole: Wormhole, message: PeerMessage) -> None:
    """Send the peer a message."""
    await wormhole.send(encode(message))


async def receive_message(wormhole: Wormhole) -> PeerMessage:
    """Wait for the peer's next message. Raises TransferError if it gave up, PeerMessageError if it is not one."""
    return _parse_message(await wormhole.receive())


def _parse_message(plaintext: bytes) -> PeerMessage:
    """Return a message of the peer. Raises what `receive_message` raises."""
    try:
        received = _decode(plaintext)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAMessageError(f"the peer sent something that is not a message of a transfer: {error}") from error
    if received.error is not None:
        raise GaveUpError(f"the other side gave up: {cleaned(received.error)}")
    return received


async def wait_for_offer(wormhole: Wormhole) -> tuple[Offer, Any]:
    """Wait for the sender's offer. Return it, and the last `transit` before it."""
    transit = None
    while True:
        received = await receive_message(wormhole)
        transit = transit if received.transit is None else received.transit
        if received.answer is not None:
            raise PeerMessageError("the other side receives, too: one of the two has to send")
        if received.offer is not None:
            return received.offer, transit


async def wait_for_answer(wormhole: Wormhole) -> tuple[Answer, Any]:
    """Wait for the receiver's answer. Return it, and the last `transit` before it."""
    transit = None
    while True:
        received = await receive_message(wormhole)
        transit = transit if received.transit is None else received.transit
        if received.offer is not None:
            raise PeerMessageError("the other side sends, too: one of the two has to receive")
        if received.answer is not None:
            return received.answer, transit


def refusal(answer: str | None) -> str:
    """Return what a receiver answered in place of `ARRIVED`, for an error's text."""
    return "it does not say why" if answer is None else cleaned(repr(answer))


async def abandon_transfer(wormhole: Wormhole, reason: str) -> None:
    """Send the peer the reason why there will be no transfer, before the wormhole is closed. Its user sees it."""
    wormhole._reason = await wormhole.send(encode(PeerMessage(error=reason)))


@asynccontextmanager
async def reasons_sent(wormhole: Wormhole, role: Role) -> AsyncIterator[None]:
    """Send the peer the reason if the block ends with an error: it would wait for ever.

    If the connection to the peer is lost, wait for the peer's reason. If one comes, raise it as TransferError in
    place of ConnectionLostError, with the same outcome.
    """
    try:
        yield
    except PeerStalledError as error:  # the connection is there, and the peer may go on
        await _abandon(wormhole, error.peer_text or str(error))
        raise
    except ConnectionLostError as error:
        if (reason := await _reason(wormhole)) is not None:
            raise reason.with_outcome(NOT_STORED if error.outcome == UNCONFIRMED else error.outcome) from error
        raise
    except GaveUpError:
        raise  # the peer knows
    except asyncio.CancelledError as error:
        if not _all_is_stored(error):
            await _abandon(wormhole, f"the {role} stopped")
        raise
    except Exception as error:
        if _all_is_stored(error):
            raise
        if not isinstance(error, RestanteError):
            await _abandon(wormhole, f"the {role} failed")
            raise
        ours = isinstance(error, (Misuse, StoreError))
        await _abandon(wormhole, error.peer_text or (f"the {role} failed" if ours else str(error)))
        raise


def _all_is_stored(error: BaseException) -> bool:
    """Return whether a transfer was complete before an error. Then there is no reason for the peer why it failed."""
    return STORED in getattr(error, "__notes__", ())


@contextmanager
def peer_watched(wormhole: Wormhole) -> Iterator[asyncio.Future[TransferError]]:
    """Read the peer's messages while the block runs. Yield a future that is done when the peer has given up.

    Its other messages are ignored, and so is a wormhole that fails: the transit connection goes on without it.
    """
    watching = asyncio.create_task(_given_up(wormhole))
    try:
        yield watching
    finally:
        watching.cancel()


async def _given_up(wormhole: Wormhole) -> TransferError:
    while True:
        try:
            await receive_message(wormhole)
        except GaveUpError as error:
            return error
        except NotAMessageError:
            continue
        except Exception:  # noqa: BLE001 - every other call raises it, too
            return await asyncio.Future()


async def unless_given_up(wormhole: Wormhole, waiting: Coroutine[Any, Any, Result]) -> Result:
    """Wait for something else, like a user's answer, and return it. The peer's messages stay unread.

    If the peer gives up, sends something that is not a message of a transfer, or the wormhole fails before, the wait
    is cancelled, and that error is raised.
    """
    awaited, failing = asyncio.create_task(waiting), asyncio.create_task(_fail_with(wormhole))
    try:
        await asyncio.wait((awaited, failing), return_when=asyncio.FIRST_COMPLETED)
        return awaited.result() if awaited.done() else failing.result()
    finally:
        awaited.cancel()
        failing.cancel()
        await asyncio.gather(awaited, failing, return_exceptions=True)


async def _fail_with(wormhole: Wormhole) -> NoReturn:
    """Look at the peer's messages without reading them, until one or the wormhole raises an error."""
    number = 0
    while True:
        _parse_message(await _unread(wormhole, number))
        number += 1


async def _unread(wormhole: Wormhole, index: int) -> bytes:
    """Wait for the unread message at an index, and return it. It stays unread."""
    await wormhole._wait_until(lambda: len(wormhole._unread) > index)
    return wormhole._unread[index].plaintext


async def _abandon(wormhole: Wormhole, reason: str) -> None:
    with suppress(WormholeError):  # one that has failed sends nothing
        await abandon_transfer(wormhole, reason)


async def _reason(wormhole: Wormhole) -> GaveUpError | None:
    """Return the peer's reason for the end of a connection, if it sends one."""
    try:
        async with asyncio.timeout(REASON_SECONDS):
            while True:
                await receive_message(wormhole)
    except GaveUpError as error:
        return error
    except (TimeoutError, RestanteError):
        return None


def parse_acknowledgement(record: bytes | memoryview) -> Acknowledgement:
    """Return what the last record says. Raises PeerMessageError."""
    try:
        return _decode_acknowledgement(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerMessageError(f"the receiver's last record is not an acknowledgement: {error}") from error

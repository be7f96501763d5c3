"""Texts between people: what `wormhole send --text` and `wormhole receive` say to each other.

Each message is one JSON object with one key: `offer`, `answer`, `error` or `transit` (magic-wormhole-protocols,
file-transfer-protocol.md; magic-wormhole 0.24: cli/cmd_send.py, cli/cmd_receive.py). `transit` is of files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from restante.client.errors import PeerMessageError, TransferError
from restante.client.sent_message import to_be_sent
from restante.client.wormhole import Wormhole

ARRIVED: Final = "ok"
"""What `message_ack` says of a text that arrived."""

TEXTS_ONLY: Final = "this program receives texts only"


class _Offer(msgspec.Struct):
    message: str | None = None


class _Answer(msgspec.Struct):
    message_ack: str | None = None


class _PeerMessage(msgspec.Struct):
    """A message of the peer. What it says of other things is ignored."""

    offer: _Offer | None = None
    answer: _Answer | None = None
    error: str | None = None


_decode = msgspec.json.Decoder(_PeerMessage).decode


def check_text(text: str) -> None:
    """Raise Misuse if a text is too long to be sent."""
    to_be_sent(msgspec.json.encode({"offer": {"message": text}}))


async def send_text(wormhole: Wormhole, text: str) -> None:
    """Send a text, and wait until the receiver says that it has it. The wormhole has a code; it is not closed here.

    Raises:
        TransferError: the receiver does not want it. The words are the receiver's.
        PeerMessageError: the peer is no receiver of texts.

    """
    await _say(wormhole, {"offer": {"message": text}})
    while True:
        heard = await _hear(wormhole)
        if heard.answer is not None:
            if heard.answer.message_ack != ARRIVED:
                raise TransferError(f"the receiver did not take the text: {heard.answer.message_ack!r}")
            return


async def receive_text(wormhole: Wormhole, use: Callable[[str], None]) -> None:
    """Wait for a text and call `use` with it. The sender is then told that it has arrived.

    If `use` raises, the sender is told nothing, and the error goes on.

    Args:
        wormhole: it has a code; it is not closed here.
        use: gets the text. It is the sender's: it may contain anything, also what steers a terminal.

    Raises:
        TransferError: the sender gave up, or offers something else. In the first case the words are the sender's.
        PeerMessageError: the peer is no sender of texts.

    """
    while True:
        heard = await _hear(wormhole)
        if heard.offer is None:
            continue
        if heard.offer.message is None:
            await abandon(wormhole, TEXTS_ONLY)
            raise TransferError(f"the sender offers a file or a directory, and {TEXTS_ONLY}")
        use(heard.offer.message)
        await _say(wormhole, {"answer": {"message_ack": ARRIVED}})
        return


async def abandon(wormhole: Wormhole, words: str) -> None:
    """Send the peer the reason why there will be no transfer, before the wormhole is closed. Its user sees it."""
    await _say(wormhole, {"error": words})


async def _say(wormhole: Wormhole, message: dict[str, Any]) -> None:
    await wormhole.send(msgspec.json.encode(message))


async def _hear(wormhole: Wormhole) -> _PeerMessage:
    try:
        heard = _decode(await wormhole.receive())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerMessageError(f"the peer sent something that is not a message of a transfer: {error}") from error
    if heard.error is not None:
        raise TransferError(f"the other side gave up: {heard.error}")
    return heard

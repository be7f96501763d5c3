"""Sending and receiving a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from restante.client.arguments import checked_message, is_text
from restante.client.errors import TransferError
from restante.client.transfer.messages import (
    ARRIVED,
    Answer,
    Offer,
    PeerMessage,
    encode,
    reasons_sent,
    refusal,
    send_message,
    wait_for_answer,
    wait_for_offer,
)
from restante.client.transit.records import Role
from restante.client.wormhole import Wormhole
from restante.common.errors import Misuse

TEXTS_ONLY: Final = "this program receives texts only"


def check_text(text: str) -> None:
    """Raise Misuse if a text is too long to be sent, or is no text."""
    if not is_text(text):
        raise Misuse(f"what is sent is a str that UTF-8 can encode, not {text!r:.80}")
    checked_message(encode(PeerMessage(offer=Offer(message=text))))


async def send_text(wormhole: Wormhole, text: str) -> None:
    """Send a text, and wait until the receiver says that it has it. The wormhole has a code; it is not closed here.

    Raises:
        Misuse: it is too long, or is not a text.
        TransferError: the receiver does not want it. The words are the receiver's.
        PeerMessageError: the peer is no receiver of texts.

    """
    check_text(text)
    async with reasons_sent(wormhole, Role.SENDER):
        await send_message(wormhole, PeerMessage(offer=Offer(message=text)))
        with wormhole._expecting("answer"):
            answer, _ = await wait_for_answer(wormhole)
        if answer.message_ack != ARRIVED:
            raise TransferError(f"the receiver refused the text: {refusal(answer.message_ack)}")


async def receive_text(wormhole: Wormhole, use: Callable[[str], None]) -> None:
    """Wait for a text and call `use` with it. The sender is then told that it has arrived.

    If `use` raises, the sender is told that it has not arrived, and the error goes on.

    Args:
        wormhole: it has a code; it is not closed here.
        use: gets the text. It is the sender's: it may contain anything, also what steers a terminal.

    Raises:
        TransferError: the sender gave up, or offers something else. In the first case the words are the sender's.
        PeerMessageError: the peer is no sender of texts.

    """
    async with reasons_sent(wormhole, Role.RECEIVER):
        with wormhole._expecting("offer"):
            offer, _ = await wait_for_offer(wormhole)
        if offer.message is None:
            raise TransferError(f"the sender offers a file or a directory, and {TEXTS_ONLY}")
        use(offer.message)
        await send_message(wormhole, PeerMessage(answer=Answer(message_ack=ARRIVED)))

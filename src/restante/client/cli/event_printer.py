"""What the user of a transfer sees of its events."""

from __future__ import annotations

from typing import Final

from restante.client.events import (
    Awaited,
    Event,
    PeerConfirmed,
    PeerSilent,
    Reconnecting,
    ReplayEnded,
    WaitingForPeer,
    Welcomed,
    Working,
)
from restante.client.transit.pipe import STALL_SECONDS
from restante.common.terminal import excerpt, say

NOBODY_WAITS: Final = "Nobody waits with this code: it was used, is mistyped, or the sender has not started."
"""The text for a receiver whose code leads to an empty mailbox: a sender adds a message as soon as it has a code."""

SILENT: Final = "The other side has not answered for"

CAUSES: Final[dict[Awaited, str]] = {
    "key": "It may have no connection, or it has ended.",
    "offer": "Its user may not have decided yet, or it has ended.",
    "answer": "Its user may not have decided yet, or it has ended.",
}
"""The texts of a peer that may answer after any time."""


class EventPrinter:
    """Prints events on standard error that explain a delay to the user."""

    def __init__(self, *, code_given: bool = False) -> None:
        """`code_given` says that the other side has made the code, and should be there."""
        self._code_given = code_given
        self._motd: str | None = None
        self._work_bits = 0
        self._said_nobody_waits = self._said_waiting = self._confirmed = False

    def show(self, event: Event) -> None:
        """Print an event that explains a delay."""
        match event:
            case Welcomed(motd) if motd and motd != self._motd:
                self._motd = motd
                # Indented, no line of it looks like one of ours, for example that of the code.
                say(f"The server says: {excerpt(motd)}".replace("\n", "\n    "))
            case Working(bits) if bits != self._work_bits:
                self._work_bits = bits
                say(f"The server demands proof of work ({bits} bits); computing it.")
            case WaitingForPeer() if self._code_given and not self._said_nobody_waits:
                self._said_nobody_waits = True
                say(NOBODY_WAITS)
            case ReplayEnded() if not self._said_waiting and not self._confirmed:
                self._said_waiting = True
                say("Waiting for the other side …")
            case PeerConfirmed():
                self._confirmed = True
                say("The other side is there.")
            case PeerSilent(seconds, awaited, None):
                say(f"{SILENT} {seconds:.0f} s. {CAUSES[awaited]} Still waiting; Ctrl-C ends this.")
            case PeerSilent(seconds, "bytes", float(ends_after)) if ends_after > STALL_SECONDS:
                sooner = f"or from {STALL_SECONDS:.0f} s on if its computer, or the relay, stops answering"
                say(f"{SILENT} {seconds:.0f} s. The transfer fails after {ends_after:.0f} s, {sooner}.")
            case PeerSilent(seconds, _, ends_after):
                say(f"{SILENT} {seconds:.0f} s. The transfer fails after {ends_after:.0f} s.")
            case Reconnecting(delay, reason) if delay >= 1:  # shorter ones, as while closing, are not shown
                say(f"{excerpt(reason)}; trying again in {delay:.0f} s")
            case _:
                pass  # `Welcomed.current_cli_version` is a version of the Python client: it is not shown
